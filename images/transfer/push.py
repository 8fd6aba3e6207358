"""Push: an image of the store goes to a registry. First what the manifest names, several blobs at a time; then the manifest, under its tag.

Single images are pushed, byte for byte as they were pulled, loaded or committed, so the digest stays what it was; an index of several
platforms is not (the store keeps one image of it). Foreign layers are not sent: whoever marked them so does not want them spread.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dockless.errors import BadDigest, BadInput, ImageError
from dockless.images.catalog.catalog import Catalog
from dockless.images.files import explained, make_private
from dockless.images.layers.pipeline import Cancelled
from dockless.images.model import digest, manifest
from dockless.images.model.digest import Digest
from dockless.images.model.manifest import Descriptor, Manifest
from dockless.images.progress import Progress
from dockless.images.transfer.fetch import is_foreign
from dockless.images.transfer.upload import Upload, UploadPace

if TYPE_CHECKING:
    from dockless.images.registry import Configuration, Credentials, Endpoint, Registry
    from dockless.images.registry.transport import Timeouts

AT_ONCE = 3
_FORGOTTEN_AFTER = 7 * 86400.0
_TELL_BYTES = 1 << 20
_CLOSE_WAIT = 3.0


@dataclass(frozen=True, slots=True)
class Pushed:
    """``reference``: the full name it has there now; ``digest``: of its manifest; ``sent``: bytes of blobs that went over the wire.
    ``uploaded``, ``mounted``, ``there``: numbers of blobs that were sent, taken from another repository, and found."""

    reference: str
    digest: str
    sent: int
    uploaded: int
    mounted: int
    there: int


def push(
    store: Catalog,
    ref: str,
    destination: str | None = None,
    *,
    progress: Callable[[Progress], None] | None = None,
    configuration: Configuration | None = None,
    credentials: Credentials | None = None,
    timeouts: Timeouts | None = None,
    pace: UploadPace | None = None,
) -> Pushed:
    """Send the image ``ref`` to ``destination`` (``registry/name[:tag]``; None: its own name).

    ``progress`` is called from several threads, one call at a time, with the states ``uploading``, ``shared`` (the registry has it) and
    ``done``. Raises ``BadInput``, ``UnknownImage``, ``BadImage`` (a blob is no longer in the store), ``RegistryError`` and its kin. A push
    that was cut or killed goes on where it stopped when it is run again.
    """
    from dockless.images.registry import Configuration, Credentials, Registry, endpoints, short_names

    image = store.get(ref)
    if image.is_host:
        raise BadInput("the pseudo-image 'host' cannot be pushed", subject=ref, hint="commit a sandbox to get an image")
    if destination is None and image.reference is None:
        raise BadInput(
            f"{ref}: this image has no name to be pushed under", subject=ref, hint=f"give one: dockless push {ref} REGISTRY/NAME:TAG"
        )
    configuration = configuration or Configuration.load()
    name = short_names(image.name if destination is None else destination, configuration)[0]
    if name.digest is not None or name.tag is None:
        raise BadInput(f"{destination}: an image is pushed to a tag, not to a digest", subject=str(destination), hint="give name:tag")
    with explained(f"cannot push {ref}", ref, f"check that the image store {store.root} can be read"):
        raw, parsed, _ = store.documents(image.digest, f"image {image.name}")
        endpoint = endpoints(name, configuration, push=True)[-1]
        with (
            Registry(endpoint, credentials=credentials or Credentials.load(configuration=configuration), timeouts=timeouts) as registry,
            store.using(),
        ):
            job = _Push(store, image.digest, parsed, registry, str(name), progress, pace or UploadPace())
            job.blobs()
            _put_manifest(registry, raw, name.tag, image.digest, str(name))
        _remember(store, image.digest, endpoint)
    return Pushed(str(name), image.digest, job.sent, job.counts["sent"], job.counts["mounted"], job.counts["there"])


class _Push:
    """The blobs of one image, on a few threads."""

    def __init__(
        self,
        store: Catalog,
        image: str,
        parsed: Manifest,
        registry: Registry,
        name: str,
        progress: Callable[[Progress], None] | None,
        pace: UploadPace,
    ) -> None:
        self._store = store
        self._image = image
        self._registry = registry
        self._name = name
        self._progress = progress
        self._pace = pace
        entries = {entry.digest: entry for entry in (*parsed.layers, parsed.config) if not is_foreign(entry)}
        self._total = len(entries)
        self._queue = deque(enumerate(entries.values(), 1))
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
                    if self._error is None or isinstance(self._error, Cancelled):
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


def _put_manifest(registry: Registry, raw: bytes, tag: str, expected: str, what: str) -> None:
    from dockless.images.registry import Scope
    from dockless.images.registry.errors import printable

    document = json.loads(raw)
    kind = document.get("mediaType") or (
        manifest.DOCKER_MANIFEST if document["config"].get("mediaType") == manifest.DOCKER_CONFIG else manifest.OCI_MANIFEST
    )
    endpoint = registry.endpoint
    with registry.request(
        "PUT",
        endpoint.path("manifests", tag),
        scope=Scope(endpoint.repository, ("pull", "push")),
        headers={"Content-Type": kind},
        body=raw,
        ok=(201, 200, 202),
        what=what,
    ) as response:
        stored = response.headers.get("Docker-Content-Digest", expected)
    if stored.startswith(expected.partition(":")[0]) and stored != expected:
        raise BadDigest(
            f"{what}: the registry has stored another manifest, {printable(stored, 100)} instead of {expected}", subject=expected
        )


def _remember(store: Catalog, name: str, endpoint: Endpoint) -> None:
    """The next push to another repository there can mount what this one sent. Not worth failing for."""
    with contextlib.suppress(OSError, ImageError):
        if str(endpoint) in store.read_index()["images"].get(name, {}).get("origins", ()):
            return
        with store.changing() as listed:
            entry = listed["images"].get(name)
            if entry is not None:
                entry["origins"] = sorted({*entry.get("origins", ()), str(endpoint)})


def _tidy(state: Path) -> None:
    """Registries forget an upload after a week or so, and so do we."""
    for path in state.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _FORGOTTEN_AFTER:
                path.unlink()
