"""A19: a registry makes this machine send requests to where only this machine can reach.

The registry of these tests is at 127.0.0.1 and is taken for one on the internet (``on_the_internet``); the victim listens on all addresses
of loopback. The assertion is that nobody ever connected to the victim.
"""

from __future__ import annotations

import _socket

import pytest
from support.scripted_http import Reply, ScriptedHttp, answer

from dockless.errors import RegistryUnavailable, UnsafeRequest
from dockless.images.registry import addresses
from dockless.images.registry.endpoint import Endpoint, Scope
from dockless.images.registry.transport import Registry, Timeouts

REGISTRY = "127.0.0.1"
PATH = "/v2/team/app/blobs/sha256:x"

INSIDE = (
    "127.0.0.2",
    "127.1.2.3",
    "0.0.0.0",
    "[::ffff:127.0.0.2]",
    "[::1]",
    "2130706434",  # 127.0.0.2 as one number
    "0x7f.2",
    "0177.0.0.2",
    "127.2",
    "inside.test",  # a name that leads to 127.0.0.2
    "both.test",  # and one that leads there as well
)
ELSEWHERE = ("169.254.169.254", "[fe80::1%25lo]", "10.255.255.1", "[fd00:ec2::254]", "metadata.test", "100.100.100.200", "192.168.255.1")


@pytest.fixture
def on_the_internet(monkeypatch):
    real, resolve = addresses.classify, _socket.getaddrinfo
    names = {"inside.test": ["127.0.0.2"], "both.test": ["127.0.0.2", "10.255.255.1"], "metadata.test": ["169.254.169.254"]}

    def resolved(host, port, *args, **options):
        return [entry for where in names.get(host.decode(), [host]) for entry in resolve(where, port, *args, **options)]

    monkeypatch.setattr(addresses, "classify", lambda where: addresses.PUBLIC if where == REGISTRY else real(where))
    monkeypatch.setattr(_socket, "getaddrinfo", resolved)
    return names


@pytest.fixture
def victim():
    with ScriptedHttp(lambda _: answer(200, b"internal"), host="0.0.0.0") as server:
        yield server
        assert server.connections == 0 and server.requests == []


def client(server: ScriptedHttp, **options) -> Registry:
    options.setdefault("env", {})
    return Registry(
        Endpoint(server.netloc, "team/app", schemes=("http",)), tries=2, pause=lambda _: None, timeouts=Timeouts(connect=1.0), **options
    )


def fetch(registry: Registry, path: str = PATH) -> bytes:
    with registry, registry.request("GET", path, scope=Scope("team/app")) as response:
        return response.read_all(1000)


def test_redirect_to_an_address_inside(on_the_internet, victim):
    for host in (*INSIDE, *ELSEWHERE):
        away = answer(307, b"", ("Location", f"http://{host}:{victim.port}/latest/meta-data"))
        with ScriptedHttp(lambda _, away=away: away) as server, pytest.raises(UnsafeRequest):
            fetch(client(server))
        assert len(server.requests) == 1, host


def test_realm_at_an_address_inside(on_the_internet, victim):
    for host in (*INSIDE, *ELSEWHERE):
        challenge = answer(401, b"", ("WWW-Authenticate", f'Bearer realm="http://{host}:{victim.port}/token",service="x"'))
        with ScriptedHttp(lambda _, challenge=challenge: challenge) as server, pytest.raises(UnsafeRequest):
            fetch(client(server))
        assert len(server.requests) == 1, host


def test_urls_of_layers_pages_and_uploads(on_the_internet, victim):
    """What a manifest's ``urls``, a ``Link`` or an upload's ``Location`` name is requested as an absolute URL."""
    with ScriptedHttp(lambda _: answer(200, b"ok")) as server, client(server) as registry:
        assert registry.request("GET", PATH, scope=Scope("team/app")).read_all(100) == b"ok"
        for method in ("GET", "HEAD", "PUT", "PATCH"):
            for host in ("127.0.0.2", "inside.test", "169.254.169.254"):
                with pytest.raises(UnsafeRequest):
                    registry.request(
                        method, f"http://{host}:{victim.port}/x", scope=Scope("team/app"), body=b"x" if method[0] == "P" else None
                    )


def test_schemes_that_are_not_http(on_the_internet):
    places = (
        "unix:///run/docker.sock",
        "http+unix://%2Frun%2Fdocker.sock/x",
        "file:///etc/passwd",
        "gopher://127.0.0.1:6379/_x",
        "ftp://127.0.0.2/",
    )
    for place in places:
        challenge = answer(401, b"", ("WWW-Authenticate", f'Bearer realm="{place}"'))
        for reply in (answer(307, b"", ("Location", place)), challenge):
            with ScriptedHttp(lambda _, reply=reply: reply) as server, pytest.raises(UnsafeRequest):
                fetch(client(server))


def test_a_name_that_changes_its_address(on_the_internet, victim, monkeypatch):
    """DNS rebinding: the registry's own name leads to the internet first, and inside when the next connection is made."""
    with ScriptedHttp(lambda _: answer(200, b"ok", ("Connection", "close"), then="close")) as server:
        on_the_internet["rebind.test"] = ["127.0.0.1"]
        registry = Registry(Endpoint(f"rebind.test:{server.port}", "team/app", schemes=("http",)), env={}, pause=lambda _: None)
        assert registry.request("GET", PATH).read_all(100) == b"ok"
        on_the_internet["rebind.test"] = ["127.0.0.2"]
        with pytest.raises(UnsafeRequest, match="was at a public"):
            registry.request("GET", PATH)
        registry.close()


def test_a_name_is_looked_up_once_for_each_connection(on_the_internet, monkeypatch):
    """Nothing lies between the check and the connection that could answer differently."""
    asked, resolve = [], _socket.getaddrinfo
    monkeypatch.setattr(_socket, "getaddrinfo", lambda host, *args, **options: asked.append(host) or resolve(host, *args, **options))
    with ScriptedHttp(lambda _: answer(200, b"ok")) as server:
        assert fetch(client(server)) == b"ok"
        assert server.connections == 1 and asked == [b"127.0.0.1"]


def test_a_name_with_an_address_outside_and_one_inside(on_the_internet, victim):
    """Only the allowed address is tried, also where it does not answer."""
    with ScriptedHttp(lambda _: Reply(b"", "close")) as server:
        closed = server.port
    on_the_internet["two.test"] = ["127.0.0.1", "127.0.0.2"]
    away = answer(307, b"", ("Location", f"http://two.test:{closed}/"))
    with ScriptedHttp(lambda _: away) as server, pytest.raises((UnsafeRequest, RegistryUnavailable)):
        fetch(client(server))


def test_through_a_proxy(on_the_internet, victim):
    """A proxy would connect for us: what it is asked for is judged by its name, and by what the name leads to as far as we can see."""
    with ScriptedHttp(lambda _: answer(200, b"proxied")) as proxy:
        env = {"http_proxy": f"http://{proxy.netloc}"}
        for host in ("169.254.169.254", "10.255.255.1", "metadata.test"):
            away = answer(307, b"", ("Location", f"http://{host}/"))
            with ScriptedHttp(lambda _, away=away: away) as server, pytest.raises(UnsafeRequest):
                fetch(client(server, env=env))
        assert proxy.requests == []
        on_the_internet["outside.test"] = ["127.0.0.1"]
        away = answer(307, b"", ("Location", "http://outside.test/x?y=1"))
        with ScriptedHttp(lambda _: away) as server:
            assert fetch(client(server, env=env)) == b"proxied"
        assert [request.target for request in proxy.requests] == ["http://outside.test/x?y=1"]


def test_a_registry_on_loopback_reaches_its_own_kind_only():
    """The other way round: what the user runs on this machine may lead to itself, but into no network."""
    storage = ScriptedHttp(lambda _: answer(200, b"storage"))
    away = answer(307, b"", ("Location", f"http://{storage.netloc}/x"))
    with storage, ScriptedHttp(lambda _: away) as server:
        assert fetch(client(server)) == b"storage"
    for host in ("10.255.255.1", "169.254.169.254", "0.0.0.0"):
        away = answer(307, b"", ("Location", f"http://{host}/"))
        with ScriptedHttp(lambda _, away=away: away) as server, pytest.raises(UnsafeRequest):
            fetch(client(server))


def test_a_host_that_the_user_names_is_reached(on_the_internet, victim):
    storage = ScriptedHttp(lambda _: answer(200, b"storage"), host="127.0.0.3")
    away = answer(307, b"", ("Location", f"http://{storage.netloc}/x"))
    with storage, ScriptedHttp(lambda _: away) as server:
        endpoint = Endpoint(server.netloc, "team/app", named=frozenset({"127.0.0.3"}), schemes=("http",))
        assert fetch(Registry(endpoint, env={})) == b"storage"
