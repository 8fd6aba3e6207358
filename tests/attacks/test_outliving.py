"""What entered a sandbox and does not want to end: with its cgroup, and where it has none.

Rows A48 and A61 of the list of attacks. Who enters a sandbox may make processes beside itself, orphans, and as many as it can; after a time
limit, a kill or the end of its client nothing of them is left, and the sandbox goes on.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.boxes import load, until
from support.make_image import file
from support.requires import requires

from dockless import DEVNULL, PIPE, Sandbox
from dockless.base.healthcheck import HealthCheck
from dockless.errors import LaunchFailed
from dockless.sandbox.run import foreground
from dockless.sandbox.spec import Namespaces

pytestmark = requires("userns", "overlay", "gcc")

WAYS = ("beside", "twice", "bomb", "ignoring", "stopped", "unmarked")
FOREVER = ("sleep", "1000")
OUTLIVING = "/outliving/outliving"


@pytest.fixture(scope="module")
def program() -> Iterator[str]:
    """The mount of a directory with the program of ``outliving.c``."""
    with tempfile.TemporaryDirectory(prefix="test-outliving-") as place:
        os.chmod(place, 0o755)
        source = Path(__file__).with_name("outliving.c")
        subprocess.run(["gcc", "-O1", "-static", "-o", f"{place}/outliving", source], check=True)
        yield f"{place}:/outliving:ro"


@pytest.fixture(params=[pytest.param("grouped", marks=requires("cgroup2")), "ungrouped"])
def grouped(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "ungrouped":
        monkeypatch.setattr(foreground, "make_cgroup", lambda *given: None)
    return request.param == "grouped"


@pytest.fixture
def box(grouped: bool, program: str, tmp_path: Path) -> Iterator[Sandbox[bytes]]:
    with Sandbox(load(tmp_path), FOREVER, stdin=DEVNULL, mounts=[program]) as found:
        yield found
        assert found.poll() is None, "it ended more than what entered"


def _left(box: Sandbox[bytes], name: str = "outliving") -> list[int]:
    """The numbers of those that have not ended; dead ones are collected by the sandbox's init when it gets to it."""
    found = box.shell("cat /proc/[0-9]*/stat 2>&-; true", text=True, check=True).stdout.splitlines()
    return [int(line.split()[0]) for line in found if f" ({name}) " in line and f" ({name}) Z" not in line]


@pytest.mark.parametrize("way", WAYS)
def test_nothing_outlives_a_time_limit(box, way):
    for _ in range(3):
        with box.spawn(OUTLIVING, way, stdin=DEVNULL, stdout=PIPE, text=True, timeout=1.0) as command:
            assert command.stdout.readline() == "on\n"
            ended = command.wait(20)
        assert ended.timed_out and _left(box) == []


@pytest.mark.parametrize("way", WAYS)
def test_nothing_outlives_its_client_and_other_commands_go_on(box, way):
    with (
        box.spawn(OUTLIVING, "beside", stdin=DEVNULL, stdout=PIPE, text=True) as other,
        box.spawn("sleep", "1000", stdin=DEVNULL) as third,
    ):
        assert other.stdout.readline() == "on\n"
        before = _left(box)
        with box.spawn(OUTLIVING, way, stdin=DEVNULL, stdout=PIPE, text=True) as command:
            assert command.stdout.readline() == "on\n"
            assert len(_left(box)) > len(before)
        assert _left(box) == before and other.poll() is None and third.poll() is None
    assert _left(box) == []


def test_the_end_of_an_earlier_command_is_not_that_of_a_later_one(box):
    with box.spawn(OUTLIVING, "beside", stdin=DEVNULL, stdout=PIPE, text=True, timeout=3.0) as first:
        assert first.stdout.readline() == "on\n"
        with box.spawn("sleep", "1000", stdin=DEVNULL) as second:
            assert first.wait(20).timed_out and _left(box) == []
            assert second.poll() is None and len(_left(box, "sleep")) == 2


def test_what_was_left_by_an_ordinary_end_is_not_another_commands(box):
    """Whatever a later one does, and at its time limit."""
    box.shell("sleep 777 >/dev/null 2>&1 &", stdin=DEVNULL, check=True)
    with box.spawn(OUTLIVING, "unmarked", stdin=DEVNULL, stdout=PIPE, text=True, timeout=0.5) as command:
        assert command.stdout.readline() == "on\n" and command.wait(20).timed_out
    assert len(_left(box, "sleep")) == 2  # and the sandbox's own


@pytest.mark.parametrize("grouped", ["ungrouped"], indirect=True)
@pytest.mark.parametrize("low", ["locks", "rttime", "rss"])
def test_with_one_limit_that_is_low_only_its_own_are_ended(grouped, program, low):
    """In the same sandbox and in another one, whichever began first, also by checks of health that pass."""
    limits = {low: 1000}
    health = HealthCheck(("true",), interval=0.05, timeout=5.0, retries=100)
    with (
        Sandbox("host", FOREVER, stdin=DEVNULL, mounts=[program], ulimits=limits, health=health) as box,
        Sandbox("host", FOREVER, stdin=DEVNULL, ulimits=limits) as beside,
        Sandbox("host", FOREVER, stdin=DEVNULL) as unlimited,
    ):
        others = [one.spawn(*FOREVER, stdin=DEVNULL) for one in (box, beside, unlimited)]
        checks = box.health.count
        with box.spawn(OUTLIVING, "beside", stdin=DEVNULL, stdout=PIPE, text=True) as command:
            assert command.stdout.readline() == "on\n"
            others += [one.spawn(*FOREVER, stdin=DEVNULL) for one in (box, beside, unlimited)]
        assert _left(box) == []
        until(lambda: box.health.count >= checks + 3, "three checks")
        assert unlimited.exec("sleep", "99", timeout=0.2).timed_out
        assert [other.poll() for other in others] == [None] * 6
        for other in others:
            other.close()


@pytest.mark.parametrize("grouped", ["ungrouped"], indirect=True)
@pytest.mark.parametrize("limits", [{"locks": 1000, "rttime": 1000}, {"rss": 1000, "rttime": 0}])
def test_what_could_not_be_found_again_is_not_started(grouped, limits):
    with Sandbox("host", FOREVER, stdin=DEVNULL, ulimits=limits) as box:
        with pytest.raises(LaunchFailed) as error:
            box.exec("true")
        assert "'locks', 'rttime' and 'rss'" in str(error.value.hint)


def test_nothing_enters_a_sandbox_from_what_has_entered_one_so():
    """Its mark would be below the other's, and an unrelated time limit its end."""
    ran = subprocess.run([sys.executable, "-c", _NESTED], capture_output=True, text=True, check=True)
    assert "from what has entered another sandbox" in ran.stdout


_NESTED = """
import ctypes
from dockless import DEVNULL, Sandbox
from dockless.errors import LaunchFailed
from dockless.sandbox.run import foreground
foreground.make_cgroup = lambda *given: None
low = (ctypes.c_uint64 * 2)(2**64 - 2**62 - 5, 2**64 - 2**62 - 5)
assert not ctypes.CDLL(None).prlimit(0, 10, low, None)
with Sandbox("host", ("sleep", "1000"), stdin=DEVNULL) as box:
    try:
        box.exec("true")
    except LaunchFailed as error:
        print(error.hint)
"""


@pytest.mark.parametrize("grouped", ["ungrouped"], indirect=True)
def test_who_forks_faster_than_it_can_be_killed_ends_its_sandbox(grouped, program):
    """300 that run all the time leave the process that is to end them no time. Then the kernel ends the sandbox, and that is said."""
    limits = {"nproc": 1000}  # with those that nobody has time to collect: else they take every number of the host
    with (
        Sandbox("host", FOREVER, stdin=DEVNULL, mounts=[program], ulimits=limits) as box,
        Sandbox("host", FOREVER, stdin=DEVNULL) as other,
    ):
        with box.spawn(OUTLIVING, "flood", stdin=DEVNULL, stdout=PIPE, text=True, timeout=1.0) as command:
            ended = command.wait(60)
        assert ended.timed_out
        if ended.unended:
            last = box.wait(60)
            assert last.unended or last.lost
        else:
            assert _left(box) == [] and box.poll() is None
        until(lambda: not _running("outliving"), "the end of all", 60)
        assert other.poll() is None


USERS = [Namespaces(), pytest.param(Namespaces(user="host"), marks=requires("root"))]


def _low() -> None:
    for limit in (10, resource.RLIMIT_RSS, 15):  # LOCKS, RTTIME
        resource.setrlimit(limit, (1000, 1000))


@pytest.mark.parametrize("namespaces", USERS)
@pytest.mark.parametrize("grouped", ["ungrouped"], indirect=True)
def test_what_is_outside_is_left_alone_whatever_its_limits(grouped, namespaces):
    """A process of the host and another sandbox, with all three limits set so low that they are below each mark. What may not be looked
    into, and is in another PID namespace, cannot be told apart: where the sandbox has a user namespace, that is what others have there."""
    outside = [FOREVER, ("unshare", "--pid", "--fork", "--kill-child", *FOREVER)][: 1 + (namespaces.user == "host")]
    with contextlib.ExitStack() as running:
        box = running.enter_context(Sandbox("host", FOREVER, stdin=DEVNULL, namespaces=namespaces))
        others: list[Sandbox[bytes] | subprocess.Popen[bytes]] = []
        if os.geteuid() == 0:  # root's sandboxes have one user namespace
            limits = {"locks": 1000, "rttime": 1000, "rss": 1000}
            others.append(running.enter_context(Sandbox("host", FOREVER, stdin=DEVNULL, namespaces=namespaces, ulimits=limits)))
        for argv in outside:
            others.append(running.enter_context(subprocess.Popen(argv, preexec_fn=_low)))
            running.callback(others[-1].kill)
        assert box.exec("sleep", "99", timeout=0.3).timed_out
        assert [one.poll() for one in (box, *others)] == [None] * (1 + len(others))


@pytest.mark.parametrize("grouped", ["ungrouped"], indirect=True)
@pytest.mark.parametrize("namespaces", USERS)
def test_a_pid_namespace_of_its_own_hides_nothing(grouped, program, namespaces):
    """It is below the sandbox's."""
    with Sandbox("host", FOREVER, stdin=DEVNULL, mounts=[program], cap_add=["SYS_ADMIN"], namespaces=namespaces) as box:
        for levels in (1, 2):
            argv = [*["unshare", "--pid", "--fork"] * levels, OUTLIVING, "beside"]
            with box.spawn(*argv, stdin=DEVNULL, stdout=PIPE, text=True, timeout=1.0) as command:
                assert command.stdout.readline() == "on\n"
                assert command.wait(20).timed_out and _left(box) == []
        assert box.poll() is None


@requires("root", "kernel>=5.8", "program:unshare", "program:setpriv")  # before that hidepid was one for all of a PID namespace
@pytest.mark.parametrize("hidden", [0, 1, 2])
def test_nothing_outlives_that_its_user_may_not_look_into(program, hidden):
    """A program that she may run and not read, also where /proc hides it from the keeper, which is hers."""
    place = Path(program.partition(":")[0])
    unread = place / "unread"
    if not unread.exists():
        unread.write_bytes((place / "outliving").read_bytes())
        unread.chmod(0o111)
    with tempfile.TemporaryDirectory(prefix="test-hidepid-") as home:
        os.chown(home, 12345, 12345)
        script = f'mount -t proc -o hidepid={hidden} proc /proc && exec setpriv --reuid 12345 --regid 12345 --clear-groups "$@"'
        wrapped = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", sys.executable, "-P", "-c"]
        env = {**os.environ, "DOCKLESS_HOME": home, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        if subprocess.run([*wrapped, "import dockless"], capture_output=True, env=env).returncode:
            pytest.skip("only root can run this Python, or read this checkout")
        ran = subprocess.run([*wrapped, _HERS, program], capture_output=True, text=True, env=env)
        assert ran.stdout.split() == ["on", "True", "None", "0"], ran.stderr


_HERS = """
import sys
from dockless import DEVNULL, PIPE, Sandbox
from dockless.sandbox.run import foreground
foreground.make_cgroup = lambda *given: None
with Sandbox("host", ("sleep", "1000"), stdin=DEVNULL, mounts=[sys.argv[1]]) as box:
    with box.spawn("/outliving/unread", "beside", stdin=DEVNULL, stdout=PIPE, text=True, timeout=1.0) as command:
        print(command.stdout.readline(), command.wait(20).timed_out, box.poll())
    seen = box.shell("cat /proc/[0-9]*/stat 2>&-; true", text=True, check=True).stdout.splitlines()
    print(sum(" (unread) " in line and " (unread) Z" not in line for line in seen))
"""


def _running(name: str) -> list[str]:
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            line = place.read_text()
        except OSError:
            continue
        if f"({name})" in line and f"({name}) Z" not in line:
            found.append(line)
    return found


@pytest.mark.parametrize("way", [*WAYS, "parent"])
def test_nothing_outlives_what_looks_into_a_sandbox(grouped, program, tmp_path, way):
    """At its own end too: it has more rights than the sandbox."""
    tools = Path(program.partition(":")[0], "outliving").read_bytes()
    image = load(tmp_path, [file("bin/outliving", tools, 0o755)], name="tools:latest")
    with Sandbox(load(tmp_path), FOREVER, stdin=DEVNULL) as box:
        with box.spawn_debug(image, "outliving", way, stdin=DEVNULL, stdout=PIPE, text=True, timeout=1.0) as command:
            assert command.stdout.readline() == "on\n"
            ended = command.wait(20)
        assert ended.timed_out is (way != "parent") and _left(box) == []
        with box.spawn_debug(image, "sh", "-c", "outliving beside & read line", stdin=PIPE, stdout=PIPE, text=True) as command:
            assert command.stdout.readline() == "on\n"
            command.stdin.close()
            assert command.wait(20).code == 1
        assert _left(box) == [] and box.poll() is None


@pytest.mark.parametrize("way", ["beside", "twice", "stopped"])
def test_nothing_outlives_a_check_of_its_health(grouped, program, tmp_path, way):
    health = HealthCheck((OUTLIVING, way), interval=0.05, timeout=0.5, retries=100)
    with Sandbox(load(tmp_path), FOREVER, stdin=DEVNULL, mounts=[program], health=health) as box:
        until(lambda: box.health.count >= 3, "three checks")
        until(lambda: len(_left(box)) <= 6, "what is left is of one check")


@requires("root", "cgroup2")
def test_who_ends_the_one_that_waits_for_it_leaves_nothing(program):
    """A61: it sees its parent, who waits for it, where the processes are the host's."""
    with (
        Sandbox("host", FOREVER, stdin=DEVNULL, mounts=[program], namespaces=Namespaces(pid="host")) as box,
        box.spawn(OUTLIVING, "parent", stdin=DEVNULL, stdout=PIPE, text=True) as command,
    ):
        assert command.stdout.readline() == "on\n"
        assert command.wait(20).signal == 9 and _left(box) == []
