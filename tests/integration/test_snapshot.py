"""``snapshot`` and ``fork``: the files of a sandbox that runs become an image, and sandboxes of their own; as root and as a user."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.boxes import load, ok, until
from support.disks import small
from support.requires import requires

import dockless
from dockless.cgroups import Cgroup, find_delegation
from dockless.errors import BadInput, NoRoom, Unsupported
from dockless.images import Store

pytestmark = requires("userns", "overlay")


@pytest.fixture
def image(tmp_path):
    return load(tmp_path, env={"A": "1"})


@pytest.fixture
def start(image):
    made = []

    def begin(script: str, **options) -> dockless.Sandbox:
        box = dockless.start(image, ["/bin/sh", "-c", script], **options)
        made.append(box)
        return box

    yield begin
    for box in made:
        box.rm(force=True)
    for box in dockless.list():
        box.rm(force=True)


def upper(box: dockless.Sandbox) -> Path:
    return Path(box.inspect()["directory"]) / "upper"


def freezable() -> None:
    """Those that name cgroup2 run in the guest as well, where an ordinary user can freeze, too."""
    if find_delegation(ask_systemd=False).path is None:
        pytest.skip("no cgroup v2 of our own, by which something could be frozen")


def ready(box: dockless.Sandbox, name: str = "ready") -> dockless.Sandbox:
    freezable()
    until(lambda: (upper(box) / name).exists(), "it has written")
    return box


@requires("cgroup2")
def test_a_snapshot_has_the_files_of_now_and_the_sandbox_goes_on(start):
    box = ready(
        start(
            "echo one > /f; mkdir -p /d; echo x > /d/x; rm /etc/os-release; rm -r /usr; mkdir /usr; echo again > /usr/again; "
            "exec 3> /open; echo begun >&3; exec 4> /deleted; echo secret >&4; rm /deleted; ln /f /hard; > /ready; "
            "until test -e /go; do sleep 0.02; done; echo ended >&3; echo two > /f; > /gone-on; sleep 1000"
        )
    )
    made = box.snapshot("now:1")
    assert made.reference == "docker.io/library/now:1" and box.state == "running"
    box.exec("/bin/sh", "-c", "> /go", check=True)
    ready(box, "gone-on")
    said = ok(
        "cat /f /hard /open /usr/again; ls /usr; test -e /etc/os-release || echo no; test -e /deleted || echo no; cat /d/x", image="now:1"
    )
    assert said.splitlines() == ["one", "one", "begun", "again", "again", "no", "no", "x"]
    assert ok("cat /f /open", image=box.snapshot().name).splitlines() == ["two", "begun", "ended"]


@requires("root")
def test_what_is_written_through_a_shared_mapping_is_in_it(start):
    box = ready(start("printf aaaa > /mapped; > /ready; sleep 1000"))
    import mmap

    with open(f"/proc/{box.pid}/root/mapped", "r+b") as file, mmap.mmap(file.fileno(), 4) as mapped:
        mapped[:] = b"bbbb"
        assert ok("cat /mapped", image=box.snapshot().name) == "bbbb"


@requires("cgroup2")
def test_it_stands_still_while_its_changes_are_read_and_no_longer(start, monkeypatch):
    from dockless.images.archive import commit, packing

    box = ready(start("> /ready; while :; do echo y >> /log; sleep 0.01; done"))
    seen = []

    def noting(what, function):
        def call(*args, **kwargs):
            seen.append(what)
            return function(*args, **kwargs)

        return call

    for name in ("freeze", "thaw"):
        monkeypatch.setattr(Cgroup, name, noting(name, getattr(Cgroup, name)))
    monkeypatch.setattr(packing.Packer, "write", noting("hash", packing.Packer.write))
    monkeypatch.setattr(commit, "register", noting("register", commit.register))
    made = box.snapshot()
    last = len(seen) - seen[::-1].index("thaw")
    assert seen[:last] == ["freeze", "thaw"] * (last // 2) and set(seen[last:]) == {"hash", "register"}
    assert 0 < made.paused < 10 and Store().get(made.digest).paused == 0 and box.state == "running"


@requires("cgroup2")
def test_a_paused_sandbox_stays_paused(start):
    box = ready(start("echo x > /f; > /ready; sleep 1000"))
    box.pause()
    made = box.snapshot()
    assert box.state == "paused" and ok("cat /f", image=made.name) == "x\n"
    (fork,) = box.fork()
    assert (box.state, fork.state) == ("paused", "running")
    box.resume()


def test_one_that_has_ended(start):
    box = start("test ! -e /f || grep -q x /f && mkdir /once$(ls / | grep -c once) && echo x > /f")
    assert box.wait(20).code == 0
    assert ok("cat /f", image=box.snapshot().name) == "x\n"
    first, second = box.fork(2)
    for fork in (first, second):
        assert fork.wait(20).code == 0 and ok("cat /f", image=fork.snapshot().name) == "x\n"


@requires("cgroup2")
def test_forks_have_its_files_and_their_own(start):
    box = ready(
        start("test -e /f || echo mine > /f; echo $$ >> /starts; > /ready; sleep 1000", labels={"team": "a"}, pids=50, best_effort=True)
    )
    box.exec("/bin/sh", "-c", "echo changed > /f; echo data > /data", check=True)
    forks = box.fork(3)
    assert len({fork.id for fork in forks} | {box.id}) == 4
    for number, fork in enumerate(forks):
        until(lambda fork=fork: fork.shell("wc -l < /starts", text=True).stdout.strip() == "2", "it runs the same command")
        assert fork.shell("cat /f /data; echo $A", text=True).stdout.split() == ["changed", "data", "1"]
        fork.shell(f"echo {number} > /f; rm /data", check=True)
        assert fork.labels == {"team": "a"} and fork.spec.limits == box.spec.limits
    assert [fork.shell("cat /f; ls /data 2>/dev/null", text=True).stdout for fork in forks] == ["0\n", "1\n", "2\n"]
    assert box.shell("cat /f /data", text=True).stdout.split() == ["changed", "data"]


def test_a_fork_keeps_its_image_and_can_be_started_again_forked_and_removed(start):
    box = ready(start("echo x > /f; > /ready; sleep 1000"))
    (first,) = box.fork()
    digest = first.spec.image
    box.rm(force=True)
    Store().prune()
    first.restart(0)
    (second,) = first.fork()
    assert second.shell("cat /f", text=True).stdout == "x\n" and Store().get(digest).digest == digest
    first.rm(force=True)
    second.rm(force=True)
    Store().prune()
    with pytest.raises(dockless.UnknownImage):
        Store().get(digest)


def test_a_fork_of_one_that_this_program_holds_outlives_it(image, start):
    freezable()
    with dockless.Sandbox(image, ["/bin/sh", "-c", "echo x > /f; echo ready; sleep 1000"], stdout=dockless.PIPE, text=True) as box:
        assert box.stdout.readline() == "ready\n"
        (fork,) = box.fork()
    assert fork.state == "running" and fork.shell("cat /f", text=True).stdout == "x\n"


@requires("subuid")
def test_owners_and_closed_files(start):
    box = ready(start("mkdir -m 700 /w; echo x > /w/f; chmod 0 /w/f; chown -R 1000:50 /w; chmod 4755 /bin/sh; > /ready; sleep 1000"))
    (fork,) = box.fork()
    asked = "stat -c '%u %g %a' /w /w/f /bin/sh; cat /w/f"
    assert fork.shell(asked, text=True).stdout == box.shell(asked, text=True).stdout
    assert fork.shell("stat -c '%u %g %a' /w", text=True).stdout == "1000 50 700\n"


def test_none_is_left_of_forks_when_one_cannot_start(start, monkeypatch):
    from dockless.sandbox.run import detached

    box = ready(start("> /ready; sleep 1000"))
    known, real = {one.id for one in dockless.list()}, detached.start

    def failing(*args, **kwargs):
        if len(dockless.list()) == len(known) + 2:
            raise dockless.SandboxError("no")
        return real(*args, **kwargs)

    monkeypatch.setattr(detached, "start", failing)
    with pytest.raises(dockless.SandboxError, match="no"):
        box.fork(5)
    assert {one.id for one in dockless.list()} == known


def test_what_cannot_be_forked_is_said(start, monkeypatch):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "1x80G")
    with pytest.raises(Unsupported, match="has GPUs"):
        start("sleep 1000", gpus=1).fork()
    box = start("sleep 1000")
    with pytest.raises(BadInput, match="0 forks"):
        box.fork(0)
    memory = start("sleep 1000", root="tmpfs")
    with pytest.raises(Unsupported, match="keeps no changes"):
        memory.snapshot()


@requires("root")
def test_a_full_disk_leaves_the_sandbox_running_and_the_store_as_it_was(start, tmp_path, monkeypatch):
    box = ready(start("dd if=/dev/urandom of=/big bs=1048576 count=80 2> /dev/null; > /ready; sleep 1000"))
    before = [one.digest for one in Store().list()]
    scratch = Store().root / "tmp"
    with small(scratch, "size=40m,mode=0700"), pytest.raises(NoRoom):
        box.snapshot("full:1")
    assert box.state == "running" and [one.digest for one in Store().list()] == before
    assert box.shell("echo on", text=True).stdout == "on\n" and box.snapshot("full:1").reference


def test_a_program_killed_in_the_middle_loses_nothing(start):
    box = ready(start("dd if=/dev/zero of=/big bs=1048576 count=64 2> /dev/null; echo x > /f; > /ready; sleep 1000"))
    before = [one.digest for one in Store().list()]
    program = f"""
import os, signal
from dockless.cgroups import Cgroup
real = Cgroup.freeze
def killed(*args, **kwargs):
    real(*args, **kwargs)
    os.killpg(0, signal.SIGKILL)
Cgroup.freeze = killed
import dockless
dockless.Sandbox.open({box.id!r}).snapshot("half:1")
"""
    ended = subprocess.run([sys.executable, "-c", program], env=os.environ.copy(), start_new_session=True)
    assert ended.returncode == -signal.SIGKILL
    until(lambda: box.state == "running", "it goes on")
    assert [one.digest for one in Store().list()] == before
    assert ok("cat /f", image=box.snapshot("half:1").name) == "x\n"


def test_awaited(start):
    box = ready(start("echo x > /f; > /ready; sleep 1000"))

    async def work() -> list[str]:
        from dockless import aio

        held = await aio.Sandbox.open(box.id)
        made = await held.snapshot("awaited:1")
        assert made.reference == "docker.io/library/awaited:1"
        return [(await fork.shell("cat /f", text=True)).stdout for fork in await held.fork(2)]

    assert asyncio.run(work()) == ["x\n", "x\n"]


def test_who_is_cancelled_while_forks_are_made_leaves_none(start):
    from dockless import aio

    box = ready(start("> /ready; sleep 1000"))

    async def main() -> None:
        forking = asyncio.create_task((await aio.Sandbox.open(box.id)).fork(3))
        while len(dockless.list()) == 1:
            await asyncio.sleep(0)
        forking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await forking

    asyncio.run(main())
    assert [one.id for one in dockless.list()] == [box.id]


def test_the_words_of_the_command_line(start, say):
    """Of one that has ended, which nothing need freeze."""
    box = start("echo x > /f")
    box.wait()
    code, out, err = say("snapshot", "-q", box.id, "said:1")
    assert (code, out, err) == (0, "docker.io/library/said:1\n", "")
    assert ok("cat /f", image="said:1") == "x\n"
    code, out, err = say("fork", "-n", "2", box.id)
    made = out.split()
    assert (code, len(made), err) == (0, 2, "") and not set(made) & {box.id}
    assert [dockless.Sandbox.open(one).wait().exit_code for one in made] == [0, 0]
    code, out, err = say("fork", "-n", "0", box.id)
    assert code == 125 and "1 or more" in err
