"""Output that is not kept any more is counted and said; a follower goes on over a restart of the daemon."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from support.boxes import log_paths, until
from support.requires import requires
from support.scheduling import DaemonProcess

import dockless
from dockless.base import paths
from dockless.cli import main
from dockless.errors import BadInput, Refused, Unsupported
from dockless.sandbox.run import detached
from dockless.sandbox.run.logfile import Log, Row
from dockless.sandbox.spec import Bind, Spec
from dockless.sched import Client, JobSpec

pytestmark = requires("userns")

LINES = 20_000
COUNT = ("/bin/sh", "-c", f"seq 1 {LINES}; echo the end")
EVERYTHING = "".join(f"{i}\n" for i in range(1, LINES + 1)) + "the end\n"


def parts_of(directory: Path):
    def part(name: str) -> int | None:
        try:
            return os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None

    return part


def rows_of(directory: Path, after: int = 0) -> list[Row]:
    log = Log(parts_of(directory), after)
    found: list[Row] = []
    while rows := log.read():
        found += rows
    log.close()
    return found


def whole(texts: list[bytes | str], partial: list[bool]) -> list[str]:
    """Lines from their parts: what was read from the pipe in two goes has two records."""
    found, rest = [], ""
    for text, more in zip(texts, partial, strict=True):
        rest += text if isinstance(text, str) else text.decode()
        if not more:
            found.append(rest)
            rest = ""
    return found


def size(row: Row) -> int:
    return row.dropped or len(row.text) + (not row.partial)


@pytest.mark.parametrize("kept", [20_000, 60_000])
def test_every_byte_is_there_or_counted(kept: int):
    box = detached.start(Spec(argv=COUNT, log_size=kept))
    try:
        box.wait(60)
        rows = rows_of(box.directory)
        assert rows[0].dropped > 0 and not any(row.dropped for row in rows[1:])
        assert sum(map(size, rows)) == len(EVERYTHING)
        *numbers, last = whole([row.text for row in rows[1:]], [row.partial for row in rows[1:]])
        assert last == "the end"
        numbers = [int(number) for number in numbers]
        assert numbers == list(range(numbers[0], LINES + 1))  # it begins with a whole line
        assert rows[0].dropped == len("".join(f"{i}\n" for i in range(1, numbers[0])))
        assert sum(path.stat().st_size for path in log_paths(box)) < kept * 1.2
        half = sum(map(size, rows[: len(rows) // 2]))
        assert rows_of(box.directory, half) == rows[len(rows) // 2 :]
    finally:
        box.remove()


def test_the_setting_and_what_is_below_it(home: Path):
    (home / "dockless.toml").write_text('[logs]\nsize = "20K"\n')
    assert main(["run", "-d", "--name", "counts", "host", "--", *COUNT]) == 0
    box = detached.find("counts")
    assert box is not None
    try:
        box.wait(60)
        assert rows_of(box.directory)[0].dropped > 0
        assert sum(path.stat().st_size for path in log_paths(box)) < 30_000
    finally:
        box.remove()


def test_a_mistake_in_the_settings_keeps_no_job_from_starting(home: Path):
    daemon = DaemonProcess(home, settings='[logs]\nsize = "20K"\n').start()
    try:
        (home / "dockless.toml").write_text("[qutoa]\ndefault = 2\n")
        with daemon.client() as queue:
            number = queue.submit(JobSpec(Spec(argv=COUNT)))
            assert queue.wait(number, timeout=60).exit_code == 0
            assert next(iter(queue.logs(number))).dropped > 0  # the setting that the daemon has
        box = detached.start(Spec(argv=("true",)))
        assert box.wait(60).code == 0
        box.remove()
        assert main(["run", "-d", "--name", "says", "--log-size", "20K", "host", "--", "true"]) == 0
        box = detached.find("says")
        assert box is not None
        box.remove()
        assert main(["run", "-d", "host", "--", "true"]) == 125
        until(lambda: detached.list_all() == [], "the job has gone, too, and nothing else is left")
    finally:
        daemon.stop()


def test_nothing_is_said_where_nothing_was_dropped():
    box = detached.start(Spec(argv=COUNT))
    try:
        box.wait(60)
        rows = rows_of(box.directory)
        assert not any(row.dropped for row in rows) and sum(map(size, rows)) == len(EVERYTHING)
    finally:
        box.remove()


def write(path: Path, *lines: str) -> None:
    path.write_bytes("".join(f"t {line}\n" for line in lines).encode())


def test_a_reader_that_is_two_renames_behind(tmp_path: Path):
    log = Log(parts_of(tmp_path))
    write(tmp_path / "log", "stdout F a")
    assert [row.text for row in log.read()] == [b"a"]
    os.rename(tmp_path / "log", tmp_path / "log.1")
    write(tmp_path / "log", "log D 2", "stdout F b")
    os.rename(tmp_path / "log", tmp_path / "log.1")
    write(tmp_path / "log", "log D 4", "stdout F c")
    assert [row.text for row in log.read() + log.read()] == [b"b", b"c"]
    for text in ("d", "e"):  # one more, and what was between is gone
        os.rename(tmp_path / "log", tmp_path / "log.1")
        write(tmp_path / "log", f"log D {6 if text == 'd' else 10}", f"stdout F {text}")
    os.rename(tmp_path / "log", tmp_path / "log.1")
    write(tmp_path / "log", "log D 12", "stdout F f")
    assert [(row.text, row.dropped) for row in log.read() + log.read()] == [(b"", 4), (b"e", 0), (b"f", 0)]
    log.close()


def test_on_the_command_line(capfd):
    box = detached.start(Spec(argv=COUNT, log_size=20_000))
    try:
        box.wait(60)
        assert main(["logs", box.id]) == 0
        said = capfd.readouterr()
        first = int(said.out.split()[0])
        dropped = len("".join(f"{i}\n" for i in range(1, first)))
        assert said.err.startswith(f"dockless: {dropped} bytes of output") and said.out.endswith("the end\n")
        assert main(["logs", "--json", box.id]) == 0
        assert json.loads(capfd.readouterr().out.splitlines()[0])["dropped"] == dropped
    finally:
        box.remove()


def test_a_job_and_the_most_it_may_ask_for(home: Path):
    daemon = DaemonProcess(home, settings='[logs]\nsize_limit = "1M"\n').start()
    try:
        with daemon.client() as queue:
            number = queue.submit(JobSpec(Spec(argv=COUNT, log_size=20_000)))
            queue.wait(number, timeout=60)
            lines = list(queue.logs(number))
            assert lines[0].dropped > 0 and lines[0].text == ""
            assert whole([line.text for line in lines[1:]], [line.partial for line in lines[1:]])[-1] == "the end"
            number = queue.submit(JobSpec(Spec(argv=COUNT, keep_log=False)))
            ended = queue.wait(number, timeout=60)
            assert (ended.state, ended.reason, list(queue.logs(number))) == ("COMPLETED", "", [])
            with pytest.raises(Refused, match="more than the limit of 1M"):
                queue.submit(JobSpec(Spec(argv=COUNT, log_size=2 << 20)))
            with pytest.raises(BadInput):
                Spec(log_size=-1)
    finally:
        daemon.stop()


@pytest.mark.parametrize("how", ["stop", "kill9"])
def test_following_over_a_restart(home: Path, tmp_path: Path, how: str):
    daemon = DaemonProcess(home).start()
    place = tmp_path / "go"
    place.mkdir()
    place.chmod(0o777)
    script = "for i in 1 2 3; do echo line $i; while [ ! -e /go/$i ]; do sleep 0.02; done; done; echo done"
    with daemon.client() as queue:
        assert queue.submit(JobSpec(Spec(argv=("/bin/sh", "-c", script), mounts=(Bind(str(place), "/go"),)))) == 1
    seen: list[str] = []

    def read() -> None:
        with Client(daemon.socket) as queue:
            for line in queue.logs(1, follow=True):
                seen.append(line.text)

    reader = threading.Thread(target=read)
    reader.start()
    until(lambda: seen == ["line 1"], "the first line came")
    getattr(daemon, how)()
    (place / "1").touch()
    daemon.start()
    until(lambda: seen == ["line 1", "line 2"], "the second line came, and the first not again")
    (place / "2").touch()
    getattr(daemon, how)()
    (place / "3").touch()
    daemon.start()
    reader.join(60)
    assert seen == ["line 1", "line 2", "line 3", "done"]
    daemon.stop()


@pytest.mark.parametrize("digits", [21, 5000])
def test_a_count_that_no_keeper_writes_is_a_line_like_any_other(tmp_path, digits):
    line = b"2026 log D " + b"9" * digits
    (tmp_path / "log").write_bytes(line + b"\n2026 stdout F said\n")
    assert rows_of(tmp_path) == [Row("", "stdout", line), Row("2026", "stdout", b"said")]


def test_nothing_is_kept_where_that_was_asked_for():
    box = detached.start(Spec(argv=COUNT, keep_log=False))
    try:
        assert box.wait(60).code == 0  # whatever it wrote was read
        assert log_paths(box) == ()
        with pytest.raises(Unsupported, match="is not kept"):
            box.logs()
    finally:
        box.remove()


def test_each_run_counts_its_own_output():
    """``--tail`` and ``--since`` go over all runs that are there, and what is missing of one is not taken for another's."""
    box = dockless.start(["/bin/sh", "-c", "echo one; echo two"])
    try:
        for _ in range(2):
            box.wait(20)
            box.start()
        box.wait(20)
        log = Log(parts_of(box.inner.directory))
        assert [(row.text, row.dropped) for row in iter(log.read, []) for row in row] == [(b"one", 0), (b"two", 0)] * 3
        assert log.position == 24 and (box.inner.directory / "log").read_bytes().count(b" log D 0\n") == 2
        log.close()
    finally:
        box.rm(force=True)


def test_how_much_is_kept_is_a_setting(tmp_path):
    paths.config_file().parent.mkdir(parents=True, exist_ok=True)
    paths.config_file().write_text('[logs]\nsize = "20K"\n')
    made = []
    for make in (dockless.start, dockless.create):
        made.append(make(["true"]))
        made.append(make(["true"], log_size="1M"))
    assert [box.spec.log_size for box in made] == [20 << 10, 1 << 20] * 2
    paths.config_file().write_text("[logs]\nsize = 3x\n")
    with pytest.raises(BadInput, match="toml"):
        dockless.start(["true"])
    made.append(dockless.start(["true"], log_size="1M"))
    for box in made:
        box.rm(force=True)
