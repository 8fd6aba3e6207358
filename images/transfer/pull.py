"""Pull: a name becomes an image of the store, with as little of the network as it takes.

::

    name ──► full names ──► endpoints: mirrors, then the registry itself
                               │
          in the store? ◄── digest ◄── HEAD (a tag we had)      nothing to do: one round trip, none for a digest
                │ no
                ▼
             manifest, or index ──► manifest for the platform ──► configuration
                                                                      │
             layers that the store lacks ──► Fetcher ═ bytes as they come ═► ingest ──► image, tag

What is downloaded is unpacked while it comes. A pull that is interrupted, killed, or on a machine that loses power goes on where it stopped
when it is run again; only bytes whose digest proves wrong are fetched anew, from somebody else where there is somebody else.

Layers that a manifest marks as foreign (``urls``) are asked for like any other. Where the registry does not hold one, the pull is refused:
to fetch what a stranger's manifest points at, from inside this network, is not worth the risk (attacks A18 and A19) for images that do not
run here anyway.
"""

from __future__ import annotations

import _thread
import contextlib
from collections.abc import Callable

from dockless.base.dataclass import replace
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import BadDigest, BadImage, NotFound, NotRunnable, RegistryError, RegistryUnavailable, UnknownImage
from dockless.images.catalog.catalog import Catalog
from dockless.images.catalog.image import Image
from dockless.images.files import explained
from dockless.images.model import choose, digest, manifest, platforms
from dockless.images.model.digest import Digest
from dockless.images.model.manifest import Descriptor, Index, Manifest
from dockless.images.model.platforms import Platform
from dockless.images.model.reference import Reference
from dockless.images.progress import Progress
from dockless.images.pull_policy import PullPolicy
from dockless.images.registry.remote import ReceivedManifest, RemoteRepository, first_of

if TYPE_CHECKING:
    from dockless.images.registry.configuration import Configuration
    from dockless.images.registry.credentials import Credentials
    from dockless.images.registry.transport import Timeouts
    from dockless.images.transfer.transfer import Pace

_MIRROR = 60.0
"""Seconds that a mirror has for an answer, once in a pull: then the next one is asked."""

Tell = Callable[[Progress], None]


def pull(
    store: Catalog,
    ref: str,
    *,
    platform: str | None = None,
    policy: PullPolicy = "always",
    progress: Tell | None = None,
    configuration: Configuration | None = None,
    credentials: Credentials | None = None,
    timeouts: Timeouts | None = None,
    pace: Pace | None = None,
) -> Image:
    """The image that ``ref`` means, in the store and tagged.

    ``platform``: ``os/arch[/variant]``, this host's by default. ``progress`` is called from several threads, one call at a time.
    ``configuration`` and ``credentials`` None: what the files of this user and system say.

    Raises ``BadInput``, ``UnknownImage`` (``never``), ``RegistryError`` and its kin, ``BadImage``, ``BadDigest``, ``UnsafeLayer``,
    ``NotRunnable`` (no image for the platform), ``NoRoom``, ``ImageError``. Whatever happens, the store stays sound and what has come is
    kept for the next try.
    """
    from dockless.images.registry import Configuration, Credentials, short_names
    from dockless.images.registry import policy as trust

    at = platforms.parse(platform) if platform else platforms.host()
    configuration = configuration or Configuration.load()
    credentials = credentials or Credentials.load(configuration=configuration)
    names = short_names(ref, configuration)
    with explained(f"cannot pull {ref}", ref, f"check that the image store {store.root} is on a writable file system with room"):
        store.prepare()
        if policy in ("missing", "never"):
            for name in names:
                found = _tagged(store, name, at)
                if found is not None:
                    return found
        if policy == "never":
            raise UnknownImage(f"the store has no image {ref!r} for {at}", subject=ref, hint=f"pull it: dockless pull {ref}")
        refusals: list[RegistryError] = []
        for name in names:
            try:
                trust.check(name)
                with contextlib.ExitStack() as stack:
                    remotes = _remotes(stack, name, configuration, credentials, timeouts)
                    return _Pull(store, name, remotes, at, bool(platform), _serial(progress), pace).run()
            except RegistryError as error:
                refusals.append(error)
                if policy == "newer" and isinstance(error, RegistryUnavailable):
                    found = _tagged(store, name, at)
                    if found is not None:
                        return found
        raise _telling_most(refusals, names)


def _remotes(
    stack: contextlib.ExitStack, name: Reference, configuration: Configuration, credentials: Credentials, timeouts: Timeouts | None
) -> list[RemoteRepository]:
    from dockless.images.registry import Registry, endpoints
    from dockless.images.registry.transport import Timeouts

    remotes = []
    *mirrors, own = endpoints(name, configuration)
    timeouts = timeouts or Timeouts()
    hasty = replace(timeouts, answer=min(timeouts.answer, _MIRROR))
    for mirror in mirrors:
        remotes.append(
            RemoteRepository(stack.enter_context(Registry(mirror, credentials=credentials, timeouts=hasty, tries=1)), patient=False)
        )
    return [*remotes, RemoteRepository(stack.enter_context(Registry(own, credentials=credentials, timeouts=timeouts)))]


def _telling_most(refusals: list[RegistryError], names: list[Reference]) -> RegistryError:
    """One error for all names that a short name may mean: the one that says most."""
    if len(refusals) == 1:
        return refusals[0]
    most = next((error for error in refusals if not isinstance(error, NotFound)), refusals[0])
    most.add_note("tried " + ", ".join(str(name) for name in names))
    return most


def _serial(progress: Tell | None) -> Tell | None:
    """Downloads and layers report from threads of their own; the caller hears one at a time."""
    if progress is None:
        return None
    lock = _thread.allocate_lock()

    def tell(event: Progress) -> None:
        with lock:
            progress(event)

    return tell


def _tagged(store: Catalog, name: Reference, at: Platform) -> Image | None:
    """What the store has under a name, if it suits the platform."""
    with contextlib.suppress(UnknownImage, BadImage, BadDigest):
        image = store.get(str(name))
        if platforms.rank(image.platform, at) is not None:
            return image
    return None


class _Pull:
    """One full name. ``remotes``: the preferred one first, the registry itself last."""

    def __init__(
        self,
        store: Catalog,
        name: Reference,
        remotes: list[RemoteRepository],
        at: Platform,
        explicit: bool,
        progress: Tell | None,
        pace: Pace | None,
    ) -> None:
        self._store = store
        self._name = name
        self._remotes = remotes
        self._at = at
        self._explicit = explicit
        self._progress = progress
        self._pace = pace
        self._tag = None if name.digest is not None else str(name)
        self._indexes: dict[Digest, bytes] = {}
        self.what = str(name)  # for choose()

    def run(self) -> Image:
        known = self._name.digest or self._digest_of_tag()
        if known is not None:
            found = self._present(known)
            if found is not None:
                return self._retag(found)
        document = self._document(self._name.digest or self._name.tag or "")
        document, parsed = self._image_of(document)
        own = digest.of(document.raw)  # the store's name for it, whatever algorithm it was asked for by
        found = self._in_store(own)
        if found is None:
            found = self._receive(document, parsed)
        self._remember(own)
        return self._retag(found)

    # -- what the store has ----------------------------------------------------------------------------------------------------------

    def _digest_of_tag(self) -> Digest | None:
        """Only worth a round trip of its own if the store may have the answer: for a tag that it knows."""
        if self._tag is None or self._tag not in self._store.read_index()["tags"]:
            return None
        tag = self._name.tag or ""
        _, found = first_of(self._remotes, lambda remote: remote.digest_of(tag))
        return found

    def _present(self, name: Digest) -> Image | None:
        """The image of a manifest or index, where the store has all of it."""
        found = self._in_store(name)
        if found is not None or (raw := self._kept(name)) is None:
            return found
        try:
            document = ReceivedManifest(raw, name, "", self.what)
            parsed = document.parsed()
            if not isinstance(parsed, Index):
                return None
            self._indexes[name] = document.raw
            entry = choose.choose(_Holding(self), parsed.entries, self._at, strict=True)
        except (BadImage, BadDigest, RegistryError):
            return None
        found = self._in_store(entry.digest)
        if found is not None:
            self._remember(entry.digest)
        return found

    def _in_store(self, name: Digest) -> Image | None:
        if str(name) not in self._store.read_index()["images"]:
            return None
        with contextlib.suppress(BadImage, BadDigest):
            image = self._store.image(str(name), None)
            if not self._explicit or platforms.rank(image.platform, self._at) is not None:
                return image
        return None

    def _retag(self, image: Image) -> Image:
        if self._tag is None:
            return image
        if self._store.read_index()["tags"].get(self._tag) != image.digest:
            self._store.register({}, {self._tag: image.digest})
        return replace(image, reference=self._tag)

    def _remember(self, name: Digest) -> None:
        """Where the image came from (push mounts its blobs there) and the indexes that led to it (they are names of it as well)."""
        origin = str(self._remotes[-1].registry.endpoint)
        indexes = [str(index) for index in self._indexes]
        entry = self._store.read_index()["images"].get(str(name), {})
        if origin in entry.get("origins", ()) and set(indexes) <= set(entry.get("indexes", ())):
            return
        with self._store.changing() as listed:
            entry = listed["images"].get(str(name))
            if entry is not None:
                entry["origins"] = sorted({*entry.get("origins", ()), origin})
                entry["indexes"] = sorted({*entry.get("indexes", ()), *indexes})

    # -- documents -------------------------------------------------------------------------------------------------------------------

    def _document(self, reference: str | Digest) -> ReceivedManifest:
        if isinstance(reference, Digest) and (raw := self._kept(reference)) is not None:
            return ReceivedManifest(raw, reference, "", self.what)

        def ask(remote: RemoteRepository) -> ReceivedManifest:
            document = remote.document(reference)
            document.parsed()  # a mirror's nonsense is no reason to give up
            return document

        return first_of(self._remotes, ask)[1]

    def _kept(self, name: Digest) -> bytes | None:
        """A document that the store has. One that is damaged goes, so that a sound one can come."""
        if not self._store.has_blob(name):
            return None
        try:
            return self._store.read_blob(name, self.what)
        except BadDigest:
            self._store.blob_path(name).unlink(missing_ok=True)
        except BadImage:
            pass
        return None

    def _image_of(self, document: ReceivedManifest) -> tuple[ReceivedManifest, Manifest]:
        """The manifest itself, through indexes."""
        parsed = document.parsed()
        if isinstance(parsed, Index):
            self._indexes[document.digest] = document.raw
            entry = choose.choose(_Holding(self), parsed.entries, self._at, strict=True)
            document = ReceivedManifest(self.read(entry), entry.digest, entry.media_type, f"{self.what}: manifest {entry.digest}")
            parsed = document.parsed()
        assert isinstance(parsed, Manifest)  # choose() gives a manifest's descriptor, and parsed() holds it to that
        return document, parsed

    def read(self, entry: Descriptor) -> bytes:
        """A manifest or index that an index names, verified."""
        what = f"{self.what}: manifest {entry.digest}"
        data = choose.inline(entry, what)
        if data is None:
            data = self._document(entry.digest).raw
        if entry.media_type in manifest.INDEXES:
            self._indexes[entry.digest] = data
        return choose.verified(data, entry, what)

    def _config(self, entry: Descriptor) -> bytes:
        raw = self._kept(entry.digest)
        if raw is not None:
            return raw
        return first_of(self._remotes, lambda remote: remote.blob(entry))[1]

    def _receive(self, document: ReceivedManifest, parsed: Manifest) -> Image:
        from dockless.images.archive.discover import config_document
        from dockless.images.transfer.receiving import Receiving

        config_raw = self._config(parsed.config)
        configured = config_document(config_raw, self.what, len(parsed.layers))
        if self._explicit and platforms.rank(configured.platform, self._at) is None:
            raise NotRunnable(
                f"{self.what} is for {configured.platform}, not for {self._at}",
                subject=self.what,
                hint="the registry has it for this platform only",
            )
        receiving = Receiving(self._store, self._remotes, self.what, self._progress, self._pace)
        return receiving.image(
            (self._tag,) if self._tag is not None else (),
            parsed,
            configured,
            manifest=document.raw,
            config=config_raw,
            indexes=self._indexes.items(),
        )


class _Holding:
    """What ``choose`` may ask: here every document can be had."""

    def __init__(self, pull: _Pull) -> None:
        self._pull = pull

    @property
    def what(self) -> str:
        return self._pull.what

    def has(self, entry: Descriptor) -> bool:
        return True

    def read(self, entry: Descriptor) -> bytes:
        return self._pull.read(entry)
