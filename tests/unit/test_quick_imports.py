"""What stands for slow modules of the standard library says what those say."""

from __future__ import annotations

import json
import pathlib
import pickle
import re
import signal as standard_signal
import urllib.parse

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from dockless.base import json as ours
from dockless.base import signal, url
from dockless.base.path import Path
from dockless.base.text import is_name

TEXTS = some.lists(some.sampled_from(["a", "b.c", ".d", "..", ".", "", "ä", "\udc80"]), max_size=5).map("/".join)


@example("//a", "")
@example("//", "a")
@example("///a", "//b")
@given(TEXTS, TEXTS)
def test_a_path_is_as_the_standard_one(first, second):
    ours, theirs = Path(first), pathlib.Path(first)
    assert str(ours) == str(theirs) and repr(ours) == repr(theirs)
    assert ours == theirs and theirs == ours and hash(ours) == hash(theirs) and ours != pathlib.Path(first, "other")
    assert (ours.name, str(ours.parent)) == (theirs.name, str(theirs.parent))
    for joined in (ours / second, theirs / Path(second), ours / pathlib.Path(second), ours.joinpath(second), first / Path(second)):
        assert joined == theirs / second
    assert (ours < Path(second)) == (theirs < pathlib.Path(second)) == (theirs < Path(second))
    assert pickle.loads(pickle.dumps(ours)) == ours
    assert ours.with_name("x") == theirs.with_name("x") if theirs.name else True


def test_a_path_does_what_the_standard_one_does(tmp_path):
    place = Path(tmp_path) / "made"
    place.mkdir()
    place.mkdir(exist_ok=True)
    with pytest.raises(FileExistsError):
        place.mkdir()
    (place / "x").write_text("ä\n")
    with pytest.raises(FileExistsError):
        (place / "x").mkdir(exist_ok=True)
    assert (place / "x").read_text() == "ä\n" and (place / "x").read_bytes() == "ä\n".encode()
    assert place.is_dir() and not (place / "x").is_dir() and list(place.iterdir()) == [tmp_path / "made" / "x"]
    (place / "x").unlink()
    (place / "x").unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        (place / "x").unlink()
    place.rmdir()
    assert not place.exists()
    with pytest.raises(AttributeError):
        place.nothing  # noqa: B018


@given(some.text(alphabet="aZ0_.-\n:\0é", max_size=6))
def test_a_name_is_what_the_pattern_says(text):
    assert is_name(text, "_.-", 4) == bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,3}", text))


PLAIN = some.none() | some.booleans() | some.integers() | some.floats() | some.text()


@given(some.recursive(PLAIN, lambda inner: some.lists(inner) | some.dictionaries(some.text(), inner) | some.tuples(inner)))
def test_json_is_as_the_standard_module_writes_and_reads_it(value):
    written = json.dumps(value)
    assert ours.dumps(value) == written and ours.dumps(value, separators=(",", ":")) == json.dumps(value, separators=(",", ":"))
    assert ours.dumps([b"x"], default=repr) == json.dumps([b"x"], default=repr)
    for text in (written, f" {written}\r\n", written.encode(), written.encode("utf-16"), b"\xef\xbb\xbf" + written.encode()):
        assert json.dumps(ours.loads(text)) == written


@pytest.mark.parametrize(
    "text", ["", " ", "{", '{"a": 1}}', "[1,]", "1 2", "\ufeff1", b"\xff", "nan", '"\n"', "'a'", '{"a"}', "9" * 5000, "[" * 99999]
)
def test_what_is_no_json_is_said_as_by_the_standard_module(text):
    with pytest.raises((ValueError, RecursionError)) as standard:
        json.loads(text)
    with pytest.raises(standard.type) as caught:
        ours.loads(text)
    assert str(caught.value) == str(standard.value)


def test_what_json_does_not_have_is_refused_as_by_the_standard_module():
    with pytest.raises(TypeError, match="Object of type bytes is not JSON serializable"):
        ours.dumps([b"x"])


def test_signals_are_the_same():
    assert all(getattr(signal, one.name) == one for one in standard_signal.Signals)
    assert signal.default_int_handler is standard_signal.default_int_handler and signal.Signals(9).name == "SIGKILL"


URLS = some.from_regex(
    r"(https?|HTTP|ftp)://[a-zA-Z0-9.:\[\]@_-]{0,12}(/[a-z0-9._~;%/:-]{0,12})?([?#][a-z/=]{0,4})?", fullmatch=True
) | some.text("ahtps:/.?#[]@%0;\n\té", max_size=12)
PARTS = ("scheme", "netloc", "path", "query", "fragment", "hostname", "port", "username", "password")


@example("http://a:99999/", "/x")
@example("http://a:/b", "/../c")
@example("http://A.b:080/c", "//d/e")
@example("https://a", "/v2/b/manifests/sha256:0")
@example("http://a?", "/b?c")
@given(URLS, URLS)
def test_a_url_is_as_the_standard_module_reads_it(first, second):
    assert _parts(url.urlsplit, first) == _parts(urllib.parse.urlsplit, first)
    for base in (first, "http://r.test:5000/v2/x?y"):
        for other in (second, "/" + second):
            assert _said(url.urljoin, base, other) == _said(urllib.parse.urljoin, base, other)
    assert url.quote(first, safe="/:") == urllib.parse.quote(first, safe="/:")


def _parts(split, text):
    parts = _said(split, text)
    return parts if isinstance(parts, type) else [*(_said(getattr, parts, name) for name in PARTS), parts.geturl()]


def _said(read, *values):
    try:
        return read(*values)
    except ValueError as error:
        return type(error)
