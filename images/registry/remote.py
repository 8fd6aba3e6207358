"""A repository at one endpoint, in the words of the distribution protocol: manifests, tags, small and large blobs.

What a registry says about a document is never believed over the document: the digest is that of the bytes that came (a tag may move
between two requests, a mirror may be behind), the media type is what the content says, and where both contradict each other the document
is refused.

https://github.com/opencontainers/distribution-spec/blob/main/spec.md
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from dockless.base.dataclass import dataclass
from dockless.base.later import re
from dockless.base.typing import TYPE_CHECKING, TypeVar
from dockless.base.url import urljoin, urlsplit
from dockless.errors import BadDigest, BadImage, RegistryError, RegistryUnavailable
from dockless.images.model import digest, manifest
from dockless.images.model.choose import inline, verified
from dockless.images.model.digest import Digest
from dockless.images.model.manifest import Descriptor, Index, Manifest
from dockless.images.model.reference import is_tag
from dockless.images.registry.deadline import remaining, within
from dockless.images.registry.endpoint import Scope

if TYPE_CHECKING:
    from dockless.images.registry import Registry, Response, Scope

ACCEPT = ", ".join((manifest.OCI_INDEX, manifest.DOCKER_LIST, manifest.OCI_MANIFEST, manifest.DOCKER_MANIFEST))
_KNOWN = manifest.MANIFESTS | manifest.INDEXES
_TRIES = 4
_WAIT = 0.25
_PAGES_MAX = 1000
_NEXT = r'(?i)<([^<>]{1,4000})>\s*;[^,]*\brel\s*=\s*"?next"?'

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReceivedManifest:
    """A manifest or an index as it came. ``declared``: the media type that was named for it, "" where that said nothing."""

    raw: bytes
    digest: Digest
    declared: str
    what: str

    def parsed(self) -> Manifest | Index:
        """``BadImage`` where it is ambiguous, malformed, or neither an image nor an index."""
        return manifest.parse(self.raw, self.what, self.declared)


@dataclass(slots=True)
class RemoteRepository:
    """The repository that the registry's endpoint names. ``patient`` False: failures come back at once, because another one is next;
    ``lost``: it gave no answer, or not in time, and need not be waited for again. Thread-safe."""

    registry: Registry
    patient: bool = True
    lost: bool = False

    @property
    def what(self) -> str:
        return str(self.registry.endpoint)

    # -- documents -------------------------------------------------------------------------------------------------------------------

    def document(self, reference: str | Digest) -> ReceivedManifest:
        """A manifest or an index by tag or digest. ``NotFound``, ``BadDigest``, ``BadImage`` where it is too large."""
        what = f"{self.what}{'@' if isinstance(reference, Digest) else ':'}{reference}"
        raw, kind = self._retried(lambda: self._small(f"manifests/{reference}", what, manifest.DOCUMENT_MAX, {"Accept": ACCEPT}))
        if isinstance(reference, Digest):
            digest.check(raw, reference, what)
        declared = kind.partition(";")[0].strip().lower()
        # What else stands there (application/json, text/plain, nothing) is habit rather than meaning.
        found = reference if isinstance(reference, Digest) else digest.of(raw)
        return ReceivedManifest(raw, found, declared if declared in _KNOWN else "", what)

    def digest_of(self, tag: str) -> Digest | None:
        """What the registry says the tag points to, without fetching it. None where it does not say."""
        try:
            with self._request("HEAD", f"manifests/{tag}", what=f"{self.what}:{tag}", headers={"Accept": ACCEPT}) as response:
                return digest.parse(response.headers.get("Docker-Content-Digest", ""))
        except BadDigest:
            return None
        except RegistryError as error:
            if error.status in (400, 405, 501):
                return None  # it does not know HEAD
            raise

    def blob(self, entry: Descriptor) -> bytes:
        """A small blob (a configuration), inline or fetched; verified."""
        what = f"{self.what}: blob {entry.digest}"
        data = inline(entry, what)
        if data is None:
            if entry.size > manifest.DOCUMENT_MAX:
                raise BadImage(f"{what} is larger than {manifest.DOCUMENT_MAX} bytes", subject=what)
            data, _ = self._retried(lambda: self._small(f"blobs/{entry.digest}", what, entry.size, {}))
        return verified(data, entry, what)

    def tags(self, limit: int = 100_000) -> list[str]:
        """The repository's tags, page by page, at most ``limit``. Pages that lead to another host or in a circle end in ``BadImage``."""
        with within(self.registry.timeouts.answer, "the list of tags"):
            return self._tags(limit)

    def _tags(self, limit: int) -> list[str]:
        found: list[str] = []
        path = f"{self.registry.endpoint.path('tags', 'list')}?n=1000"
        seen: set[str] = set()
        what = f"{self.what}: list of tags"
        while path and len(found) < limit:
            if path in seen or len(seen) >= _PAGES_MAX:
                raise BadImage(f"{what} does not end: its pages lead in a circle", subject=what)
            seen.add(path)
            with self.registry.request("GET", path, scope=self._scope("pull"), what=what) as response:
                raw = response.read_all(manifest.DOCUMENT_MAX)
                link, url = response.headers.get("Link"), response.url
            page = manifest.load_json(raw, what)
            names = (page.get("tags") or []) if isinstance(page, dict) else None
            if not isinstance(names, list):
                raise BadImage(f"{what} is malformed", subject=what)
            found += [name for name in names if isinstance(name, str) and is_tag(name)]
            path = _next_page(link, url, what)
        return found[:limit]

    # -- blobs -----------------------------------------------------------------------------------------------------------------------

    def open_blob(self, name: Digest, headers: Mapping[str, str]) -> Response:
        """The answer to a GET of a blob: 200, 206 or 416; its body is not read yet."""
        return self._request("GET", f"blobs/{name}", what=f"{self.what}: blob {name}", headers=headers, ok=(200, 206, 416))

    # -- within ----------------------------------------------------------------------------------------------------------------------

    def _request(self, method: str, path: str, *, what: str, headers: Mapping[str, str], ok: tuple[int, ...] = (200,)) -> Response:
        return self.registry.request(
            method,
            self.registry.endpoint.path(path),
            scope=self._scope("pull"),
            headers={"Accept-Encoding": "identity", **headers},
            ok=ok,
            patient=self.patient,
            what=what,
        )

    def _scope(self, *actions: str) -> Scope:
        from dockless.images.registry import Scope

        return Scope(self.registry.endpoint.repository, actions)

    def _small(self, path: str, what: str, limit: int, headers: Mapping[str, str]) -> tuple[bytes, str]:
        with self._request("GET", path, what=what, headers=headers) as response:
            return response.read_all(limit), response.headers.get("Content-Type")

    def _retried(self, ask: Callable[[], T]) -> T:
        """Small answers are asked for again as a whole where the connection broke in the middle of one, as long as there is time."""
        with within(self.registry.timeouts.answer, "the document"):
            for at in range(_TRIES - 1 if self.patient else 0):
                try:
                    return ask()
                except RegistryUnavailable as error:
                    import random

                    wait = _WAIT * 2**at * random.uniform(0.5, 1.5)
                    if error.status != 200 or wait >= remaining():
                        raise  # the transport has already asked often enough, or long enough
                    time.sleep(wait)
            return ask()


def first_of(remotes: list[RemoteRepository], ask: Callable[[RemoteRepository], T]) -> tuple[RemoteRepository, T]:
    """The first remote that has an answer. The last one, the registry itself, speaks for all where none has."""
    for remote in remotes[:-1]:
        if remote.lost:
            continue
        try:
            return remote, ask(remote)
        except (RegistryError, BadDigest, BadImage) as error:
            remote.lost = isinstance(error, RegistryUnavailable)
    return remotes[-1], ask(remotes[-1])


def _next_page(link: str, url: str, what: str) -> str:
    """The path that a ``Link: <…>; rel="next"`` leads to, "" for none. Never another host's."""
    match = re.search(_NEXT, link)
    if match is None:
        return ""
    try:
        here, there = urlsplit(url), urlsplit(urljoin(url, match[1]))
    except ValueError as error:
        raise BadImage(f"{what} goes on at a malformed address: {error}", subject=what) from None
    if (there.scheme, there.netloc) != (here.scheme, here.netloc) or not there.path.startswith("/v2/"):
        raise BadImage(
            f"{what} goes on at {there.scheme}://{there.netloc[:100]}, another host",
            subject=what,
            hint="the registry is set up wrongly (its own name, behind a proxy), or it wants to lead us elsewhere",
        )
    return f"{there.path}?{there.query}" if there.query else str(there.path)
