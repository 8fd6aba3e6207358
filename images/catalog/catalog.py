"""The image store: blobs by digest, layers by chain id, tags. Several processes may use it at once.

::

    store/
      images.json                    tags and what was loaded; replaced as a whole
      blobs/<algorithm>/<hex>        manifests, configurations, and layers as they came
      diffs/<algorithm>/<hex>        for a layer blob that was verified once: the digest of what it decompresses to
      layers/<algorithm>/<hex>/      a chain id: layer.json beside fs/ (a directory) or index.erofs (over a tar); complete or not at all
      tars/<algorithm>/<hex>         the uncompressed tars that indexes point into, by diff id
      partial/                       blobs on their way from a registry: a cut transfer goes on here
      pins/                          a file per image: locked while something runs from it, its time is the last use
      reserved/                      room that running pulls have been promised
      uploads/                       where large blobs on their way to a registry go on
      locks/                         one per layer being unpacked, one for images.json, one that says the store is being used
      tmp/                           work in progress, each locked by its maker; a crash's left-overs go at the next load

A layer is found by its **chain id**, the digest over its own content's digest and those of all layers below it, so an image can only
ever get bytes that its own configuration names (attack A20). Small documents are checked against their digest whenever they are read.

Layers hold setuid programs, so nobody but the owner may reach them (CVE-2021-41091); of root's store everybody may read the list and the
blobs, which are inert, and load from there what root has already pulled.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from dockless.base import json, paths
from dockless.base.checks import checked
from dockless.base.later import re
from dockless.base.path import Path
from dockless.base.paths import StrPath
from dockless.base.typing import Any, BinaryIO
from dockless.errors import BadDigest, BadImage, BadInput, UnknownImage
from dockless.images.catalog.image import HOST, Image, host_image
from dockless.images.files import explained, locked, make_private, sweep, sync_directory, temporary_directory, write_atomic
from dockless.images.layers.layers import INDEX_FILE, MERGED_FILE, MERGED_FROM, Layer
from dockless.images.layers.limits import UnpackLimits
from dockless.images.model import config, digest, manifest, platforms, reference
from dockless.images.model.config import ImageConfig
from dockless.images.model.digest import Digest

LAYER_FILE = "layer.json"
_PRIVATE = ("layers", "tars", "partial", "pins", "reserved", "uploads", "locks", "tmp")
_SHARED = ("blobs", "diffs")
_ID = r"(?:sha256:)?([0-9a-f]{8,64})\Z"


# What get() answered last, by store and reference: starting the same image again must not read the store again.
_kept: dict[tuple[str, str], tuple[tuple[int, ...], Image]] = {}
_KEPT_AT_MOST = 256


class Catalog:
    """What the store at ``root`` (``paths.store()`` by default) holds, and where. Nothing is created before something is to be stored.

    ``index``: whether layers are indexed rather than written (see ``catalog.unpacking``); None: where this kernel and this user can.
    """

    @checked
    def __init__(self, root: StrPath | None = None, *, limits: UnpackLimits | None = None, index: bool | None = None) -> None:
        self.root = (paths.store() if root is None else Path(root)).absolute()
        self.list_path = str(self.root / "images.json")
        self.limits = limits or UnpackLimits()
        self.index = index

    @checked
    def get(self, ref: str) -> Image:
        """The image of a reference, a digest (``sha256:…``), or the beginning of one (8 digits or more); ``host`` is the host itself."""
        if ref == HOST:
            return host_image()
        key = (self.list_path, ref)
        stamp = self._stamp()
        kept = _kept.get(key)
        if kept is not None and kept[0] == stamp:
            return kept[1]
        with self._reading():
            index = self.read_index()
            found, tag = self._find(ref, index)
            if found is not None:
                image = self._image(found, tag, index)
                if len(_kept) >= _KEPT_AT_MOST:
                    _kept.clear()
                _kept[key] = (stamp, image)
                return image
        raise unknown(ref)

    @checked
    def find(self, ref: str) -> Image:
        """As ``get``, but also an image that lacks a layer; it cannot be run, only removed or repaired. ``UnknownImage``"""
        with self._reading():
            found, tag = self._find(ref, self.read_index())
        if found is None:
            raise unknown(ref)
        return Image(reference=tag, digest=found, config=ImageConfig(), layers=())

    def _stamp(self) -> tuple[int, ...]:
        """What changes with every change of images.json, which is only ever replaced as a whole: the number of a file that is gone is given
        again, its size is the same when a tag moves, and a clock ticks every few milliseconds, so ``changing`` sees to a later time."""
        try:
            found = os.stat(self.list_path)
        except OSError:
            return ()
        return found.st_ino, found.st_mtime_ns, found.st_size

    def list(self) -> list[Image]:
        """Every tag, sorted, then the images that have none; without those of ``unusable``."""
        return self.listed()[0]

    def unusable(self) -> dict[str, BadImage | BadDigest]:
        """What ``list`` leaves out, by tag or digest, and why: damaged, or loaded by an earlier version that took what this one refuses."""
        return self.listed()[1]

    def listed(self) -> tuple[builtins.list[Image], dict[str, BadImage | BadDigest]]:
        """What ``list`` and ``unusable`` say, of one reading of the store."""
        with self._reading():
            index = self.read_index()
            tags: dict[str, str] = index["tags"]
            untagged = sorted(set(index["images"]).difference(tags.values()))
            images, unusable = [], {}
            for found, tag in [*((found, tag) for tag, found in sorted(tags.items())), *((found, None) for found in untagged)]:
                try:
                    images.append(self._image(found, tag, index))
                except (BadImage, BadDigest) as error:
                    unusable[tag or found] = error
            return images, unusable

    # -- what the rest of the package needs ------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the store's directories; remove what crashes left over."""
        make_private(self.root)
        for name in _PRIVATE:
            make_private(self.root / name)
        for name in _SHARED:
            self._shared(self.root / name)
        if os.geteuid() == 0:
            os.chmod(self.root, 0o755)
        sweep(self.root / "tmp")

    def _shared(self, path: Path) -> Path:
        """A directory whose content is inert: others may read it if this is root's store."""
        make_private(path)
        if os.geteuid() == 0:
            os.chmod(path, 0o755)
        return path

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """While this is held, nothing is removed from the store for not being listed yet."""
        self.prepare()
        with locked(self.root / "locks" / "using", shared=True):
            yield

    def layer_path(self, chain_id: Digest) -> Path:
        return self.root / "layers" / chain_id.algorithm / chain_id.hex

    def tar_path(self, diff_id: Digest) -> Path:
        return self.root / "tars" / diff_id.algorithm / diff_id.hex

    def layer(self, chain_id: Digest, diff_id: Digest) -> Layer | None:
        """The layer of a chain id, None if the store has none. ``diff_id``: of its own content."""
        # Texts and not paths: an image may have a hundred layers, and each is looked at before it starts.
        place, tar = f"{self.root}/layers/{chain_id.algorithm}/{chain_id.hex}", f"{self.root}/tars/{diff_id.algorithm}/{diff_id.hex}"
        if os.path.isdir(f"{place}/fs"):
            return Layer(Path(f"{place}/fs"))
        index = f"{place}/{INDEX_FILE}"
        return Layer(Path(index), Path(tar)) if os.path.isfile(index) and os.path.isfile(tar) else None

    def merged_path(self, top: Digest) -> Path:
        """Of the one index of all layers up to this chain id, which names all that it is made of. It lies and goes with that layer."""
        return self.layer_path(top) / MERGED_FILE

    def blob_path(self, name: Digest) -> Path:
        return self.root / "blobs" / name.algorithm / name.hex

    def partial_path(self, name: Digest) -> Path:
        """Where a blob is gathered while it is on its way; its directory is there."""
        return make_private(self.root / "partial" / name.algorithm) / name.hex

    def has_blob(self, name: Digest) -> bool:
        return self.blob_path(name).is_file()

    def open_blob(self, name: Digest) -> BinaryIO:
        """A blob's bytes, not verified again. ``BadImage`` if the store does not have it (any more)."""
        try:
            return open(os.open(self.blob_path(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb", buffering=0)
        except FileNotFoundError:
            raise BadImage(f"the store does not keep the blob {name}", subject=str(name), hint="pull or load the image again") from None

    def read_blob(self, name: Digest, what: str) -> bytes:
        """A small document, checked against its digest."""
        try:
            fd = os.open(self.blob_path(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise BadImage(
                f"{what}: the store lacks its document {name}",
                subject=what,
                hint="dockless images check --repair, then pull or load it again",
            ) from None
        with open(fd, "rb") as stream:
            data = stream.read(min(os.fstat(fd).st_size, manifest.DOCUMENT_MAX) + 1)  # room for so much is taken before it is read
        digest.check(data, name, f"{what}: the store's document")
        return data

    def put_blob(self, data: bytes, name: Digest) -> None:
        """Keep a small document whose digest has been checked."""
        path = self._shared(self.root / "blobs" / name.algorithm) / name.hex
        if not path.exists():
            self._replace(path, data)

    def _replace(self, path: Path, data: bytes, *, after: int = -1) -> None:
        """``path``, whole or not at all. What a killed process, or a disk that refuses to remove it, leaves is swept with the rest.
        ``after``: the file that it replaces was changed then, in nanoseconds; it says of itself that it is younger."""
        with temporary_directory(self.root / "tmp") as scratch:
            write_atomic(scratch / "new", data, self._mode)
            if (scratch / "new").stat().st_mtime_ns <= after:
                os.utime(scratch / "new", ns=(after + 1, after + 1))
            os.rename(scratch / "new", path)
        sync_directory(path.parent)

    def keep_blob(self, temporary: Path, name: Digest) -> None:
        """Take over a file of the store that has been verified to be this blob, and flushed.

        A second name and then the loss of the first, rather than a new name: another process that has verified the same download may have
        been quicker, and what lies under the old name by now may be somebody's new, empty file.
        """
        path = self._shared(self.root / "blobs" / name.algorithm) / name.hex
        if path.exists():
            temporary.unlink(missing_ok=True)
            return
        try:
            os.chmod(temporary, self._mode)
            os.link(temporary, path)
        except FileExistsError:
            pass
        except FileNotFoundError:
            if not path.exists():
                raise
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
                raise
            os.rename(temporary, path)  # a file system without hard links
        temporary.unlink(missing_ok=True)
        sync_directory(path.parent)

    @property
    def _mode(self) -> int:
        return 0o644 if os.geteuid() == 0 else 0o600

    def verified(self, blob: Digest) -> Digest | None:
        """What the layer blob decompresses to, if this store has verified it once."""
        try:
            return digest.parse((self.root / "diffs" / blob.algorithm / blob.hex).read_text())
        except (FileNotFoundError, BadDigest):
            return None

    def set_verified(self, blob: Digest, diff_id: Digest) -> None:
        if self.verified(blob) != diff_id:
            self._replace(self._shared(self.root / "diffs" / blob.algorithm) / blob.hex, str(diff_id).encode())

    def register(self, images: dict[str, dict[str, Any]], tags: dict[str, str]) -> None:
        """Add images (by manifest digest) and point tags at them."""
        with self.changing() as index:
            for name, entry in images.items():
                index["images"][name] = {**index["images"].get(name, {}), **entry}
            index["tags"].update(tags)

    @contextlib.contextmanager
    def changing(self) -> Iterator[dict[str, Any]]:
        """The list of images and tags, to be changed in the block and written at its end."""
        from json import dumps

        self.prepare()
        with locked(self.root / "locks" / "images"):
            index, stamp = self.read_index(), self._stamp()
            yield index
            self._replace(Path(self.list_path), dumps(index, indent=1, sort_keys=True).encode(), after=stamp[1] if stamp else -1)

    def read_index(self) -> dict[str, Any]:
        try:
            index = json.loads(Path(self.list_path).read_bytes())
            if not isinstance(index["images"], dict) or not isinstance(index["tags"], dict):
                raise TypeError("it has the wrong form")
        except FileNotFoundError:
            return {"version": 1, "images": {}, "tags": {}}
        except (ValueError, TypeError, KeyError) as error:
            raise BadImage(
                f"the image store's list {self.root}/images.json is damaged: {error}",
                subject=str(self.root),
                hint="remove it and load the images again",
            ) from error
        return index  # type: ignore[no-any-return]

    @staticmethod
    @checked
    def check_name(name: str) -> str:
        """The full form of a name to tag an image with; ``BadInput`` if it is none, has a digest, or is ``host``."""
        parsed = reference.parse(name)
        if parsed.digest is not None or name == HOST:
            raise BadInput(f"an image cannot be named {name!r}", subject=name, hint="give name[:tag]; 'host' means the host's own root")
        return str(parsed)

    def image(self, name: str, tag: str | None) -> Image:
        """The image of a manifest digest that ``register`` knows."""
        return self._image(name, tag, self.read_index())

    # -- reading ---------------------------------------------------------------------------------------------------------------------

    def _reading(self) -> AbstractContextManager[None]:
        return explained(
            f"cannot read the image store {self.root}", str(self.root), "it belongs to one user; set DOCKLESS_HOME for another place"
        )

    def _find(self, ref: str, index: dict[str, Any]) -> tuple[str | None, str | None]:
        """Manifest digest and tag for what a person typed. A tag goes before an id."""
        try:
            parsed = reference.parse(ref)
        except BadInput:
            if not re.match(_ID, ref):
                raise
        else:
            if parsed.digest is not None:
                return self._by_digest(str(parsed.digest), index), None
            if (found := index["tags"].get(str(parsed))) is not None:
                return found, str(parsed)
        match = re.match(_ID, ref)
        if match is None:
            return None, None
        prefix = f"sha256:{match[1]}"
        hits = {name for name, entry in index["images"].items() if name.startswith(prefix) or entry.get("config", "").startswith(prefix)}
        if len(hits) > 1:
            raise BadInput(f"{ref!r} is the beginning of {len(hits)} images' digests", subject=ref, hint="give more of its digits")
        return (hits.pop() if hits else None), None

    def _by_digest(self, name: str, index: dict[str, Any]) -> str | None:
        """The image of that manifest, or the one that was pulled through that index; of several, one that this host can run."""
        if name in index["images"]:
            return name
        found: list[str] = sorted(image for image, entry in index["images"].items() if name in entry.get("indexes", ()))
        for image in found if len(found) > 1 else ():
            if platforms.rank(self.documents(image, name)[2].platform, platforms.host()) is not None:
                return image
        return found[0] if found else None

    def documents(self, name: str, what: str) -> tuple[bytes, manifest.Manifest, config.ConfigDocument]:
        """An image's manifest, as it came and parsed, and its configuration. ``name``: the manifest's digest."""
        raw = self.read_blob(digest.parse(name), what)
        parsed = manifest.parse(raw, what)
        assert isinstance(parsed, manifest.Manifest)
        return raw, parsed, config.parse(manifest.load_json(self.read_blob(parsed.config.digest, what), what), what)

    def _image(self, name: str, tag: str | None, index: dict[str, Any]) -> Image:
        entry = index["images"].get(name, {})
        what = f"image {tag or name}"
        _, parsed, document = self.documents(name, what)
        layers, chain = [], digest.chain(document.diff_ids)
        for chain_id, diff_id in zip(chain, document.diff_ids, strict=True):
            layer = self.layer(chain_id, diff_id)
            if layer is None:
                raise BadImage(
                    f"{what}: the store lacks its layer {chain_id.hex[:12]}",
                    subject=what,
                    hint="dockless images check --repair, then pull or load it again",
                )
            layers.append(layer)
        return Image(
            reference=tag,
            digest=name,
            config=document.config,
            layers=tuple(layers),
            merged=self._merged(chain, layers),
            architecture=document.platform.architecture,
            os=document.platform.os,
            variant=document.platform.variant,
            size=int(entry.get("size", 0)),
            config_digest=str(parsed.config.digest),
            created=document.created,
            warnings=tuple(entry.get("warnings", ())),
        )

    def _merged(self, chain: Sequence[Digest], layers: Sequence[Layer]) -> Layer | None:
        tars = [layer.tar for layer in layers if layer.tar is not None]
        if len(tars) < MERGED_FROM or len(tars) < len(layers):
            return None
        path = self.merged_path(chain[-1])
        return Layer(path, tars[0], tuple(tars[1:])) if path.is_file() else None


def unknown(ref: str) -> UnknownImage:
    return UnknownImage(
        f"there is no image {ref[:200]!r}",
        subject=ref[:200],
        hint="pull it: dockless pull NAME; or load it: dockless load FILE; list what is there: dockless images",
    )
