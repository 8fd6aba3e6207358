"""What happens to sandboxes is told: all of it, once, in order, whoever does it; and nothing that is not so."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.boxes import until
from support.requires import requires

import dockless
from dockless import DEVNULL, Event, Events, HealthCheck, aio
from dockless.base import paths
from dockless.errors import BadInput
from dockless.native import inotify
from dockless.native.inotify import Happened, Inotify
from dockless.sandbox.enter import Entry
from dockless.sandbox.run import door
from dockless.sandbox.run.exec_notes import Notes, note_start

pytestmark = requires("userns", "overlay")

FOREVER = ["/bin/sh", "-c", "trap 'exit 4' TERM; while sleep 0.1; do :; done"]


@pytest.fixture
def found() -> Iterator[Events]:
    with dockless.events() as found:
        yield found
    for box in dockless.list():
        box.rm(force=True)


def told(found: Events, last: str, number: int = 1) -> list[Event]:
    """Events up to the ``number``th of that kind."""
    events: list[Event] = []

    def come() -> bool:
        events.extend(found.read())
        return sum(event.kind == last for event in events) >= number

    until(come, f"{number} × {last}")
    return events


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


def test_what_is_executed(found):
    box = dockless.start(FOREVER)
    with dockless.Sandbox(FOREVER) as held:
        for one in (box, held):
            assert one.exec("sh", "-c", "exit 3", *"x" * 300).returncode == 3
            start, die = [event for event in told(found, "exec_die") if event.kind.startswith("exec")]
            assert start.details["argv"][:4] == ["sh", "-c", "exit 3", "x"] and len("".join(start.details["argv"])) < 201
            assert die.details == {"exec": start.details["exec"], "exit_code": 3} and start.id == die.id == one.id
    box.files.write_text("/tmp/x", "what acts on files is not executed")
    with box.spawn("sleep", "1000"):
        assert told(found, "exec_start")[-1].details["argv"] == ["sleep", "1000"]
    assert told(found, "exec_die")[-1].details["exit_code"] == 137
    box.spawn_alone("true")
    assert kinds(told(found, "exec_start")) == ["exec_start"]
    box.kill()
    with dockless.events(since=0, until=time.time(), ids=box.id) as past:
        executed = [event for event in past if event.kind.startswith("exec_")]
    assert [event.kind for event in executed] == ["exec_start", "exec_die"] * 2 + ["exec_start"]


def test_what_is_executed_in_one_that_is_renamed_is_told_of_it_by_its_name(found):
    """Of another one that has the old name by then nothing is."""
    box = dockless.start(FOREVER, id="before")
    waits = box.spawn("cat", stdin=subprocess.PIPE)
    assert [event.id for event in told(found, "exec_start") if event.kind == "exec_start"] == ["before"]
    box.rename("after")
    other = dockless.start(FOREVER, id="before")
    other.exec("true")
    told(found, "exec_die")
    with waits:
        waits.stdin.close()
        assert waits.wait().code == 0
    assert told(found, "exec_die")[-1].id == "after"
    with dockless.events(since=0, until=time.time()) as past:
        executed = [(event.id, event.kind) for event in past if event.kind.startswith("exec_")]
    assert sorted(executed) == [(name, kind) for name in ("after", "before") for kind in ("exec_die", "exec_start")]


def test_the_end_of_what_is_executed_is_told_when_it_is_known(found):
    """To who waits for it, though nobody has closed it yet; by who ends it without having waited."""
    box = dockless.start(FOREVER)
    with box.spawn("sh", "-c", "exit 3") as waits:
        waits.wait()
        assert told(found, "exec_die")[-1].details["exit_code"] == 3
    entrance = box.inner.entrance()
    with open(os.devnull, "r+") as null:
        door.enter(entrance, Entry(("sleep", "1000")), (null.fileno(),) * 3).close()
    assert told(found, "exec_die")[-1].details["exit_code"] == 137


def test_notes_of_what_is_executed_are_bounded_and_none_is_told_twice(tmp_path):
    place = tmp_path / "notes"
    place.mkdir()
    notes = Notes(place)
    seen = []
    for number in range(3000):
        os.close(note_start(place, f"{number}", ("a" * 100,)))
        if number % 100 == 99:
            seen += [note.id for note in notes.read()]
    assert seen == [str(number) for number in range(3000)]
    assert sorted(os.listdir(place)) == ["executed", "executed.1"]
    assert all(os.stat(place / name).st_size < 70_000 for name in os.listdir(place))
    with open(place / "executed", "ab") as file:
        file.write(b"1 start x " + b"[" * 100_000 + b"\n")  # deeper than any that we write
        file.write(b"\0garbage\n1 start\n1 start x 5\n1 die x y\nx start x []\n7 die last 4\n9 start torn [")
    assert [(note.id, note.exit_code) for note in notes.read()] == [("last", 4)]


def test_what_is_changed_while_it_runs(found):
    box = dockless.start(FOREVER, ttl=1000)
    assert kinds(told(found, "start")) == ["create", "start"]
    box.extend(2000)
    assert told(found, "update")[-1].details == {"changed": ["ttl"]}
    other = dockless.start(FOREVER)
    told(found, "start")
    other.update(restart="always")
    assert told(found, "update")[-1].details == {"changed": ["restart"]}
    other.stop(0)
    other.start()
    assert "update" not in kinds(told(found, "start"))


def test_how_its_health_was_when_it_changed(found):
    """Told of the past, when more checks have failed since, each with another code."""
    check = HealthCheck(["/bin/sh", "-c", "echo x >> /tmp/checks; exit $(wc -l < /tmp/checks)"], 0.02, retries=2)
    box = dockless.start(FOREVER, health=check)
    until(lambda: box.health is not None and box.health.streak > 4, "it has failed more often")
    with dockless.events(since=0, until=time.time(), kinds="health_status") as past:
        (event,) = past
    assert event.details == {"status": "unhealthy", "streak": 2, "exit_code": 2} and box.health.exit_code > 4


def test_the_whole_life_of_a_detached_one(found):
    box = dockless.start(FOREVER, id="one", labels={"team": "a"}, health=HealthCheck(["test", "-e", "/tmp/well"], 0.05, retries=1))
    events = told(found, "health_status")
    assert kinds(events) == ["create", "start", "health_status"]
    assert all((event.id, event.image, event.labels) == ("one", "host", {"team": "a"}) for event in events)
    assert events[2].details["status"] == "unhealthy" and events[2].details["exit_code"] == 1
    box.exec("touch", "/tmp/well", check=True)
    assert [one.details["status"] for one in told(found, "health_status") if one.kind == "health_status"] == ["healthy"]
    box.rename("two")
    (renamed,) = [one for one in told(found, "rename") if not one.kind.startswith("exec")]
    assert (renamed.id, renamed.details) == ("two", {"old": "one"})
    box.stop(20)
    stopped = [one for one in told(found, "die") if one.kind != "health_status"]  # a check that its end cuts short has failed
    assert kinds(stopped) == ["stop", "kill", "die"]
    assert stopped[1].details == {"signal": signal.SIGTERM}
    assert stopped[2].details == {"exit_code": 4, "signal": None, "limit": "", "killed": False}
    box.start()
    assert kinds(told(found, "health_status")) == ["start", "health_status"], "its health begins anew"
    box.kill()
    assert kinds(told(found, "die")) == ["kill", "die"]
    box.rm()
    assert kinds(told(found, "remove")) == ["remove"]
    times = [event.time for event in (*events, renamed, *stopped)]
    assert times == sorted(times) and abs(times[-1] - time.time()) < 60


@requires("cgroup2")
def test_one_that_stands_still(found):
    box = dockless.start(FOREVER)
    told(found, "start")
    for _ in range(2):
        box.pause()
        assert kinds(told(found, "pause")) == ["pause"]
        box.resume()
        assert kinds(told(found, "unpause")) == ["unpause"]


@pytest.mark.parametrize("way", ["foreground", "detached", "removed"])
def test_how_it_ended_is_told_also_of_what_is_gone_at_once(way, found):
    script = ["/bin/sh", "-c", "sleep 0.5; exit 5"]
    command = [sys.executable, "-P", "-m", "dockless", "run", "-i", "--", *script]
    starter = subprocess.Popen(command, env=os.environ) if way == "foreground" else None
    if starter is None:
        dockless.start(script, remove=way == "removed")
    events = told(found, "die")
    assert starter is None or starter.wait(20) == 5
    if way != "detached":
        events += [] if "remove" in kinds(events) else told(found, "remove")
    assert kinds(events) == ["create", "start", "die", *(["remove"] if way != "detached" else [])]
    assert events[2].details["exit_code"] == 5 and {event.image for event in events} == {"host"}


def run_and_removed(number: int, way: str) -> None:
    script, named = ["/bin/sh", "-c", f"exit {number}"], {"id": "again", "labels": {"n": str(number)}}
    if way == "foreground":
        dockless.run("host", script, **named)
    else:
        box = dockless.start(script, remove=True, **named)
        until(lambda: not box.inner.directory.exists(), "its removal")


def lives(events: list[Event]) -> list[tuple[str, str | None, int | None]]:
    return [(event.kind, event.labels.get("n"), event.details.get("exit_code")) for event in events]


def whole(number: int) -> list[tuple[str, str | None, int | None]]:
    n = str(number)
    return [("create", n, None), ("start", n, None), ("die", n, number), ("remove", n, None)]


shorts = pytest.mark.parametrize("way", ["foreground", "detached"])


@shorts
def test_what_was_gone_before_anybody_looked_is_told_whole_and_once(way, found):
    for number in (3, 4, 5):
        run_and_removed(number, way)
    assert lives(found.read()) == whole(3) + whole(4) + whole(5)
    assert not os.listdir(found._listening._own) and not found.read()


@shorts
def test_what_was_gone_before_anybody_looked_is_told_also_where_the_queue_was_full(way, found, monkeypatch):
    real = Inotify.read
    run_and_removed(3, way)
    monkeypatch.setattr(Inotify, "read", lambda queue: [*real(queue)] and [Happened(-1, inotify.OVERFLOW, 0, "")])
    assert lives(found.read()) == whole(3)


def test_all_who_listen_are_told_and_one_that_ends_takes_nothing_from_the_others(found):
    with dockless.events() as another, dockless.events():
        run_and_removed(3, "foreground")
        assert lives(another.read()) == whole(3)
    assert lives(found.read()) == whole(3)
    run_and_removed(4, "foreground")
    assert lives(found.read()) == whole(4)


@pytest.mark.parametrize("damage", ["torn", "lost", "not written"])
def test_a_damaged_note_says_nothing_but_the_end_is_told(damage, found):
    if damage == "not written":
        (found._listening._own / "again").write_text("in its place")
    run_and_removed(3, "foreground")
    for note in found._listening._own.glob("again/*.json"):
        note.write_text('{"spec":') if damage == "torn" else note.unlink()
    nothing = [] if damage == "not written" else [("create", None, None), ("start", None, None), ("die", None, 3), ("remove", None, None)]
    assert lives(found.read()) == nothing


def test_of_what_could_not_be_started_nothing_is_left_for_who_listens(found):
    with pytest.raises(dockless.CommandNotFound):
        dockless.run("host", ["/no/such/program"])
    with pytest.raises(dockless.CommandNotFound):
        dockless.start(["/no/such/program"], remove=True)
    assert not os.listdir(found._listening._own)


def test_who_listened_and_was_killed_leaves_nothing_to_the_next():
    listen = [
        sys.executable,
        "-P",
        "-c",
        "import dockless; found = dockless.events(); print(found._listening._own, flush=True); next(found)",
    ]
    with subprocess.Popen(listen, env=os.environ, stdout=subprocess.PIPE, text=True) as listener:
        own = Path(listener.stdout.readline().strip())
        run_and_removed(3, "foreground")
        listener.kill()
    before = os.listdir(own)
    dockless.run("host", ["/bin/true"], id="unheard")
    assert os.listdir(own) == before, "nobody listens any more"
    with dockless.events():
        assert not own.exists() and len(os.listdir(own.parent)) == 1
    assert not os.listdir(own.parent)


def test_many_begin_and_end_at_once():
    def listen(number: int) -> None:
        for _ in range(20):
            with dockless.events():
                pass

    with ThreadPoolExecutor(8) as threads:
        assert [*threads.map(listen, range(8))] == [None] * 8
    assert not os.listdir(paths.state() / "events")


def test_each_run_counts_its_own_kills_for_memory(found):
    """By records that a keeper would write: one was killed in the first run, one in the second."""
    box = dockless.create(["true"])
    place = Path(box.inspect()["directory"])
    numbers = "".join(f"{name} 1\n" for name in ("status", "outcome", "user_us", "system_us", "max_rss_kb", "started_ns", "ended_ns"))
    body = f"{numbers}\n[memory.events]\noom_kill 1\n[end]\n".encode()
    for _ in range(2):
        (place / "exit").unlink(missing_ok=True)
        (place / "started.tmp").write_text("1")
        (place / "started.tmp").rename(place / "started")
        assert "start" in kinds(told(found, "start"))
        (place / "exit.tmp").write_bytes(body + b"crc32 %d\n" % zlib.crc32(body))
        (place / "exit.tmp").rename(place / "exit")
        assert kinds(told(found, "die"))[-2:] == ["oom", "die"]


def test_a_limit_and_a_keeper_that_was_killed(found):
    dockless.start(FOREVER, ttl=0.1)
    assert told(found, "die")[-1].details["limit"] == "ttl"
    box = dockless.start(FOREVER)
    told(found, "start")
    os.kill(box.inner.pid, signal.SIGKILL)
    assert told(found, "die")[-1].details["exit_code"] is None, "nobody knows how it ended"


def test_after_lost_events_everything_is_looked_at(found, monkeypatch):
    """The kernel's queue has a bound, inotify(7), IN_Q_OVERFLOW."""
    stays, renamed, removed = (dockless.start(FOREVER, id=name) for name in ("stays", "before", "removed"))
    told(found, "start", 3)
    real = Inotify.read

    def lost(queue: Inotify) -> Iterator[Happened]:
        [*real(queue)]
        yield Happened(-1, inotify.OVERFLOW, 0, "")

    renamed.rename("after")
    removed.rm(force=True)
    stays.kill()
    stays.wait(20)
    dockless.start(FOREVER, id="new")
    monkeypatch.setattr(Inotify, "read", lost)
    events = told(found, "start")
    monkeypatch.setattr(Inotify, "read", real)
    of = {name: [event.kind for event in events if event.id == name] for name in ("stays", "after", "removed", "new")}
    assert of == {"stays": ["kill", "die"], "after": ["rename"], "removed": ["die", "remove"], "new": ["create", "start"]}
    renamed.kill()
    assert kinds(told(found, "die")) == ["kill", "die"], "what was renamed meanwhile is still watched"


def test_what_the_records_tell_of_the_past(found):
    box = dockless.start(["/bin/sh", "-c", "exit 3"], id="past")
    box.wait(20)
    with dockless.events(since=0, until=time.time()) as past:
        events = [*past]
    assert kinds(events) == ["create", "start", "die"] and events[2].details["exit_code"] == 3
    assert [event.time for event in events] == sorted(event.time for event in events)
    with dockless.events(since=events[2].time, until=time.time()) as past:
        assert kinds([*past]) == ["die"]
    with dockless.events(since=0, until=events[1].time) as past:
        assert kinds([*past]) == ["create", "start"]
    with dockless.events(until=time.time()) as past:
        assert [*past] == []


def test_a_loop_hears_of_the_past_to_its_end(found):
    dockless.start(["true"], id="past").wait(20)

    async def main() -> list[str]:
        return [event.kind async for event in aio.events(since=0, until=time.time())]

    assert asyncio.run(main()) == ["create", "start", "die"]


@pytest.mark.parametrize("name", ["spec.json", "exit", "health", "asked-kill", "asked-stop"])
@pytest.mark.parametrize("damage", [b"", b"garbage", b"\xff" * 300, None])
def test_what_is_torn_or_garbage_is_no_event(name, damage, found):
    box = dockless.start(FOREVER, id="torn", health=HealthCheck(["true"], 1000))
    told(found, "start")
    place = box.inner.directory / name
    broken = place.with_name("broken")
    if damage is None:
        broken.symlink_to("/etc/passwd")
    else:
        broken.write_bytes(damage)
    broken.rename(place)
    dockless.start(FOREVER, id="other")
    assert {(event.id, event.kind) for event in told(found, "start")} == {("other", "create"), ("other", "start")}


def test_those_that_were_asked_for(found):
    with dockless.events(kinds="die", labels={"team": None}, images="host") as some, dockless.events(ids=("b", "a")) as named:
        for id, labels in (("a", {"team": "x"}), ("b", {})):
            dockless.start(["true"], id=id, labels=labels).wait(20)
        told(found, "die", 2)
        assert [(event.id, event.kind) for event in told(some, "die")] == [("a", "die")] and some.read() == []
        assert {event.id for event in told(named, "die", 2)} == {"a", "b"}
        dockless.Sandbox.open("a").rename("c")
        assert [event.id for event in told(named, "rename")] == ["c"], "what the one of that id is called now"
        dockless.Sandbox.open("c").rm()
        told(found, "remove")
        assert named.read() == []
    with pytest.raises(BadInput, match="no events 'dies'"):
        dockless.events(kinds="dies")


def test_from_an_event_loop(found):
    async def main() -> list[str]:
        seen = []

        async def watch() -> None:
            async for event in aio.events(ids="looped"):
                seen.append(event.kind)
                if event.kind == "remove" and "create" in seen:  # the first may have begun before we looked
                    return

        watching = asyncio.create_task(watch())
        while "create" not in seen:
            async with aio.Sandbox(FOREVER, id="looped", stdin=DEVNULL):
                await asyncio.sleep(0.05)
        await asyncio.wait_for(watching, 20)
        return seen

    seen = asyncio.run(main())
    assert seen[seen.index("create") :][:4] == ["create", "start", "die", "remove"]


def test_a_with_of_a_loop_begins_before_what_is_inside(found):
    async def main() -> tuple[list[str], int]:
        async with aio.events(ids="looped", kinds=("create", "remove")) as events:
            async with aio.Sandbox(FOREVER, id="looped", stdin=DEVNULL):
                seen = [(await asyncio.wait_for(anext(events), 20)).kind]
            seen.append((await asyncio.wait_for(anext(events), 20)).kind)
            inside = _queues()
        async with aio.events():
            pass  # nobody asked for any
        with pytest.raises(StopAsyncIteration):
            await anext(events)
        return seen, inside

    before = _queues()
    assert asyncio.run(main()) == (["create", "remove"], before + 1) and _queues() == before


def _queues() -> int:
    gc.collect()
    return sum("inotify" in name for name in _open_files())


def test_two_tasks_do_not_begin_it_twice(found):
    async def main() -> list[BaseException]:
        async with contextlib.aclosing(aio.events(until=time.time() + 0.2)) as events:
            both = await asyncio.gather(anext(events), anext(events), return_exceptions=True)
        return both

    before = _queues()
    first, second = asyncio.run(main())
    assert isinstance(first, StopAsyncIteration) and isinstance(second, RuntimeError) and _queues() == before


def test_who_is_cancelled_before_the_first_event_leaves_no_descriptor_open(found):
    """Not those of the exit records either."""

    async def first() -> None:
        async with contextlib.aclosing(aio.events()) as events:
            await anext(events)

    async def main() -> None:
        for number in range(8):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(first(), 0.0002 * number)

    box = dockless.start(FOREVER)
    before = _exits()
    asyncio.run(main())
    assert _exits() == before
    box.rm(force=True)


def _exits() -> int:
    gc.collect()
    return sum("/exit" in name for name in _open_files())


def _open_files() -> list[str]:
    return [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")]


def test_on_the_command_line(found: Events):
    command = [sys.executable, "-P", "-m", "dockless", "events", "--json", "-f", "event=start", "-f", "event=die", "-f", "label=team=a"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as following:
        watches: Callable[[], bool] = lambda: "inotify" in _descriptors(following.pid)  # noqa: E731
        until(watches, "that it watches")
        until(lambda: _watches(following.pid) >= 2, "that it watches both directories")
        dockless.start(["true"], id="mine", labels={"team": "a"}).wait(20)
        dockless.start(["true"], id="other", labels={"team": "b"}).wait(20)
        assert following.stdout is not None
        lines = [json.loads(following.stdout.readline()) for _ in range(2)]
        following.send_signal(signal.SIGINT)
        assert following.stdout.read() == "" and following.wait(20) == 130
    assert [(line["kind"], line["id"]) for line in lines] == [("start", "mine"), ("die", "mine")]
    past = subprocess.run([*command[:5], "--since", "1h", "--until", "0s"], capture_output=True, text=True, env=os.environ, check=True)
    assert [line.split()[1:3] for line in past.stdout.splitlines() if "mine" in line] == [
        ["create", "mine"],
        ["start", "mine"],
        ["die", "mine"],
    ]
    assert "(image=host, exit_code=0, team=a)" in past.stdout


def _descriptors(pid: int) -> str:
    return " ".join(_each(Path(f"/proc/{pid}/fd"), os.readlink))


def _watches(pid: int) -> int:
    return sum(text.count("inotify wd:") for text in _each(Path(f"/proc/{pid}/fdinfo"), Path.read_text))


def _each(place: Path, read: Callable[[Path], str]) -> Iterator[str]:
    for entry in place.iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            yield read(entry)
