"""Save: images out of the store, as files that every tool of the field reads.

::

    oci-tar         an OCI layout in one tar, with manifest.json beside index.json so that docker load takes it as well (the default)
    oci-dir         an OCI layout as a directory; one that is there gets the images added
    docker-archive  what docker save wrote before it knew OCI: configurations, uncompressed layers, manifest.json

Manifests, configurations and blobs are copied byte for byte, so digests survive (in a docker-archive the image id alone: it has no
manifests). A blob that images share is written once. Every blob is hashed while it is copied; one that is not what its name says ends the
save. Files appear whole or not at all, and two saves of the same images are equal.

https://github.com/opencontainers/image-spec/blob/main/image-layout.md, https://github.com/moby/docker-image-spec
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from dockless.base.dataclass import dataclass
from dockless.base.typing import Any, BinaryIO, Literal, Protocol, cast
from dockless.errors import BadImage, BadInput
from dockless.images.archive.assemble import to_json
from dockless.images.archive.output import Destination, archive, replaced, shown, unwritten
from dockless.images.archive.packing import Compression, check_level
from dockless.images.archive.tarwriter import DIRECTORY, TarMember, TarWriter
from dockless.images.catalog.catalog import Catalog
from dockless.images.catalog.image import Image
from dockless.images.catalog.pins import pinned
from dockless.images.files import check_room, explained, is_left_over, make_private
from dockless.images.layers.compression import CHUNK, Decompressed
from dockless.images.model import digest, manifest
from dockless.images.model.config import ConfigDocument
from dockless.images.model.digest import Digest
from dockless.images.model.manifest import Manifest
from dockless.images.progress import Progress

Format = Literal["oci-tar", "oci-dir", "docker-archive"]
FORMATS = ("oci-tar", "oci-dir", "docker-archive")
_LAYOUT = to_json({"imageLayoutVersion": "1.0.0"})
_ROOM = 64 << 20


@dataclass(frozen=True, slots=True)
class _Saved:
    """One image (with all its names) and its documents."""

    digest: Digest
    names: tuple[str, ...]
    raw: bytes
    parsed: Manifest
    document: ConfigDocument
    config: bytes


class _Sink(Protocol):
    """Where the files go."""

    def small(self, name: str, data: bytes) -> None: ...
    def blob(self, name: str, size: int, read: Callable[[], Iterator[bytes]]) -> None: ...


def save(
    store: Catalog,
    images: Sequence[Image | str],
    destination: Destination,
    *,
    format: Format = "oci-tar",
    compression: Compression = "none",
    level: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> None:
    """Write ``images`` (or what their references name) to a path, or to an open file (not ``oci-dir``). ``compression``: of the archive.
    ``progress`` is told of each layer, in the states ``saving`` and ``done``.

    Raises ``BadInput``, ``UnknownImage``, ``BadImage`` where the store does not keep a layer's blob any more, ``BadDigest``,
    ``ImageError``.
    """
    if format not in FORMATS:
        raise BadInput(f"there is no format {format!r}", subject=format, hint=f"one of {', '.join(FORMATS)}")
    check_level(compression, level)
    found = [store.get(image) if isinstance(image, str) else image for image in images]
    for image in found:
        if image.is_host:
            raise BadInput("the host is no image that can be saved", subject=image.name, hint="name an image of 'dockless images'")
    if not found:
        raise BadInput("no image to save", hint="name at least one; 'dockless images' lists them")
    where = shown(destination)
    with _reading(store), pinned(store, found):
        saved = _documents(store, found, unpacked=format == "docker-archive")
        if format == "oci-dir":
            if not isinstance(destination, (str, os.PathLike)) or compression != "none":
                raise BadInput("an oci-dir is a directory, not a stream, and not compressed", subject=where, hint="use oci-tar")
            with unwritten(destination):
                _into_directory(store, saved, Path(destination), _report(saved, progress))
        else:
            fill = _oci if format == "oci-tar" else _docker
            with archive(destination, compression, level) as tar, _reading(store):
                fill(store, saved, _Archive(tar, _report(saved, progress)))


def _reading(store: Catalog) -> contextlib.AbstractContextManager[None]:
    return explained(f"cannot read the image store {store.root}", str(store.root), "dockless images check")


def _documents(store: Catalog, images: Sequence[Image], *, unpacked: bool) -> list[_Saved]:
    """Every image once, with all the names it is asked for by, and the assurance that its blobs are there; ``unpacked``: or what they
    decompress to."""
    names: dict[str, list[str]] = {}
    for image in images:
        own = names.setdefault(image.digest, [])
        if image.reference is not None and image.reference not in own:
            own.append(image.reference)
    saved = []
    for name, tags in names.items():
        what = f"image {tags[0] if tags else name}"
        raw, parsed, document = store.documents(name, what)
        for layer, diff_id in zip(parsed.layers, document.diff_ids, strict=True):
            if not store.has_blob(layer.digest) and not (unpacked and store.tar_path(diff_id).is_file()):
                raise BadImage(
                    f"{what}: the store does not keep the blob {layer.digest} of its layers any more",
                    subject=what,
                    hint="pull or load that image again; then its blobs are there",
                )
        saved.append(_Saved(digest.parse(name), tuple(tags), raw, parsed, document, store.read_blob(parsed.config.digest, what)))
    return saved


# -- OCI -----------------------------------------------------------------------------------------------------------------------------


def _oci(store: Catalog, saved: Sequence[_Saved], sink: _Sink) -> None:
    sink.small("oci-layout", _LAYOUT)
    sink.small("index.json", to_json(_index([_descriptor(one, name) for one in saved for name in one.names or (None,)])))
    entries = [
        {
            "Config": _path(one.parsed.config.digest),
            "RepoTags": list(one.names),
            "Layers": [_path(layer.digest) for layer in one.parsed.layers],
        }
        for one in saved
    ]
    sink.small("manifest.json", to_json(entries))
    _blobs(store, saved, sink)


def _blobs(store: Catalog, saved: Sequence[_Saved], sink: _Sink) -> None:
    """Every blob once, by name."""
    files: dict[str, tuple[int, Callable[[], Iterator[bytes]]]] = {}
    for one in saved:
        for name, data in ((one.digest, one.raw), (one.parsed.config.digest, one.config)):
            files[_path(name)] = len(data), partial(_given, data)
        for layer in one.parsed.layers:
            files[_path(layer.digest)] = layer.size, partial(_stored, store, layer.digest)
    for path, (size, read) in sorted(files.items()):
        sink.blob(path, size, read)


def _path(name: Digest) -> str:
    return f"blobs/{name.algorithm}/{name.hex}"


def _index(entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {"schemaVersion": 2, "mediaType": manifest.OCI_INDEX, "manifests": entries}


def _descriptor(one: _Saved, name: str | None) -> dict[str, Any]:
    stated = manifest.load_json(one.raw, f"image {one.digest}").get("mediaType")
    docker = stated == manifest.DOCKER_MANIFEST or (not stated and one.parsed.config.media_type == manifest.DOCKER_CONFIG)
    entry: dict[str, Any] = {
        "mediaType": manifest.DOCKER_MANIFEST if docker else manifest.OCI_MANIFEST,
        "digest": str(one.digest),
        "size": len(one.raw),
    }
    if name is not None:
        # The whole reference: a bare tag would be ambiguous between images, and podman would make it localhost/… of it.
        entry["annotations"] = {manifest.CONTAINERD_NAME: name, manifest.REF_NAME: name}
    return entry


def _into_directory(store: Catalog, saved: Sequence[_Saved], place: Path, report: _Reporting) -> None:
    """Blobs first, index.json last: whoever looks meanwhile sees the old images, or the new ones whole."""
    index = place / "index.json"
    entries: list[dict[str, Any]] = []
    if index.exists():
        old = manifest.load_json(index.read_bytes(), str(index))
        if not isinstance(old, dict) or not isinstance(old.get("manifests"), list):
            raise BadImage(f"{index} is not an index", subject=str(place), hint="save to another directory")
        entries = old["manifests"]
    elif place.is_dir() and not (place / "oci-layout").exists() and not all(is_left_over(path, "oci-layout") for path in place.iterdir()):
        raise BadInput(f"{place} is neither empty nor an OCI layout", subject=str(place), hint="save to a new directory")
    place.mkdir(parents=True, exist_ok=True)
    sink = _Directory(store, place, report)
    sink.small("oci-layout", _LAYOUT)  # first, so that a save that was cut short can go on
    _blobs(store, saved, sink)
    new = [_descriptor(one, name) for one in saved for name in one.names or (None,)]
    taken = {_ref(entry) for entry in new} - {None}
    kept = [entry for entry in entries if entry not in new and (_ref(entry) is None or _ref(entry) not in taken)]
    sink.small("index.json", to_json(_index([*kept, *new])))


def _ref(entry: dict[str, Any]) -> Any:
    return (entry.get("annotations") or {}).get(manifest.REF_NAME)


# -- docker-archive ------------------------------------------------------------------------------------------------------------------


def _docker(store: Catalog, saved: Sequence[_Saved], sink: _Sink) -> None:
    entries = [
        {
            "Config": f"{one.parsed.config.digest.hex}.json",
            "RepoTags": list(one.names) or None,
            "Layers": [f"{diff_id.hex}.tar" for diff_id in one.document.diff_ids],
        }
        for one in saved
    ]
    written: set[str] = set()
    for one in saved:
        for layer, diff_id in zip(one.parsed.layers, one.document.diff_ids, strict=True):
            if diff_id.hex not in written:
                written.add(diff_id.hex)
                with _content(store, layer.digest, diff_id) as file:
                    size = os.fstat(file.fileno()).st_size
                    sink.blob(f"{diff_id.hex}.tar", size, partial(_verified, file, diff_id))
        config = f"{one.parsed.config.digest.hex}.json"
        if config not in written:
            written.add(config)
            sink.small(config, one.config)
    sink.small("manifest.json", to_json(entries))


@contextlib.contextmanager
def _content(store: Catalog, blob: Digest, diff_id: Digest) -> Iterator[BinaryIO]:
    """A layer uncompressed, as a file: its size stands in the archive before its bytes do."""
    try:
        file: BinaryIO = open(store.tar_path(diff_id), "rb")  # noqa: SIM115 - closed below
    except (FileNotFoundError, PermissionError):
        scratch = make_private(store.root / "tmp") if os.access(store.root, os.W_OK) else None
        file = cast(BinaryIO, tempfile.TemporaryFile(dir=scratch))  # noqa: SIM115
        room = 0
        with store.open_blob(blob) as raw:
            stream = Decompressed(raw, f"layer {blob}")
            while piece := stream.read(CHUNK):
                if file.tell() >= room:
                    check_room(file.fileno(), len(piece), f"layer {blob}")
                    room = file.tell() + _ROOM
                file.write(piece)
        file.seek(0)
    with file:
        yield file


# -- progress ------------------------------------------------------------------------------------------------------------------------

_Reporting = Callable[[str, int, Iterator[bytes]], Iterator[bytes]]


def _report(saved: Sequence[_Saved], progress: Callable[[Progress], None] | None) -> _Reporting:
    """Passes the bytes of a file on, and tells of them where it is a layer."""
    whose: dict[str, tuple[str, int, int, str]] = {}
    for one in saved:
        name = one.names[0] if one.names else str(one.digest)
        pairs = zip(one.parsed.layers, one.document.diff_ids, strict=True)
        for at, (layer, diff_id) in enumerate(pairs, 1):
            about = (name, at, len(one.parsed.layers), str(layer.digest))
            whose.setdefault(_path(layer.digest), about)
            whose.setdefault(f"{diff_id.hex}.tar", about)

    def report(path: str, size: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
        if progress is None or path not in whose:
            yield from pieces
            return
        done = 0
        for piece in pieces:
            yield piece
            done += len(piece)
            progress(Progress(*whose[path], done, size, "saving"))
        progress(Progress(*whose[path], done, size, "done"))

    return report


# -- places --------------------------------------------------------------------------------------------------------------------------


def _given(data: bytes) -> Iterator[bytes]:
    yield data


def _stored(store: Catalog, name: Digest) -> Iterator[bytes]:
    return _verified(store.open_blob(name), name)


def _verified(stream: BinaryIO, name: Digest) -> Iterator[bytes]:
    hasher = name.hasher()
    with stream:
        while piece := stream.read(CHUNK):
            hasher.update(piece)
            yield piece
    digest.verdict(Digest(name.algorithm, hasher.hexdigest()), name, "the image store's blob")


def _whole(name: str, size: int, pieces: Iterator[bytes], write: Callable[[bytes], object]) -> None:
    """All pieces, and no byte more or less than announced."""
    done = 0
    for piece in pieces:
        done += len(piece)
        if done > size:
            break
        write(piece)
    if done != size:
        raise BadImage(
            f"the image store's {name} has not the {size} bytes that its manifest says", subject=name, hint="pull the image again"
        )


class _Archive:
    """A tar with fixed owners, modes and times."""

    def __init__(self, tar: TarWriter, report: _Reporting) -> None:
        self._tar = tar
        self._report = report
        self._folders: set[str] = set()

    def small(self, name: str, data: bytes) -> None:
        self.blob(name, len(data), partial(_given, data))

    def blob(self, name: str, size: int, read: Callable[[], Iterator[bytes]]) -> None:
        folder = name.rpartition("/")[0]
        for parent in _parents(folder) if folder else ():
            if parent not in self._folders:
                self._folders.add(parent)
                self._tar.add(TarMember(parent.encode(), DIRECTORY, 0o755))
        self._tar.add(TarMember(name.encode(), size=size))
        _whole(name, size, self._report(name, size, read()), self._tar.write)


def _parents(folder: str) -> list[str]:
    parts = folder.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


class _Directory:
    """Files below a directory, each replaced as a whole; a blob that is there with the right size stays."""

    def __init__(self, store: Catalog, place: Path, report: _Reporting) -> None:
        self._store = store
        self._place = place
        self._report = report

    def small(self, name: str, data: bytes) -> None:
        self._write(name, len(data), iter((data,)))

    def blob(self, name: str, size: int, read: Callable[[], Iterator[bytes]]) -> None:
        path = self._place / name
        if path.is_file() and path.stat().st_size == size:
            return
        self._write(name, size, self._report(name, size, read()))

    def _write(self, name: str, size: int, pieces: Iterator[bytes]) -> None:
        path = self._place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path) as out, _reading(self._store):
            _whole(name, size, pieces, out.write)
