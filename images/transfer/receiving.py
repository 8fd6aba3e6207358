"""The layers that a store lacks of an image: they come, are unpacked while they come, and then the image is listed."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterable

from dockless.base.typing import TYPE_CHECKING
from dockless.errors import BadDigest, BadImage
from dockless.images.archive.discover import Candidate
from dockless.images.archive.ingest import ingest
from dockless.images.catalog.catalog import Catalog
from dockless.images.catalog.image import Image
from dockless.images.catalog.reserving import reserved
from dockless.images.layers.pipeline import LayerSource
from dockless.images.model import choose, digest
from dockless.images.model.config import ConfigDocument
from dockless.images.model.digest import Digest
from dockless.images.model.manifest import Descriptor, Manifest
from dockless.images.progress import Progress
from dockless.images.transfer.fetch import Fetcher, spool_path
from dockless.images.transfer.transfer import Pace

if TYPE_CHECKING:
    from dockless.images.registry.remote import RemoteRepository

_TELL_BYTES = 1 << 20
_TELL_SECONDS = 0.1


class Receiving:
    """One image. ``remotes``: the preferred one first, the registry itself last; ``what``: its name, for errors."""

    def __init__(
        self, store: Catalog, remotes: list[RemoteRepository], what: str, progress: Callable[[Progress], None] | None, pace: Pace | None
    ) -> None:
        self._store = store
        self._remotes = remotes
        self._what = what
        self._progress = progress
        self._pace = pace

    def image(
        self,
        names: tuple[str, ...],
        parsed: Manifest,
        configured: ConfigDocument,
        *,
        manifest: bytes,
        config: bytes,
        indexes: Iterable[tuple[Digest, bytes]],
    ) -> Image:
        """The image, in the store under ``names``. ``manifest``, ``config``, ``indexes``: the documents as they came."""
        doubted: dict[Digest, set[int]] = {}
        retried: set[Digest] = set()
        while True:
            fetcher = Fetcher(self._store, self._remotes, pace=self._pace, doubted=doubted)
            try:
                # Room first: to make some, images may have to go, and while the store is in use none does.
                unpacked = self._unpacked(parsed, configured)
                lacking = self._lacking(layer for layer, there in zip(parsed.layers, unpacked, strict=True) if not there)
                with reserved(self._store, lacking, self._what), self._store.using():
                    layers = tuple(
                        self._layer(layer, at, len(unpacked), fetcher, there)
                        for at, (layer, there) in enumerate(zip(parsed.layers, unpacked, strict=True), 1)
                    )
                    candidate = Candidate(names, manifest, config, configured, layers, self._what)
                    image, *_ = ingest(self._store, [candidate], None, self._progress)
                    for name, raw in indexes:
                        self._store.put_blob(raw, name)
                    return image
            except BadDigest as error:
                if not self._worth_another_try(error, fetcher, doubted, retried):
                    raise
            finally:
                fetcher.close()

    def _worth_another_try(self, error: BadDigest, fetcher: Fetcher, doubted: dict[Digest, set[int]], retried: set[Digest]) -> bool:
        """Wrong bytes: torn ones that lay here since a crash, or a mirror's. The registry itself is not asked twice."""
        try:
            name = digest.parse(error.subject)
        except BadDigest:
            return False
        download = fetcher.get(name)
        if download is None:
            return self._was_damaged(name)
        wrong = download.sources - {len(self._remotes) - 1}
        if wrong:
            doubted.setdefault(download.digest, set()).update(wrong)
            return True
        if download.inherited and download.digest not in retried:
            retried.add(download.digest)
            return True
        return False

    def _was_damaged(self, name: Digest) -> bool:
        """The store's own blob is not what its name says any more: it goes. (Where a manifest lies about a sound one, it stays.)"""
        if not self._store.has_blob(name):
            return False
        with contextlib.suppress(BadImage):
            hasher = name.hasher()
            with self._store.open_blob(name) as stream:
                while piece := stream.read(1 << 20):
                    hasher.update(piece)
            if hasher.hexdigest() == name.hex:
                return False
        self._store.blob_path(name).unlink(missing_ok=True)
        return True

    def _unpacked(self, parsed: Manifest, configured: ConfigDocument) -> list[bool]:
        """Which layers the store has, having once seen that this very blob becomes them: the blob itself is not needed to run them."""
        places = zip(parsed.layers, configured.diff_ids, digest.chain(configured.diff_ids), strict=True)
        return [
            self._store.verified(layer.digest) == diff_id and self._store.layer(chain_id, diff_id) is not None
            for layer, diff_id, chain_id in places
        ]

    def _lacking(self, layers: Iterable[Descriptor]) -> int:
        """Bytes to download, of the manifest's own word."""
        return sum({layer.digest: layer.size for layer in layers if not self._store.has_blob(layer.digest)}.values())

    def _layer(self, layer: Descriptor, at: int, count: int, fetcher: Fetcher, unpacked: bool) -> LayerSource:
        what = f"{self._what}: layer {layer.digest}"
        data = choose.inline(layer, what)
        if data is not None:
            held = data
            return LayerSource(lambda: io.BytesIO(held), layer.digest, layer.size, what)
        if self._store.has_blob(layer.digest):
            return LayerSource(lambda: self._store.open_blob(layer.digest), layer.digest, layer.size, what)
        report, spool = self._report(layer, at, count), spool_path(self._store, layer)
        if unpacked:
            return LayerSource(lambda: fetcher.add(layer, what, report).open(), layer.digest, layer.size, what, spool)
        download = fetcher.add(layer, what, report)
        return LayerSource(download.open, layer.digest, layer.size, what, spool, download.cancel)

    def _report(self, layer: Descriptor, at: int, count: int) -> Callable[[int, int], None] | None:
        tell = self._progress
        if tell is None:
            return None
        last = [-_TELL_BYTES, 0.0]

        def report(done: int, total: int) -> None:
            now = time.monotonic()
            if done >= total or done - last[0] >= _TELL_BYTES or now - last[1] >= _TELL_SECONDS:
                last[:] = done, now
                tell(Progress(self._what, at, count, str(layer.digest), done, total, "downloading"))

        return report
