"""Loading: bytes from a source are verified while they stream, and become layers that nobody sees before they are complete.

::

    source ──► Hashing (blob digest, size) ──► Decompressed ──► Hashing (diff_id) ──► TarReader ──► layer writer ──► tmp/
                                                                                        all verified, syncfs ──► rename to layers/

Where something goes wrong in the middle of a layer, the rest of the blob is still read: damaged bytes are reported as ``BadDigest``
rather than as whatever they broke.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from dockless.errors import BadDigest, BadImage, BadInput, ImageError
from dockless.images import digest, manifest
from dockless.images.compression import CHUNK, Decompressed
from dockless.images.digest import Digest
from dockless.images.discover import Candidate, LayerSource, candidates
from dockless.images.files import explained, locked, make_private, sweep, sync_directory, sync_filesystem, temporary_directory, write_atomic
from dockless.images.image import Image
from dockless.images.layer import unpack
from dockless.images.limits import UnpackLimits
from dockless.images.progress import Progress
from dockless.images.source import open_source
from dockless.images.store import Store
from dockless.images.tarstream import TarReader

_STEP = 1 << 20
_SUFFIX = {"none": "", "gzip": "+gzip", "zstd": "+zstd", "xz": "+xz", "bzip2": "+bzip2"}


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer that is in the store. ``digest``, ``size``, ``media_type``: of the blob it came from."""

    digest: Digest
    size: int
    media_type: str
    unpacked: int
    warnings: tuple[str, ...]


def load(store: Store, path: Path, name: str | None, progress: Callable[[Progress], None] | None) -> list[Image]:
    """See ``Store.load``."""
    doing, hint = f"cannot load {path}", f"check that the image store {store.root} is on a writable file system with room"
    with explained(doing, str(path), hint):
        store.prepare()
        sweep(store.root / "tmp")
        with temporary_directory(store.root / "tmp") as scratch:
            source = open_source(path, scratch, store.limits.size)
            try:
                found = candidates(source)
                if name is not None and len({candidate.config for candidate in found}) > 1:
                    raise BadInput(
                        f"{path} holds {len(found)} images; one name cannot fit them all", subject=str(path), hint="load it without a name"
                    )
                loaded = [_image(store, candidate, progress) for candidate in found]
            finally:
                source.close()
        tags: dict[str, str] = {}
        for candidate, (image_digest, _) in zip(found, loaded, strict=True):
            tags.update(dict.fromkeys((name,) if name is not None else candidate.names, image_digest))
        store.register(dict(loaded), tags)
    return _results(store, [found_digest for found_digest, _ in loaded], tags)


def _results(store: Store, digests: list[str], tags: dict[str, str]) -> list[Image]:
    """One image per tag, one for each image without."""
    images = []
    for image_digest in dict.fromkeys(digests):
        own: list[str | None] = [tag for tag, target in tags.items() if target == image_digest]
        images += [store.image(image_digest, tag) for tag in own or [None]]
    return images


def _image(store: Store, candidate: Candidate, progress: Callable[[Progress], None] | None) -> tuple[str, dict[str, Any]]:
    """Bring one image's layers and documents into the store; its manifest digest and what the list says about it."""
    diff_ids = candidate.document.diff_ids
    chain = digest.chain(diff_ids)
    layers: list[_Layer] = []
    below: list[Path] = []
    shown = candidate.names[0] if candidate.names else ""
    for at, (source, diff_id, chain_id) in enumerate(zip(candidate.layers, diff_ids, chain, strict=True), 1):

        def tell(done: int, total: int | None, state: Any, at: int = at, source: LayerSource = source, diff_id: Digest = diff_id) -> None:
            if progress is not None:
                progress(Progress(shown, at, len(diff_ids), str(source.digest or diff_id), done, total, state))

        layers.append(_layer(store, source, diff_id, chain_id, below, tell))
        below.append(store.layer_path(chain_id) / "fs")
    config_digest = digest.of(candidate.config)
    raw = candidate.manifest if candidate.manifest is not None else _write_manifest(candidate.config, config_digest, layers)
    parsed = manifest.parse(raw, candidate.what)
    assert isinstance(parsed, manifest.Manifest)
    image_digest = digest.of(raw)
    store.put_blob(candidate.config, parsed.config.digest)
    store.put_blob(raw, image_digest)
    entry = {
        "config": str(parsed.config.digest),
        "size": sum(layer.unpacked for layer in layers),
        "warnings": [*candidate.warnings, *(warning for layer in layers for warning in layer.warnings)],
    }
    return str(image_digest), entry


def _write_manifest(config_raw: bytes, config_digest: Digest, layers: Sequence[_Layer]) -> bytes:
    """The OCI manifest of an image that came without one."""
    document = {
        "schemaVersion": 2,
        "mediaType": manifest.OCI_MANIFEST,
        "config": {"mediaType": manifest.OCI_CONFIG, "digest": str(config_digest), "size": len(config_raw)},
        "layers": [{"mediaType": layer.media_type, "digest": str(layer.digest), "size": layer.size} for layer in layers],
    }
    return json.dumps(document, separators=(",", ":")).encode()


def _layer(
    store: Store, source: LayerSource, diff_id: Digest, chain_id: Digest, below: list[Path], tell: Callable[[int, int | None, Any], None]
) -> _Layer:
    """Make sure that the layer is in the store and that the source's bytes are what they should be. One process unpacks, others wait."""
    final = store.layer_path(chain_id)
    make_private(final.parent)
    with locked(store.root / "locks" / f"{chain_id.algorithm}-{chain_id.hex}"):
        here = final.is_dir()
        if here and source.digest is not None and store.verified(source.digest) == diff_id:
            tell(source.size or 0, source.size, "shared")
            return _described(final, source.digest, source.size or 0, "")
        with source.open() as stream:
            if here:
                return _verify(store, final, source, stream, diff_id, tell)
            with temporary_directory(store.root / "tmp") as scratch:
                return _unpack(store, scratch, final, source, stream, diff_id, chain_id, below, tell)


def _described(final: Path, blob: Digest, size: int, media_type: str) -> _Layer:
    try:
        about = json.loads((final / "layer.json").read_bytes())
        return _Layer(blob, size, media_type, int(about["size"]), tuple(about["warnings"]))
    except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
        raise BadImage(
            f"the image store's layer {final} is damaged: {error}",
            subject=str(final),
            hint="remove that directory and load the image again",
        ) from error


def _verify(
    store: Store, final: Path, source: LayerSource, stream: BinaryIO, diff_id: Digest, tell: Callable[[int, int | None, Any], None]
) -> _Layer:
    pipe = _Pipe(source, stream, diff_id, store.limits, lambda done: tell(done, source.size, "verifying"))
    blob = pipe.finish()
    store.set_verified(blob, diff_id)
    tell(pipe.blob.done, source.size, "done")
    return _described(final, blob, pipe.blob.done, pipe.media_type)


def _unpack(
    store: Store,
    scratch: Path,
    final: Path,
    source: LayerSource,
    stream: BinaryIO,
    diff_id: Digest,
    chain_id: Digest,
    below: list[Path],
    tell: Callable[[int, int | None, Any], None],
) -> _Layer:
    complete = scratch / "layer"
    root = complete / "fs"
    complete.mkdir(mode=0o700)
    root.mkdir(mode=0o700)
    pipe = _Pipe(source, stream, diff_id, store.limits, lambda done: tell(done, source.size, "unpacking"))
    try:
        result = unpack(TarReader(pipe.content, source.what), root, below, source.what, limits=store.limits)
    except ImageError as error:
        pipe.blame(error)
        raise
    blob = pipe.finish()
    about = {
        "diff_id": str(diff_id),
        "chain_id": str(chain_id),
        "size": result.size,
        "entries": result.entries,
        "warnings": list(result.warnings),
    }
    write_atomic(complete / "layer.json", json.dumps(about).encode())
    sync_filesystem(complete)
    os.rename(complete, final)
    sync_directory(final.parent)
    store.set_verified(blob, diff_id)
    tell(pipe.blob.done, source.size, "done")
    return _Layer(blob, pipe.blob.done, pipe.media_type, result.size, result.warnings)


class _Hashing(io.RawIOBase):
    """Passes bytes through, hashing them. More than ``limit`` of them raise ``over``."""

    def __init__(
        self, raw: Any, name: Digest, limit: int | None, over: Callable[[], Exception], tell: Callable[[int], None] | None = None
    ) -> None:
        self._raw = raw
        self._hash = name.hasher()
        self._algorithm = name.algorithm
        self._limit = limit
        self._over = over
        self._tell = tell
        self._told = 0
        self.done = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._raw.read(CHUNK if size < 0 else size)
        self._hash.update(data)
        self.done += len(data)
        if self._limit is not None and self.done > self._limit:
            raise self._over()
        if self._tell is not None and self.done >= self._told + _STEP:
            self._told = self.done
            self._tell(self.done)
        return data

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def drain(self) -> None:
        while self.read(CHUNK):
            pass

    def digest(self) -> Digest:
        return Digest(self._algorithm, self._hash.hexdigest())


class _Pipe:
    """A layer's way from the source to the tar reader; ``content`` gives the uncompressed bytes."""

    def __init__(self, source: LayerSource, stream: BinaryIO, diff_id: Digest, limits: UnpackLimits, tell: Callable[[int], None]) -> None:
        self._source = source
        self._diff_id = diff_id
        self.blob = _Hashing(stream, source.digest or Digest("sha256", ""), source.size, self._too_long, tell)
        try:
            self._decompressed = Decompressed(self.blob, source.what)  # type: ignore[arg-type]
        except ImageError as error:
            self.blame(error)
            raise
        # Room for headers and padding beside the content; a stream of zeros behind the end of the archive ends here too (attack A12).
        self._content = _Hashing(self._decompressed, diff_id, limits.size + 4096 * limits.entries, self._too_big)
        self.content: BinaryIO = io.BufferedReader(self._content, CHUNK)
        self.media_type = manifest.OCI_LAYER + _SUFFIX[self._decompressed.kind]

    def finish(self) -> Digest:
        """Read what is left, check both digests; the blob's."""
        try:
            self._content.drain()
        except ImageError as error:
            self.blame(error)
            raise
        self._check_blob()
        digest.verdict(self._content.digest(), self._diff_id, f"{self._source.what}: uncompressed content")
        return self.blob.digest()

    def blame(self, error: ImageError) -> None:
        """After ``error``: raise ``BadDigest`` instead if the blob's bytes are not what they should be."""
        if self._source.digest is not None and not isinstance(error, BadDigest):
            try:
                self._check_blob()
            except BadDigest as cause:
                raise cause from error

    def _check_blob(self) -> None:
        self.blob.drain()
        if self._source.digest is not None:
            digest.verdict(self.blob.digest(), self._source.digest, self._source.what)
        if self._source.size is not None and self.blob.done != self._source.size:
            raise BadDigest(
                f"{self._source.what} has {self.blob.done} bytes, expected {self._source.size}", subject=str(self._source.digest)
            )

    def _too_long(self) -> BadDigest:
        return BadDigest(f"{self._source.what} has more than the expected {self._source.size} bytes", subject=str(self._source.digest))

    def _too_big(self) -> ImageError:
        return ImageError(
            f"{self._source.what} decompresses to too much", subject=self._source.what, hint="raise the limits of the store if you trust it"
        )
