"""What registries and their configuration say: headers, tokens, errors, files, and whole conversations of a registry that says anything.

A conversation is a list of answers. Every request, wherever it goes, gets the next one, and the last one for ever::

    === 401
    WWW-Authenticate: Bearer realm="https://auth.example/token",service="s"
    === 200
    Content-Type: application/json

    {"token": "t"}

The network is replaced, so that what would be asked of whom can be looked at: no secret goes to a place that neither the user nor the
registry itself named, nothing goes from https to http, and there is an end.
"""

from __future__ import annotations

import email.parser
import io
import os
import re
import tempfile
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fuzz.properties import bounded, hold, text

from dockless.errors import DocklessError
from dockless.images.model import digest, reference
from dockless.images.registry import addresses, challenge, configuration, credentials, encoding, errors, remote, retrying, tokens
from dockless.images.registry.endpoint import Endpoint
from dockless.images.registry.transport import Registry
from dockless.images.transfer.partial import Partial
from dockless.images.transfer.transfer import Pace, Transfer
from dockless.images.transfer.upload import Upload, UploadPace

REQUESTS_MAX = 1100
PASSWORD = "pass-word"
HOST = "registry.example"
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where files are quick."""

# -- headers -----------------------------------------------------------------------------------------------------------------------------


def challenge_target(data: bytes) -> None:
    headers = data.decode("latin-1").split("\n")
    found = challenge.parse(headers)
    for one in found:
        hold(one.scheme and one.scheme == one.scheme.lower() and " " not in one.scheme, f"the scheme {one.scheme!r}")
        hold(all(name == name.lower() and name for name, _ in one.parameters), f"the parameters {one.parameters!r}")
    best = challenge.supported(found)
    hold(best is None or best.scheme == "basic" or best.get("realm"), f"{best!r} cannot be answered")


def header_target(data: bytes) -> None:
    """Retry-After, Content-Encoding, addresses, an error's body: each gets it all."""
    value = data.decode("latin-1")
    wait = retrying.retry_after(value, lambda: 1.7e9)
    hold(wait is None or 0 <= wait < float("inf"), f"a wait of {wait} s")
    patience = retrying.Patience(pause=lambda seconds: hold(0 <= seconds <= retrying.WAIT_MAX + 1, f"a pause of {seconds} s"))
    if patience.may_wait(wait):
        patience.wait(wait)
    where = addresses.address(value)
    if where is not None:
        hold(
            addresses.classify(where) in (addresses.PUBLIC, addresses.PRIVATE, addresses.LOOPBACK, addresses.NEVER), f"the class of {where}"
        )
    codes, words = errors.parse(data)
    for said in (*codes, words, errors.printable(value)):
        hold(said.isprintable() and len(said) <= 300, f"the registry's words {said!r}")
        text(said, "the registry's words")
    encoding.decoder(value, "fuzz")


def token_target(data: bytes) -> None:
    registry = tokens.Authenticator("fuzz", lambda: None, lambda *_: (200, data), clock=lambda: 100.0)
    found = registry.answer(challenge.parse(['Bearer realm="https://a/t"']), (), None)
    hold(re.fullmatch(r"Bearer [!-~]+", found), f"the header {found!r}")
    hold(registry.header(()) == found, "the token is not kept")


def encoding_target(data: bytes) -> None:
    """The first byte: which encoding, and how the bytes trickle. Pieces or not, it is the same."""
    head, data = (data[0], data[1:]) if data else (0, b"")
    kind = "gzip" if head & 1 else "deflate"
    results = []
    for step in (1 << 16, head % 50 + 1):
        stream, output, refused = io.BytesIO(data), b"", False
        decoder = encoding.decoder(kind, "fuzz")
        assert decoder is not None
        try:
            while len(output) < 1 << 20 and (
                piece := decoder.read(lambda size, step=step, stream=stream: stream.read(min(size, step)), 7 * step)
            ):
                hold(len(piece) <= 7 * step, f"{len(piece)} bytes where {7 * step} were asked for")
                output += piece
        except DocklessError:
            refused = True
        results.append((output, refused))
    (one, refused), (two, again) = results
    hold(max(len(one), len(two)) >= 1 << 20 or refused == again, f"read at once refused: {refused}, in pieces: {again}")
    hold(refused or one[: len(two)] == two[: len(one)], "read at once and in pieces it is not the same")


# -- files -------------------------------------------------------------------------------------------------------------------------------


def configuration_target(data: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        path = Path(place) / "registries.conf"
        path.write_bytes(data)
        found = configuration.Configuration.load({"CONTAINERS_REGISTRIES_CONF": str(path), "CONTAINERS_REGISTRIES_CONF_DIR": place})
    for warning in found.warnings:
        hold(warning.isprintable(), f"the warning {warning!r}")
        text(warning, "a warning")
    for name in ("busybox", "docker.io/library/busybox@sha256:" + "1" * 64, "a.example.com/b/c:d", "localhost:5000/x"):
        try:
            for one in configuration.short_names(name, found):
                for endpoint in configuration.endpoints(one, found):
                    hold(reference.parse(f"{endpoint.location}/{endpoint.repository}:x").path, f"{endpoint!r}")
        except DocklessError:
            continue


def credentials_target(data: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        for name in ("auth.json", ".dockercfg"):
            path = Path(place) / name
            path.write_bytes(data)
            found = credentials.Credentials((path,), {"PATH": ""})
            for location, repository in (("docker.io", "library/busybox"), ("a.example:5000", "b/c"), ("quay.io", "")):
                login = found.find(location, repository)
                if login is not None:
                    hold(re.fullmatch(r"Basic [A-Za-z0-9+/=]*", login.basic()), f"the header {login.basic()!r}")
                    hold(login.password not in repr(login) or len(login.password) < 4, "a secret in its repr")


def partial_target(data: bytes) -> None:
    """What lies behind the bytes of a blob that did not come to its end: the first two bytes are its size, the rest the file."""
    size, data = int.from_bytes(data[:2], "little") + 1, data[2:]
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        path = Path(place) / "d" / "blob"
        path.parent.mkdir()
        path.write_bytes(data)
        partial = Partial.take(path, size, 1000)
        assert partial is not None
        try:
            hold(0 <= partial.prefix <= partial.have <= size, f"{partial.prefix} ≤ {partial.have} ≤ {size}")
            while (stretch := partial.claim(2)) is not None:
                begin, end = stretch
                hold(0 <= begin < end <= size, f"the stretch {stretch}")
                partial.write(begin, bytes(end - begin))
                partial.release(begin, end)
            hold(partial.have == partial.prefix == size, f"{partial.have} of {size} after all was written")
            if not partial.whole:
                partial.finish()
            hold(path.stat().st_size == size, "the file is not as long as the blob")
        finally:
            partial.close()


# -- conversations -----------------------------------------------------------------------------------------------------------------------


class _Answer:
    """As much of an answer as the client uses."""

    def __init__(self, raw: bytes) -> None:
        from dockless.images.registry.http import Headers

        first, _, rest = raw.partition(b"\n")
        head, _, body = rest.partition(b"\n\n")
        digits = re.match(rb"\d{3}", first)
        self.status = int(digits[0]) if digits and int(digits[0]) >= 200 else 200
        fields = email.parser.Parser().parsestr(head.decode("latin-1").replace("\0", ""), headersonly=True).items()
        self.headers = Headers((name, re.sub(r"[\r\n]+[ \t]*", " ", str(value))) for name, value in fields)
        self._body = io.BytesIO(body)

    def read1(self, size: int) -> bytes:
        return self._body.read(min(size, 700))

    def close(self) -> None:
        pass


class Conversation:
    """A registry that answers what the input says, in place of the network; it looks at what is asked."""

    def __init__(self, data: bytes) -> None:
        self._answers = [part for part in re.split(rb"(?:\A|\n)=== ", data) if part.strip()] or [b"200"]
        self.requests = 0
        self._realms: set[tuple[str, str, int]] = set()

    def send(self, method: str, url: str, headers: Any, body: Any, *, insecure: bool, probe: bool) -> _Answer:
        self.requests += 1
        hold(self.requests < REQUESTS_MAX, "a conversation without an end")
        parts = urlsplit(url)
        origin = (parts.scheme, parts.hostname, parts.port or 443)
        hold(parts.scheme == "https", f"a request to {url!r}")
        hold(url.isascii() and url.isprintable() and "@" not in parts.netloc, f"a request to {url!r}")
        for name, value in headers.items():
            hold(re.fullmatch(r"[\x20-\x7e]*", value), f"the header {name}: {value!r}")
        if "Authorization" in headers:
            hold(origin == ("https", HOST, 443) or origin in self._realms, f"a secret is sent to {url!r}")
        if hasattr(body, "read"):
            while body.read(1 << 16):
                pass
        answer = _Answer(self._answers[min(self.requests, len(self._answers)) - 1])
        if origin == ("https", HOST, 443):
            for one in challenge.parse(answer.headers.getlist("WWW-Authenticate")):
                try:
                    realm = urlsplit(one.get("realm"))
                    self._realms.add((realm.scheme or "https", realm.hostname or HOST, realm.port or 443))
                except ValueError:
                    continue
        return answer

    def close(self) -> None:
        pass


class _Known(credentials.Credentials):
    def find(self, location: str, repository: str = "") -> credentials.Login:
        return credentials.Login("user", PASSWORD, source="fuzz")


class _Impatient(threading.Event):
    """Lets nobody wait."""

    def wait(self, timeout: float | None = None) -> bool:
        hold(timeout is None or 0 <= timeout <= 90, f"a wait of {timeout} s")
        return self.is_set()


def registry_of(data: bytes) -> Registry:
    registry = Registry(Endpoint(HOST, "a/b"), credentials=_Known(), env={}, tries=3, pause=lambda seconds: None)
    registry._network = Conversation(data)  # type: ignore[assignment]
    return registry


def conversation_target(data: bytes) -> None:
    """A list of tags, a manifest, a small blob: what a pull begins with."""
    refused: DocklessError | None = None
    for ask in ("tags", "document", "digest_of", "pinned"):
        with registry_of(data) as registry:
            there = remote.RemoteRepository(registry, patient=False)
            try:
                if ask == "tags":
                    hold(all(re.fullmatch(r"[A-Za-z0-9_.-]+", tag) for tag in there.tags(5000)), "tags")
                elif ask == "document":
                    found = there.document("latest")
                    hold(digest.of(found.raw) == found.digest, "a document that is not what its digest says")
                    found.parsed()
                elif ask == "digest_of":
                    there.digest_of("latest")
                else:
                    there.document(digest.of(b"{}"))
            except DocklessError as error:
                refused = error
    if refused is not None:
        raise refused


def transfer_target(data: bytes) -> None:
    """A blob in pieces. The first byte is its size in units of 100 bytes."""
    size, data = (data[0] * 100 + 50, data[1:]) if data else (50, b"")
    with tempfile.TemporaryDirectory(dir=MEMORY) as place, registry_of(data) as registry:
        partial = Partial.take(Path(place) / "d" / "blob", size, 1000)
        assert partial is not None
        pace = Pace(connections=1, split_from=1 << 30, chunk=1000, tries=3, wait=0.0, wait_max=0.0)
        try:
            there = remote.RemoteRepository(registry, patient=False)
            Transfer(there, digest.of(b""), partial, "fuzz", pace, _Impatient(), lambda count: None).run()
            hold(partial.have == size, f"{partial.have} of {size}")
        finally:
            hold(0 <= partial.prefix <= partial.have <= size, f"{partial.prefix} ≤ {partial.have} ≤ {size}")
            partial.close()


def upload_target(data: bytes) -> None:
    """A blob into the registry, in chunks of 1,000 bytes. The first byte is its size in units of 100 bytes."""
    size, data = (data[0] * 100, data[1:]) if data else (50, b"")
    fd = os.memfd_create("fuzz", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, size)
        with tempfile.TemporaryDirectory(dir=MEMORY) as place, registry_of(data) as registry:
            pace = UploadPace(chunk=1000, remembered_from=2000, tries=3, wait=0.0, wait_max=0.0)
            upload = Upload(
                registry, digest.of(b"x"), size, fd, "fuzz", source="other/repository" if size % 200 else "",
                state=Path(place), pace=pace, stop=_Impatient(), report=lambda offset: None,
            )  # fmt: skip
            hold(upload.run() in ("there", "mounted", "sent"), "an outcome nobody knows")
    finally:
        os.close(fd)


TARGETS = {
    "challenge": bounded(challenge_target),
    "header": bounded(header_target),
    "token": bounded(token_target),
    "encoding": bounded(encoding_target),
    "configuration": bounded(configuration_target),
    "credentials": bounded(credentials_target),
    "partial": bounded(partial_target),
    "conversation": bounded(conversation_target),
    "transfer": bounded(transfer_target),
    "upload": bounded(upload_target),
}
