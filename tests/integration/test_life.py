"""The life of a sandbox by its handle: started, found, listed, stopped, started again, renamed, removed."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import select
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
from support.boxes import load, until
from support.make_image import file
from support.requires import missing, requires

import dockless
from dockless import PIPE, aio
from dockless.base import paths
from dockless.errors import BadInput, DocklessError, LimitUnavailable, NotEnoughGpus, SandboxGone, Unsupported
from dockless.sandbox.run import children, detached, ending
from dockless.sandbox.run.box import Box, get
from dockless.sandbox.spec import Spec

pytestmark = requires("userns")


@pytest.fixture
def start():
    """``dockless.start`` of a script; all of it is removed afterwards."""

    def begin(script, **options):
        return dockless.start(["/bin/sh", "-c", script], **options)

    yield begin
    for box in dockless.list():
        box.rm(force=True)


def written(box):
    return b"".join(row.text + b"\n" for row in box.logs()).decode()


def test_a_handle_of_one_that_goes_on(start):
    with start("sleep 1000", id="box", labels={"team": "a"}) as box:
        assert (box.id, box.name, box.labels, box.state) == ("box", "box", {"team": "a"}, "running")
        assert box.poll() is None and os.path.exists(f"/proc/{box.pid}") and box.spec.argv[-1] == "sleep 1000"
        assert box.stdin is None and box.stdout is None and box.gpus == ()
        with pytest.raises(Unsupported, match="not held by this program"):
            _ = box.process
    again = dockless.Sandbox.open("box")
    assert again.state == "running" and again.inspect()["labels"] == {"team": "a"}
    again.send_signal(signal.SIGTERM)
    assert again.wait(20).signal == signal.SIGTERM and again.poll() is not None and again.returncode == -signal.SIGTERM
    assert again.state == "exited"
    again.rm()
    with pytest.raises(SandboxGone):
        dockless.Sandbox.open("box")


def test_what_a_handle_of_a_removed_one_says(start):
    box, followed = start("echo said; sleep 1000", id="box"), dockless.Sandbox.open("box")
    unread = followed.logs()
    box.rm(force=True)

    async def read_by_a_loop() -> None:
        async with await aio.start(["true"]) as removed:
            await removed.rm(force=True)
            async for row in removed.logs():
                raise AssertionError(row)

    commands = (lambda: box.exec("true"), box.attach, box.pause, lambda: box.wait(0), box.poll)
    for ask in (box.logs, lambda: box.logs(follow=True), lambda: next(unread), lambda: box.labels, box.inspect, *commands):
        with pytest.raises(SandboxGone, match=r"^there is no sandbox box$") as caught:
            ask()
        assert caught.value.hint == "'dockless ps --all' lists what there is"
    with pytest.raises(SandboxGone, match=r"^there is no sandbox "):
        asyncio.run(read_by_a_loop())


def test_a_command_for_one_whose_program_has_ended():
    with dockless.Sandbox(["cat"], id="short", stdin=PIPE) as box:
        found = dockless.Sandbox.open("short")
        box.stdin.close()
        assert box.wait(20).code == 0
        for handle, said in ((box, "^the sandbox has ended$"), (found, "^sandbox short is not running$")):
            with pytest.raises(SandboxGone, match=said) as caught:
                handle.exec("true")
            assert "give it a program that lasts, like `sleep infinity`" in caught.value.hint


def test_whoever_sees_first_that_the_program_has_ended_says_what_to_do():
    """Before its record is gone, at its door, by its keeper: which of them depends on the moment."""
    with dockless.Sandbox(["cat"], id="short", stdin=PIPE) as box:
        found = get("short")
        for error in (found.not_running(), found.entrance().gone(), box.inner.entrance().gone()):
            assert str(error) == "sandbox short is not running" and "give it a program that lasts" in error.hint


@pytest.mark.parametrize("timeout", [0, -1, -0.5])
def test_no_time_to_wait_is_over_at_once(start, timeout):
    """As ``subprocess`` has it."""

    async def by_a_loop() -> None:
        async with aio.Sandbox.open("box") as box:
            await box.wait(timeout)

    box = start("sleep 1000", id="box")
    for ask in (lambda: box.wait(timeout), lambda: asyncio.run(by_a_loop())):
        with pytest.raises(TimeoutError, match="sandbox box still runs"):
            ask()


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_holds_something_is_not_pickled(start, way):
    box = start("cat", interactive=True)
    with box.attach() as attached, box.spawn("cat", stdin=PIPE) as command:
        for held in (box, box.files, attached, command, aio.Sandbox.of(box), aio.Sandbox.of(box).files):
            with pytest.raises(
                TypeError, match=r"objects cannot be pickled or copied: pass the id of the sandbox, and use Sandbox.open\(id\)"
            ):
                way(held)
    assert type(way(dockless.Submitted(5))) in (bytes, dockless.Submitted)


def test_one_that_is_removed_while_it_is_started_again_is_not_left_half(start, monkeypatch):
    """Nobody could find what ran in a directory that has been removed."""
    box = start("echo ran; sleep 1000")
    box.kill()
    box.wait(20)
    begun, begin, errors = threading.Event(), detached._begin, []

    def slowly(*arguments, **how):
        begun.set()
        time.sleep(0.5)
        begin(*arguments, **how)

    def again():
        try:
            box.start()
        except DocklessError as error:
            errors.append(error)

    monkeypatch.setattr(detached, "_begin", slowly)
    starting = threading.Thread(target=again)
    starting.start()
    assert begun.wait(20)
    dockless.Sandbox.open(box.id).rm(force=True)
    starting.join(20)
    assert not errors and not dockless.list() and not os.path.exists(box._found.directory)


def test_one_of_our_own_is_listed_while_it_runs(start):
    box = start("sleep 1000", id="other", labels={"team": "a", "x": ""})
    with dockless.Sandbox(["sleep", "1000"], id="own", labels={"team": "b"}) as own:
        assert [one.id for one in dockless.list()] == ["other", "own"]
        assert [one.id for one in dockless.list(labels={"team": None}, state="running")] == ["other", "own"]
        assert [one.id for one in dockless.list(labels={"team": "b"})] == ["own"]
        assert dockless.list(labels={"team": "a", "x": "y"}) == [] == dockless.list(state=("exited", "paused"))
        assert own.labels == {"team": "b"} and own.state == "running"
        found = dockless.Sandbox.open("own")
        assert found.pid == own.pid and found.labels == own.labels
        with pytest.raises(BadInput, match="state 'ran' is unknown"):
            dockless.list(state="ran")
        for forbidden, word in ((lambda: own.rename("x"), "keeps its name"), (own.restart, "runs once"), (own.logs, "goes to the program")):
            with pytest.raises(Unsupported, match=word):
                forbidden()
        found.kill()
        assert own.wait(20).signal == signal.SIGKILL and own.state == "exited"
    assert [one.id for one in dockless.list()] == [box.id]


def test_stop_is_the_stop_signal_then_force(start):
    box = start("trap 'exit 3' INT; echo set; while :; do sleep 0.01; done", stop_signal="INT")
    until(lambda: written(box), "its trap is set")
    box.stop()
    assert box.wait().code == 3
    deaf = start("trap '' TERM; echo set; while :; do sleep 0.01; done", grace=0.1)
    until(lambda: written(deaf), "its trap is set")
    deaf.stop()
    assert deaf.wait().signal == signal.SIGKILL
    script = "trap 'exit 4' TERM; echo set; while :; do sleep 0.01; done"
    with dockless.Sandbox(["/bin/sh", "-c", script], stdout=dockless.PIPE) as own:
        assert own.stdout.readline() == b"set\n"
        own.stop(20)
        assert own.wait().code == 4


def test_started_again_with_what_it_had(start, tmp_path):
    box = start("echo again; exit 5", id="again", labels={"a": "b"})
    first = box.wait(20)
    box.restart()
    second = box.wait(20)
    assert second.code == 5 and second.started > first.ended and written(box) == "again\nagain\n"
    assert box.labels == {"a": "b"} and [one.id for one in dockless.list()] == ["again"]
    running = start("sleep 1000", id="long")
    before = running.pid
    running.restart(0)
    assert running.state == "running" and running.pid != before
    with pytest.raises(BadInput, match="still runs"):
        running.rm()


def test_two_who_start_it_again_at_once(start):
    """One of them does; the other is told that it runs."""
    from dockless.sandbox.run import detached

    box = start("sleep 1000", id="again")
    box.stop(0)
    said = []

    def again():
        try:
            detached.start_existing(box.inner)
        except BadInput as error:
            said.append(str(error))

    threads = [threading.Thread(target=again) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert said == ["sandbox again runs already"] * 3 and box.state == "running"


def test_another_name_while_it_runs(start):
    box = start("sleep 1000", id="old")
    other = start("true", id="taken")
    with pytest.raises(BadInput, match="there is a sandbox taken already"):
        box.rename("taken")
    box.rename("new")
    assert box.id == "new" and box.state == "running"
    with pytest.raises(SandboxGone):
        dockless.Sandbox.open("old")
    fresh = start("sleep 1000", id="old")  # neither its cgroup nor its keeper is taken for the other's
    fresh.rm(force=True)
    assert box.state == "running"
    box.stop(0)
    assert box.wait().signal is not None and other.wait(20).code == 0


def test_one_that_is_removed_at_its_end(start):
    """By its keeper; whoever waits is told how it ended."""
    box = start("sleep 1000 & trap 'exit 6' TERM; echo started; wait", id="gone", remove=True)
    with pytest.raises(Unsupported, match="keeps its name"):
        box.rename("other")
    with pytest.raises(Unsupported, match="runs once"):
        box.restart()
    assert box.state == "running"
    until(lambda: "started" in written(box), "its trap is set")
    with box.inner.waiting() as waiting:  # who comes after its end finds nothing
        box.send_signal(signal.SIGTERM)
        waiting.wait(20)
        assert waiting.result().code == 6 and dockless.list() == []
    assert not list((paths.state() / "sandboxes").iterdir())
    for _ in range(10):
        start("true", remove=True)
    until(lambda: not (dockless.list() or children._children), "all of them are removed, and their keepers collected")
    with pytest.raises(SandboxGone):
        box.poll()
    for _ in range(10):  # by its keeper, while it is removed by us
        start("sleep 1000", remove=True).rm(force=True)
    assert dockless.list() == []


def test_who_comes_while_its_keeper_removes_it_is_told_how_it_ended(start, monkeypatch):
    """The record has its other name then."""
    box = start("sleep 1000 & trap 'exit 6' TERM; echo started; wait", id="gone", remove=True)
    until(lambda: "started" in written(box), "its trap is set")
    inner, taken = box.inner, Box.pidfd

    def late(box):
        fd = taken(box)
        (box.directory / "exit.tmp").rename(box.directory / "exit")
        return fd

    monkeypatch.setattr(Box, "pidfd", late)
    with inner.waiting() as waiting:
        monkeypatch.undo()
        (inner.directory / "exit").rename(inner.directory / "exit.tmp")
        box.send_signal(signal.SIGTERM)
        waiting.wait(20)
        assert waiting.result().code == 6 and dockless.list() == []


def test_labels_of_our_own_are_refused(start):
    for labels, word in (({"job": "1"}, "dockless's own"), ({"": "x"}, "empty"), ({"a=b": "x"}, "contains '='")):
        with pytest.raises(BadInput, match=word):
            start("true", labels=labels)
        with pytest.raises(BadInput, match=word):
            dockless.Sandbox(["true"], labels=labels)
    with pytest.raises(BadInput, match="has no labels"):
        dockless.submit(["true"], labels={"a": "b"})
    assert dockless.list() == []


ACTS = {
    "start": lambda box: box.start(), "stop": lambda box: box.stop(0), "restart": lambda box: box.restart(0),
    "rename": lambda box: box.rename("other"), "update": lambda box: box.update(restart="always"), "rm": lambda box: box.rm(force=True),
    "fork": lambda box: box.fork(),
}  # fmt: skip


@pytest.mark.parametrize("act", ACTS)
def test_a_sandbox_of_the_daemons_is_changed_through_the_daemon_alone(act):
    box = detached.start(Spec(argv=("sleep", "1000")), labels={"job": "7"})
    try:
        with pytest.raises(BadInput, match="belongs to job 7"):
            ACTS[act](dockless.Sandbox.open(box.id))
        assert box.state() == "running" and [one.id for one in dockless.list()] == [box.id]
    finally:
        box.remove()


def test_what_needs_a_cgroup_says_so(start, monkeypatch):
    box = start("sleep 1000")
    with monkeypatch.context() as patched:
        patched.setattr(Box, "cgroup", lambda self, known=None: None)
        for change in (box.pause, box.resume, lambda: box.update(pids=5)):
            with pytest.raises(Unsupported, match="it has no cgroup"):
                change()


@requires("cgroup2")
def test_it_stands_still_and_goes_on(start):
    box = start("while :; do echo x; sleep 0.01; done")
    box.pause()
    assert box.state == box.inspect()["state"] == "paused" and dockless.list(state="paused")[0].id == box.id
    count = len(list(box.logs()))
    assert select.select([box], [], [], 0.2)[0] == [] and len(list(box.logs())) <= count + 1
    box.resume()
    assert box.state == "running"
    until(lambda: len(list(box.logs())) > count + 5, "it goes on")
    box.pause()
    box.stop(20)
    assert box.wait().signal == signal.SIGTERM


def test_files_of_a_handle(start):
    """As of one that a program holds itself."""
    with start("sleep 1000") as box:
        box.files.write_text("/tmp/note", "hello")
        with dockless.Sandbox.open(box.id) as again:
            assert again.files.read_text("/tmp/note") == "hello"


def test_private_files_stay_when_it_is_started_again(start, tmp_path):
    """Of an image, whose overlay is mounted once more over the same upper; a name that means another image by then changes nothing."""
    image = load(tmp_path, name="life:latest")
    box = dockless.start(image, ["/bin/sh", "-c", "echo x >> /count; cat /count; exit 7"], id="again")
    assert box.wait(20).code == 7
    first = box.inner.document.image
    load(tmp_path, [file("etc/other", "y")], name="life:latest")
    for _ in range(2):
        box.restart()
        assert box.wait(20).code == 7
    assert written(box).split() == ["x"] * 6 and box.inner.document.image == first
    assert [change.path for change in dockless.diff(box.id)] == ["/count"]


def test_gpus_are_the_same_when_it_is_started_again(start, own_host):
    own_host("2x80G")
    box = start("sleep 1000", id="one", gpus=1)
    held = box.gpus
    other = start("sleep 1000", id="two", gpus=1)
    assert len(held) == 1 and set(held) != set(other.gpus) and box.simulated
    box.restart(0)
    assert box.gpus == held and box.state == "running" and box.labels == {"gpus": "simulated"}
    box.stop(0)
    third = start("sleep 1000", id="three", gpus=1)
    assert third.gpus == held
    with pytest.raises(NotEnoughGpus):
        box.restart()
    assert box.state == "exited"


def test_a_stop_returns_when_its_keeper_has_ended(start):
    """Which says how it ended before it lets go of its GPUs: who starts the next one needs them."""
    over, box = start("true"), start("sleep 1000")
    over.wait()
    shutil.copy(over.inner.directory / "exit", box.inner.directory / "exit")
    assert box.state == "exited"
    keeper, stopping = os.pidfd_open(box.inner.pid), threading.Thread(target=ending.end, args=[box.inner])
    try:
        stopping.start()
        stopping.join(0.2)
        assert stopping.is_alive()
    finally:
        os.kill(box.inner.init_pid, signal.SIGKILL)
        stopping.join(20)
        has_ended = select.select([keeper], [], [], 0)[0]
        os.close(keeper)
    assert has_ended


@requires("root", "cgroup2:hugetlb")
def test_other_limits_while_it_runs(start):
    box = start("sleep 1000", hugetlb={"2MB": "64M"})
    group = Path(box.inner.document.cgroup)
    box.update(hugetlb={"2MB": "32M"})
    assert (group / "hugetlb.2MB.max").read_text() == f"{32 << 20}\n"
    assert dockless.Sandbox.open(box.id).spec.limits.hugetlb == (("2MB", 32 << 20),)
    box.restart(0)
    assert (Path(box.inner.document.cgroup) / "hugetlb.2MB.max").read_text() == f"{32 << 20}\n"
    if missing("cgroup2:memory"):
        with pytest.raises(LimitUnavailable):
            box.update(hugetlb={"2MB": "1M"}, memory="1G")
    box.stop(0)
    with pytest.raises(SandboxGone):
        box.update(hugetlb={"2MB": "1M"})
