"""A18: a registry, its storage or somebody between wants the credentials that are meant for another (CVE-2020-15157).

In every test an attacker's server keeps what it was sent; the assertion is that no ``Authorization``, no password and no token is in it.
"""

from __future__ import annotations

import base64
import json

import pytest
from support.registries import Authority
from support.requires import requires
from support.scripted_http import Reply, ScriptedHttp, answer, in_turn, routes

from dockless.errors import DocklessError, Unauthorized, UnsafeRequest
from dockless.images.model.reference import parse
from dockless.images.registry.configuration import Configuration, endpoints
from dockless.images.registry.credentials import Credentials
from dockless.images.registry.endpoint import Endpoint, Scope
from dockless.images.registry.transport import Registry

SECRET = "pa55word"
TOKEN = "t0ken"
PATH = "/v2/team/app/blobs/sha256:x"
ENCODED = base64.b64encode(f"ann:{SECRET}".encode()).decode()


@pytest.fixture
def attacker():
    """Asks for every kind of login, and keeps all it hears."""
    challenges = (
        ("WWW-Authenticate", 'Basic realm="x"'),
        ("WWW-Authenticate", 'Bearer realm="/token",service="x",scope="repository:team/app:pull"'),
    )
    with ScriptedHttp(lambda request: answer(200, b"{}") if request.path == "/blob" else answer(401, b"", *challenges)) as server:
        yield server
        assert_learned_nothing(server)


def assert_learned_nothing(server: ScriptedHttp) -> None:
    for request in server.requests:
        heard = (request.head + request.target.encode() + request.body).decode("latin-1")
        assert "authorization" not in request.headers, heard
        assert SECRET not in heard and TOKEN not in heard and ENCODED not in heard and "cookie" not in request.headers, heard


def client(server: ScriptedHttp, tmp_path, **options) -> Registry:
    """A client with credentials for exactly this server."""
    path = tmp_path / "auth.json"
    path.write_text(json.dumps({"auths": {server.netloc: {"auth": ENCODED}}}))
    options.setdefault("schemes", ("http",))
    endpoint = Endpoint(server.netloc, "team/app", **options)
    return Registry(endpoint, credentials=Credentials((path,), {}), env={}, tries=2, pause=lambda _: None)


def fetch(registry: Registry, path: str = PATH) -> bytes:
    with registry, registry.request("GET", path, scope=Scope("team/app")) as response:
        return response.read_all(1000)


def behind_basic(reply: Reply):
    """``reply`` for those who logged in."""
    return lambda request: reply if "authorization" in request.headers else answer(401, b"", ("WWW-Authenticate", "Basic"))


def to(attacker: ScriptedHttp, path: str = "/blob") -> Reply:
    return answer(307, b"", ("Location", f"http://{attacker.netloc}{path}"), ("Set-Cookie", f"s={SECRET}"))


def test_a_redirect_takes_no_password_along(attacker, tmp_path):
    with ScriptedHttp(behind_basic(to(attacker))) as server:
        assert fetch(client(server, tmp_path)) == b"{}"
    assert server.headers("authorization") == [f"Basic {ENCODED}"]
    assert attacker.paths() == ["/blob"]


def test_a_redirect_takes_no_token_along(attacker, tmp_path):
    def check(request):
        if request.path == "/token":
            return answer(200, json.dumps({"token": TOKEN}).encode())
        challenge = f'Bearer realm="http://{server.netloc}/token"'
        return to(attacker) if "authorization" in request.headers else answer(401, b"", ("WWW-Authenticate", challenge))

    with ScriptedHttp(check) as server:
        assert fetch(client(server, tmp_path)) == b"{}"
    assert server.requests[-1].headers["authorization"] == f"Bearer {TOKEN}"


def test_a_redirects_target_asks_in_vain(attacker, tmp_path):
    with ScriptedHttp(behind_basic(to(attacker, "/login"))) as server, pytest.raises(Unauthorized):
        fetch(client(server, tmp_path))
    assert attacker.paths() == ["/login"]  # and no token was fetched


def test_a_chain_that_comes_back_is_nobodys(tmp_path):
    """Registry → attacker → registry: what the attacker chose to ask the registry for is asked for without a login."""
    with ScriptedHttp(lambda _: answer(307, b"", ("Location", f"http://{server.netloc}/v2/secret/app/blobs/x"))) as attacker:
        table = {PATH: behind_basic(to(attacker))}
        with ScriptedHttp(routes(table, behind_basic(answer(200, b"secret")))) as server, pytest.raises(Unauthorized):
            fetch(client(server, tmp_path))
    assert server.paths() == [PATH, PATH, "/v2/secret/app/blobs/x"] and "authorization" not in server.requests[-1].headers


def test_a_token_server_cannot_pass_the_password_on(attacker, tmp_path):
    def check(request):
        if request.path == "/token":
            return to(attacker)
        return answer(401, b"", ("WWW-Authenticate", f'Bearer realm="http://{server.netloc}/token"'))

    with ScriptedHttp(check) as server, pytest.raises(UnsafeRequest, match="redirected"):
        fetch(client(server, tmp_path))
    assert attacker.connections == 0


def test_the_login_of_one_registry_is_not_for_its_mirror(attacker, tmp_path):
    with ScriptedHttp(behind_basic(answer(200, b"ok"))) as server:
        registry = client(server, tmp_path)
        conf = tmp_path / "registries.conf"
        conf.write_text(f'[[registry]]\nlocation = "{server.netloc}"\n[[registry.mirror]]\nlocation = "{attacker.netloc}"\n')
        configuration = Configuration.load({"CONTAINERS_REGISTRIES_CONF": str(conf)}, tmp_path)
        mirror, origin = endpoints(parse(f"{server.netloc}/team/app"), configuration)
        assert mirror.location == attacker.netloc and origin.location == server.netloc
        mirror = Endpoint(mirror.location, mirror.repository, mirror=True, named=mirror.named, schemes=("http",))
        with pytest.raises(Unauthorized):
            fetch(Registry(mirror, credentials=Credentials((tmp_path / "auth.json",), {}), env={}))
        assert fetch(registry) == b"ok"
    assert attacker.requests


def test_urls_that_an_image_names(attacker, tmp_path):
    """A foreign layer's URL, an upload location, a page of a list: all are requests to an absolute URL."""
    with ScriptedHttp(behind_basic(answer(200, b"ok"))) as server:
        registry = client(server, tmp_path)
        assert registry.request("GET", PATH, scope=Scope("team/app")).read_all(100) == b"ok"  # the login is known and used from here on
        assert registry.request("GET", f"http://{attacker.netloc}/blob", scope=Scope("team/app")).read_all(100) == b"{}"
        assert registry.request("PUT", f"http://{attacker.netloc}/blob", scope=Scope("team/app"), body=b"layer").read_all(100) == b"{}"
        registry.close()
    assert attacker.paths() == ["/blob", "/blob"]


def test_hosts_that_look_like_the_registry(attacker, tmp_path):
    for netloc in ("{own}@{evil}", "ann:pa55word@{evil}", "{evil}\\@{own}", "{own}\\@{evil}"):

        def check(_, netloc=netloc):
            return answer(307, b"", ("Location", f"http://{netloc.format(own=server.netloc, evil=attacker.netloc)}/blob"))

        with ScriptedHttp(check) as server, pytest.raises(UnsafeRequest):
            fetch(client(server, tmp_path))
    assert attacker.connections == 0


@requires("program:openssl")
def test_https_is_never_left_for_http(attacker, tmp_path):
    """Neither by a redirect nor by a realm: on http anybody on the way could answer."""
    authority = Authority(tmp_path)
    home = tmp_path / "home"
    realm = answer(401, b"", ("WWW-Authenticate", f'Bearer realm="http://{attacker.netloc}/token"'))
    for reply in (to(attacker), realm):
        with ScriptedHttp(lambda _, reply=reply: reply, context=authority.server_context()) as server:
            place = home / ".config/containers/certs.d" / server.netloc
            place.mkdir(parents=True)
            (place / "ca.crt").write_bytes(authority.ca.read_bytes())
            registry = client(server, tmp_path, schemes=("https",))
            trusting = Registry(registry.endpoint, credentials=registry._credentials, env={"HOME": str(home)})
            with pytest.raises(UnsafeRequest):
                fetch(trusting)
        assert server.requests and attacker.connections == 0


@requires("program:openssl")
def test_a_password_is_not_given_to_an_untrusted_server(tmp_path):
    authority = Authority(tmp_path)
    with (
        ScriptedHttp(behind_basic(answer(200)), context=authority.server_context()) as server,
        pytest.raises(DocklessError, match="trusted"),
    ):
        fetch(client(server, tmp_path, schemes=("https", "http")))  # and plain HTTP is not tried after that
    assert server.requests == []


def test_no_secret_in_an_error(tmp_path):
    script = in_turn(answer(401, b"", ("WWW-Authenticate", "Basic")), answer(403, b"denied"))
    with ScriptedHttp(script) as server, pytest.raises(Unauthorized) as caught:
        fetch(client(server, tmp_path))
    text = f"{caught.value!r} {caught.value.hint} {caught.value.as_dict()}"
    assert SECRET not in text and ENCODED not in text
