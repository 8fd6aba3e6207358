"""Every rule of the image specification's schema, probed by documents of our own: through load, and through pull.

What differs from the schema is decided in docs/images-schema.md, and this holds the page to the table.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.bad_registry import BadRegistry
from support.pulling import fetch
from support.schema_cases import CASES, Case, build

from dockless.errors import BadDigest, BadImage
from dockless.images import Store

PAGE = Path(__file__).resolve().parents[2] / "docs" / "images-schema.md"


def ids(cases: list[Case]) -> list[str]:
    return [re.sub(r"[^\w.=/+-]+", "_", case.name)[:80] for case in cases]


PULLED = [case for case in CASES if not case.where.startswith("layout")]


@pytest.fixture(scope="module")
def registry():
    with BadRegistry() as server:
        yield server


@pytest.mark.parametrize("case", CASES, ids=ids(CASES))
def test_load(case, tmp_path):
    layout = build(case).write(tmp_path / "layout")
    store = Store()
    if case.ours:
        assert store.load(layout)[0].read_file("/etc/hello") == b"hello"
    else:
        with pytest.raises((BadImage, BadDigest)) as caught:
            store.load(layout)
        assert "\n" not in str(caught.value)
        assert store.list() == []


@pytest.mark.parametrize("case", PULLED, ids=ids(PULLED))
def test_pull(case, registry):
    build(case).serve(registry)
    store = Store()
    if case.ours:
        assert fetch(registry, store=store).read_file("/etc/hello") == b"hello"
    else:
        with pytest.raises((BadImage, BadDigest)) as caught:
            fetch(registry, store=store)
        assert "\n" not in str(caught.value)
        assert store.list() == []


def test_the_page_tells_what_differs():
    rows = re.findall(r"^\| `(.+?)` \| (\w+) \| (\w+) \| (.+?) \|$", PAGE.read_text(), re.MULTILINE)
    words = {True: "accepts", False: "refuses"}
    assert rows == [
        (case.name.replace("|", "\\|"), words[case.schema], words[case.ours], case.why) for case in CASES if case.schema != case.ours
    ]
