"""``df`` and ``prune``: all that they print, and what the store is asked to remove."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from dockless.images import Store
from dockless.images.catalog.disk_usage import DiskUsage, ImageUsage
from dockless.images.catalog.pruning import Freed

IMAGES = (
    ImageUsage("sha256:" + "ab" * 32, ("one:1", "two:2"), 3 << 20, 1 << 20, 940.0, False),
    ImageUsage("sha256:" + "cd" * 32, (), 2048, 1024, 0.0, False),
    ImageUsage("sha256:" + "ef" * 32, ("busy:1",), 5, 5, 940.0, True),
)
WHOLE = DiskUsage(IMAGES, blobs=2048, layers=4096, partial=0, unneeded=0, free=5 << 30, bound=None)
TABLE = """\
IMAGE         ID            SIZE   UNIQUE SIZE  USED
one:1, two:2  abababababab  3 MiB  1 MiB        1m ago
<none>        cdcdcdcdcdcd  2 KiB  1 KiB
busy:1        efefefefefef  5 B    5 B          in use

"""
BOTH = Freed(("one:1", "two:2"), 2048)
BLOBS = "blobs        2 KiB, as they came: for push and save (dockless prune --blobs)\n"


@pytest.fixture
def df(monkeypatch, say):
    monkeypatch.setattr("dockless.cli.output.time.time", lambda: 1000.0)

    def df(usage: DiskUsage, *words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(Store, "disk_usage", lambda self: usage)
        return say("df", *words)

    return df


def test_what_takes_how_much_room(df, home):
    last = f"in {home}/store, 5 GiB free\n"
    assert df(WHOLE) == (0, f"{TABLE}layers       4 KiB\n{BLOBS}store        6 KiB {last}", "")
    full = replace(WHOLE, images=(), partial=1024, unneeded=512, bound=1 << 30)
    assert df(full) == (
        0,
        f"layers       4 KiB\n{BLOBS}"
        "downloads    1 KiB, cut off; the next pull goes on with them\n"
        "unneeded     512 B of it (dockless prune)\n"
        f"store        7 KiB of 1 GiB that it may have {last}",
        "",
    )
    assert df(replace(WHOLE, bound=0))[1].splitlines()[-1].startswith("store        6 KiB of 0 B that it may have in ")


def test_room_for_scripts(df, home):
    assert df(WHOLE, "-q") == df(WHOLE, "-q", "--json") == (0, "6144\n", "")
    code, out, err = df(WHOLE, "--json")
    expected = {"store": f"{home}/store", "used": 6144, **json.loads(json.dumps(asdict(WHOLE)))}
    assert (code, json.loads(out), err) == (0, expected, "")


@pytest.fixture
def prune(monkeypatch, say):
    """What ``prune`` says, and what the store was asked to remove. ``answer``: what is typed on a terminal, None without one."""

    def prune(*words: str, freed: Freed = BOTH, answer: str | None = None) -> tuple[tuple[int, str, str], list]:
        asked = []
        stdin = SimpleNamespace(isatty=lambda: answer is not None, readline=lambda: answer)
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(Store, "prune", lambda self, **how: asked.append(how) or freed)
        return say("prune", *words), asked

    return prune


PLAIN = {"all_images": False, "unused_for": None, "keep_last": None, "blobs": False}
REMOVED = (0, "one:1\ntwo:2\n", "2 KiB freed\n")
WOULD = "one:1\ntwo:2\n", "2 KiB would be freed\n"


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ((), {}),
        (("-a",), {"all_images": True}),
        (("--older-than", "2h"), {"unused_for": 7200.0}),
        (("--older-than", "0"), {"unused_for": 0.0}),
        (("--keep-last", "3"), {"keep_last": 3}),
        (("--keep-last", "0"), {"keep_last": 0}),
        (("--blobs",), {"blobs": True}),
    ],
)
def test_what_is_removed(prune, words, asked):
    wanted = PLAIN | asked
    assert prune(*words) == (REMOVED, [wanted])
    assert prune(*words, "-y", answer="n\n") == prune(*words, "--force", answer="n\n") == (REMOVED, [wanted])
    assert prune(*words, "--dry-run") == ((0, *WOULD), [{**wanted, "dry_run": True}])


@pytest.mark.parametrize("words", [("--all",), ("--older-than", "0"), ("--keep-last", "0")])
def test_on_a_terminal_it_asks_before_an_image_goes(prune, words):
    said, asked = prune(*words, answer="y\n")
    shown = "".join(WOULD) + "Remove these? [y/N] "
    assert said == (0, "one:1\ntwo:2\n", shown + "2 KiB freed\n") and [how.get("dry_run", False) for how in asked] == [True, False]
    said, asked = prune(*words, answer="n\n")
    assert said == (1, "", shown + "dockless: nothing was removed\n") and len(asked) == 1
    assert prune(*words, "-q", answer="y\n")[0] == (0, "", shown)


@pytest.mark.parametrize("words", [(), ("--blobs",)])
def test_what_has_no_name_goes_unasked(prune, words):
    assert prune(*words, answer="n\n") == (REMOVED, [PLAIN | {"blobs": bool(words)}])


def test_a_dry_run_asks_nothing_on_a_terminal(prune):
    assert prune("-a", "--dry-run", answer="y\n")[0] == (0, *WOULD)
    assert prune("-a", "-q", "--dry-run", answer="y\n")[0] == (0, "", "")


def test_what_would_free_nothing_is_not_asked_about(prune):
    for freed, asks in ((Freed(), False), (Freed(size=1), True), (Freed(("one:1",)), True)):
        said, asked = prune("-a", freed=freed, answer="n\n")
        assert ("Remove these?" in said[2], len(asked), said[0]) == (asks, 1, int(asks))


def test_without_a_standard_input_whoever_wrote_the_script_has_decided(prune, monkeypatch, say):
    prune("-a")
    monkeypatch.setattr(sys, "stdin", None)
    assert say("prune", "-a") == REMOVED


def test_a_prune_for_scripts(prune):
    busy = Freed(("one:1",), 2048, busy=True)
    for words, dry_run in (((), False), (("--dry-run",), True), (("-q", "--dry-run"), True)):
        (code, out, err), asked = prune("--json", *words, freed=busy)
        assert (code, err, len(asked)) == (0, "", 1)
        assert json.loads(out) == {"removed": ["one:1"], "freed": 2048, "busy": True, "dry_run": dry_run}
    assert prune("-q")[0] == (0, "", "")
    (code, out, err), _ = prune("-a", "--json", answer="y\n")
    assert json.loads(out)["dry_run"] is False and err.endswith("Remove these? [y/N] ")


BUSY = "dockless: a pull or load is at work, so the rest has to stay for now: dockless prune later\n"


@pytest.mark.parametrize(
    ("size", "busy", "said"),
    [(2048, False, "2 KiB freed\n"), (2048, True, "2 KiB freed\n" + BUSY), (0, True, BUSY), (0, False, "0 B freed\n")],
)
def test_what_was_freed(prune, size, busy, said):
    assert prune(freed=Freed((), size, busy))[0] == (0, "", said)
