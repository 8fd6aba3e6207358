"""Progress without a terminal: which lines come, what was really moved, and what is said of the speed at the end."""

from __future__ import annotations

import io
import sys

import pytest
from support.streams import Stream

from dockless.cli import counted, progress, sandbox_options
from dockless.cli.progress import LINE_EVERY, SUMMARY_AFTER, SUMMARY_FROM, WRITTEN_FROM, ProgressLine, resumable
from dockless.images.progress import Progress

MB = 1 << 20


@pytest.fixture
def clock(monkeypatch):
    """``clock[0]``: seconds."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def step(done: int, total: int | None = 100, state: str = "downloading", layer: int = 1) -> Progress:
    return Progress("a:1", layer, 2, "sha256:" + "ab" * 32, done, total, state)


@pytest.fixture
def told(clock, capfd):
    """The lines about these steps, each with the seconds at which it comes; and the end, at another."""

    def told(*steps: tuple[float, Progress], end: float = 0.0, verb: str = "read", quiet: bool = False) -> list[str]:
        clock[0] = 1000.0
        with ProgressLine(quiet, verb=verb) as tell:
            for at, one in steps:
                clock[0] = 1000.0 + at
                if tell is not None:
                    tell(one)
            clock[0] = 1000.0 + end
        return [line.removeprefix("a:1: layer 1/2 abababababab: ") for line in capfd.readouterr().err.splitlines()]

    return told


def test_a_layer_that_takes_long_has_a_line_now_and_then(told):
    assert (LINE_EVERY, SUMMARY_FROM, SUMMARY_AFTER, WRITTEN_FROM) == (15.0, MB, 1.0, 64 * MB)
    assert told((0, step(0)), (14.9, step(5)), (15, step(6)), (29, step(7)), (30, step(8, None)), (45, step(9, 100, "unpacking"))) == [
        "downloading, 6 B of 100 B", "downloading, 8 B", "unpacking, 9 B of 100 B"
    ]  # fmt: skip
    assert told((14, step(5, state="done")), (28, step(6, layer=2)), (30, step(7, layer=2))) == [
        "done, 5 B read", "a:1: layer 2/2 abababababab: downloading, 7 B of 100 B"
    ]  # fmt: skip
    assert told((0, step(5)), (60, step(6)), quiet=True) == []


def test_the_end_of_a_layer_is_told_once(told):
    done, shared = step(5, state="done"), step(0, state="shared")
    assert told((0, done), (1, done), (2, shared)) == ["done, 5 B read"] and told((0, shared), (1, shared)) == ["already there"]
    assert told((0, done), (0, step(0, state="shared", layer=2)), verb="sent") == [
        "a:1: blob 1/2 abababababab: done, 5 B sent", "a:1: blob 2/2 abababababab: already there"
    ]  # fmt: skip


def test_small_layers_that_are_written_are_no_news(told):
    size = WRITTEN_FROM
    assert told((0, step(size - 1, state="done")), verb="written") == []
    assert told((0, step(size, state="done")), verb="written") == ["done, 64 MiB written"]
    assert told((0, step(5, state="shared")), verb="written") == ["already there"]
    assert told((0, step(5, state="done"))) == ["done, 5 B read"]


def test_the_speed_is_told_where_it_is_worth_a_line(told):
    assert told((0, step(MB)), (0, step(4 * MB)), (0, step(MB, layer=2)), end=2) == ["5 MiB read in 2s, 2.5 MiB/s"]
    assert told((0, step(MB)), end=1) == ["1 MiB read in 1s, 1 MiB/s"]
    assert told((0, step(MB - 1)), (0, step(0, layer=2)), end=9) == told((0, step(MB)), end=0.99) == []
    assert told((0, step(MB, state="uploading")), end=4, verb="sent") == ["1 MiB sent in 4s, 256 KiB/s"]
    assert told((0, step(MB, state="uploading")), end=4, quiet=True) == []


def test_what_an_earlier_try_had_brought_is_not_counted(told):
    assert told((0, step(3 * MB)), (0, step(4 * MB)), (0, step(2 * MB)), end=1) == ["1 MiB read in 1s, 1 MiB/s"]
    assert told((0, step(MB + 1)), (0, step(2 * MB + 2)), end=1) == ["1 MiB read in 1s, 1 MiB/s"]
    assert told((0, step(3 * MB, state="unpacking")), (0, step(4 * MB)), end=1) == ["4 MiB read in 1s, 4 MiB/s"]
    assert told((0, step(9 * MB, state="shared")), end=1) == ["already there"]


def test_nothing_is_said_of_the_speed_of_what_failed(clock, capfd):
    with pytest.raises(ValueError, match="no"), ProgressLine(False) as tell:
        tell(step(MB))
        clock[0] += 5
        raise ValueError("no")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("quiet", "terminal", "bars"), [(False, True, True), (False, False, False), (True, True, False)])
def test_bars_are_for_a_terminal(monkeypatch, quiet, terminal, bars):
    """Made at the first step, once, and taken away at the end."""
    said = []

    class Bars:
        def __init__(self):
            said.append("made")

        def step(self, one):
            said.append(one.done)

        def stop(self):
            said.append("stopped")

    monkeypatch.setattr("dockless.cli.bars.Bars", Bars)
    stderr = Stream(terminal=terminal)
    monkeypatch.setattr(sys, "stderr", stderr)
    with ProgressLine(quiet) as tell:
        for done in (1, 2) if tell is not None else ():
            tell(step(done, state="done"))
    assert said == (["made", 1, 2, "stopped"] if bars else [])
    assert bool(stderr.said()) == (not quiet and not terminal)


def test_an_interrupt_ends_the_program_with_one_line(capfd):
    with pytest.raises(SystemExit) as ended, resumable("the pull"):
        raise KeyboardInterrupt
    assert ended.value.code == 130
    assert capfd.readouterr().err.startswith("dockless: interrupted; what has come is kept: run the same command to go on with the pull")


@pytest.mark.parametrize(
    ("quiet", "as_json", "pull", "asked"),
    [
        (False, False, None, ("img", "missing", True, "linux/amd64")),
        (True, False, "never", ("img", "never", False, "linux/amd64")),
        (False, True, None, ("img", "missing", False, "linux/amd64")),
    ],
)
def test_the_image_of_a_run_is_brought_as_the_options_say(quiet, as_json, pull, asked):
    class Options:
        json = as_json

    Options.quiet, Options.pull, Options.platform = quiet, pull, "linux/amd64"
    came = []

    def bring(image, policy, tell, platform):
        came.append((image, policy, tell is not None, platform))
        return "there"

    assert sandbox_options.fetched("img", Options, bring) == "there" and came == [asked]
    Options.platform = None
    assert sandbox_options.fetched("host", Options, bring) == "host" and len(came) == 1


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_is_counted_has_a_line_now_and_then_or_a_bar(clock, capfd, monkeypatch):
    with counted.Counted(quiet=False) as tell:
        for at, done in ((14.9, 100), (15, 2000), (29.9, 3000), (30, 4000)):
            clock[0] = 1000.0 + at
            tell("jobs sent", done, 4000)
    assert capfd.readouterr().err == "2,000 of 4,000 jobs sent\n4,000 of 4,000 jobs sent\n"
    clock[0] = 1000.0
    for quiet, seconds in ((False, 0.4), (False, 0.6), (True, 0.6)):
        terminal = _Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        with counted.Counted(quiet) as tell:
            clock[0] += seconds
            tell("jobs sent", 500, 4000)
        assert ("jobs sent" in terminal.getvalue() and "500/4000" in terminal.getvalue()) is (not quiet and seconds > counted.BAR_AFTER)
