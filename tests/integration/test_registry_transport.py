"""Requests against a server that answers by script: tokens, redirects, waiting, broken answers (R1–R6, R20)."""

from __future__ import annotations

import base64
import gzip
import io
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.requires import requires
from support.scripted_http import Reply, ScriptedHttp, answer, chunked, in_turn, routes

from dockless.errors import NotFound, RateLimited, RegistryError, RegistryUnavailable, Unauthorized, UnsafeRequest
from dockless.images.registry.credentials import Credentials, Login
from dockless.images.registry.endpoint import Endpoint, Scope
from dockless.images.registry.transport import Registry, Timeouts

PULL = Scope("team/app")
PATH = "/v2/team/app/manifests/1"
SHORT = Timeouts(connect=2.0, read=0.3, head=0.5)


class Known(Credentials):
    """One login for everything; counts how often it is asked for."""

    def __init__(self, login: Login | None) -> None:
        super().__init__()
        self.login, self.asked = login, 0

    def find(self, location, repository=""):
        self.asked += 1
        return self.login


ANN = Login("ann", "pässword", source="a file")


@pytest.fixture
def waits():
    return []


@pytest.fixture
def client(waits):
    """``client(server, login)`` → a Registry that talks plain HTTP to a scripted server and does not really wait."""
    opened = []

    def make(server: ScriptedHttp, login: Login | None = None, **options) -> Registry:
        endpoint = Endpoint(server.netloc, "team/app", schemes=("http",))
        opened.append(Registry(endpoint, credentials=Known(login), env={}, pause=waits.append, **options))
        return opened[-1]

    yield make
    for registry in opened:
        registry.close()


def get(registry: Registry, path: str = PATH, **options) -> bytes:
    options.setdefault("scope", PULL)
    with registry.request("GET", path, **options) as response:
        return response.read_all(1 << 20)


def bearer(server: ScriptedHttp, *extra: str, realm: str = "/token", scope: str = "repository:team/app:pull") -> Reply:
    realm = f"http://{server.netloc}{realm}"
    return answer(401, b"{}", ("WWW-Authenticate", ",".join([f'Bearer realm="{realm}",service="s",scope="{scope}"', *extra])))


def token(text: str = "t1", **fields) -> Reply:
    return answer(200, json.dumps({"token": text, **fields}).encode())


# ---- tokens (R1, R3) ---------------------------------------------------------------------------------------------------------------------


def test_an_open_registry_is_asked_once(client):
    with ScriptedHttp(in_turn(answer(200, b"{}"))) as server:
        assert get(client(server)) == b"{}"
    (request,) = server.requests
    assert request.headers["user-agent"].startswith("dockless/")
    assert request.headers["accept-encoding"] == "identity" and "authorization" not in request.headers


def test_a_token_is_fetched_used_and_kept(client):
    with ScriptedHttp(routes({PATH: in_turn(lambda _: bearer(server), answer(200, b"1")), "/token": token(expires_in=300)})) as server:
        registry = client(server)
        assert [get(registry) for _ in range(3)] == [b"1"] * 3
    assert server.paths() == [PATH, "/token", PATH, PATH, PATH]
    assert server.requests[1].target == "/token?service=s&scope=repository%3Ateam%2Fapp%3Apull"
    assert server.headers("authorization") == ["Bearer t1"] * 3
    assert server.connections == 1  # kept alive all the way


@pytest.mark.parametrize(
    "fields",
    [
        {"access_token": "t1"},
        {"token": "", "access_token": "t1"},
        {"token": "t1", "issued_at": "0001-01-01T00:00:00Z", "expires_in": "soon"},
    ],
)
def test_answers_of_token_servers(client, fields):
    body = json.dumps(fields).encode()
    with ScriptedHttp(routes({PATH: in_turn(lambda _: bearer(server), answer(200)), "/token": answer(200, body)})) as server:
        get(client(server))
    assert server.requests[-1].headers["authorization"] == "Bearer t1"


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"token": 1}', b'{"token": "a b"}', b'{"token": "a\\r\\nX: y"}', b'{"token": "\\u00fc"}', b"[" * 20_000]
)
def test_answers_that_hold_no_token(client, body):
    with (
        ScriptedHttp(routes({PATH: lambda _: bearer(server), "/token": answer(200, body)})) as server,
        pytest.raises(RegistryError, match="no token"),
    ):
        get(client(server))


def test_an_endless_token(client):
    table = {PATH: lambda _: bearer(server), "/token": answer(200, b"x" * (300 << 10))}
    with ScriptedHttp(routes(table)) as server, pytest.raises(RegistryError, match="larger than"):
        get(client(server))


def test_a_token_is_renewed_before_it_expires(client, monkeypatch):
    now = [1000.0]
    numbers = iter(range(100))
    table = {PATH: in_turn(lambda _: bearer(server), answer(200)), "/token": lambda _: token(f"t{next(numbers)}")}
    with ScriptedHttp(routes(table)) as server:
        registry = client(server)
        monkeypatch.setattr(registry._authenticator, "_clock", lambda: now[0])
        get(registry)
        now[0] += 45  # a token without expires_in lives a minute, less the margin
        get(registry)
        now[0] += 10
        get(registry)
    assert server.headers("authorization") == ["Bearer t0", "Bearer t0", "Bearer t1"]
    assert server.paths() == [PATH, "/token", PATH, PATH, "/token", PATH]


def test_a_token_for_each_scope(client):
    def check(request):
        return answer(200) if "authorization" in request.headers else bearer(server)

    with ScriptedHttp(routes({PATH: check, "/token": lambda request: token(request.target.count("push") * "w" + "t")})) as server:
        registry = client(server)
        get(registry)
        get(registry, scope=Scope("team/app", ("pull", "push")))
        get(registry, scope=(Scope("team/app", ("pull", "push")), Scope("other/app")))
        get(registry)
    assert [request.target for request in server.requests if request.path == "/token"] == [
        "/token?service=s&scope=repository%3Ateam%2Fapp%3Apull",
        "/token?service=s&scope=repository%3Ateam%2Fapp%3Apull%2Cpush",
        "/token?service=s&scope=repository%3Aother%2Fapp%3Apull&scope=repository%3Ateam%2Fapp%3Apull%2Cpush",
    ]


def test_insufficient_scope_is_answered_once_with_the_scope_that_is_asked_for(client):
    refused = answer(403, b"", ("WWW-Authenticate", 'Bearer realm="REALM",error="insufficient_scope",scope="repository:renamed/app:pull"'))

    def realm(reply):
        return Reply(reply.data.replace(b"REALM", f"http://{server.netloc}/token".encode()))

    tokens = {"/token": in_turn(token("old"), token("new"))}
    with ScriptedHttp(
        routes({PATH: in_turn(lambda _: bearer(server), answer(200), lambda _: realm(refused), answer(200, b"2")), **tokens})
    ) as server:
        registry = client(server)
        get(registry)
        assert get(registry) == b"2"  # the token lost its power in between
    assert "repository%3Arenamed%2Fapp%3Apull" in [request.target for request in server.requests if request.path == "/token"][-1]
    assert server.requests[-1].headers["authorization"] == "Bearer new"


def test_no_loop_when_the_token_never_pleases(client):
    with ScriptedHttp(routes({PATH: lambda _: bearer(server), "/token": token()})) as server, pytest.raises(Unauthorized) as caught:
        get(client(server))
    assert server.paths() == [PATH, "/token", PATH]
    assert f"dockless login {server.netloc}" in caught.value.hint


def test_many_threads_fetch_one_token(client):
    def check(request):
        return answer(200, b"x") if "authorization" in request.headers else bearer(server)

    with ScriptedHttp(routes({PATH: check, "/token": token(expires_in=300)})) as server:
        registry = client(server)
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda _: get(registry), range(24))) == [b"x"] * 24
    assert server.paths().count("/token") == 1


def test_credentials_go_to_the_realm_as_basic_and_are_looked_up_once(client):
    with ScriptedHttp(routes({PATH: in_turn(lambda _: bearer(server), answer(200)), "/token": token(expires_in=0)})) as server:
        registry = client(server, ANN)
        get(registry)
        get(registry, scope=Scope("team/app", ("pull", "push")))
    assert registry._credentials.asked == 1
    at_realm = [request for request in server.requests if request.path == "/token"]
    assert {request.headers["authorization"] for request in at_realm} == {"Basic " + base64.b64encode("ann:pässword".encode()).decode()}
    assert "account=ann" in at_realm[0].target
    assert all(request.headers.get("authorization", "Bearer t1") == "Bearer t1" for request in server.requests if request.path == PATH)


def test_an_identity_token_is_posted(client):
    with ScriptedHttp(routes({PATH: in_turn(lambda _: bearer(server), answer(200)), "/token": token()})) as server:
        get(client(server, Login("", identity_token="i&d")))
    (asked,) = [request for request in server.requests if request.path == "/token"]
    assert asked.method == "POST" and "authorization" not in asked.headers
    assert asked.body == b"grant_type=refresh_token&refresh_token=i%26d&client_id=dockless&service=s&scope=repository%3Ateam%2Fapp%3Apull"


def test_a_registry_token_is_used_as_it_is(client):
    with ScriptedHttp(routes({PATH: in_turn(lambda _: bearer(server), answer(200))})) as server:
        get(client(server, Login("", registry_token="given")))
    assert server.paths() == [PATH, PATH] and server.headers("authorization") == ["Bearer given"]


def test_a_login_that_the_token_server_refuses(client):
    with ScriptedHttp(routes({PATH: lambda _: bearer(server), "/token": answer(401)})) as server, pytest.raises(Unauthorized) as caught:
        get(client(server, ANN))
    assert "a file is refused" in str(caught.value) and "pässword" not in f"{caught.value!r}{caught.value.hint}"


def test_basic(client):
    def check(request):
        return answer(200, b"in") if "authorization" in request.headers else answer(401, b"", ("WWW-Authenticate", 'Basic realm="x, y"'))

    with ScriptedHttp(check) as server:
        registry = client(server, ANN)
        assert [get(registry), get(registry)] == [b"in", b"in"]
        assert len(server.requests) == 3  # known from the first answer on
        with pytest.raises(Unauthorized, match="wants a login"):
            get(client(server))


def test_a_wrong_password(client):
    with ScriptedHttp(lambda _: answer(401, b"", ("WWW-Authenticate", 'Basic realm="x"'))) as server:
        registry = client(server, ANN)
        for _ in range(2):
            with pytest.raises(Unauthorized, match="refuse"):
                get(registry)
    assert len(server.requests) == 3


def test_an_unknown_scheme_first(client):
    def check(request):
        fields = (("WWW-Authenticate", "Negotiate"), ("WWW-Authenticate", 'NTLM, Basic realm="a,b"'))
        return answer(200) if "authorization" in request.headers else answer(401, b"", *fields)

    with ScriptedHttp(check) as server:
        get(client(server, ANN))


def test_only_unknown_schemes(client):
    strange = answer(401, b"", ("WWW-Authenticate", "Negotiate"))
    with ScriptedHttp(lambda _: strange) as server, pytest.raises(Unauthorized, match=r"not supported \(negotiate\)"):
        get(client(server, ANN))


def test_401_without_a_challenge(client):
    with ScriptedHttp(lambda _: answer(401)) as server, pytest.raises(Unauthorized, match="none"):
        get(client(server, ANN))


# ---- redirects (R4) ----------------------------------------------------------------------------------------------------------------------


def test_authorization_stays_with_its_origin(client):
    with ScriptedHttp(lambda _: answer(200, b"blob")) as storage:
        moved = answer(307, b"moved", ("Location", f"http://{storage.netloc}/s3/blob?X-Amz-Signature=s%2Fg%3D"))

        def check(request):
            return moved if "authorization" in request.headers else answer(401, b"", ("WWW-Authenticate", "Basic"))

        with ScriptedHttp(check) as server:
            response = client(server, ANN).request("GET", PATH, scope=PULL, headers={"Range": "bytes=5-"})
            assert response.read_all(100) == b"blob"
            assert response.url == f"http://{storage.netloc}/s3/blob"  # without the signature
    (request,) = storage.requests
    assert "authorization" not in request.headers
    assert request.headers["range"] == "bytes=5-" and request.target == "/s3/blob?X-Amz-Signature=s%2Fg%3D"


def test_a_redirect_within_the_registry_keeps_it(client):
    def check(request):
        if "authorization" not in request.headers:
            return answer(401, b"", ("WWW-Authenticate", "Basic"))
        return answer(302, b"", ("Location", "../blobs/x")) if request.path == PATH else answer(200, b"there")

    with ScriptedHttp(check) as server:
        assert get(client(server, ANN)) == b"there"
    assert server.paths() == [PATH, PATH, "/v2/team/app/blobs/x"]


def test_a_redirects_target_that_asks_for_a_login_gets_none(client):
    thief = ScriptedHttp(lambda _: answer(401, b"", ("WWW-Authenticate", "Basic")))
    away = answer(307, b"", ("Location", f"http://{thief.netloc}/"))
    with thief, ScriptedHttp(lambda _: away) as server, pytest.raises(Unauthorized):
        get(client(server, ANN))
    assert len(thief.requests) == 1 and thief.headers("authorization") == []


def test_redirects_end(client):
    with (
        ScriptedHttp(lambda request: answer(307, b"", ("Location", request.path + "x"))) as server,
        pytest.raises(RegistryError, match="redirects"),
    ):
        get(client(server))
    assert len(server.requests) == 9


@pytest.mark.parametrize(
    "location",
    [
        "ftp://127.0.0.1/x", "file:///etc/passwd", "unix:///run/docker.sock", "http://user:pw@127.0.0.1/x", "http://a b/",
        "http://127.0.0.1:0/", "http://127.0.0.1:99999/", "http://[::1/", "http://h\u00f6st/", "//\\evil/", "gopher://127.0.0.1:6379/_SET",
        "http://http+unix%3A%2F%2Frun/", "http://" + "a" * 20_000,
    ],
)  # fmt: skip
def test_locations_that_are_no_place(client, location):
    with ScriptedHttp(lambda _: answer(307, b"", ("Location", location))) as server, pytest.raises(UnsafeRequest):
        get(client(server))
    assert len(server.requests) == 1


def test_an_upload_is_not_redirected_elsewhere(client):
    thief = ScriptedHttp(lambda _: answer(200))
    away = answer(307, b"", ("Location", f"http://{thief.netloc}/"))
    with thief, ScriptedHttp(lambda _: away) as server, pytest.raises(RegistryError, match="PUT is"):
        client(server).request("PUT", PATH, scope=PULL, body=b"secret layer")
    assert thief.requests == []


def test_a_redirect_is_an_answer_where_it_is_not_followed(client):
    with ScriptedHttp(lambda _: answer(307, b"", ("Location", "/x"))) as server:
        assert client(server).request("GET", PATH, follow=False, ok=(307,)).headers.get("location") == "/x"
        with pytest.raises(RegistryError):
            get(client(server), follow=False)


# ---- waiting and trying again (R5, R6) ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_another_try_after(client, waits, status):
    with ScriptedHttp(in_turn(answer(status, b"no"), answer(status, b"no"), answer(200, b"yes"))) as server:
        assert get(client(server)) == b"yes"
    assert len(waits) == 2 and 0.25 <= waits[0] <= 0.5 <= waits[1] <= 1.0
    assert server.connections == 1


def test_retry_after_is_heeded(client, waits):
    with ScriptedHttp(in_turn(answer(429, b"", ("Retry-After", "7")), answer(200))) as server:
        get(client(server))
    assert 7 <= waits[0] <= 7.5


def test_a_huge_retry_after_is_told_and_not_waited_for(client, waits):
    body = b'{"errors":[{"code":"TOOMANYREQUESTS","message":"pull rate limit"}]}'
    with ScriptedHttp(lambda _: answer(429, body, ("Retry-After", "21600"))) as server, pytest.raises(RateLimited) as caught:
        get(client(server))
    assert waits == [] and caught.value.retry_after == 21600 and "21600" in caught.value.hint and "pull rate limit" in str(caught.value)


def test_tries_end(client, waits):
    with ScriptedHttp(lambda _: answer(503)) as server, pytest.raises(RegistryUnavailable) as caught:
        get(client(server))
    assert len(server.requests) == 5 and len(waits) == 4 and caught.value.status == 503


def test_no_patience_where_a_mirror_is_next(client, waits):
    with ScriptedHttp(lambda _: answer(429)) as server, pytest.raises(RateLimited):
        get(client(server), patient=False)
    assert len(server.requests) == 1 and waits == []


def test_connections_that_break(client, waits):
    with ScriptedHttp(in_turn(Reply(b"", "reset"), Reply(b"", "close"), Reply(b"HTTP/1.1 20", "close"), answer(200, b"ok"))) as server:
        assert get(client(server)) == b"ok"
    assert len(waits) == 3


def test_nobody_listens(client, waits):
    with ScriptedHttp(lambda _: answer(200)) as server:
        pass
    with pytest.raises(RegistryUnavailable, match="refused"):
        get(client(server))
    assert len(waits) == 4


def test_no_such_host(waits):
    registry = Registry(Endpoint("nowhere.invalid", "x"), env={}, pause=waits.append)
    with pytest.raises(RegistryUnavailable, match="no such host"):
        get(registry)


def test_a_patch_is_not_sent_twice(client):
    with ScriptedHttp(lambda _: Reply(b"", "reset")) as server, pytest.raises(RegistryUnavailable):
        client(server).request("PATCH", "/v2/team/app/blobs/uploads/1", scope=PULL, body=b"data", ok=(202,))
    assert len(server.requests) == 1
    with ScriptedHttp(lambda _: answer(500)) as server, pytest.raises(RegistryUnavailable):
        client(server).request("PATCH", "/v2/team/app/blobs/uploads/1", scope=PULL, body=b"data", ok=(202,))
    assert len(server.requests) == 1


def test_a_file_is_sent_again_from_where_it_stood(client):
    body = io.BytesIO(b"....the body")
    body.seek(4)
    script = in_turn(answer(401, b"", ("WWW-Authenticate", "Basic")), answer(503), answer(201))
    with ScriptedHttp(script) as server:
        client(server, ANN).request("PUT", "/v2/team/app/blobs/uploads/1", scope=PULL, body=body, ok=(201,)).close()
    assert [request.body for request in server.requests] == [b"the body"] * 3


def test_a_stream_that_cannot_be_repeated_is_sent_once(client):
    class Stream(io.RawIOBase):
        def __init__(self):
            self.left = [b"one", b"two"]

        def readable(self):
            return True

        def read(self, size=-1):
            return self.left.pop(0) if self.left else b""

    with ScriptedHttp(lambda _: answer(503)) as server, pytest.raises(RegistryUnavailable):
        client(server).request("PUT", "/v2/team/app/blobs/uploads/1", scope=PULL, body=Stream(), ok=(201,))
    assert [request.body for request in server.requests] == [b"onetwo"]


# ---- answers (R6, R20) -------------------------------------------------------------------------------------------------------------------


def test_a_cut_body(client):
    with ScriptedHttp(lambda _: answer(200, b"x" * 1000, length=5000, then="close")) as server:
        response = client(server).request("GET", PATH, scope=PULL)
        assert response.length == 5000
        with pytest.raises(RegistryUnavailable, match="broke"):
            while response.read(300):
                pass


def test_a_body_that_is_reset(client):
    with ScriptedHttp(lambda _: answer(200, b"x" * 1000, length=5000, then="reset")) as server:
        response = client(server).request("GET", PATH, scope=PULL)
        with pytest.raises(RegistryUnavailable):
            while response.read(300):
                pass


def test_a_body_that_stalls(client):
    with ScriptedHttp(lambda _: answer(200, b"x" * 10, length=50, then="stall")) as server:
        response = client(server, timeouts=SHORT).request("GET", PATH, scope=PULL)
        with pytest.raises(RegistryUnavailable, match="the next part of the body"):
            while response.read(300):
                pass


def test_a_head_that_stalls(client):
    with (
        ScriptedHttp(lambda _: Reply(b"HTTP/1.1 200 OK\r\nContent-", "stall")) as server,
        pytest.raises(RegistryUnavailable, match="the head of its answer has stalled"),
    ):
        get(client(server, timeouts=SHORT, tries=1))


def test_a_head_that_never_ends(client):
    """``100 Continue`` again and again: the bound is over all of them."""
    endless = Reply(b"HTTP/1.1 100 Continue\r\n\r\n" * 200_000 + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    with ScriptedHttp(lambda _: endless) as server, pytest.raises(RegistryUnavailable, match="head of its answer is larger than"):
        get(client(server, tries=1))


@pytest.mark.parametrize("head", [b"X: " + b"y" * 100_000, b"\r\n".join(b"X-%d: y" % n for n in range(500))])
def test_a_head_without_measure(client, head):
    with ScriptedHttp(lambda _: Reply(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n")) as server, pytest.raises(RegistryUnavailable):
        get(client(server, tries=1))


@pytest.mark.parametrize("data", [b"SSH-2.0-OpenSSH_9.2\r\n", b"\0" * 100, b"<html>", b"HTTP/9.9 abc\r\n\r\n"])
def test_something_that_is_no_http(client, data):
    with ScriptedHttp(lambda _: Reply(data, "close")) as server, pytest.raises(RegistryUnavailable):
        get(client(server, tries=1))


def test_http_1_0(client):
    with ScriptedHttp(lambda _: answer(200, b"old", version="1.0", length=None)) as server:
        assert get(client(server)) == b"old"


def test_chunks_without_a_length(client):
    with ScriptedHttp(lambda _: chunked(b"in small pieces, all of it", ("content-TYPE", "a/b"))) as server:
        response = client(server).request("GET", PATH, scope=PULL)
        assert response.length is None and response.headers.get("Content-Type") == "a/b"
        assert response.read_all(100) == b"in small pieces, all of it"


def test_chunks_that_are_cut(client):
    with ScriptedHttp(lambda _: Reply(chunked(b"x" * 100).data[:-9], "close")) as server, pytest.raises(RegistryUnavailable):
        get(client(server))


def test_an_encoding_nobody_asked_for_is_undone(client):
    with ScriptedHttp(lambda _: answer(200, gzip.compress(b"manifest"), ("Content-Encoding", "GZIP"))) as server:
        response = client(server).request("GET", PATH, scope=PULL)
        assert response.encoded and response.length is None and response.read_all(100) == b"manifest"


def test_an_encoding_nobody_knows(client):
    with ScriptedHttp(in_turn(answer(200, b"?", ("Content-Encoding", "br")), answer(200))) as server:
        registry = client(server)
        with pytest.raises(RegistryError, match="encoded as br"):
            get(registry)
        get(registry)


@pytest.mark.parametrize("host", ["a" * 64 + ".test", "a..test", "-", "nowhere.invalid"])
def test_redirects_to_names_that_are_none(client, host):
    away = answer(307, b"", ("Location", f"http://{host}/"))
    with ScriptedHttp(lambda _: away) as server, pytest.raises(RegistryError):
        get(client(server, tries=1))


def test_a_document_that_is_too_large(client):
    with ScriptedHttp(lambda _: answer(200, b"x" * 1001)) as server:
        with pytest.raises(RegistryError, match="larger than 1000"):
            client(server).request("GET", PATH, scope=PULL).read_all(1000)
        assert len(client(server).request("GET", PATH, scope=PULL).read_all(1001)) == 1001


def test_head_requests(client):
    with ScriptedHttp(lambda _: answer(200, b"", ("Docker-Content-Digest", "sha256:x"), length=77)) as server:
        registry = client(server)
        for _ in range(2):
            with registry.request("HEAD", PATH, scope=PULL) as response:
                assert response.headers.get("docker-content-digest") == "sha256:x" and response.length == 77 and response.read(10) == b""
    assert server.connections == 1


def test_what_is_not_there(client):
    body = b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}'
    with ScriptedHttp(lambda _: answer(404, body)) as server, pytest.raises(NotFound) as caught:
        get(client(server), what="team/app:1")
    assert caught.value.codes == ("MANIFEST_UNKNOWN",) and caught.value.subject == "team/app:1" and "manifest unknown" in str(caught.value)


def test_a_long_error_closes_its_connection(client):
    with ScriptedHttp(in_turn(answer(404, b"x" * (1 << 20)), answer(200))) as server:
        registry = client(server)
        with pytest.raises(NotFound):
            get(registry)
        get(registry)
    assert server.connections == 2


def test_the_length_of_what_is_sent(client):
    body = io.BytesIO(b"..four")
    body.seek(2)
    with ScriptedHttp(lambda _: answer(201)) as server:
        for data in (b"four", body, b""):
            client(server).request("PUT", PATH, body=data, ok=(201,)).close()
        client(server).request("POST", PATH, ok=(201,)).close()
    assert [request.headers["content-length"] for request in server.requests] == ["4", "4", "0", "0"]
    assert not server.headers("transfer-encoding")


@requires("ipv6")
def test_ipv6(client):
    with ScriptedHttp(lambda _: answer(200, b"six"), host="::1") as server:
        assert get(client(server)) == b"six"
    assert server.headers("host") == [server.netloc] and server.netloc.startswith("[::1]:")


def test_connections_are_shared_by_threads(client):
    with ScriptedHttp(lambda _: answer(200, b"x" * 10_000)) as server:
        registry = client(server)
        with ThreadPoolExecutor(4) as pool:
            assert {len(data) for data in pool.map(lambda _: get(registry), range(40))} == {10_000}
    assert server.connections <= 8
