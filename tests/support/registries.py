"""Real registries for tests: Debian's docker-registry on a free port of loopback, open, with passwords, with tokens, as a mirror, with TLS.

::

    @requires("program:docker-registry")
    with docker_registry(tmp_path) as registry:
        registry.put("library/app", "latest", layers=[b"…"])

    docker_registry(tmp_path, users={"ann": "secret"})                  # "program:htpasswd"
    docker_registry(tmp_path, tokens=TokenServer(tmp_path, users=…))    # "program:openssl", as for Authority
    docker_registry(tmp_path, authority=Authority(tmp_path))
    docker_registry(tmp_path, mirror_of="http://127.0.0.1:5000")
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import parse_qs, urlsplit

START_DEADLINE = 20.0  # seconds that a registry may take to listen
_PATH = "/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def tool(name: str) -> str:
    found = shutil.which(name, path=_PATH)
    assert found is not None, f"{name} is not installed: the test must say requires('program:{name}')"
    return found


class Authority:
    """A certificate authority of the test's own, and a server certificate for 127.0.0.1, localhost and ``names`` that it signed."""

    def __init__(self, where: Path, name: str = "ca", names: Sequence[str] = ()) -> None:
        self.ca, self.certificate, self.key = where / f"{name}.crt", where / f"{name}-server.crt", where / f"{name}-server.key"
        ca_key, request, extra = where / f"{name}.key", where / f"{name}-server.csr", where / f"{name}.ext"
        also = "".join(f",DNS:{other}" for other in names)
        extra.write_text(f"subjectAltName=IP:127.0.0.1,DNS:localhost{also}\nbasicConstraints=CA:FALSE\n")
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        _openssl("req", "-x509", *curve, "-days", "2", "-subj", f"/CN=dockless test {name}", "-keyout", ca_key, "-out", self.ca)
        _openssl("req", *curve, "-subj", "/CN=localhost", "-keyout", self.key, "-out", request)
        _openssl(
            "x509",
            "-req",
            "-in",
            request,
            "-CA",
            self.ca,
            "-CAkey",
            ca_key,
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            extra,
            "-out",
            self.certificate,
        )

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


def _openssl(*arguments: str | Path, data: bytes = b"") -> bytes:
    done = subprocess.run([tool("openssl"), *map(str, arguments)], input=data, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@dataclass
class DockerRegistry:
    """A running registry. ``netloc`` is host:port; ``root`` holds its blobs."""

    netloc: str
    root: Path
    log: Path
    authority: Authority | None = None
    authorization: str = ""

    def call(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Mapping[str, str], bytes]:
        """One plain request by http.client: nothing of dockless is in the way."""
        if self.authority is not None:
            context = ssl.create_default_context(cafile=str(self.authority.ca))
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(self.netloc, context=context, timeout=20)
        else:
            connection = http.client.HTTPConnection(self.netloc, timeout=20)
        with contextlib.closing(connection):
            fields = {"Authorization": self.authorization} if self.authorization else {}
            connection.request(method, path, body, {**fields, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def put_blob(self, repository: str, data: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        status, headers, said = self.call("POST", f"/v2/{repository}/blobs/uploads/")
        assert status == 202, said
        where = urlsplit(headers["Location"])
        status, _, said = self.call(
            "PUT",
            f"{where.path}?{where.query}&digest={digest}",
            data,
            {"Content-Type": "application/octet-stream", "Content-Length": str(len(data))},
        )
        assert status == 201, said
        return digest

    def put(self, repository: str, tag: str, layers: Sequence[bytes] = (), config: Mapping[str, object] | None = None) -> str:
        """An image of these layers (as they are: uncompressed tars). Returns its manifest's digest."""
        diff_ids = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
        document = json.dumps(
            {"architecture": "amd64", "os": "linux", "config": config or {}, "rootfs": {"type": "layers", "diff_ids": diff_ids}}
        ).encode()
        kind = "application/vnd.oci.image.layer.v1.tar"
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": {
                    "mediaType": "application/vnd.oci.image.config.v1+json",
                    "digest": self.put_blob(repository, document),
                    "size": len(document),
                },
                "layers": [{"mediaType": kind, "digest": self.put_blob(repository, layer), "size": len(layer)} for layer in layers],
            }
        ).encode()
        status, _, said = self.call("PUT", f"/v2/{repository}/manifests/{tag}", manifest, {"Content-Type": MANIFEST})
        assert status == 201, said
        return f"sha256:{hashlib.sha256(manifest).hexdigest()}"


@contextlib.contextmanager
def docker_registry(
    where: Path,
    *,
    users: Mapping[str, str] | None = None,
    tokens: TokenServer | None = None,
    mirror_of: str = "",
    authority: Authority | None = None,
    name: str = "registry",
) -> Iterator[DockerRegistry]:
    """Serve a registry until the ``with`` ends. ``name`` keeps two of one test apart."""
    home = where / name
    (home / "blobs").mkdir(parents=True)
    port = free_port()
    settings: dict[str, object] = {
        "version": "0.1",
        "log": {"level": "info", "accesslog": {"disabled": False}},
        "storage": {"filesystem": {"rootdirectory": str(home / "blobs")}, "delete": {"enabled": True}},
        "http": {"addr": f"127.0.0.1:{port}", "secret": "not one"},
    }
    if authority is not None:
        settings["http"] = {**settings["http"], "tls": {"certificate": str(authority.certificate), "key": str(authority.key)}}  # type: ignore[dict-item]
    if users is not None:
        (home / "htpasswd").write_bytes(
            b"".join(
                subprocess.run([tool("htpasswd"), "-Bbn", "-C", "4", user, password], capture_output=True, check=True).stdout.strip()
                + b"\n"
                for user, password in users.items()
            )
        )
        settings["auth"] = {"htpasswd": {"realm": "a test", "path": str(home / "htpasswd")}}
    if tokens is not None:
        settings["auth"] = {
            "token": {"realm": tokens.realm, "service": tokens.service, "issuer": tokens.issuer, "rootcertbundle": str(tokens.certificate)}
        }
    if mirror_of:
        settings["proxy"] = {"remoteurl": mirror_of}
    # JSON is YAML.
    (home / "config.yml").write_text(json.dumps(settings))
    log = home / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [tool("docker-registry"), "serve", str(home / "config.yml")],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=home,
            env={"PATH": _PATH, "OTEL_TRACES_EXPORTER": "none", "HOME": str(home)},
        )
    try:
        _wait_for(port, process, log)
        authorization = ""
        if users:
            authorization = "Basic " + base64.b64encode(":".join(next(iter(users.items()))).encode()).decode()
        yield DockerRegistry(f"127.0.0.1:{port}", home / "blobs", log, authority, authorization)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    """Of those that the kernel gives nobody who does not ask for one: between the look and the registry's bind it stays free."""
    while True:
        port = secrets.randbelow(12_000) + 20_000
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_DEADLINE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert process.poll() is None, f"the registry ended: {log.read_text()[-2000:]}"
            assert time.monotonic() < end, f"the registry does not listen: {log.read_text()[-2000:]}"
            time.sleep(0.02)


class TokenServer:
    """A token server as distribution's specification has it, whose signatures docker-registry accepts.

    Anybody may pull from repositories below ``public/``; a user may do everything. ``asked``: (method, user or "", scopes) of each request;
    ``life``: seconds in ``expires_in``, None to leave it out; ``field``: the name of the token in the answer.
    """

    def __init__(self, where: Path, users: Mapping[str, str], *, life: int | None = 300, field: str = "token") -> None:
        self.users = dict(users)
        self.identity_tokens = {f"identity-of-{user}": user for user in users}
        self.service, self.issuer = "registry.test", "issuer.test"
        self.life, self.field = life, field
        self.asked: list[tuple[str, str, tuple[str, ...]]] = []
        self.certificate, self._key = where / "token.crt", where / "token.key"
        _openssl(
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=tokens",
            "-keyout",
            self._key,
            "-out",
            self.certificate,
        )
        self._chain = ["".join(self.certificate.read_text().split("-----")[2].split())]
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = parse_qs(urlsplit(self.path).query)
                server._answer(self, "GET", server._basic(self.headers.get("Authorization", "")), query.get("scope", []))

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                user = server.identity_tokens.get(form.get("refresh_token", [""])[0])
                server._answer(self, "POST", user, form.get("scope", [""])[0].split())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.netloc = f"127.0.0.1:{self._server.server_address[1]}"
        self.realm = f"http://{self.netloc}/token"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> TokenServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def token(self, user: str, scopes: Sequence[str], life: int = 300) -> str:
        """A signed token for what ``user`` ("" for nobody) may do of ``scopes``."""
        access = []
        for scope in scopes:
            kind, name, actions = scope.split(":", 1)[0], scope.split(":", 1)[1].rpartition(":")[0], scope.rpartition(":")[2].split(",")
            allowed = actions if user else [action for action in actions if action == "pull" and name.startswith("public/")]
            access.append({"type": kind, "name": name, "actions": allowed})
        now = int(time.time())
        head = {"typ": "JWT", "alg": "RS256", "x5c": self._chain}
        claims = {
            "iss": self.issuer,
            "sub": user,
            "aud": self.service,
            "exp": now + life,
            "nbf": now - 10,
            "iat": now,
            "jti": os.urandom(8).hex(),
            "access": access,
        }
        text = ".".join(_base64url(json.dumps(part).encode()) for part in (head, claims))
        return f"{text}.{_base64url(_openssl('dgst', '-sha256', '-sign', self._key, data=text.encode()))}"

    def _basic(self, header: str) -> str | None:
        """The user of a Basic header: "" for nobody, None for a wrong password."""
        if not header:
            return ""
        user, _, password = base64.b64decode(header.removeprefix("Basic ")).decode().partition(":")
        return user if self.users.get(user) == password else None

    def _answer(self, handler: BaseHTTPRequestHandler, method: str, user: str | None, scopes: Sequence[str]) -> None:
        self.asked.append((method, user if user is not None else "?", tuple(scopes)))
        if user is None:
            status, document = 401, {"errors": [{"code": "UNAUTHORIZED", "message": "wrong password"}]}
        else:
            status, document = 200, {self.field: self.token(user, [scope for scope in scopes if scope])}
            if self.life is not None:
                document["expires_in"] = self.life  # type: ignore[assignment]
        data = json.dumps(document).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
