"""What is read without patterns, so that no start imports ``re``, is what the patterns of the specifications say."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as some

from dockless.images.model import reference, shape
from dockless.images.registry import http, transport

LABEL = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
DOMAIN = rf"(?:{LABEL}(?:\.{LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
PATH = rf"{COMPONENT}(?:/{COMPONENT})*"
TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
MEDIA_TYPE = r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}"
HOST = r"(?:[A-Za-z0-9_-]+\.)*[A-Za-z0-9_-]+\.?|\[[0-9A-Fa-f:.]+\]"
STATUS = r"(?s:HTTP/1\.([01]) ([1-9][0-9]{2})(?: .*)?)"
CHUNK = r"([0-9A-Fa-f]{1,15})[ \t]*(?s:;.*)?"
DATE = r"(?a)\d{4}-(0\d|1[0-2])-[0-3]\dT[0-2]\d:[0-5]\d:[0-6]\d(\.\d+)?(Z|[+-]\d\d:\d\d)"


def texts(pattern: str, near: str) -> some.SearchStrategy[str]:
    """Texts that fit, texts that nearly fit, and others."""
    fitting = some.from_regex(pattern, fullmatch=True)
    broken = some.builds(
        lambda text, at, more: text[: at % (len(text) + 1)] + more + text[at % (len(text) + 1) :],
        fitting,
        some.integers(0),
        some.text(near, max_size=2),
    )
    cut = some.builds(lambda text, at: text[: at % (len(text) + 1)], fitting, some.integers(0))
    return fitting | broken | cut | some.text(near, max_size=6)


@example("[::1]")
@example("[::1]:5000")
@example("[]:1")
@example("a-.b")
@given(texts(DOMAIN, "aZ0.-:[]é\n"))
def test_a_domain(text):
    assert reference.is_domain(text) == bool(re.fullmatch(DOMAIN, text))


@example("a___b")
@example("a_-b")
@given(texts(PATH, "aZ0._-/é\n"))
def test_a_path(text):
    assert reference.is_path(text) == bool(re.fullmatch(PATH, text))


@given(texts(TAG, "aZ0._-/é\n"))
def test_a_tag(text):
    assert reference.is_tag(text) == bool(re.fullmatch(TAG, text))


@given(texts(MEDIA_TYPE, "aZ0!+/ é\n"))
def test_a_media_type(text):
    assert shape.MEDIA_TYPE.holds(text) == bool(re.fullmatch(MEDIA_TYPE, text))


@example("2023-11-14T22:13:20")
@example("2023-11-14T22:13:20.Z")
@example("2023-13-14T22:13:20Z")
@example("2023-11-14T22:13:20.5+01:00")
@given(texts(DATE, "019-:TZ.+é٣\n"))
def test_a_date(text):
    assert shape.DATE.holds(text) == bool(re.fullmatch(DATE, text))


@example("a..")
@example("[]")
@given(texts(HOST, "aZ0.-_:[]é\n"))
def test_a_host_of_a_url(text):
    assert transport._is_host(text) == bool(re.fullmatch(HOST, text))


@example("HTTP/1.1 200")
@example("HTTP/1.1 ²00 OK")
@given(texts(STATUS, "HTP/1.02 ²\t"))
def test_a_status_line(text):
    found = re.fullmatch(STATUS, text)
    assert _said(http._version_and_status, text) == (found and (int(found[1]), int(found[2])))


@example("1_0")
@example("+1")
@given(texts(CHUNK, "0aFg;_+- \t\n"))
def test_the_size_of_a_chunk(text):
    found = re.fullmatch(CHUNK, text)
    assert _said(http._chunk_size, text.encode("latin-1", "replace")) == (found and int(found[1], 16))


def _said(read, line):
    try:
        return read(line)
    except http.BadHttp:
        return None
