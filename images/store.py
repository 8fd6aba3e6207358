"""The image store: documents by digest, unpacked layers by chain id, tags. Several processes may use it at once.

::

    store/ 0700
      images.json                    tags and what was loaded; replaced as a whole
      blobs/<algorithm>/<hex>        manifests and configurations, checked against their name whenever they are read
      diffs/<algorithm>/<hex>        for a layer blob that was verified once: the digest of what it decompresses to
      layers/<algorithm>/<hex>/      a chain id: fs/ (an overlayfs lower directory) and layer.json; appears complete or not at all
      locks/                         one per layer being unpacked, one for images.json
      tmp/                           work in progress, each locked by its maker; a crash's left-overs go at the next load

A layer is found by its **chain id**, the digest over its own content's digest and those of all layers below it, so an image can only
ever get bytes that its own configuration names (attack A20). Layer blobs themselves are not kept in this first form.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from dockless import paths
from dockless.errors import BadDigest, BadImage, BadInput, UnknownImage
from dockless.images import config, digest, manifest, reference
from dockless.images.digest import Digest
from dockless.images.files import explained, locked, make_private, write_atomic
from dockless.images.image import HOST, Image, host_image
from dockless.images.layers import Layer
from dockless.images.limits import UnpackLimits
from dockless.images.progress import Progress

_ID = re.compile(r"(?:sha256:)?([0-9a-f]{8,64})\Z")


# What get() answered last, by store and reference: starting the same image again must not read the store again.
_kept: dict[tuple[str, str], tuple[tuple[int, ...], Image]] = {}
_KEPT_AT_MOST = 256


class Store:
    """The store at ``root`` (``paths.store()`` by default). Nothing is created before the first ``load``."""

    def __init__(self, root: Path | None = None, *, limits: UnpackLimits | None = None) -> None:
        self.root = (root or paths.store()).absolute()
        self._list_path = str(self.root / "images.json")
        self.limits = limits or UnpackLimits()

    def load(self, source: str | Path, *, name: str | None = None, progress: Callable[[Progress], None] | None = None) -> list[Image]:
        """Load every image of ``source``: an OCI layout (directory or tar) or a docker-save archive, in any compression.

        ``name`` replaces the reference of a source with one image. Layers that the store has are not unpacked again. Tags are set when
        everything is there. Raises ``BadInput``, ``BadImage``, ``BadDigest``, ``UnsafeLayer``, ``ImageError``; the store stays sound.
        """
        from dockless.images.load import load

        return load(self, Path(source), self.check_name(name) if name is not None else None, progress)

    def get(self, ref: str) -> Image:
        """The image of a reference, a digest (``sha256:…``), or the beginning of one (8 digits or more); ``host`` is the host itself."""
        if ref == HOST:
            return host_image()
        key = (self._list_path, ref)
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
        raise UnknownImage(
            f"there is no image {ref[:200]!r}", subject=ref[:200], hint="load one: dockless load FILE; list them: dockless images"
        )

    def _stamp(self) -> tuple[int, ...]:
        """What changes with every change of images.json, which is only ever replaced as a whole."""
        try:
            found = os.stat(self._list_path)
        except OSError:
            return ()
        return found.st_ino, found.st_mtime_ns, found.st_size

    def list(self) -> list[Image]:
        """Every tag, sorted, then the images that have none."""
        with self._reading():
            index = self.read_index()
            tags: dict[str, str] = index["tags"]
            images = [self._image(found, tag, index) for tag, found in sorted(tags.items())]
            untagged = sorted(set(index["images"]).difference(tags.values()))
            return images + [self._image(found, None, index) for found in untagged]

    # -- for the loader --------------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the store's directories."""
        make_private(self.root)
        for name in ("blobs", "diffs", "layers", "locks", "tmp"):
            make_private(self.root / name)

    def layer_path(self, chain_id: Digest) -> Path:
        return self.root / "layers" / chain_id.algorithm / chain_id.hex

    def put_blob(self, data: bytes, name: Digest) -> None:
        """Keep a small document whose digest has been checked."""
        path = make_private(self.root / "blobs" / name.algorithm) / name.hex
        if not path.exists():
            write_atomic(path, data)

    def verified(self, blob: Digest) -> Digest | None:
        """What the layer blob decompresses to, if this store has verified it once."""
        try:
            return digest.parse((self.root / "diffs" / blob.algorithm / blob.hex).read_text())
        except (FileNotFoundError, BadDigest):
            return None

    def set_verified(self, blob: Digest, diff_id: Digest) -> None:
        write_atomic(make_private(self.root / "diffs" / blob.algorithm) / blob.hex, str(diff_id).encode())

    def register(self, images: dict[str, dict[str, Any]], tags: dict[str, str]) -> None:
        """Add images (by manifest digest) and point tags at them."""
        with locked(self.root / "locks" / "images"):
            index = self.read_index()
            index["images"].update(images)
            index["tags"].update(tags)
            write_atomic(Path(self._list_path), json.dumps(index, indent=1, sort_keys=True).encode())

    def read_index(self) -> dict[str, Any]:
        try:
            index = json.loads(Path(self._list_path).read_bytes())
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
            if not _ID.match(ref):
                raise
        else:
            if parsed.digest is not None:
                found = str(parsed.digest)
                return (found if found in index["images"] else None), None
            if (found := index["tags"].get(str(parsed))) is not None:
                return found, str(parsed)
        match = _ID.match(ref)
        if match is None:
            return None, None
        prefix = f"sha256:{match[1]}"
        hits = {name for name, entry in index["images"].items() if name.startswith(prefix) or entry.get("config", "").startswith(prefix)}
        if len(hits) > 1:
            raise BadInput(f"{ref!r} is the beginning of {len(hits)} images' digests", subject=ref, hint="give more of its digits")
        return (hits.pop() if hits else None), None

    def _image(self, name: str, tag: str | None, index: dict[str, Any]) -> Image:
        entry = index["images"].get(name, {})
        what = f"image {tag or name}"
        parsed = manifest.parse(self._blob(digest.parse(name), what), what)
        assert isinstance(parsed, manifest.Manifest)
        document = config.parse(manifest.load_json(self._blob(parsed.config.digest, what), what), what)
        layers = tuple(Layer(self.layer_path(chain_id) / "fs") for chain_id in digest.chain(document.diff_ids))
        for layer in layers:
            if not layer.path.is_dir():
                raise BadImage(
                    f"{what}: the store lacks its layer {layer.path.parent.name[:12]}", subject=what, hint="load the image again"
                )
        return Image(
            reference=tag,
            digest=name,
            config=document.config,
            layers=layers,
            architecture=document.platform.architecture,
            os=document.platform.os,
            variant=document.platform.variant,
            size=int(entry.get("size", 0)),
            config_digest=str(parsed.config.digest),
            created=document.created,
            warnings=tuple(entry.get("warnings", ())),
        )

    def _blob(self, name: Digest, what: str) -> bytes:
        path = self.root / "blobs" / name.algorithm / name.hex
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise BadImage(f"{what}: the store lacks its document {name}", subject=what, hint="load the image again") from None
        with open(fd, "rb") as stream:
            data = stream.read(manifest.DOCUMENT_MAX + 1)
        digest.check(data, name, f"{what}: the store's document")
        return data
