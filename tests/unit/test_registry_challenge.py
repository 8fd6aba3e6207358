"""WWW-Authenticate in all the shapes that are sent (R2), Retry-After, error bodies, content encodings."""

from __future__ import annotations

import gzip
import io
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockless.errors import NotFound, RateLimited, RegistryError, RegistryUnavailable, Unauthorized
from dockless.images.registry.challenge import parse, supported
from dockless.images.registry.encoding import decoder
from dockless.images.registry.errors import printable, refusal
from dockless.images.registry.retrying import TOTAL_MAX, WAIT_MAX, Patience, retry_after

HUB = 'Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:library/busybox:pull,push"'


def test_a_bearer_challenge():
    (challenge,) = parse([HUB])
    assert challenge.scheme == "bearer"
    assert challenge.get("realm") == "https://auth.docker.io/token"
    assert challenge.get("scope") == "repository:library/busybox:pull,push"
    assert challenge.get("error") == ""


@pytest.mark.parametrize(
    ("headers", "schemes"),
    [
        (["Negotiate", 'Basic realm="x"'], ["negotiate", "basic"]),
        (['Negotiate, Basic realm="x"'], ["negotiate", "basic"]),
        (['Negotiate YII+/==, Basic realm=x, Bearer realm="r"'], ["negotiate", "basic", "bearer"]),
        (['BEARER Realm = "r" , Service="a, b"', "basic"], ["bearer", "basic"]),
        ([",, Basic ,"], ["basic"]),
        (['Digest realm="a, Basic realm=b", nonce="x"', "Basic realm=c"], ["digest", "basic"]),
        ([""], []),
        ([], []),
        (["=,x=y"], []),
    ],
)
def test_several_challenges(headers, schemes):
    assert [challenge.scheme for challenge in parse(headers)] == schemes


def test_quoted_commas_and_escapes():
    (challenge,) = parse([r'Bearer realm="https://a/t?x=1,2",service="say \"hi\", you",scope="repository:a:pull,push repository:b:pull"'])
    assert challenge.get("realm") == "https://a/t?x=1,2"
    assert challenge.get("service") == 'say "hi", you'
    assert challenge.get("scope") == "repository:a:pull,push repository:b:pull"


def test_which_one_is_answered():
    assert supported(parse(['Basic realm="b", Bearer realm="t"'])).scheme == "bearer"
    assert supported(parse(['Bearer service="no realm"', "Basic"])).scheme == "basic"
    assert supported(parse(["Negotiate", "Digest realm=x"])) is None


def test_a_huge_header_is_cut():
    assert len(parse(["Basic, " * 100_000])) < 5000


@given(st.lists(st.text(alphabet='Bb asic=",\\;\t\r\n\x00ü0/+', max_size=60), max_size=4))
def test_anything_is_parsed(headers):
    for challenge in parse(headers):
        assert challenge.scheme == challenge.scheme.lower() and challenge.scheme


# ---- Retry-After and patience ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        (" 17 ", 17.0),
        ("99999999999999999999", 999999999999.0),
        ("Sat, 01 Jan 2000 00:01:00 GMT", 60.0),
        ("Fri, 31 Dec 1999 23:59:00 GMT", 0.0),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("٣", None),
        ("", None),
        (None, None),
        ("x" * 1000, None),
        ("Sat, 01 Jan 99999999 00:00:00 GMT", None),
    ],
)
def test_retry_after(value, seconds):
    assert retry_after(value, now=lambda: 946684800.0) == seconds


def test_patience_grows_jitters_and_ends():
    waited: list[float] = []
    patience = Patience(tries=6, pause=waited.append)
    while patience.again():
        pass
    assert len(waited) == 5
    assert all(0.25 * 2**n <= wait <= 0.5 * 2**n for n, wait in enumerate(waited))


def test_patience_never_waits_beyond_its_bounds():
    waited: list[float] = []
    patience = Patience(tries=100, pause=waited.append)
    assert not patience.may_wait(WAIT_MAX + 1)
    while patience.may_wait(50):
        patience.wait(50)
    assert sum(waited) <= TOTAL_MAX + 2 and len(waited) == 2
    while patience.again():
        pass
    assert sum(waited) <= TOTAL_MAX + 2


# ---- refusals ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, Unauthorized), (403, Unauthorized), (404, NotFound), (429, RateLimited), (500, RegistryUnavailable), (418, RegistryError)],
)
def test_the_kind_of_a_refusal(status, kind):
    body = b'{"errors":[{"code":"SOME_CODE","message":"the words \\u001b[31mof it\\n"}]}'
    error = refusal(status, body, method="GET", what="a/b:1", host="r.test")
    assert type(error) is kind and error.status == status and error.codes == ("SOME_CODE",)
    assert r"the words \x1b[31mof it" in str(error) and str(error).isprintable()
    assert error.hint and error.subject == "a/b:1"


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'{"errors": 1}', b'{"errors": [1, null, {}]}', b'{"errors":[{"code":[],"message":{}}]}', b"[" * 50_000]
)
def test_odd_bodies(body):
    assert refusal(404, body, method="GET", what="x", host="h").codes == ()


def test_long_words_are_cut():
    assert len(printable("ä" * 10_000)) == 300


# ---- Content-Encoding --------------------------------------------------------------------------------------------------------------------

TEXT = b"".join(b"line %d\n" % n for n in range(20_000))


def _undone(value: str, data: bytes, size: int = 1000) -> bytes:
    inner = decoder(value, "x")
    source = io.BytesIO(data)
    pieces = []
    while piece := inner.read(lambda n: source.read(min(n, 777)), size):
        assert len(piece) <= size
        pieces.append(piece)
    return b"".join(pieces)


def test_encodings_are_undone():
    raw = zlib.compressobj(wbits=-15)
    assert _undone("gzip", gzip.compress(TEXT)) == TEXT
    assert _undone("X-GZip", gzip.compress(TEXT[:5000]) + gzip.compress(TEXT[5000:])) == TEXT
    assert _undone("deflate", zlib.compress(TEXT)) == TEXT
    assert _undone("deflate", raw.compress(TEXT) + raw.flush()) == TEXT
    assert _undone("gzip", b"") == b""


def test_no_encoding():
    assert decoder("", "x") is None and decoder("identity", "x") is None


@pytest.mark.parametrize("value", ["br", "gzip, gzip", "zstd", "\x1b]0;x"])
def test_unknown_encodings_are_refused(value):
    with pytest.raises(RegistryError, match="nobody asked for"):
        decoder(value, "x")


TORN = {
    "end": gzip.compress(TEXT)[:-9],
    "half": gzip.compress(TEXT)[:100],
    "not gzip": b"no gzip at all",
    "more": gzip.compress(TEXT) + b"tail",
}


@pytest.mark.parametrize("data", TORN.values(), ids=TORN)
def test_torn_encodings(data):
    with pytest.raises(RegistryUnavailable):
        _undone("gzip", data)


def test_a_bomb_comes_in_small_pieces():
    inner = decoder("gzip", "x")
    source = io.BytesIO(gzip.compress(bytes(50 << 20)))
    assert len(inner.read(source.read, 4096)) <= 4096
