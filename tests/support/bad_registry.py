"""A registry on loopback that behaves, but for what a test scripts: cut, torn, stalled, lying answers, where and as often as it says.

::

    with BadRegistry() as registry:
        digest = registry.image("app:1", [layer])                 # its manifest's digest
        registry.script(reset_at(1000), "GET", "/blobs/", times=2)
        pull(registry.name("app:1"))
        registry.requests("GET", "/blobs/")                       # what was asked, in order

A script is a function that answers one request (``Exchange``). Uploads work, so the same server serves the tests of push.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from support.make_image import Blobs, digest_of

_PATH = re.compile(r"/v2/(?P<repository>.+)/(?P<kind>manifests|blobs/uploads|blobs|tags)(?:/(?P<name>[^/]*))?\Z")


@dataclass(frozen=True)
class Seen:
    """A request as it came. ``headers``: names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    size: int

    @property
    def range(self) -> str:
        return self.headers.get("range", "")


@dataclass
class _Rule:
    script: Callable[[Exchange], None]
    method: str
    part: str
    times: int
    skip: int

    def takes(self, seen: Seen) -> bool:
        if seen.method != self.method or self.part not in seen.path or self.times <= 0:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class BadRegistry:
    """The server. ``blobs``, ``manifests`` (by ``repository:reference``) and ``tags`` may be changed at any time."""

    def __init__(self) -> None:
        self.blobs = Blobs()
        self.manifests: dict[str, tuple[bytes, str]] = {}
        self.uploads: dict[str, bytearray] = {}
        self.log: list[Seen] = []
        self.released = threading.Event()
        self.chunked_only = False
        self._rules: list[_Rule] = []
        self._lock = threading.Lock()
        self._count = itertools.count(1)
        handler = type("Handler", (Exchange,), {"registry": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> BadRegistry:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    # -- contents --------------------------------------------------------------------------------------------------------------------

    def name(self, tag: str) -> str:
        return f"{self.host}/{tag}" if ":" in tag or "@" in tag else f"{self.host}/{tag}:latest"

    def image(self, name: str, layers: Sequence[Any], config: Mapping[str, Any] | None = None, **how: Any) -> str:
        """Serve an image as ``repository:tag`` and by its digest; the digest."""
        entry = self.blobs.image(layers, config or {}, **how)
        return self.serve(name, self.blobs[entry["digest"]], entry["mediaType"])

    def serve(self, name: str, raw: bytes, media_type: str) -> str:
        repository, _, _tag = name.rpartition(":")
        digest = digest_of(raw)
        self.manifests[name] = self.manifests[f"{repository}:{digest}"] = (raw, media_type)
        return digest

    def layers(self, name: str) -> list[str]:
        return [layer["digest"] for layer in json.loads(self.manifests[name][0])["layers"]]

    # -- scripts ---------------------------------------------------------------------------------------------------------------------

    def script(self, script: Callable[[Exchange], None], method: str = "GET", part: str = "/blobs/", times: int = 1, skip: int = 0) -> None:
        """Answer so the next ``times`` requests of ``method`` whose path has ``part`` in it, after ``skip`` others of the kind."""
        self._rules.append(_Rule(script, method, part, times, skip))

    def requests(self, method: str = "GET", part: str = "/blobs/") -> list[Seen]:
        with self._lock:
            return [seen for seen in self.log if seen.method == method and part in seen.path]

    def _rule(self, seen: Seen) -> Callable[[Exchange], None] | None:
        with self._lock:
            self.log.append(seen)
            return next((rule.script for rule in self._rules if rule.takes(seen)), None)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: object) -> None:
        pass  # a client that went away is what many tests are about


class Exchange(BaseHTTPRequestHandler):
    """One request and its answer."""

    registry: ClassVar[BadRegistry]
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    body: bytes = b""

    def log_message(self, *_: object) -> None:
        pass

    def _take(self) -> None:
        seen = Seen(self.command, self.path, {name.lower(): value for name, value in self.headers.items()}, self._length())
        script = self.registry._rule(seen)
        if script is not None:
            script(self)
        else:
            self.behave()

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = _take

    def _length(self) -> int:
        return int(self.headers.get("Content-Length", "0") or 0)

    # -- what a sound registry does --------------------------------------------------------------------------------------------------

    def behave(self) -> None:
        url = urlsplit(self.path)
        match = _PATH.match(url.path.rstrip("/"))
        if url.path in ("/v2/", "/v2"):
            return self.reply(200, b"{}")
        if match is None:
            return self.refuse(404, "NAME_UNKNOWN")
        kind, repository, name = match["kind"], match["repository"], match["name"] or ""
        if kind == "manifests":
            return self._put_manifest(repository, name) if self.command == "PUT" else self._manifest(repository, name)
        if kind == "tags":
            names = sorted(key.rpartition(":")[2] for key in self.registry.manifests if key.startswith(f"{repository}:") and "@" not in key)
            return self.reply(200, json.dumps({"name": repository, "tags": names}).encode())
        if kind == "blobs/uploads":
            return self._upload(repository, name, parse_qs(url.query))
        return self._blob(name)

    def _manifest(self, repository: str, reference: str) -> None:
        found = self.registry.manifests.get(f"{repository}:{reference}")
        if found is None:
            return self.refuse(404, "MANIFEST_UNKNOWN")
        self.reply(200, found[0], {"Content-Type": found[1], "Docker-Content-Digest": digest_of(found[0])})

    def blob(self) -> bytes:
        """The blob that is asked for."""
        return self.registry.blobs[urlsplit(self.path).path.rpartition("/")[2]]

    def _blob(self, digest: str) -> None:
        data = self.registry.blobs.get(digest)
        if data is None:
            return self.refuse(404, "BLOB_UNKNOWN")
        headers = {"ETag": f'"{digest}"', "Docker-Content-Digest": digest}
        wanted = self.wanted(len(data))
        if wanted is None or self.headers.get("If-Range", headers["ETag"]) != headers["ETag"]:
            return self.reply(200, data, headers)
        begin, end = wanted
        if begin >= len(data):
            return self.reply(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        self.reply(206, data[begin:end], {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"})

    def wanted(self, size: int) -> tuple[int, int] | None:
        match = re.match(r"bytes=(\d+)-(\d*)\Z", self.headers.get("Range", ""))
        return (int(match[1]), min(int(match[2] or size) + 1, size)) if match else None

    def _put_manifest(self, repository: str, reference: str) -> None:
        raw = self.rfile.read(self._length())
        document = json.loads(raw)
        lacking = [entry["digest"] for entry in [document["config"], *document["layers"]] if entry["digest"] not in self.registry.blobs]
        if lacking:
            return self.refuse(404, "MANIFEST_BLOB_UNKNOWN")
        for name in (reference, digest_of(raw)):
            self.registry.manifests[f"{repository}:{name}"] = (raw, self.headers["Content-Type"])
        self.reply(201, b"", {"Docker-Content-Digest": digest_of(raw), "Location": f"/v2/{repository}/manifests/{digest_of(raw)}"})

    def _upload(self, repository: str, name: str, query: Mapping[str, Sequence[str]]) -> None:
        uploads, blobs = self.registry.uploads, self.registry.blobs
        if self.command == "POST":
            self.rfile.read(self._length())
            mount = query.get("mount", [""])[0]
            if mount in blobs and "from" in query:
                return self.reply(201, b"", {"Location": f"/v2/{repository}/blobs/{mount}", "Docker-Content-Digest": mount})
            name = f"u{next(self.registry._count)}"
            uploads[name] = bytearray()
            return self.reply(202, b"", self.upload_headers(repository, name))
        if name not in uploads:
            self.rfile.read(self._length())
            return self.refuse(404, "BLOB_UPLOAD_UNKNOWN")
        have = uploads[name]
        if self.command == "GET":
            return self.reply(204, b"", self.upload_headers(repository, name))
        stated = re.match(r"(\d+)-(\d+)\Z", self.headers.get("Content-Range", ""))
        if stated and int(stated[1]) != len(have):
            self.rfile.read(self._length())
            return self.reply(416, b"", self.upload_headers(repository, name))
        left = self._length()
        while left:
            piece = self.rfile.read1(min(left, 1 << 16))
            if not piece:
                self.close_connection = True
                return None
            have += piece
            left -= len(piece)
        if self.command == "PATCH":
            return self.reply(202, b"", self.upload_headers(repository, name))
        digest = query["digest"][0]
        if digest_of(bytes(have), digest.partition(":")[0]) != digest:
            return self.refuse(400, "DIGEST_INVALID")
        blobs[digest] = bytes(have)
        del uploads[name]
        self.reply(201, b"", {"Location": f"/v2/{repository}/blobs/{digest}", "Docker-Content-Digest": digest})

    def upload_headers(self, repository: str, name: str) -> dict[str, str]:
        have = len(self.registry.uploads[name])
        return {"Location": f"/v2/{repository}/blobs/uploads/{name}?_state=a%2Fb{have}", "Range": f"0-{max(0, have - 1)}"}

    # -- words for scripts -----------------------------------------------------------------------------------------------------------

    def head(self, status: int, headers: Mapping[str, str] = {}, *, length: int | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def reply(self, status: int, body: bytes = b"", headers: Mapping[str, str] = {}) -> None:
        self.head(status, headers, length=len(body) if status != 204 else None)
        self.write(body)

    def refuse(self, status: int, code: str, headers: Mapping[str, str] = {}) -> None:
        self.reply(status, json.dumps({"errors": [{"code": code, "message": code.lower().replace("_", " ")}]}).encode(), headers)

    def write(self, data: bytes) -> None:
        if self.command != "HEAD":
            self.wfile.write(data)

    def hang_up(self, *, reset: bool = False) -> None:
        self.close_connection = True
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    def part(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of a sound answer about a blob, for scripts that spoil it."""
        data = self.blob()
        wanted = self.wanted(len(data))
        if wanted is None:
            return 200, {}, data
        begin, end = wanted
        return 206, {"Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"}, data[begin:end]


# -- the scripts, named after what goes wrong ----------------------------------------------------------------------------------------


def behaving(exchange: Exchange) -> None:
    exchange.behave()


def cut_at(count: int, *, reset: bool = False) -> Callable[[Exchange], None]:
    """The right length is promised; after ``count`` bytes the connection ends, with a reset on request."""

    def script(exchange: Exchange) -> None:
        status, headers, body = exchange.part()
        exchange.head(status, headers, length=len(body))
        exchange.write(body[:count])
        exchange.hang_up(reset=reset)

    return script


def stalled_at(count: int) -> Callable[[Exchange], None]:
    """After ``count`` bytes nothing comes any more."""

    def script(exchange: Exchange) -> None:
        status, headers, body = exchange.part()
        exchange.head(status, headers, length=len(body))
        exchange.write(body[:count])
        exchange.registry.released.wait(30)
        exchange.hang_up()

    return script


def whole(exchange: Exchange) -> None:
    """200 and everything, whatever range was asked for."""
    exchange.reply(200, exchange.blob())


def status(code: int, headers: Mapping[str, str] = {}, error: str = "UNKNOWN") -> Callable[[Exchange], None]:
    return lambda exchange: exchange.refuse(code, error, headers)


def ranged(content_range: str) -> Callable[[Exchange], None]:
    """206 with a Content-Range of our own ("" for none) and the bytes that were asked for."""
    return lambda exchange: exchange.reply(206, exchange.part()[2], {"Content-Range": content_range} if content_range else {})


def sending(data: bytes, headers: Mapping[str, str] = {}) -> Callable[[Exchange], None]:
    """200 and these bytes."""
    return lambda exchange: exchange.reply(200, data, headers)


def chunked(more: bytes = b"", piece: int = 5000) -> Callable[[Exchange], None]:
    """Without a length, in chunks; ``more`` bytes too many."""

    def script(exchange: Exchange) -> None:
        data = exchange.blob() + more
        exchange.head(200, {"Transfer-Encoding": "chunked"})
        for begin in range(0, len(data), piece):
            part = data[begin : begin + piece]
            exchange.write(b"%x\r\n%s\r\n" % (len(part), part))
        exchange.write(b"0\r\n\r\n")

    return script


def http10(more: bytes = b"") -> Callable[[Exchange], None]:
    """HTTP/1.0: no length, the end of the connection is the end of the body."""

    def script(exchange: Exchange) -> None:
        exchange.wfile.write(b"HTTP/1.0 200 OK\r\nconTENT-type: application/octet-stream\r\n\r\n" + exchange.blob() + more)
        exchange.hang_up()

    return script


def compressed(exchange: Exchange) -> None:
    """Content-Encoding: gzip around the blob, though nobody asked for it."""
    exchange.reply(200, gzip.compress(exchange.blob()), {"Content-Encoding": "gzip"})


def redirected(to: str, code: int = 307) -> Callable[[Exchange], None]:
    return lambda exchange: exchange.reply(code, b"", {"Location": to + exchange.path if to.endswith("…") is False else to[:-1]})


def spoiled(exchange: Exchange) -> None:
    """The right length, other bytes."""
    code, headers, body = exchange.part()
    exchange.reply(code, hashlib.sha256(body).digest() * (len(body) // 32) + b"\0" * (len(body) % 32), headers)


def tokens(registry: BadRegistry, uses: int, *, unread: bool = False) -> Callable[[], Iterable[Seen]]:
    """From now on every request needs a token, and a token is good for ``uses`` requests, and for each that was refused with an older one:
    a fresh token is not old when it is first shown, however many threads have shown it meanwhile. Gives the requests for tokens.
    ``unread``: a request without a good one is refused before its body has been read."""
    left: dict[str, int] = {}
    refused: dict[tuple[str, str], str] = {}

    def guard(exchange: Exchange) -> None:
        token = exchange.headers.get("Authorization", "").removeprefix("Bearer ")
        request = (exchange.command, exchange.path)
        if left.get(token, 0) > 0 or (uses and token in left and refused.get(request, token) != token):
            left[token] -= 1
            refused.pop(request, None)
            exchange.behave()
            return
        refused[request] = token
        if unread:
            exchange.hang_up()  # after the answer, with the body of the request still on its way
        else:
            exchange.rfile.read(exchange._length())
        challenge = f'Bearer realm="http://{registry.host}/token",service="bad",scope="repository:app:pull"'
        exchange.refuse(401, "UNAUTHORIZED", {"WWW-Authenticate": challenge})

    def give(exchange: Exchange) -> None:
        token = f"t{next(registry._count)}"
        left[token] = uses
        exchange.reply(200, json.dumps({"token": token, "expires_in": 300}).encode())

    for method in ("GET", "HEAD", "POST", "PATCH", "PUT"):
        registry.script(guard, method, "/v2/", times=1 << 30)
    registry.script(give, "GET", "/token", times=1 << 30)
    return lambda: registry.requests("GET", "/token")
