"""The blobs of an image that is pushed, several at a time: each is found there, taken from another repository, or sent."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from dockless.base.typing import TYPE_CHECKING, Any
from dockless.errors import ImageError
from dockless.images.catalog.catalog import Catalog
from dockless.images.files import make_private
from dockless.images.layers.pipeline import GivenUp
from dockless.images.model import digest, manifest
from dockless.images.model.digest import Digest
from dockless.images.model.manifest import Descriptor, Manifest
from dockless.images.progress import Progress
from dockless.images.transfer.upload import Upload, UploadPace

if TYPE_CHECKING:
    from dockless.images.registry import Endpoint, Registry

AT_ONCE = 3
_FORGOTTEN_AFTER = 7 * 86400.0
_TELL_BYTES = 1 << 20
_CLOSE_WAIT = 3.0


class Sending:
    """The blobs of one image, on a few threads."""

    def __init__(
        self,
        store: Catalog,
        entries: Sequence[Descriptor],
        registry: Registry,
        name: str,
        progress: Callable[[Progress], None] | None,
        pace: UploadPace | None,
    ) -> None:
        self._store = store
        self._registry = registry
        self._name = name
        self._progress = progress
        self._pace = pace or UploadPace()
        self._total = len(entries)
        self._queue = deque(enumerate(entries, 1))
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._origins: dict[Digest, str] | None = None
        self.sent = 0
        self.counts = {"sent": 0, "mounted": 0, "there": 0}

    def blobs(self) -> None:
        state = make_private(self._store.root / "uploads")
        _tidy(state)
        threads = [
            threading.Thread(target=self._work, args=(state,), name="dockless-push", daemon=True)
            for _ in range(min(AT_ONCE, len(self._queue)))
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            self._stop.set()
            self._registry.abort()
            until = time.monotonic() + _CLOSE_WAIT
            for thread in threads:
                thread.join(max(0.0, until - time.monotonic()))
            raise
        if self._error is not None:
            raise self._error

    def _work(self, state: Path) -> None:
        while not self._stop.is_set():
            with self._lock:
                if not self._queue:
                    return
                at, entry = self._queue.popleft()
            try:
                self._blob(at, entry, state)
            except BaseException as error:
                with self._lock:
                    if self._error is None or isinstance(self._error, GivenUp):
                        self._error = error
                self._stop.set()

    def _blob(self, at: int, entry: Descriptor, state: Path) -> None:
        report = self._report(at, entry)
        # A blob that was given up to make room may still be there already, or in another repository.
        with self._store.open_blob(entry.digest) if self._store.has_blob(entry.digest) else contextlib.nullcontext() as file:
            upload = Upload(
                self._registry,
                entry.digest,
                entry.size,
                file.fileno() if file is not None else -1,
                f"{self._name}: blob {entry.digest}",
                source=self._origin(entry.digest),
                state=state,
                pace=self._pace,
                stop=self._stop,
                report=lambda done: report(done, "uploading"),
            )
            try:
                how = upload.run()
            finally:
                with self._lock:
                    self.sent += upload.sent
        with self._lock:
            self.counts[how] += 1
        report(entry.size, "done" if how == "sent" else "shared")

    def _report(self, at: int, entry: Descriptor) -> Callable[[int, Any], None]:
        last = [-_TELL_BYTES]

        def report(done: int, state: Any) -> None:
            if self._progress is not None and (state != "uploading" or not 0 <= done - last[0] < _TELL_BYTES):
                last[0] = done
                with self._lock:
                    self._progress(Progress(self._name, at, self._total, str(entry.digest), done, entry.size, state))

        return report

    def _origin(self, name: Digest) -> str:
        """Another repository of this registry that an image with this blob came from or went to."""
        with self._lock:
            if self._origins is None:
                self._origins = _origins(self._store, self._registry.endpoint)
            return self._origins.get(name, "")


def _origins(store: Catalog, endpoint: Endpoint) -> dict[Digest, str]:
    found: dict[Digest, str] = {}
    for name, entry in store.read_index()["images"].items():
        places = [origin.partition("/") for origin in entry.get("origins", ()) if isinstance(origin, str)]
        here = [repository for location, _, repository in places if location == endpoint.location and repository != endpoint.repository]
        if not here:
            continue
        with contextlib.suppress(ImageError):
            parsed = manifest.parse(store.read_blob(digest.parse(name), name), name)
            if isinstance(parsed, Manifest):
                for blob in (parsed.config, *parsed.layers):
                    found.setdefault(blob.digest, here[0])
    return found


def _tidy(state: Path) -> None:
    """Registries forget an upload after a week or so, and so do we."""
    for path in state.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _FORGOTTEN_AFTER:
                path.unlink()
