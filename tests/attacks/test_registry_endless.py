"""A registry, a token server or a proxy that never ends holds no client: each row keeps a connection alive in its own way, for ever.

Asserted is not a time but that the client gave up and hung up, in an error that names the host and the step, and says what to do next.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest
from support.bad_registry import BadRegistry, Exchange
from support.lying_server import PATIENCE, Line, LyingServer
from support.make_image import file
from support.pulling import SINGLE, fetch, holds, one_layer
from support.registries import Authority
from support.requires import requires

from dockless.errors import RegistryError, RegistryUnavailable
from dockless.images.registry import Configuration, Endpoint, Registry, Scope
from dockless.images.registry.configuration import Mirror, RegistrySettings
from dockless.images.registry.remote import RemoteRepository
from dockless.images.registry.transport import Timeouts

SHORT = Timeouts(connect=1.0, read=0.5, head=0.8, answer=1.5)
LONG = Timeouts(connect=20.0, read=20.0, head=20.0, answer=20.0)
"""Where the size is the limit: on a slow machine much may take its time."""
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
EMPTY_MEMBER = gzip.compress(b"")


def then(*parts: bytes, drip: bytes | list[bytes], pause: float = 0.05):
    """Answer the first request with ``parts``, then drip."""

    def talk(line: Line) -> None:
        line.ask()
        line.say(b"".join(parts))
        line.drip(drip, pause)

    return talk


def silent(line: Line) -> None:
    line.ask()
    line.silence()


def gzipped_nothing(line: Line) -> None:
    line.ask()
    line.say(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n")
    line.drip([EMPTY_MEMBER])


ENDLESS = {
    "no answer": (silent, "the head of its answer"),
    "slow head": (then(drip=b"HTTP/1.1 200 " + b"x" * 1000), "the head of its answer"),
    "slow header lines": (then(b"HTTP/1.1 200 OK\r\n", drip=b"X: y\r\n"), "the head of its answer"),
    "slow 100 Continue": (then(drip=[b"HTTP/1.1 100 Continue\r\n\r\n"]), "the head of its answer"),
    "fast 100 Continue": (then(drip=[b"HTTP/1.1 100 Continue\r\n\r\n" * 1000], pause=0), "the head of its answer is larger"),
    "slow body": (then(OK, drip=b"x"), "body"),
    "stalled body": (then(OK, b"x", drip=[b""]), "the next part of the body"),
    "size of a chunk": (then(CHUNKED, drip=b"0"), "body"),
    "extension of a chunk": (then(CHUNKED, b"5;", drip=b"x"), "body"),
    "slow chunks": (then(CHUNKED, drip=[b"1\r\nx\r\n"]), "body"),
    "slow trailers": (then(CHUNKED, b"1\r\nx\r\n0\r\n", drip=b"X: y\r\n"), "body"),
    "fast trailers": (then(CHUNKED, b"1\r\nx\r\n0\r\n", drip=[b"X: y\r\n" * 1000], pause=0), "is larger than"),
    "empty gzip": (gzipped_nothing, "the next part of the body"),
    "slow refusal": (then(b"HTTP/1.1 404 No\r\nContent-Length: 1000\r\n\r\n", drip=b"x"), "not in the registry"),
    "endless redirect": (then(b"HTTP/1.1 307 Go\r\nLocation: /v2/\r\n\r\n", drip=b"x"), ""),
}


def patience(row: str) -> dict[str, Any]:
    return {"timeouts": LONG, "tries": 1} if row.startswith("fast") else {"timeouts": SHORT, "tries": 1000}


def registry(server: LyingServer, **options) -> Registry:
    options = {"env": {}, "timeouts": SHORT, "tries": 1000} | options
    return Registry(Endpoint(server.netloc, "team/app", schemes=("http",)), **options)


def told(error: RegistryError, server: LyingServer, *steps: str) -> None:
    """It gave up by itself, and says of whom, of what (one of these steps), and what to do."""
    assert server.left_alone()
    assert server.netloc in str(error) and any(step in str(error) for step in steps) and error.hint
    assert "\n" not in str(error)


@pytest.mark.parametrize("row", ENDLESS)
def test_an_answer_without_end(row):
    talk, step = ENDLESS[row]
    with LyingServer(talk) as server, registry(server, **patience(row)) as client:
        with pytest.raises(RegistryError) as caught:
            client.request("GET", "/v2/team/app/manifests/1", scope=Scope("team/app")).read_all(1 << 20)
        told(caught.value, server, step)


@pytest.mark.parametrize("row", ENDLESS)
def test_a_document_without_end(row):
    """The same for a manifest, which is asked for again as a whole where its transfer broke."""
    talk, step = ENDLESS[row]
    with LyingServer(talk) as server, registry(server, **patience(row)) as client:
        with pytest.raises(RegistryError) as caught:
            RemoteRepository(client).document("1")
        told(caught.value, server, step, "the document is not complete")  # its time may be over at any step of a further try


@pytest.mark.parametrize("row", ["no answer", "slow head", "slow 100 Continue", "slow body", "slow trailers", "slow refusal", "empty gzip"])
def test_a_token_server_without_end(row):
    talk, _ = ENDLESS[row]
    with LyingServer(talk) as tokens:

        def wants(line: Line) -> None:
            while True:
                line.ask()
                line.answer(b"", f'WWW-Authenticate: Bearer realm="http://{tokens.netloc}/token",service="s"', status=401)

        with LyingServer(wants) as server, registry(server) as client:
            with pytest.raises(RegistryError) as caught:
                client.request("GET", "/v2/team/app/manifests/1", scope=Scope("team/app"))
            assert tokens.left_alone()
            assert server.netloc in str(caught.value) and caught.value.hint


def test_threads_that_wait_for_one_token_wait_together():
    """Not one after the other: each has its own deadline, also while it waits for its turn."""
    with LyingServer(silent) as tokens:

        def wants(line: Line) -> None:
            while True:
                line.ask()
                line.answer(b"", f'WWW-Authenticate: Bearer realm="http://{tokens.netloc}/token"', status=401)

        failed = []

        def ask() -> None:
            with pytest.raises(RegistryError):
                client.request("GET", "/v2/team/app/manifests/1", scope=Scope("team/app"))
            failed.append(1)

        with LyingServer(wants) as server, registry(server, tries=1) as client:
            threads = [threading.Thread(target=ask) for _ in range(12)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE)
        assert len(failed) == 12
        assert len(tokens.heads) < 12  # the others had no time left to ask it themselves


@pytest.mark.parametrize("fields", [(), ("Retry-After: 0",)])
def test_refusals_without_end(fields):
    """Each answer comes in time and asks to come back."""

    def busy(line: Line) -> None:
        while True:
            line.ask()
            line.answer(b"", *fields, status=503)
            server.talking.set()

    with LyingServer(busy) as server, registry(server, pause=lambda _: None) as client:
        with pytest.raises(RegistryUnavailable) as caught:
            client.request("GET", "/v2/team/app/manifests/1")
        client.close()
        told(caught.value, server, "answer")


def test_redirects_that_take_their_time():
    """Each hop is quick enough by itself; all of them have one deadline."""

    def onward(line: Line) -> None:
        while True:
            line.ask()
            server.talking.set()
            server.ended.wait(0.3)
            line.answer(b"", "Location: /v2/team/app/manifests/2", status=307)

    with LyingServer(onward) as server, registry(server) as client:
        with pytest.raises(RegistryError) as caught:
            client.request("GET", "/v2/team/app/manifests/1")
        told(caught.value, server, "the answer is not complete")
        assert len(server.heads) <= 6


def test_pages_that_take_their_time():
    def more(line: Line) -> None:
        for page in range(1, 10_000):
            line.ask()
            server.talking.set()
            server.ended.wait(0.2)
            line.answer(b'{"tags":["a"]}', f'Link: </v2/team/app/tags/list?n={page}>; rel="next"')

    with LyingServer(more) as server, registry(server) as client:
        with pytest.raises(RegistryUnavailable) as caught:
            RemoteRepository(client).tags()
        told(caught.value, server, "the list of tags")


# ---- connecting --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"\x16\x03\x03\x00\xff" + b"\x02" * 300])
def test_a_tls_handshake_without_end(data):
    def talk(line: Line) -> None:
        line.drip(data) if data else line.silence()

    with LyingServer(talk) as server, Registry(Endpoint(server.netloc, "x", schemes=("https",)), env={}, timeouts=SHORT) as client:
        with pytest.raises(RegistryUnavailable) as caught:
            client.request("GET", "/v2/")
        told(caught.value, server, "TLS")


PROXY = {
    "no answer": (silent, "the connection"),
    "slow answer": (then(drip=b"HTTP/1.1 200 " + b"x" * 1000), "the connection"),
    "slow headers": (then(b"HTTP/1.1 200 OK\r\n", drip=b"X: y\r\n"), "the connection"),
    "fast headers": (then(b"HTTP/1.1 200 OK\r\n", drip=[b"X: y\r\n" * 1000], pause=0), "the connection is larger"),
    "handshake behind it": (then(b"HTTP/1.1 200 OK\r\n\r\n", drip=[b""]), ""),
}


@pytest.mark.parametrize("row", PROXY)
@pytest.mark.parametrize("scheme", ["http", "https"])
@requires("program:openssl")
def test_a_proxy_without_end(row, scheme, tmp_path):
    talk, step = PROXY[row]
    authority = Authority(tmp_path)
    trusted = tmp_path / "containers/certs.d"
    with LyingServer(talk, context=authority.server_context() if scheme == "https" else None) as proxy:
        (trusted / proxy.netloc).mkdir(parents=True)
        (trusted / proxy.netloc / "ca.crt").write_bytes(authority.ca.read_bytes())
        env = {"https_proxy": f"{scheme}://{proxy.netloc}", "XDG_CONFIG_HOME": str(tmp_path)}
        with (
            Registry(Endpoint("registry.test", "x"), env=env, **patience(row) | {"tries": 2}) as client,
            pytest.raises(RegistryUnavailable) as caught,
        ):
            client.request("GET", "/v2/")
        assert proxy.left_alone()
        assert "registry.test" in str(caught.value) and step in str(caught.value) and caught.value.hint


@requires("program:openssl")
def test_tls_to_the_end(tmp_path):
    """Slow bodies and heads are no faster where they are encrypted."""
    authority = Authority(tmp_path)
    for row in ("slow head", "slow body", "slow trailers", "fast 100 Continue"):
        talk, step = ENDLESS[row]
        with LyingServer(talk, context=authority.server_context()) as server:
            place = tmp_path / "containers/certs.d" / server.netloc
            place.mkdir(parents=True)
            (place / "ca.crt").write_bytes(authority.ca.read_bytes())
            endpoint = Endpoint(server.netloc, "x", schemes=("https",))
            with Registry(endpoint, env={"XDG_CONFIG_HOME": str(tmp_path)}, **patience(row) | {"tries": 1}) as client:
                with pytest.raises(RegistryError) as caught:
                    client.request("GET", "/v2/x/manifests/1").read_all(1 << 20)
                told(caught.value, server, step)


# ---- sending -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reads", [False, True], ids=["never reads", "reads a byte at a time"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@requires("program:openssl")
def test_an_upload_that_is_not_taken(reads, tls, tmp_path):
    def talk(line: Line) -> None:
        line.ask()
        server.talking.set()
        while not server.ended.wait(0.05) and not server.patience.is_set():
            if reads:
                line._sock.recv(1)
            if server.given_up.is_set():
                raise ConnectionResetError

    authority = Authority(tmp_path)
    slow = dataclasses.replace(SHORT, answer=20.0)
    with LyingServer(talk, context=authority.server_context() if tls else None) as server:
        server.given_up = threading.Event()
        place = tmp_path / "containers/certs.d" / server.netloc
        place.mkdir(parents=True)
        (place / "ca.crt").write_bytes(authority.ca.read_bytes())
        endpoint = Endpoint(server.netloc, "team/app", schemes=("https" if tls else "http",))
        with (
            Registry(endpoint, env={"XDG_CONFIG_HOME": str(tmp_path)}, timeouts=slow, tries=1) as client,
            pytest.raises(RegistryUnavailable, match=r"the request (has stalled|is too slow)") as caught,
        ):
            client.request("PUT", "/v2/team/app/blobs/uploads/1", body=io.BytesIO(bytes(64 << 20)), ok=(201,))
        server.given_up.set()
        told(caught.value, server, "the request")


# ---- whole pulls -------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def bad():
    with BadRegistry() as server:
        yield server


def dripping(exchange: Exchange) -> None:
    """A blob at a byte now and then, from the range that was asked for."""
    code, headers, body = exchange.part()
    exchange.head(code, headers, length=len(body))
    for at in range(len(body)):
        exchange.write(body[at : at + 1])
        if exchange.registry.released.wait(0.02):
            return


def test_a_blob_that_drips(bad):
    """The next try drips as well: bytes that come too slowly are no progress, and time is at its end before the tries are."""
    layer = one_layer(bad)
    bad.script(dripping, part=layer, times=1000)
    pace = type(SINGLE)(connections=1, chunk=SINGLE.chunk, tries=1000, wait=0.001, wait_max=0.01, patience=1.0)
    with pytest.raises(RegistryUnavailable, match=f"{bad.host}.* is too slow") as caught:
        fetch(bad, pace=pace, timeouts=SHORT)
    assert caught.value.hint and len(bad.requests("GET", layer)) < 100


def test_trailers_after_the_whole_blob(bad):
    """All bytes are there: what the server still has to say is nobody's concern."""

    def talkative(exchange: Exchange) -> None:
        body = exchange.blob()
        exchange.head(200, {"Transfer-Encoding": "chunked"})
        exchange.write(b"%x\r\n%s\r\n0\r\n" % (len(body), body))
        while not exchange.registry.released.wait(0.02):
            exchange.write(b"X: y\r\n")

    layer = one_layer(bad)
    bad.script(talkative, part=layer)
    assert holds(fetch(bad, timeouts=Timeouts(connect=5.0, read=2.0, head=5.0)))
    assert len(bad.requests("GET", layer)) == 1


def test_mirrors_without_end_are_waited_for_once(bad):
    """Each has one deadline for a whole pull, not one for each document and layer."""
    bad.image("app:1", [[file("a", b"1")], [file("b", b"2")], [file("c", b"3")]])
    with LyingServer(silent) as one, LyingServer(ENDLESS["slow head"][0]) as two:
        mirrors = (Mirror(one.netloc), Mirror(two.netloc))
        configuration = Configuration(entries=(RegistrySettings(prefix=bad.host, location=bad.host, mirrors=mirrors),))
        image = fetch(bad, configuration=configuration, timeouts=Timeouts(connect=5.0, read=0.5, head=0.8, answer=5.0))
        assert image.read_file("/c") == b"3"
        assert one.left_alone() and two.left_alone()
        assert len(one.heads) <= 2 and len(two.heads) <= 2  # the probe for plain HTTP, and one request


# ---- Ctrl-C ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ["no answer", "slow head", "slow 100 Continue", "slow body", "slow trailers"])
def test_ctrl_c_ends_a_pull_meanwhile(row, tmp_path):
    """With the times as they are: a pull that would still wait for a minute is over at once."""
    talk, _ = ENDLESS[row]
    with LyingServer(talk) as server:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "dockless", "pull", f"{server.netloc}/team/app:1"],
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "DOCKLESS_HOME": str(tmp_path / "home")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        try:
            assert server.talking.wait(PATIENCE)
            child.send_signal(signal.SIGINT)
            child.communicate(timeout=PATIENCE)
        finally:
            child.kill()
            child.wait()
        assert child.returncode == 130
        assert server.left_alone()
