"""Checks of a sandbox's health: what they are, what they say, what stays of them, and waiting for them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support import disks
from support.boxes import alive, load, own_children, until
from support.make_image import file
from support.requires import requires

import dockless
from dockless import DEVNULL, HealthCheck, Sandbox, aio
from dockless.base.waits import readable
from dockless.errors import BadInput, SandboxGone
from dockless.sandbox.run import health
from dockless.sandbox.run.box import Box
from dockless.sandbox.run.health import HealthWatch

pytestmark = requires("userns", "overlay")

FOREVER = ["/bin/sh", "-c", "while sleep 1000; do :; done"]
OFTEN = 0.05
SECOND = 1_000_000_000


def script(line: str, **more: Any) -> HealthCheck:
    return HealthCheck(["/bin/sh", "-c", line], **{"interval": OFTEN, **more})


@contextlib.contextmanager
def begun(kind: str, image: str = "host", **options: Any) -> Iterator[Sandbox[bytes]]:
    if kind == "foreground":
        with Sandbox(image, FOREVER, stdin=DEVNULL, **options) as box:
            yield box
    else:
        box = dockless.start(image, FOREVER, **options)
        try:
            yield box
        finally:
            box.rm(force=True)


both = pytest.mark.parametrize("kind", ["foreground", "detached"])


def check_said(box: Sandbox[Any], what: str) -> dockless.Health:
    return until(lambda: (found := box.health) and found.count and what in found.output and found, f"a check that says {what!r}")


@both
def test_the_images_own_check_has_the_rights_of_its_program_and_no_others(kind, tmp_path):
    """Docker's HEALTHCHECK: a line for a shell, with the image's user, directory and variables."""
    facts = "id -u; pwd; echo $FROM; grep -E 'Cap(Prm|Eff|Bnd)|NoNewPrivs|Seccomp:' /proc/self/status; echo err >/dev/stderr"
    image = load(
        tmp_path,
        [file("etc/passwd", "root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/:/bin/sh\n"), file("w/x", "")],
        user="app",
        workdir="/w",
        env={"FROM": "image"},
        healthcheck={"Test": ["CMD-SHELL", facts], "Interval": SECOND, "Retries": 1},
    )
    with begun(kind, image) as box:
        found = box.wait_healthy(20)
        expected = box.exec("/bin/sh", "-c", facts, text=True, stderr=dockless.STDOUT).stdout
    assert found.output == expected and expected.startswith("1000\n/w\nimage\n") and expected.endswith("\nerr\n")
    assert (found.status, found.streak, found.exit_code, found.timed_out) == ("healthy", 0, 0, False)
    assert found.began <= found.ended == found.since


@pytest.mark.parametrize(
    ("test", "runs"),
    [
        (["CMD", "/bin/sh", "-c", "true"], True),
        (["CMD-SHELL", "true"], True),
        (["NONE"], False),
        ([], False),
        (["CMD"], False),
        (["SOMETHING", "true"], False),
    ],
)
def test_forms_of_an_images_check(test, runs, tmp_path):
    image = load(tmp_path, healthcheck={"Test": test, "Interval": SECOND})
    with begun("foreground", image) as box:
        assert (box.health is not None) is runs
    with begun("foreground", image, health=False) as box:
        assert box.health is None and box.inspect()["health"] is None
    with begun("foreground", image, health=script("echo mine")) as box:
        assert box.wait_healthy(20).output == "mine\n"


@both
def test_it_starts_becomes_healthy_and_unhealthy_and_is_asked_on(kind):
    check = script("state=$(cat /tmp/state); echo $state; test x$state = xwell", retries=2, start_period=1000)
    with begun(kind, health=check) as box:
        assert check_said(box, "").status == "starting"
        failed = until(lambda: (found := box.health) and found.count > 3 and found, "several checks")
        assert (failed.status, failed.streak, failed.exit_code) == ("starting", 0, 1), "in its start period"
        box.exec("/bin/sh", "-c", "echo well > /tmp/state", check=True)
        well = box.wait_healthy(20)
        assert (well.status, well.output, well.exit_code) == ("healthy", "well\n", 0)
        box.exec("/bin/sh", "-c", "echo ill > /tmp/state", check=True)
        ill = until(lambda: (found := box.health) and found.status == "unhealthy" and found, "that it is unhealthy")
        assert ill.streak >= 2 and ill.exit_code == 1 and ill.output == "ill\n", "its start period is over with the first success"
        box.exec("/bin/sh", "-c", "echo well > /tmp/state", check=True)
        again = box.wait_healthy(20)
        assert again.since > ill.since and again.streak == 0
        box.stop(0)
        if kind == "detached":
            last = box.health
            assert last.status == "healthy" and box.inspect()["health"]["output"] == "well\n", "what they said last stays"


@both
def test_one_that_takes_too_long_is_killed_with_what_it_started(kind):
    line = "test -e /tmp/two && exec sleep 1000; echo $$ > /tmp/one; sleep 1000 & echo $! > /tmp/two; wait"
    with begun(kind, health=script(line, timeout=0.3, interval=0.3, retries=1)) as box:
        found = until(lambda: (found := box.health) and found.count and found, "a check")
        assert (found.status, found.timed_out, found.exit_code) == ("unhealthy", True, 124)
        inside = box.exec("/bin/sh", "-c", "for f in one two; do test -e /proc/$(cat /tmp/$f) && echo $f; done", text=True).stdout
        assert not inside, "what was killed runs"


@pytest.mark.parametrize(("argv", "code"), [(["no-such-program"], 127), (["/etc"], 126)])
def test_what_cannot_be_executed_has_failed(argv, code):
    with begun("foreground", health=HealthCheck(argv, interval=OFTEN, retries=1)) as box:
        found = until(lambda: (found := box.health) and found.count and found, "a check")
        assert (found.status, found.exit_code, found.timed_out) == ("unhealthy", code, False)


def test_of_much_output_the_end_is_kept_and_no_text_of_it_is_taken_for_the_record():
    line = "seq 50000; printf '[end]\\ncrc32 1\\n\\377output 00\\n'"
    with begun("detached", health=script(line)) as box:
        output = box.wait_healthy(20).output
    whole = "".join(f"{number}\n" for number in range(50001)) + "[end]\ncrc32 1\n\N{REPLACEMENT CHARACTER}output 00\n"
    assert output == whole[-4096:]


def test_one_that_writes_without_end_fails_at_its_time_limit():
    with begun("foreground", health=script("yes", timeout=0.5, retries=1)) as box:
        found = until(lambda: (found := box.health) and found.count and found, "a check")
        assert found.timed_out and found.status == "unhealthy" and len(found.output) <= 4096


def test_no_more_than_a_megabyte_of_what_it_writes_is_read():
    """It waits then, as its pipe is full, until its timeout: the keeper does not work for it."""
    with begun("foreground", health=script("head -c 1200000 /dev/zero", timeout=2, retries=1)) as box:
        found = until(lambda: (found := box.health) and found.count and found, "a check")
        assert found.timed_out


@requires("cgroup2")
def test_what_it_leaves_running_is_killed_and_its_group_is_gone():
    """Every time, or a check in the background would be another process every interval."""
    with begun("detached", health=script("sleep 1000 >/dev/null 2>&1 & echo $!")) as box:
        box.wait_healthy(20)
        until(lambda: box.health.count > 3, "several checks")
        group = Path(box.inner.document.cgroup)
        until(
            lambda: "sleep" not in subprocess.run(["cat", *_commands(group / "health")], capture_output=True, text=True).stdout, "its end"
        )
        box.stop(0)
        assert not group.joinpath("health").exists()


def _commands(group: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return [f"/proc/{pid}/comm" for pid in group.joinpath("cgroup.procs").read_text().split()] or ["/dev/null"]
    return ["/dev/null"]


@requires("cgroup2")
def test_nothing_is_checked_while_it_stands_still():
    with begun("detached", health=script("true", retries=1)) as box:
        box.wait_healthy(20)
        box.pause()
        before = box.health
        # Its keeper has looked at least once meanwhile: it ends the time to live by the same clock, after ten intervals.
        other = dockless.start(FOREVER, ttl=10 * OFTEN)
        other.wait(20)
        other.rm()
        after = box.health
        assert after.status == "healthy" and after.count <= before.count + 1, "a check began"
        box.resume()
        until(lambda: box.health.count > after.count, "another check")
        assert box.health.status == "healthy"


@requires("cgroup2")
@pytest.mark.parametrize("over", ["while it is paused", "after it went on"])
def test_a_check_that_was_held_says_nothing(over):
    """Its timeout goes on while the sandbox is paused."""
    line = "test ! -e /tmp/hold || { rm /tmp/hold; touch /tmp/held; sleep 1000; }"
    with begun("detached", health=script(line, timeout=3, retries=1)) as box:
        box.wait_healthy(20)
        box.exec("touch", "/tmp/hold", check=True)
        until(lambda: box.files.exists("/tmp/held"), "a check that takes too long")
        group = Path(box.inner.document.cgroup, "health")
        before = box.health
        box.pause()
        if over == "while it is paused":
            until(lambda: not group.exists(), "its end")
        box.resume()
        until(lambda: box.health.count > before.count, "another check")
        assert box.health.since == before.since and box.health.status == "healthy"


@both
def test_whoever_waits_is_told_when_it_ends_before(kind):
    with begun(kind, health=script("echo not yet; false")) as box:
        with pytest.raises(TimeoutError, match="is not healthy after"):
            box.wait_healthy(0.2)
        check_said(box, "not yet")
        box.exec("/bin/sh", "-c", "kill -9 1; kill -9 $(cat /proc/1/task/1/children)")
        with pytest.raises(SandboxGone):
            box.wait_healthy(20)
    with begun(kind) as box, pytest.raises(BadInput, match="has no health check"):
        box.wait_healthy(20)


def test_one_whose_directory_is_being_removed_ends_and_is_not_without_checks():
    with begun("foreground", health=script("false")) as box:
        known, keeper = Sandbox.open(box.id).inner, box.inner.process.keeper_pid
        os.kill(keeper, signal.SIGSTOP)  # it does not get on with its end
        try:
            (known.directory / "health").unlink()
            with HealthWatch(known) as watch:
                shutil.rmtree(known.directory)
                assert watch.look() is None
        finally:
            os.kill(keeper, signal.SIGCONT)


def test_who_waits_while_it_ends_hears_how():
    until_told = "until test -e /tmp/go; do sleep 0.05; done; exit 3"
    with begun_as(until_told, script("echo starting; false")) as box:
        check_said(box, "starting")
        with HealthWatch(box.inner) as watch:
            box.exec("touch", "/tmp/go")
            with pytest.raises(SandboxGone, match=r"ended before it was healthy: exit code 3; its last check wrote: starting"):
                watch.wait(20)


def test_a_record_that_comes_after_one_has_looked_is_told(monkeypatch):
    """Though it comes before the look has ended; and what has been seen is not told again."""
    read = health.health_of

    def read_and_then_healthy(inner):
        monkeypatch.setattr(health, "health_of", read)
        found = read(inner)
        box.exec("touch", "/tmp/well", check=True)
        until(lambda: read(inner).status == "healthy", "its record")
        return found

    once = script("until test -e /tmp/well; do sleep 0.05; done; rm /tmp/well", timeout=60)
    with begun("detached", health=once) as box, HealthWatch(box.inner) as watch:
        until(lambda: (box.inner.directory / "health").read_bytes().strip(b"\0"), "the keeper's first record")
        assert watch.look() is None and not readable(watch.fileno(), 0)
        monkeypatch.setattr(health, "health_of", read_and_then_healthy)
        assert watch.look() is None and readable(watch.fileno(), 0)
        assert watch.look().status == "healthy" and not readable(watch.fileno(), 0)


def test_what_is_said_of_its_end_holds_what_the_last_check_wrote(monkeypatch):
    """Though it ends while one looks."""
    read = health.health_of

    def read_before_it_ends(inner):
        monkeypatch.setattr(health, "health_of", read)
        found = read(inner)
        box.exec("touch", "/tmp/go", check=True)
        check_said(box, "ill")
        box.kill()
        box.wait(20)
        return found

    once = script("until test -e /tmp/go; do sleep 0.05; done; echo ill; false", timeout=60)
    with begun("detached", health=once) as box, HealthWatch(box.inner) as watch:
        monkeypatch.setattr(health, "health_of", read_before_it_ends)
        assert watch.look() is None
        with pytest.raises(SandboxGone, match="its last check wrote: ill"):
            watch.wait(20)


def test_one_whose_directory_is_gone_first_is_not_without_checks(monkeypatch):
    """A foreground sandbox ends a moment after its directory."""
    read = health.health_of

    def read_before_it_ends(inner):
        found = read(inner)
        box.kill()
        assert readable(keeper, 20), "its keeper ends"
        return found

    with begun("foreground", health=script("true", interval=1000)) as box:
        known = Sandbox.open(box.id).inner
        keeper = known.pidfd()
        monkeypatch.setattr(Box, "pidfd", lambda self: os.dup(keeper))
        monkeypatch.setattr(health, "health_of", read_before_it_ends)
        os.rename(known.directory, away := known.directory.with_name("away"))
        try:
            with HealthWatch(known) as watch:
                assert watch.look() is None
                with pytest.raises(SandboxGone):
                    watch.look()
        finally:
            os.rename(away, known.directory)
            os.close(keeper)


@contextlib.contextmanager
def begun_as(line: str, health: HealthCheck) -> Iterator[Sandbox[bytes]]:
    box = dockless.start(["/bin/sh", "-c", line], health=health)
    try:
        yield box
    finally:
        box.rm(force=True)


def test_from_an_event_loop():
    async def main() -> None:
        async with aio.Sandbox(FOREVER, health=script("test -e /tmp/well")) as box:
            with pytest.raises(TimeoutError):
                await box.wait_healthy(0.1)
            waiting = asyncio.create_task(box.wait_healthy(20))
            await box.exec("touch", "/tmp/well", check=True)
            assert (await waiting).status == "healthy" and box.health.status == "healthy"

    asyncio.run(main())


@pytest.mark.parametrize("damage", [b"", b"garbage", b"format 1\nstate 1\n", b"\xff" * 5000])
def test_a_damaged_record_is_none(damage):
    with begun("detached", health=script("true", interval=1000)) as box:
        place = box.inner.directory / "health"
        whole = until(lambda: (raw := place.read_bytes()).strip(b"\0") and raw, "the keeper's first record")
        assert box.health.status == "starting"
        place.write_bytes(whole.replace(b"state 0", b"state 1") if damage == b"" else damage)
        assert box.health is None and box.inspect()["health"] is None and box.state == "running"
        with HealthWatch(box.inner) as watch:
            assert watch.look() is None and watch.look() is None, "it has checks"


@requires("root")
def test_on_a_full_disk_the_record_has_its_room(tmp_path, monkeypatch):
    with disks.small(tmp_path / "disk", "size=4m") as disk:
        monkeypatch.setenv("DOCKLESS_HOME", str(disk))
        with begun("detached", health=script("test -e /dev/shm/well")) as box:
            check_said(box, "")
            disks.fill(disk)
            box.exec("touch", "/dev/shm/well", check=True)
            assert box.wait_healthy(20).status == "healthy"


def test_the_first_check_enters_also_where_many_start_at_once():
    """Its keeper may come to it before it has looked at what init handed over."""

    def first(_: int) -> int | None:
        with begun("detached", health=script("sleep 0.3", interval=0.01, retries=1)) as box:
            return until(lambda: (found := box.health) and found.count and found, "a check").exit_code

    with ThreadPoolExecutor(16) as threads:
        assert set(threads.map(first, range(48))) == {0}


@both
def test_nothing_of_a_check_outlives_its_sandbox(kind):
    with begun(kind, health=script("sleep 1000", timeout=1000)) as box:
        keeper = box.inner.pid if kind == "detached" else box.process.keeper_pid
        checking = until(lambda: _named(keeper, "dockless-enter"), "a check")
        box.stop(0)
        until(lambda: not any(map(alive, checking)), "the end of the check")


def test_a_check_whose_keeper_is_killed_says_nothing():
    with begun("detached", health=script("sleep 1000", timeout=1000, retries=1)) as box:
        keeper = box.inner.pid
        [killed] = until(lambda: _named(keeper, "dockless-enter"), "a check")
        os.kill(killed, signal.SIGKILL)
        until(lambda: [pid for pid in _named(keeper, "dockless-enter") if pid != killed], "another check")
        assert box.health.status == "starting" and box.health.count == 0


@both
def test_who_waits_for_a_check_is_killed_and_the_rest_is_its_sandboxs_to_collect(kind):
    with _adopting_orphans(), begun(kind, health=script("sleep 1000", timeout=1000)) as box:
        ours = own_children()
        keeper = box.inner.pid if kind == "detached" else box.process.keeper_pid
        [killed] = until(lambda: _named(keeper, "dockless-enter"), "a check")
        [orphan] = until(lambda: _named(killed, "dockless-init"), "its init")
        os.kill(killed, signal.SIGKILL)
        until(lambda: not alive(orphan), "the end of its init")
        assert own_children() <= ours


@contextlib.contextmanager
def _adopting_orphans() -> Iterator[None]:
    prctl = ctypes.CDLL(None).prctl
    prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    try:
        yield
    finally:
        prctl(36, 0, 0, 0, 0)


def _named(parent: int, name: str) -> list[int]:
    found = []
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                found.append(int(pid))
    return found


def cli(*arguments: str, code: int = 0) -> str:
    ran = subprocess.run([sys.executable, "-P", "-m", "dockless", *arguments], capture_output=True, text=True, env=os.environ)
    assert ran.returncode == code, (ran.stdout, ran.stderr)
    return ran.stdout or ran.stderr


def test_on_the_command_line():
    options = ("--health-cmd", "test -e /tmp/well", "--health-interval", "50ms", "--health-retries", "2", "--health-timeout", "9s")
    assert cli("run", "-d", "--name", "web", *options, "--health-start-period", "1ms", "--", *FOREVER) == "web\n"
    box = dockless.Sandbox.open("web")
    try:
        assert box.spec.health == HealthCheck(("/bin/sh", "-c", "test -e /tmp/well"), OFTEN, 9, 2, 0.001)
        until(lambda: box.health.status == "unhealthy", "that it is unhealthy")
        assert "running (unhealthy)" in cli("ps") and "web" not in cli("ps", "--filter", "health=healthy")
        cli("wait", "--condition", "healthy", "--timeout", "100ms", "web", code=124)
        box.exec("touch", "/tmp/well", check=True)
        assert json.loads(cli("wait", "--condition", "healthy", "--json", "web"))[0]["status"] == "healthy"
        assert cli("ps", "-q", "--filter", "health=healthy") == "web\n"
        assert json.loads(cli("inspect", "web"))[0]["health"]["exit_code"] == 0
    finally:
        box.rm(force=True)
    assert "what to run" in cli("run", "--health-interval", "1s", "--", "true", code=125)
    assert "leave one" in cli("run", "--no-healthcheck", "--health-cmd", "x", "--", "true", code=125)
