"""What is asked of a sandbox while somebody renames it happens all the same."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import threading

import pytest
from support.boxes import load, until
from support.requires import requires

import dockless
from dockless import aio

pytestmark = requires("userns")
ROUNDS = int(os.environ.get("DOCKLESS_TEST_ROUNDS", "10"))


@pytest.fixture
def renamed():
    """Starts a sandbox that another thread gives new names, one after the other, until it is gone."""
    boxes, threads, over, numbers = [], [], threading.Event(), itertools.count()

    def rename(box, first):
        with contextlib.suppress(dockless.SandboxGone):
            for number in itertools.count():
                if over.is_set():
                    return
                box.rename(f"{first}-{number}")

    def begin(script="sleep 1000", image="host", **options):
        first = f"r{next(numbers)}"
        box = dockless.start(image, ["/bin/sh", "-c", script], id=first, **options)
        boxes.append(box)
        threads.append(threading.Thread(target=rename, args=(box, first)))
        threads[-1].start()
        until(lambda: box.id != first, "it is renamed")
        return box

    yield begin
    over.set()
    for thread in threads:
        thread.join()
    for box in boxes:
        box.rm(force=True)
    assert dockless.list() == []


def test_it_is_killed(renamed):
    for _ in range(ROUNDS):
        box = renamed()
        box.kill()
        assert box.wait(20).signal == signal.SIGKILL


def test_it_is_stopped(renamed):
    for _ in range(ROUNDS):
        box = renamed("trap 'exit 3' TERM; while :; do sleep 0.01; done")
        box.stop(20)
        ended = box.poll()
        assert ended is not None and (ended.code == 3 or ended.signal == signal.SIGTERM)


def test_what_is_to_be_restarted_stays_ended(renamed):
    for ended in ("kill", "stop") * (ROUNDS // 2):
        box = renamed(restart="always", grace=0)
        getattr(box, ended)()
        box.wait(20)
        assert box.state == "exited"


def test_it_is_restarted_by_its_policy(renamed):
    for _ in range(ROUNDS // 2):
        box = renamed(restart="always")
        os.kill(box.inspect()["pid"], signal.SIGKILL)
        until(lambda box=box: box.inspect()["restarts"] == 1 and box.state == "running", "it is restarted")


def test_it_is_removed(renamed):
    for _ in range(ROUNDS):
        box = renamed()
        keeper = box.inspect()["pid"]
        box.rm(force=True)
        assert not os.path.exists(f"/proc/{keeper}")
        assert dockless.list() == []


def test_it_is_started_again(renamed):
    for _ in range(ROUNDS // 2):
        box = renamed()
        box.restart(0)
        assert box.state == "running"
        box.kill()
        box.wait(20)
        box.start()
        assert box.state == "running"


def test_it_is_looked_at_entered_and_signalled(renamed):
    box = renamed("trap 'echo heard' HUP; while :; do sleep 0.01; done")
    for _ in range(5 * ROUNDS):
        assert box.state == "running" and box.poll() is None and box.pid > 1 and box.health is None
        assert box.exec("echo", "here").stdout == b"here\n"
        box.files.write_text("/tmp/a", "b")
        box.send_signal(signal.SIGHUP)
        with pytest.raises(TimeoutError):
            box.wait(0)
    rows = box.logs(follow=True)
    assert next(rows).text == b"heard"
    rows.close()


@requires("cgroup2")
def test_it_is_paused(renamed):
    box = renamed()
    for _ in range(ROUNDS):
        box.pause()
        assert box.state == "paused"
        box.resume()
        assert box.state == "running"


def test_it_gets_another_policy(renamed):
    box = renamed()
    for policy in ("always", "no") * ROUNDS:
        box.update(restart=policy)
        assert box.inspect()["restart"] == policy


@requires("overlay", "busybox", "cgroup2")
def test_a_snapshot_is_taken_of_it(renamed, tmp_path):
    box = renamed(image=load(tmp_path))
    box.files.write_text("/given", "here")
    for _ in range(ROUNDS):
        made = box.snapshot()
        assert dockless.run(made.digest, ["cat", "/given"], capture_output=True).stdout == b"here"


@requires("overlay", "busybox")
def test_its_changes_are_listed_and_committed(renamed, tmp_path):
    box = renamed(image=load(tmp_path))
    box.files.write_text("/given", "here")
    for _ in range(ROUNDS):
        assert "/given" in [change.path for change in dockless.diff(box, pause=False)]
        assert dockless.run(dockless.commit(box, pause=False).digest, ["cat", "/given"], capture_output=True).stdout == b"here"


def test_a_loop_waits_for_it(renamed):
    async def waited():
        box = aio.Sandbox.of(renamed())
        waiting = asyncio.create_task(box.wait(20))
        await asyncio.sleep(0)
        box.kill()
        assert (await waiting).signal == signal.SIGKILL

    for _ in range(ROUNDS):
        asyncio.run(waited())
