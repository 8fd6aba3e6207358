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

from dockless.cli import main
from dockless.errors import BadDigest, BadImage
from dockless.images import Store
from dockless.images.model import reference
from dockless.images.model.digest import parse

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


KEPT = [case for case in PULLED if not case.ours and case.where.partition(".")[0] in ("config", "manifest", "layer")]
"""Of these an earlier version took many, so they may be in a store."""


def as_it_was_loaded(store: Store, case: Case, name: str) -> str:
    """The image as an earlier version put it into the store, whose form has not changed since: documents, an entry, a tag. Its digest."""
    documents = build(case)
    for found, data in documents.blobs.items():
        store.put_blob(data, parse(found))
    (digest,) = (found for found, data in documents.blobs.items() if data == documents.manifest)
    store.register({digest: {"added": 1795325530, "size": 5, "warnings": []}}, {f"docker.io/library/{name}:latest": digest})
    return digest


def test_a_store_of_an_earlier_version(tmp_path, capfd):
    """What is refused today is an error of that image alone; nothing else in the store is touched by it."""
    sound = next(case for case in CASES if case.ours)
    store = Store()
    store.load(build(sound).write(tmp_path / "layout"), name="sound")
    digests = {f"case{at}": as_it_was_loaded(store, case, f"case{at}") for at, case in enumerate(KEPT)}
    for image in store.list():  # refused only for what a blob is, which is looked at when it comes
        if image.reference != "docker.io/library/sound:latest":
            del digests[reference.parse(image.reference).familiar.partition(":")[0]]
            store.remove(image.reference)
    assert len(digests) > 50
    assert sorted(store.unusable()) == sorted(f"docker.io/library/{name}:latest" for name in digests)
    assert [image.reference for image in store.list()] == ["docker.io/library/sound:latest"]
    for name in digests:
        with pytest.raises((BadImage, BadDigest), match=f"{name}[ :]") as caught:
            store.get(name)
        assert caught.value.hint
    assert main(["images"]) == 0
    listed = capfd.readouterr()
    assert len(listed.out.splitlines()) == 2
    assert f"{len(digests)} images are left out" in listed.err
    assert "images check" in listed.err
    for verb in (["df"], ["prune", "--yes"], ["search", "--local", "sound"]):
        assert main(verb) == 0, verb
    assert set(store.read_index()["images"]) == {*digests.values(), *(image.digest for image in store.list())}
    assert main(["run", "case0", "--", "/bin/true"]) == 125
    assert "case0" in capfd.readouterr().err
    assert main(["images", "check"]) == 1
    assert main(["rmi", *digests]) == 0
    assert not store.unusable()
    assert main(["images", "check"]) == 0
    assert store.get("sound").read_file("/etc/hello") == b"hello"
