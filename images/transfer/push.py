"""Push: an image of the store goes to a registry. First what the manifest names, several blobs at a time; then the manifest, under its tag.

A repository that has this manifest already took it with all that it names. So nothing is asked about each blob, and the manifest gets the
tag. A registry that has lost a blob since refuses it then, and everything is done as for one that has nothing.

Single images are pushed, byte for byte as they were pulled, loaded or committed, so the digest stays what it was; an index of several
platforms is not (the store keeps one image of it). Foreign layers are not sent: whoever marked them so does not want them spread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from dockless.base import json
from dockless.base.dataclass import dataclass
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.errors import BadDigest, BadInput, ImageError, RegistryError, RegistryUnavailable
from dockless.images.catalog.catalog import Catalog
from dockless.images.files import explained
from dockless.images.model import manifest
from dockless.images.model.manifest import Descriptor
from dockless.images.progress import Progress

if TYPE_CHECKING:
    from dockless.images.registry import Configuration, Credentials, Endpoint, Registry, Response
    from dockless.images.registry.transport import Timeouts
    from dockless.images.transfer.upload import UploadPace


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
            entries = tuple({entry.digest: entry for entry in (*parsed.layers, parsed.config) if not entry.foreign}.values())
            document = _Document(registry, raw, image.digest, name.tag, str(name))
            pushed = _again(document, entries, progress)
            if pushed is None:
                from dockless.images.transfer.sending import Sending

                job = Sending(store, entries, registry, str(name), progress, pace)
                job.blobs()
                document.put()
                pushed = Pushed(str(name), image.digest, job.sent, job.counts["sent"], job.counts["mounted"], job.counts["there"])
        _remember(store, image.digest, endpoint)
    return pushed


@dataclass(frozen=True, slots=True)
class _Document:
    """The manifest, on its way to a tag. ``what``: the full name, for errors."""

    registry: Registry
    raw: bytes
    digest: str
    tag: str
    what: str

    @property
    def kind(self) -> str:
        """The media type of what has none written in it."""
        document = json.loads(self.raw)
        docker = document["config"].get("mediaType") == manifest.DOCKER_CONFIG
        return str(document.get("mediaType") or (manifest.DOCKER_MANIFEST if docker else manifest.OCI_MANIFEST))

    def is_there(self) -> bool:
        """Whether the repository has it, under whatever tag. Of a registry that does not say, nothing is known."""
        try:
            with self._request("HEAD", self.digest, headers={"Accept": self.kind}, ok=(200,), patient=False) as response:
                return response.headers.get("Docker-Content-Digest") == self.digest
        except RegistryError as error:
            if isinstance(error, RegistryUnavailable) and not error.status:
                raise  # it gave no answer at all
            return False

    def put(self) -> None:
        """``BadDigest`` where another one was stored."""
        from dockless.images.registry.errors import printable

        with self._request("PUT", self.tag, headers={"Content-Type": self.kind}, body=self.raw, ok=(201, 200, 202)) as response:
            stored = response.headers.get("Docker-Content-Digest", self.digest)
        if stored.startswith(self.digest.partition(":")[0]) and stored != self.digest:
            another = printable(stored, 100)
            raise BadDigest(
                f"{self.what}: the registry has stored another manifest, {another} instead of {self.digest}", subject=self.digest
            )

    def _request(self, method: str, reference: str, **more: Any) -> Response:
        from dockless.images.registry import Scope

        endpoint = self.registry.endpoint
        scope = Scope(endpoint.repository, ("pull", "push"))
        return self.registry.request(method, endpoint.path("manifests", reference), scope=scope, what=self.what, **more)


def _again(document: _Document, entries: Sequence[Descriptor], progress: Callable[[Progress], None] | None) -> Pushed | None:
    """Give a manifest that the repository has its tag. None where it has not, or does not take it as it is."""
    if not document.is_there():
        return None
    try:
        document.put()
    except (RegistryUnavailable, BadDigest):
        raise
    except RegistryError:
        return None
    for at, entry in enumerate(entries if progress else (), 1):
        assert progress is not None
        progress(Progress(document.what, at, len(entries), str(entry.digest), entry.size, entry.size, "shared"))
    return Pushed(document.what, document.digest, 0, 0, 0, len(entries))


def _remember(store: Catalog, name: str, endpoint: Endpoint) -> None:
    """The next push to another repository there can mount what this one sent. Not worth failing for."""
    with contextlib.suppress(OSError, ImageError):
        if str(endpoint) in store.read_index()["images"].get(name, {}).get("origins", ()):
            return
        with store.changing() as listed:
            entry = listed["images"].get(name)
            if entry is not None:
                entry["origins"] = sorted({*entry.get("origins", ()), str(endpoint)})
