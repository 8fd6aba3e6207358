"""Check: is everything in the store what its name says?

Nothing that came whole can be half there afterwards, because it was flushed and then renamed; but disks rot and people tidy up. So this
reads all of it again: documents, blobs and tars against their digests, indexes against what was noted when they were made, written layers
against the list of members of the blob they came from.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from dockless.base.dataclass import dataclass
from dockless.base.typing import BinaryIO
from dockless.errors import BadDigest, BadImage, DocklessError, UnsafeLayer
from dockless.images.catalog.catalog import LAYER_FILE, Catalog
from dockless.images.catalog.pruning import unlist
from dockless.images.files import explained, remove_tree, temporary_directory
from dockless.images.layers import erofs, whiteouts
from dockless.images.layers.compression import CHUNK, Decompressed
from dockless.images.layers.layers import MERGED_FILE, Layer
from dockless.images.layers.merging import merge
from dockless.images.model import digest
from dockless.images.model.digest import Digest


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it should be. ``path``: below the store. ``repaired``: it was removed, or made again."""

    path: str
    why: str
    images: tuple[str, ...] = ()
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """What was looked at, in numbers and bytes, and what is wrong with it."""

    images: int
    parts: int
    size: int
    problems: tuple[Problem, ...]

    @property
    def sound(self) -> bool:
        return all(problem.repaired for problem in self.problems)


def check(store: Catalog, *, repair: bool = False, tell: Callable[[str], None] | None = None) -> Report:
    """Look at everything in the store. ``tell`` is called with each path before it is read.

    ``repair``: what is damaged goes; a layer is made again from its blob where the store still has that, and an image that cannot be
    completed is taken off the list, so that it can be pulled or loaded again.
    """
    with explained(f"cannot check the image store {store.root}", str(store.root), "it belongs to one user"):
        if not store.root.is_dir():
            return Report(0, 0, 0, ())
        with store.using():
            found = _Check(store, tell or (lambda path: None))
            problems = found.all()
            if repair:
                problems = _repair(store, problems)
    return Report(found.images, found.parts, found.size, tuple(problems))


class _Check:
    def __init__(self, store: Catalog, tell: Callable[[str], None]) -> None:
        self._store = store
        self._tell = tell
        self._bad: dict[Path, str] = {}
        self.images = self.parts = self.size = 0

    def all(self) -> list[Problem]:
        for folder in ("blobs", "tars"):
            for name, path in self._named(folder):
                self._hashed(name, path)
        for name, path in self._named("diffs"):
            self._note(name, path)
        needed: dict[Path, list[str]] = {}
        index = self._store.read_index()
        for image in index["images"]:
            self.images += 1
            for path in self._image(image):
                needed.setdefault(path, []).append(image)
        for tag, image in index["tags"].items():
            if image not in index["images"]:
                self._bad[self._store.root / "images.json"] = f"the tag {tag} means an image that is not listed"
        root = self._store.root
        return [Problem(str(path.relative_to(root)), why, tuple(needed.get(path, ()))) for path, why in self._bad.items()]

    def _named(self, folder: str) -> Iterator[tuple[Digest, Path]]:
        """What lies in ``folder`` under a digest; anything else is a problem."""
        place = self._store.root / folder
        for path in sorted(place.glob("*/*")):
            if path.name.startswith("."):
                continue  # on its way to its name when its writer was killed
            self.parts += 1
            try:
                yield digest.parse(f"{path.parent.name}:{path.name}"), path
            except BadDigest:
                self._bad[path] = "its name is not a digest"

    def _hashed(self, name: Digest, path: Path) -> None:
        self._tell(str(path.relative_to(self._store.root)))
        found = name.hasher()
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", buffering=0) as stream:
            while piece := stream.read(CHUNK * 4):
                found.update(piece)
                self.size += len(piece)
        if found.hexdigest() != name.hex:
            self._bad[path] = f"its bytes have the digest {name.algorithm}:{found.hexdigest()}"

    def _note(self, name: Digest, path: Path) -> None:
        try:
            digest.parse(path.read_text())
        except (BadDigest, ValueError):
            self._bad[path] = "it does not hold a digest"

    def _image(self, image: str) -> Iterator[Path]:
        """The paths that an image needs, each looked at once."""
        what = f"image {image}"
        own, config = self._path("blobs", image), self._config(image)
        yield from (own, config)
        try:
            _, parsed, document = self._store.documents(image, what)
        except (BadImage, BadDigest) as error:
            if own not in self._bad and config not in self._bad:
                self._bad[own] = str(error)
            return
        for at, (chain_id, diff_id) in enumerate(zip(digest.chain(document.diff_ids), document.diff_ids, strict=True)):
            place = self._store.layer_path(chain_id)
            yield place
            if place in self._bad:
                continue
            self.parts += 1
            self._tell(str(place.relative_to(self._store.root)))
            try:
                layer = self._store.layer(chain_id, diff_id)
                if layer is None:
                    raise BadImage("the layer is not there")
                self._layer(layer, place, str(diff_id), parsed.layers[at].digest)
            except (BadImage, BadDigest, OSError) as error:
                self._bad[place] = str(error)
            if self._store.tar_path(diff_id) in self._bad:
                self._bad[place] = "the tar that it points into is damaged"
        yield from self._merged(document.diff_ids)

    def _merged(self, diff_ids: tuple[Digest, ...]) -> Iterator[Path]:
        """The one index of all layers, where there is one: it must be what they make of it."""
        chain = digest.chain(diff_ids)
        path = self._store.merged_path(chain[-1]) if chain else None
        if path is None or not path.exists():
            return
        yield path
        found = [self._store.layer(*ids) for ids in zip(chain, diff_ids, strict=True)]
        layers = [layer for layer in found if layer is not None and layer.tar is not None]
        if path in self._bad or path.parent in self._bad or len(layers) < len(found):
            return
        self._tell(str(path.relative_to(self._store.root)))
        with temporary_directory(self._store.root / "tmp") as scratch:
            again = scratch / MERGED_FILE
            if merge(layers, again) and again.read_bytes() != path.read_bytes():
                self._bad[path] = "it is not what its layers make of it"

    def _config(self, image: str) -> Path:
        config = self._store.read_index()["images"].get(image, {}).get("config", "")
        return self._path("blobs", config)

    def _path(self, folder: str, name: str) -> Path:
        return self._store.root.joinpath(folder, *name.split(":", 1))

    def _layer(self, layer: Layer, place: Path, diff_id: str, blob: Digest) -> None:
        try:
            about = json.loads((place / LAYER_FILE).read_bytes())
            if about["diff_id"] != diff_id:
                raise BadImage(f"its {LAYER_FILE} speaks of another layer")
        except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
            raise BadImage(f"its {LAYER_FILE} is damaged: {error}") from error
        if layer.tar is not None:
            raw = layer.path.read_bytes()
            self.size += len(raw)
            if about.get("index") != str(digest.of(raw)):
                raise BadImage("its index is not what was made of the tar")
        elif self._store.has_blob(blob) and self._store.blob_path(blob) not in self._bad:
            with self._store.open_blob(blob) as stream:
                _compare(stream, layer.path)


def _compare(blob: BinaryIO, root: Path) -> None:
    """``BadImage`` where a file of the layer is missing, of another kind, or of another length than in the blob.

    Entries behind a link of the layer itself are left out: where they are depends on more than their own name.
    """
    from dockless.native.layers import TarLister

    lister = TarLister(1 << 30)
    content = Decompressed(blob, str(root))
    while piece := content.read(CHUNK):
        lister.feed(piece)
    members = {member.name.strip(b"/").removeprefix(b"./"): member for member in lister.members}
    top = os.fsencode(root)
    for name, member in members.items():
        parts = name.split(b"/")
        above = {b"/".join(parts[:depth]) for depth in range(1, len(parts))}
        special = any(part.startswith(whiteouts.IN_TAR) or part in (b"", b".") for part in parts)
        replaced = any(members[one].kind != "directory" for one in above if one in members)
        if member.kind not in ("file", "symlink") or special or replaced:
            continue
        try:
            found = os.lstat(os.path.join(top, name))
        except PermissionError:
            continue  # below a directory of one of an ordinary user's subordinate ids
        except OSError as error:
            raise BadImage(f"{os.fsdecode(name)!r} is gone: {error.strerror}") from error
        wanted = stat.S_IFREG if member.kind == "file" else stat.S_IFLNK
        if stat.S_IFMT(found.st_mode) != wanted or (member.kind == "file" and found.st_size != member.size):
            raise BadImage(f"{os.fsdecode(name)!r} is not what the layer's blob has there")


# -- repair --------------------------------------------------------------------------------------------------------------------------


def _repair(store: Catalog, problems: list[Problem]) -> list[Problem]:
    """Remove what is damaged; then make layers again, or give the image up."""
    from dockless.images.archive.ingest import ingest, stored

    with temporary_directory(store.root / "tmp") as grave:
        for number, problem in enumerate(problems):
            path = store.root / problem.path
            if path.name == "images.json":
                continue
            if path.is_dir() and not path.is_symlink():
                os.rename(path, grave / str(number))
                remove_tree(grave / str(number))
            else:
                path.unlink(missing_ok=True)
    erofs.release()
    with store.changing() as index:
        index["tags"] = {tag: name for tag, name in index["tags"].items() if name in index["images"]}
    failed: DocklessError | None = None
    for name in {name for problem in problems for name in problem.images}:
        try:
            tags = tuple(tag for tag, target in store.read_index()["tags"].items() if target == name)
            ingest(store, [stored(store, name, tags)])
        except (BadImage, BadDigest, UnsafeLayer):
            unlist(store, {name})
        except DocklessError as error:  # the disk's fault and not the image's: the next repair completes it
            failed = error
    if failed is not None:
        raise failed
    return [Problem(problem.path, problem.why, problem.images, True) for problem in problems]
