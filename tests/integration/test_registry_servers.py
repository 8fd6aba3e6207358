"""Debian's docker-registry as it is: open, with passwords, with tokens, behind a mirror, with TLS; and login against all of them."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import ssl
import stat
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support import requires as requirements
from support.registries import Authority, TokenServer, docker_registry, tool
from support.requires import requires
from support.scripted_http import ScriptedHttp, answer

from dockless.errors import NotFound, RegistryUnavailable, Unauthorized
from dockless.images.model.reference import parse
from dockless.images.registry.configuration import Configuration, endpoints
from dockless.images.registry.credentials import Credentials, Login
from dockless.images.registry.endpoint import Endpoint, Scope
from dockless.images.registry.logins import check, login, logout
from dockless.images.registry.transport import Registry, Timeouts

pytestmark = requires("program:docker-registry")
MANIFEST = {"Accept": "application/vnd.oci.image.manifest.v1+json"}


@pytest.fixture
def env(tmp_path):
    """Nothing of this machine's own configuration, and no proxy."""
    for name in ("home", "run"):
        (tmp_path / name).mkdir()
    return {"HOME": str(tmp_path / "home"), "XDG_RUNTIME_DIR": str(tmp_path / "run"), "PATH": os.environ["PATH"]}


def manifest(registry, name: str, env, configuration: Configuration | None = None) -> dict:
    """The manifest of ``name`` as the first endpoint has it."""
    reference = parse(f"{registry.netloc}/{name}")
    endpoint = endpoints(reference, configuration or Configuration())[0]
    with Registry(endpoint, credentials=Credentials.load(env), env=env, pause=lambda _: None) as client:
        path = endpoint.path("manifests", reference.tag)
        return json.loads(client.request("GET", path, scope=Scope(endpoint.repository), headers=MANIFEST).read_all(1 << 20))


def test_an_open_registry(tmp_path, env):
    with docker_registry(tmp_path) as registry:
        registry.put("team/app", "1", [b"a layer"])
        document = manifest(registry, "team/app:1", env)
        (layer,) = document["layers"]
        with pytest.raises(NotFound):
            manifest(registry, "team/app:2", env)
        endpoint = Endpoint(registry.netloc, "team/app")
        with Registry(endpoint, env=env) as client:
            path = endpoint.path("blobs", layer["digest"])
            with client.request("GET", path, scope=Scope("team/app"), headers={"Range": "bytes=2-"}, ok=(206,)) as response:
                assert response.headers.get("Content-Range") == "bytes 2-6/7" and response.read_all(100) == b"layer"


@requires("program:htpasswd")
def test_passwords(tmp_path, env):
    with docker_registry(tmp_path, users={"ann": "secret"}) as registry:
        registry.put("team/app", "1")
        with pytest.raises(Unauthorized) as caught:
            manifest(registry, "team/app:1", env)
        assert caught.value.hint == f"dockless login {registry.netloc}"
        with pytest.raises(Unauthorized):
            login(registry.netloc, "ann", "wrong", configuration=Configuration(), env=env)
        assert not (tmp_path / "run/containers").exists()
        written = login(registry.netloc, "ann", "secret", configuration=Configuration(), env=env)
        assert written == str(tmp_path / "run/containers/auth.json")
        assert manifest(registry, "team/app:1", env)["schemaVersion"] == 2
        assert logout(registry.netloc, env=env).removed == (written,)
        with pytest.raises(Unauthorized):
            manifest(registry, "team/app:1", env)


def test_what_login_writes(tmp_path, env):
    old = {"auths": {"other.test": {"auth": "eDp5"}}, "somebody": {"elses": [1]}}
    path = tmp_path / "real/auth.json"
    path.parent.mkdir()
    path.write_text(json.dumps(old))
    path.chmod(0o644)
    (tmp_path / "link.json").symlink_to(path)
    env["REGISTRY_AUTH_FILE"] = str(tmp_path / "link.json")
    with docker_registry(tmp_path) as registry:
        login(f"http://{registry.netloc}/v2/", "ann", "pa:ss", configuration=Configuration(), env=env)
        login(f"{registry.netloc}/team", "bob", "x", configuration=Configuration(), env=env)
    assert (tmp_path / "link.json").is_symlink()
    document = json.loads(path.read_text())
    assert document == {
        **old,
        "auths": {
            **old["auths"],
            registry.netloc: {"auth": base64.b64encode(b"ann:pa:ss").decode()},
            f"{registry.netloc}/team": {"auth": base64.b64encode(b"bob:x").decode()},
        },
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["auth.json"]


def test_logins_at_the_same_time(tmp_path, env):
    with docker_registry(tmp_path) as registry, ThreadPoolExecutor(6) as pool:
        names = [f"{registry.netloc}/team-{number}" for number in range(12)]
        list(pool.map(lambda name: login(name, "ann", "x", configuration=Configuration(), env=env), names))
    assert sorted(json.loads((tmp_path / "run/containers/auth.json").read_text())["auths"]) == sorted(names)


@requires("program:openssl")
def test_tokens(tmp_path, env):
    with TokenServer(tmp_path, {"ann": "secret"}) as tokens, docker_registry(tmp_path, tokens=tokens) as registry:
        registry.authorization = "Bearer " + tokens.token("ann", ["repository:private/app:pull,push", "repository:public/app:pull,push"])
        registry.put("private/app", "1")
        registry.put("public/app", "1")
        # Nobody may pull what is public, and the refusal of the rest says what to do.
        assert manifest(registry, "public/app:1", env)["schemaVersion"] == 2
        with pytest.raises(Unauthorized, match=r"private/app") as caught:
            manifest(registry, "private/app:1", env)
        assert "dockless login" in caught.value.hint
        with pytest.raises(Unauthorized, match="refused"):
            login(registry.netloc, "ann", "wrong", configuration=Configuration(), env=env)
        login(registry.netloc, "ann", "secret", configuration=Configuration(), env=env)
        del tokens.asked[:]
        assert manifest(registry, "private/app:1", env)["schemaVersion"] == 2
        assert tokens.asked == [("GET", "ann", ("repository:private/app:pull",))]
        check(registry.netloc, Login("", identity_token="identity-of-ann"), configuration=Configuration(), env=env)
        assert tokens.asked[-1] == ("POST", "ann", ())


@requires("program:openssl")
def test_tokens_without_a_life_and_under_their_other_name(tmp_path, env):
    with TokenServer(tmp_path, {}, life=None, field="access_token") as tokens, docker_registry(tmp_path, tokens=tokens) as registry:
        registry.authorization = "Bearer " + tokens.token("ann", ["repository:public/app:pull,push"])
        registry.put("public/app", "1")
        assert manifest(registry, "public/app:1", env)["schemaVersion"] == 2


def test_a_mirror(tmp_path, env):
    with docker_registry(tmp_path) as origin, docker_registry(tmp_path, mirror_of=f"http://{origin.netloc}", name="mirror") as mirror:
        origin.put("team/app", "1", [b"layer"])
        path = tmp_path / "registries.conf"
        path.write_text(f'[[registry]]\nlocation = "{origin.netloc}"\n[[registry.mirror]]\nlocation = "{mirror.netloc}"\ninsecure = true\n')
        configuration = Configuration.load({**env, "CONTAINERS_REGISTRIES_CONF": str(path)}, tmp_path)
        first, second = endpoints(parse(f"{origin.netloc}/team/app:1"), configuration)
        assert (first.location, first.mirror, second.location) == (mirror.netloc, True, origin.netloc)
        assert manifest(origin, "team/app:1", env, configuration)["layers"][0]["size"] == 5
        assert "/v2/team/app/manifests/1" in mirror.log.read_text()


# ---- TLS (R19) ---------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    requirements.check("program:openssl")
    return Authority(tmp_path_factory.mktemp("ca"))


def trust(env, netloc: str, authority: Authority) -> None:
    place = f"{env['HOME']}/.config/containers/certs.d/{netloc}"
    os.makedirs(place)
    os.symlink(authority.ca, f"{place}/ca.crt")


def test_a_ca_of_ones_own(tmp_path, env, authority):
    with docker_registry(tmp_path, authority=authority) as registry:
        registry.put("team/app", "1")
        with pytest.raises(RegistryUnavailable, match="not to be trusted") as caught:
            manifest(registry, "team/app:1", env)  # fails closed, on loopback too
        assert f"certs.d/{registry.netloc}/ca.crt" in caught.value.hint
        insecure = Configuration.load({**env, "CONTAINERS_REGISTRIES_CONF": _conf(tmp_path, registry.netloc)}, tmp_path)
        assert manifest(registry, "team/app:1", env, insecure)["schemaVersion"] == 2
        trust(env, registry.netloc, authority)
        assert manifest(registry, "team/app:1", env)["schemaVersion"] == 2


def _conf(tmp_path, netloc: str) -> str:
    path = tmp_path / "insecure.conf"
    path.write_text(f'[[registry]]\nlocation = "{netloc}"\ninsecure = true\n')
    return str(path)


@requires("program:openssl")
def test_a_certificate_of_another_ca(tmp_path, env, authority):
    (tmp_path / "other").mkdir()
    with docker_registry(tmp_path, authority=authority) as registry:
        trust(env, registry.netloc, Authority(tmp_path / "other", "other"))
        with pytest.raises(RegistryUnavailable, match="not to be trusted"):
            manifest(registry, "team/app:1", env)


def test_a_certificate_for_another_host(env, authority):
    with ScriptedHttp(lambda _: answer(200), context=authority.server_context(), host="127.0.0.2") as server:
        trust(env, server.netloc, authority)
        with pytest.raises(RegistryUnavailable, match=r"not to be trusted.*127\.0\.0\.2"):
            manifest(server, "team/app:1", env)
    assert server.requests == []


def test_a_client_certificate_goes_to_its_registry_only(tmp_path, env, authority):
    """The registry's CA counts for the storage it redirects to, the certificate that says who we are does not go there."""

    def context() -> ssl.SSLContext:
        made = authority.server_context()
        made.load_verify_locations(authority.ca)
        made.verify_mode = ssl.CERT_OPTIONAL
        return made

    storage = ScriptedHttp(lambda _: answer(200, b"{}"), context=context())
    away = answer(307, b"", ("Location", f"https://{storage.netloc}/x"))
    with storage, ScriptedHttp(lambda _: away, context=context()) as server:
        trust(env, server.netloc, authority)
        place = f"{env['HOME']}/.config/containers/certs.d/{server.netloc}"
        os.symlink(authority.certificate, f"{place}/client.cert")
        os.symlink(authority.key, f"{place}/client.key")
        assert manifest(server, "team/app:1", env) == {}
    assert all(server.certificates) and server.certificates
    assert storage.certificates == [None] * storage.connections == [None]


@requires("program:openssl")
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_https_through_a_proxy(scheme, tmp_path, env):
    """CONNECT: the proxy hears the name and its own password, the registry speaks TLS with us alone, also within the TLS of the proxy."""
    authority = Authority(tmp_path, names=("registry.test",))
    heard = []

    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def tunnel() -> None:
        plain, _ = listener.accept()
        with (
            authority.server_context().wrap_socket(plain, server_side=True) if scheme == "https" else plain as connection,
            socket.create_connection(("127.0.0.1", server.port)) as onward,
        ):
            while b"\r\n\r\n" not in b"".join(heard):
                heard.append(connection.recv(4096))
            connection.sendall(b"HTTP/1.1 200 yes\r\n\r\n")
            back = threading.Thread(target=copy, args=(onward, connection))
            back.start()
            copy(connection, onward)
            back.join(10)

    large = b"x" * 300_000
    with (
        ScriptedHttp(lambda request: answer(200, large + request.body), context=authority.server_context()) as server,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        thread = threading.Thread(target=tunnel)
        thread.start()
        at = f"127.0.0.1:{listener.getsockname()[1]}"
        trust(env, "registry.test", authority)
        trust(env, at, authority)
        with Registry(Endpoint("registry.test", "x"), env={**env, "https_proxy": f"{scheme}://us%40:pw@{at}"}, tries=1) as client:
            assert client.request("GET", "/v2/").read_all(1 << 20) == large
            assert client.request("PUT", "/v2/", body=large).read_all(1 << 20) == large + large
        thread.join(10)
    asked = b"".join(heard).decode()
    assert asked.startswith("CONNECT registry.test:443 ") and base64.b64encode(b"us@:pw").decode() in asked
    assert "proxy-authorization" not in server.requests[0].headers and server.requests[0].headers["host"] == "registry.test"
    assert server.connections == 1


@requires("program:openssl")
def test_a_proxy_whose_certificate_is_not_to_be_trusted(tmp_path, env):
    authority = Authority(tmp_path, names=("registry.test",))
    with ScriptedHttp(lambda _: answer(200), context=authority.server_context()) as proxy:
        endpoint = Endpoint("registry.test", "x")
        with (
            Registry(endpoint, env={**env, "https_proxy": f"https://{proxy.netloc}"}, tries=1) as client,
            pytest.raises(RegistryUnavailable, match=f"certificate of {proxy.netloc}"),
        ):
            client.request("GET", "/v2/")
    assert not proxy.requests


def test_plain_http_behind_a_name_that_wants_tls(env):
    """Not this machine and not insecure: an http server is no registry."""
    with ScriptedHttp(lambda _: answer(400, then="close")) as server:
        endpoint = Endpoint(server.netloc, "x", schemes=("https",))
        with (
            Registry(endpoint, env=env, tries=1, timeouts=Timeouts(connect=0.2)) as client,
            pytest.raises(RegistryUnavailable, match="does not speak TLS"),
        ):
            client.request("GET", "/v2/")
    assert all(request.method != "GET" for request in server.requests)


# ---- what others leave behind ------------------------------------------------------------------------------------------------------------


@requires("program:skopeo", "program:htpasswd")
def test_logins_are_shared_with_skopeo(tmp_path, env):
    with docker_registry(tmp_path, users={"ann": "secret"}) as registry:
        registry.put("team/app", "1")

        def skopeo(*arguments: str) -> int:
            done = subprocess.run([tool("skopeo"), *arguments], env=env, capture_output=True, check=False)
            return done.returncode

        inspect = ("inspect", "--raw", "--tls-verify=false", f"docker://{registry.netloc}/team/app:1")
        assert skopeo(*inspect) != 0
        login(registry.netloc, "ann", "secret", configuration=Configuration(), env=env)
        assert skopeo(*inspect) == 0
        assert logout(registry.netloc, env=env).removed
        assert skopeo(*inspect) != 0
        assert skopeo("login", "--tls-verify=false", "-u", "ann", "-p", "secret", registry.netloc) == 0
        assert manifest(registry, "team/app:1", env)["schemaVersion"] == 2
