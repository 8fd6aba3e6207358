"""Ingest: what a load or a pull has found becomes images of the store.

::

    Candidate ──► its layers, several at a time ──► Pipeline ──► tmp/ ──► syncfs ──► blobs/ tars/ layers/ ──► images.json

A layer counts as there when its directory is renamed to its chain id, after all of it has been verified and flushed; images are listed
when all their layers are there. Other processes that want the same layer wait for the one that is at it, and then find it. Where a writer
has to look at the layers below, it waits until those are there.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dockless.base.dataclass import dataclass
from dockless.base.typing import Any
from dockless.errors import BadDigest, BadImage, BadInput
from dockless.images.archive.discover import Candidate
from dockless.images.catalog.catalog import LAYER_FILE, Catalog
from dockless.images.catalog.image import Image
from dockless.images.catalog.unpacking import Unpacking, unpacking
from dockless.images.files import (
    explained,
    locked,
    make_private,
    sync_directory,
    sync_file,
    sync_filesystem,
    temporary_directory,
    write_atomic,
)
from dockless.images.layers.layers import INDEX_FILE, Layer
from dockless.images.layers.merging import merge, mergeable
from dockless.images.layers.pipeline import GivenUp, LayerSource, Passed, Pipeline, Sink
from dockless.images.model import digest, manifest
from dockless.images.model.digest import Digest
from dockless.images.progress import Progress

AT_ONCE = 4
"""Layers of one image that are worked on at a time, at most. Some of them wait for the disk while others use the processors."""


@dataclass(frozen=True, slots=True)
class _Done:
    """A layer that is in the store. ``digest``, ``size``, ``media_type``: of the blob it came from."""

    digest: Digest
    size: int
    media_type: str
    unpacked: int
    warnings: tuple[str, ...]


def ingest(
    store: Catalog, candidates: Sequence[Candidate], name: str | None = None, progress: Callable[[Progress], None] | None = None
) -> list[Image]:
    """Bring these images into the store and tag them, all or none of the tags. ``name`` replaces the names of a single image.

    Raises ``BadInput``, ``BadImage``, ``BadDigest``, ``UnsafeLayer``, ``ImageError``; the store stays sound, and layers that came in
    completely stay there for the next try.
    """
    if name is not None and len({candidate.config for candidate in candidates}) > 1:
        what = candidates[0].what
        raise BadInput(f"there are {len(candidates)} images; one name cannot fit them all", subject=what, hint="load them without a name")
    with (
        explained("cannot write to the image store", str(store.root), "check that it is on a writable file system with room"),
        store.using(),
        temporary_directory(store.root / "tmp") as scratch,
    ):
        loaded = [_Stack(store, scratch, candidate, progress).ingest() for candidate in candidates]
        tags: dict[str, str] = {}
        for candidate, (image_digest, _) in zip(candidates, loaded, strict=True):
            tags.update(dict.fromkeys((name,) if name is not None else candidate.names, image_digest))
        store.register(dict(loaded), tags)
    return list(_results(store, [image_digest for image_digest, _ in loaded], tags))


def stored(store: Catalog, name: str, tags: tuple[str, ...]) -> Candidate:
    """An image that a store has, by its manifest's digest: to be ingested again, or by another store. ``BadImage``, ``BadDigest``"""
    what = f"image {name}"
    raw, parsed, document = store.documents(name, what)
    layers = tuple(
        LayerSource(functools.partial(store.open_blob, layer.digest), layer.digest, layer.size, f"{what}: layer {layer.digest}")
        for layer in parsed.layers
    )
    return Candidate(tags, raw, store.read_blob(parsed.config.digest, what), document, layers, what)


def _results(store: Catalog, digests: list[str], tags: dict[str, str]) -> Iterator[Image]:
    """One image per tag, one for each image without."""
    for image_digest in dict.fromkeys(digests):
        own: list[str | None] = [tag for tag, target in tags.items() if target == image_digest]
        for tag in own or [None]:
            yield store.image(image_digest, tag)


class _Stack:
    """The layers of one image on their way, bottom first."""

    def __init__(self, store: Catalog, scratch: Path, candidate: Candidate, progress: Callable[[Progress], None] | None) -> None:
        self._store = store
        self._scratch = scratch
        self._candidate = candidate
        self._progress = progress
        self._diff_ids = candidate.document.diff_ids
        self._chain = digest.chain(self._diff_ids)
        count = len(self._chain)
        self._there = [threading.Event() for _ in range(count)]
        self._running: dict[int, Pipeline | Unpacking] = {}
        self._lock = threading.Lock()
        self._failed = False

    def ingest(self) -> tuple[str, dict[str, Any]]:
        """The image's manifest digest, and what the list of images says about it."""
        layers = self._layers()
        self._merge()
        candidate = self._candidate
        config_digest = digest.of(candidate.config)
        raw = candidate.manifest if candidate.manifest is not None else _write_manifest(candidate.config, config_digest, layers)
        parsed = manifest.parse(raw, candidate.what)
        assert isinstance(parsed, manifest.Manifest)
        image_digest = digest.of(raw)
        self._store.put_blob(candidate.config, parsed.config.digest)
        self._store.put_blob(raw, image_digest)
        return str(image_digest), {
            "config": str(parsed.config.digest),
            "size": sum(layer.unpacked for layer in layers),
            "added": int(time.time()),
            "warnings": [*candidate.warnings, *(warning for layer in layers for warning in layer.warnings)],
        }

    def _merge(self) -> None:
        """Give an image of many indexed layers one index of them all, unless it has one. Without it, its starts take longer."""
        final = self._store.merged_path(self._chain[-1]) if self._chain else None
        found = [self._store.layer(chain_id, diff_id) for chain_id, diff_id in zip(self._chain, self._diff_ids, strict=True)]
        layers = [layer for layer in found if layer is not None]
        if final is None or not mergeable(layers) or len(layers) < len(found) or final.exists():
            return
        made = self._scratch / f"merged-{self._chain[-1].hex}"
        if merge(layers, made):
            os.rename(made, final)
            sync_directory(final.parent)

    def _layers(self) -> list[_Done]:
        count = len(self._chain)
        if count <= 1:
            return [self._layer(at) for at in range(count)]
        from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

        with ThreadPoolExecutor(min(AT_ONCE, count), "dockless-ingest") as pool:
            futures = [pool.submit(self._layer, at) for at in range(count)]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                if not all(future.done() and future.exception() is None for future in futures if not future.cancelled()):
                    self._give_up()
                    for future in futures:
                        future.cancel()
        failures = [future.exception() for future in futures if not future.cancelled() and future.exception() is not None]
        for failure in failures:
            if failure is not None and not isinstance(failure, GivenUp):
                raise failure
        return [future.result() for future in futures]

    def _give_up(self) -> None:
        """Wake every thread of this image; each of them fails."""
        with self._lock:
            self._failed = True
            running = list(self._running.values())
        for event in self._there:
            event.set()
        for one in running:
            one.abort()
        for source in self._candidate.layers:
            if source.cancel is not None:
                source.cancel()

    @contextlib.contextmanager
    def _abortable(self, at: int, one: Pipeline | Unpacking) -> Iterator[None]:
        with self._lock:
            if self._failed:
                raise GivenUp("given up")
            key = at if isinstance(one, Pipeline) else ~at
            self._running[key] = one
        try:
            yield
        finally:
            with self._lock:
                del self._running[key]

    # -- one layer -------------------------------------------------------------------------------------------------------------------

    def _layer(self, at: int) -> _Done:
        """Make sure that the layer is in the store and that the source's bytes are what they should be."""
        source, diff_id, chain_id = self._candidate.layers[at], self._diff_ids[at], self._chain[at]
        self._wait_for_twin(at)
        final = self._store.layer_path(chain_id)
        make_private(final.parent)
        with locked(self._store.root / "locks" / f"{chain_id.algorithm}-{chain_id.hex}"):
            here = self._store.layer(chain_id, diff_id) is not None
            blob = source.digest
            known = here and blob is not None and self._store.verified(blob) == diff_id
            # A blob that was given up to make room is kept again where it lies at hand, but not downloaded again.
            if known and blob is not None and (self._store.has_blob(blob) or source.spool is not None):
                self._tell(at, source.size or 0, "shared")
                done = _described(final, blob, source.size or 0, "")
            else:
                done = self._take(at, final, here)
        self._there[at].set()
        return done

    def _wait_for_twin(self, at: int) -> None:
        """The same blob further down: when that is there, this one is read from the store."""
        own = self._candidate.layers[at].digest
        for below in range(at):
            if own is not None and self._candidate.layers[below].digest == own:
                self._there[below].wait()

    def _take(self, at: int, final: Path, here: bool) -> _Done:
        """Verify the blob and keep it; unpack it unless the layer is ``here``."""
        source, diff_id = self._candidate.layers[at], self._diff_ids[at]
        stored = source.digest is not None and self._store.has_blob(source.digest)
        with contextlib.ExitStack() as stack:
            scratch = stack.enter_context(temporary_directory(self._store.root / "tmp"))
            kept = -1
            if not stored and source.spool is None:
                kept = os.open(scratch / "blob", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                stack.callback(os.close, kept)
            form = None if here else stack.enter_context(unpacking(self._store, scratch, at == 0, source.what))
            state = "verifying" if here else "unpacking"
            sinks: list[Sink] = [form] if form is not None else []
            pipeline = Pipeline(source, diff_id, self._store.limits, sinks, lambda done: self._tell(at, done, state), kept)
            with self._abortable(at, pipeline):
                if form is not None:
                    self._set_lower(at, form)
                try:
                    with self._store.open_blob(source.digest) if stored and source.digest is not None else source.open() as stream:
                        passed = pipeline.run(stream)
                except BadDigest:
                    if source.spool is not None and not stored:
                        source.spool.unlink(missing_ok=True)
                    raise
            if form is not None:
                with self._abortable(at, form):
                    self._finish(at, scratch, form)
            blob = None if stored else source.spool or scratch / "blob"
            self._publish(at, scratch, final, form, blob, passed)
            self._tell(at, passed.size, "done")
            return _described(final, passed.blob, passed.size, passed.media_type)

    def _set_lower(self, at: int, form: Unpacking) -> None:
        """Give the layers below to the writer as soon as they are there, while it is already at work."""

        def give() -> None:
            for event in self._there[:at]:
                event.wait()
            if not self._failed:
                form.set_lower([self._found(below) for below in range(at)])

        if all(event.is_set() for event in self._there[:at]):
            give()
        else:
            threading.Thread(target=give, name="dockless-below", daemon=True).start()

    def _found(self, at: int) -> Layer:
        layer = self._store.layer(self._chain[at], self._diff_ids[at])
        if layer is None:
            raise BadImage(
                f"{self._candidate.what}: the store has just lost a layer",
                subject=self._candidate.what,
                hint="dockless images check --repair, then pull or load it again",
            )
        return layer

    def _finish(self, at: int, scratch: Path, form: Unpacking) -> None:
        written = form.finish()
        about = {
            "diff_id": str(self._diff_ids[at]),
            "chain_id": str(self._chain[at]),
            "form": form.form,
            "size": written.size,
            "entries": written.entries,
            "warnings": list(written.warnings),
        }
        if form.form == "indexed":
            about["index"] = str(digest.of((scratch / "layer" / INDEX_FILE).read_bytes()))
        write_atomic(scratch / "layer" / LAYER_FILE, json.dumps(about).encode())

    def _publish(self, at: int, scratch: Path, final: Path, form: Unpacking | None, blob: Path | None, passed: Passed) -> None:
        """Flush everything once, then rename it to where it counts: the blob, the tar, the layer."""
        _flush(scratch, form, blob)
        if blob is not None:
            self._store.keep_blob(blob, passed.blob)
        if form is not None:
            if (tar := form.tar) is not None:
                place = self._store.tar_path(self._diff_ids[at])
                make_private(place.parent)
                os.rename(tar, place)
                sync_directory(place.parent)
            os.rename(scratch / "layer", final)
            sync_directory(final.parent)
        self._store.set_verified(passed.blob, self._diff_ids[at])

    def _tell(self, at: int, done: int, state: Any) -> None:
        if self._progress is not None:
            source = self._candidate.layers[at]
            shown = self._candidate.names[0] if self._candidate.names else ""
            self._progress(Progress(shown, at + 1, len(self._chain), str(source.digest or self._diff_ids[at]), done, source.size, state))


def _flush(scratch: Path, form: Unpacking | None, blob: Path | None) -> None:
    """Have it on disk: a layer of many files by one syncfs, of few files each by itself, which waits for nobody else's data."""
    if form is not None and form.tar is None:
        sync_filesystem(scratch)
        return
    if blob is not None:
        with contextlib.suppress(FileNotFoundError):  # another process that wants the same blob has flushed and taken it
            sync_file(blob)
    for path in (form.tar, scratch / "layer" / INDEX_FILE) if form is not None else ():
        if path is not None:
            sync_file(path)
    sync_directory(scratch)


def _described(final: Path, blob: Digest, size: int, media_type: str) -> _Done:
    try:
        about = json.loads((final / LAYER_FILE).read_bytes())
        return _Done(blob, size, media_type, int(about["size"]), tuple(about["warnings"]))
    except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
        raise BadImage(
            f"the image store's layer {final} is damaged: {error}",
            subject=str(final),
            hint="remove that directory and load the image again",
        ) from error


def _write_manifest(config_raw: bytes, config_digest: Digest, layers: Sequence[_Done]) -> bytes:
    """The OCI manifest of an image that came without one."""
    document = {
        "schemaVersion": 2,
        "mediaType": manifest.OCI_MANIFEST,
        "config": {"mediaType": manifest.OCI_CONFIG, "digest": str(config_digest), "size": len(config_raw)},
        "layers": [{"mediaType": layer.media_type, "digest": str(layer.digest), "size": layer.size} for layer in layers],
    }
    return json.dumps(document, separators=(",", ":")).encode()
