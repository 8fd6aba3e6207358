"""Two users of the host on root's daemon: each one's quota holds, and neither reads, sees into, signals or ends what the other runs."""

from __future__ import annotations

import os
import pwd
import subprocess
import tempfile
from pathlib import Path

import pytest
from support.boxes import until
from support.requires import requires
from support.scheduling import DaemonProcess, as_user

from dockless import Submitted
from dockless.cgroups import Limits, find_delegation
from dockless.cgroups.limits import parse_list
from dockless.sandbox.spec import Bind, Spec
from dockless.sched import Client, JobSpec, State

pytestmark = requires("root", "userns", "two-accounts")
ANNA, BEN = (pwd.getpwnam(name).pw_uid for name in ("daemon", "bin"))
WAITS = "echo up; until [ -e /go/now ]; do sleep 0.05; done"


@pytest.fixture
def place():
    """A directory that everybody comes to."""
    with tempfile.TemporaryDirectory(prefix="dockless-two-users-", dir="/var/tmp") as place:
        os.chmod(place, 0o755)
        yield Path(place)


@pytest.fixture
def go(place: Path) -> Path:
    go = place / "go"
    go.mkdir()
    return go


@pytest.fixture
def daemon(home: Path):
    settings = f"[quota]\ndefault = 2\n[quota.users]\n{pwd.getpwuid(ANNA).pw_name} = 1\n"
    daemon = DaemonProcess(home, gpus="4x80G", settings=settings).start()
    yield daemon
    daemon.end()


def of(uid: int, daemon: DaemonProcess, work):
    """What she gets; an error as ``("error", its class, its text)``."""
    return as_user(uid, daemon.socket.parent, work)


def submitted(uid: int, daemon: DaemonProcess, script: str, go: Path, count: int = 1, **more) -> list[int]:
    limits = more.pop("limits", Limits())
    spec = Spec(argv=("sh", "-c", script), mounts=(Bind(str(go), "/go"),), limits=limits)
    outcome, numbers = of(uid, daemon, lambda queue: queue.submit_many([JobSpec(spec, **more)] * count))
    assert outcome == "ok", numbers
    return numbers


def states(daemon: DaemonProcess, numbers: list[int]) -> list[State]:
    with daemon.client() as queue:
        return [queue.job(number).state for number in numbers]


def up(daemon: DaemonProcess, number: int) -> None:
    """Once its program runs: its first line says so."""
    with daemon.client() as queue:
        for _ in queue.logs(number, follow=True):
            return


def group_of(uid: int, number: int) -> Path:
    """The cgroup of a job's first attempt."""
    (group,) = find_delegation().home.glob(f"user-{uid}/job-{number}-1-*")
    return group


def ended(daemon: DaemonProcess, numbers: list[int]) -> list[tuple[State, int | None]]:
    with daemon.client() as queue:
        return [(job.state, job.exit_code) for job in queue.wait_many(numbers, timeout=120)]


def test_each_ones_quota_holds(daemon: DaemonProcess, go: Path):
    hers = submitted(ANNA, daemon, WAITS, go, 3, gpus="1")
    his = submitted(BEN, daemon, WAITS, go, 3, gpus="1")
    running = [State.RUNNING, State.PENDING, State.PENDING, State.RUNNING, State.RUNNING, State.PENDING]
    until(lambda: states(daemon, hers + his) == running, "one of hers and two of his run")
    with daemon.client() as queue:
        assert "1 of 1" in queue.job(hers[1]).reason or "quota" in queue.job(hers[1]).reason, queue.job(hers[1])
        assert sum(1 for gpu in queue.info().gpus if gpu.job) == 3
    (go / "now").touch()
    assert ended(daemon, hers + his) == [(State.COMPLETED, 0)] * 6


def test_neither_reaches_the_others_job(daemon: DaemonProcess, go: Path):
    (hers,) = submitted(ANNA, daemon, f"{WAITS}; exit 7", go)
    up(daemon, hers)

    def cancel(queue: Client):
        return queue.cancel(hers, grace=0)

    def logs(queue: Client):
        return list(queue.logs(hers))

    def enter(queue: Client):
        os.environ["DOCKLESS_SOCKET"] = "daemon.sock"
        return Submitted(hers).shell("id", text=True).stdout

    for work in (cancel, logs, enter):
        outcome, name, text = (*of(BEN, daemon, work), "")[:3]
        assert (outcome, name) == ("error", "NotPermitted"), (work.__name__, name, text)
    outcome, (seen,) = of(BEN, daemon, lambda queue: queue.queue())
    assert outcome == "ok" and seen.id == hers and "go/now" not in str(seen.as_dict()), seen
    # Signals and /proc, of everything that belongs to it on the host.
    processes = [int(path.name) for path in Path("/proc").glob("[0-9]*") if f"job-{hers}-1-" in _group(path)]
    assert processes
    for process in processes:
        for words in (("kill", "-0", str(process)), ("cat", f"/proc/{process}/environ"), ("ls", f"/proc/{process}/root/")):
            said = subprocess.run(["setpriv", f"--reuid={BEN}", f"--regid={BEN}", "--clear-groups", *words], capture_output=True)
            assert said.returncode != 0, words
    (go / "now").touch()
    assert ended(daemon, [hers]) == [(State.FAILED, 7)]


def test_neither_reads_the_others_files(daemon: DaemonProcess, go: Path, place: Path):
    private = place / "private"
    private.mkdir(mode=0o700)
    (private / "secret").write_text("of hers\n")
    for path in (private, private / "secret"):
        os.chown(path, ANNA, ANNA)
    script = f"cat {private}/secret; ls {private}"
    (his,) = submitted(BEN, daemon, f"({script}) 2>&1; exit 3", go)
    assert ended(daemon, [his]) == [(State.FAILED, 3)]
    with daemon.client() as queue:
        assert "of hers" not in " ".join(line.text for line in queue.logs(his))
    bound = Spec(argv=("cat", "/data/secret"), mounts=(Bind(str(private), "/data"),))
    outcome, number = of(BEN, daemon, lambda queue: queue.submit(JobSpec(bound)))
    if outcome == "ok":
        assert ended(daemon, [number])[0][0] is State.FAILED
        with daemon.client() as queue:
            assert "of hers" not in " ".join(line.text for line in queue.logs(number))


@requires("cgroup2:memory", "cgroup2:pids")
def test_what_one_wastes_is_not_the_others(daemon: DaemonProcess, go: Path):
    """A memory hog, a fork bomb, a flood of output and a filler of memory files end within their own limits; the other's job works on."""
    hogs = {
        "memory": ("head -c 1000000000 /dev/zero | tail; exit 9", Limits(memory_max=32 << 20, memory_swap_max=0)),
        "forks": ("f() { f | f & }; f; sleep 1; exit 9", Limits(pids_max=50, memory_max=64 << 20)),
        "output": ("i=0; while [ $i -lt 20000 ]; do echo a line of a flood $i; i=$((i + 1)); done; exit 9", Limits(memory_max=64 << 20)),
        "shm": ("head -c 30000000 /dev/zero > /dev/shm/full; exit 9", Limits(memory_max=64 << 20)),
    }
    (his,) = submitted(
        BEN, daemon, "i=0; until [ -e /go/now ]; do i=$((i + 1)); done; echo $i; exit 4", go, limits=Limits(memory_max=64 << 20)
    )
    hers = [submitted(ANNA, daemon, script, go, limits=limits)[0] for script, limits in hogs.values()]
    found = dict(zip(hogs, ended(daemon, hers), strict=True))
    assert all(state.ended and state is not State.LOST for state, _ in found.values()), found
    assert states(daemon, [his]) == [State.RUNNING]
    (go / "now").touch()
    assert ended(daemon, [his]) == [(State.FAILED, 4)]
    with daemon.client() as queue:
        assert int([line.text for line in queue.logs(his)][-1]) > 0
        assert queue.wait(queue.submit(JobSpec(Spec(argv=("true",)))), timeout=60).state is State.COMPLETED


@requires("cgroup2:cpu")
def test_each_job_weighs_as_many_cores_as_it_named(daemon: DaemonProcess, go: Path):
    """When processors are short, what one has named is not what the other takes: within a user's jobs, and between users."""
    weights = {
        Limits(cpu_max=0.25): (25, 25),
        Limits(cpu_max=0.5): (50, 50),
        Limits(cpu_max=0.5, cpu_weight=7): (7, 50),
        Limits(pids_max=50): (100, 10),
    }
    for limits, (weight, of_all) in weights.items():
        (number,) = submitted(ANNA, daemon, WAITS, go, limits=limits)
        up(daemon, number)
        group = group_of(ANNA, number)
        assert int((group / "cpu.weight").read_text()) == weight, limits
        until(lambda group=group, of_all=of_all: int((group.parent / "cpu.weight").read_text()) == of_all, f"hers weighs {of_all}")
        with daemon.client() as queue:  # the next finds its cores free, however few there are
            queue.cancel(number, grace=0)
            queue.wait(number, timeout=60)
    both = [submitted(ANNA, daemon, WAITS, go, limits=limits)[0] for limits in (Limits(cpu_max=0.25), Limits(pids_max=50))]
    for number in both:
        up(daemon, number)
    hers = group_of(ANNA, both[0]).parent
    until(lambda: int((hers / "cpu.weight").read_text()) == 35, "hers weighs what both do")
    with daemon.client() as queue:
        queue.cancel(both[0], grace=0)
        queue.wait(both[0], timeout=60)
    until(lambda: int((hers / "cpu.weight").read_text()) == 10, "hers weighs what is left")


@requires("cgroup2:cpuset")
def test_the_processors_of_whole_cores_are_one_users(home: Path, go: Path):
    """Where the settings say so: another's jobs are kept off them as long as hers runs, also by the next daemon."""
    last = max(os.sched_getaffinity(0))
    daemon = DaemonProcess(home, settings='[host]\nown_cores = "yes"\n').start()
    try:
        (hers,) = submitted(ANNA, daemon, WAITS, go, limits=Limits(cpu_max=1.0))
        up(daemon, hers)
        (his,) = submitted(BEN, daemon, WAITS, go)
        up(daemon, his)
        on_hers, on_his = (group_of(uid, number).parent / "cpuset.cpus.effective" for uid, number in ((ANNA, hers), (BEN, his)))

        def may_use(file: Path) -> frozenset[int]:
            return parse_list(file.read_text().strip())

        until(lambda: on_his.exists() and last not in may_use(on_his), "he is kept off her processor")
        assert last in may_use(on_hers)
        daemon.kill9()
        daemon.start()
        (other,) = submitted(BEN, daemon, WAITS, go)
        up(daemon, other)
        until(lambda: last not in may_use(on_his), "he still is")
        with daemon.client() as queue:
            queue.cancel(hers, grace=0)
            queue.wait(hers, timeout=60)
        until(lambda: last in may_use(on_his), "he may use it again")
        (go / "now").touch()
        assert ended(daemon, [his, other]) == [(State.COMPLETED, 0)] * 2
    finally:
        daemon.end()


@requires("cgroup2")
def test_each_users_jobs_lie_in_a_group_of_hers(daemon: DaemonProcess, go: Path):
    """With their keepers, which write down what they say. It is gone when nothing is left in it."""
    home = find_delegation().home
    (first,), (second,) = (submitted(ANNA, daemon, WAITS, go) for _ in range(2))
    (his,) = submitted(BEN, daemon, WAITS, go)
    for number in (first, second, his):
        up(daemon, number)
    groups = {number: group_of(uid, number) for number, uid in ((first, ANNA), (second, ANNA), (his, BEN))}
    assert all((group / "cgroup.procs").read_text() for group in groups.values())
    for uid, count in ((ANNA, 2), (BEN, 1)):
        keepers = (home / f"user-{uid}" / "_keepers" / "cgroup.procs").read_text().split()
        assert len(keepers) == count and all("job-" in Path(f"/proc/{pid}/cmdline").read_text() for pid in keepers), keepers
    with daemon.client() as queue:
        queue.cancel_many([first, his], grace=0)
        queue.wait_many([first, his], timeout=60)
    until(lambda: not (home / f"user-{BEN}").exists(), "his group goes with his last job")
    assert groups[second].exists()
    daemon.kill9()
    daemon.start()
    with daemon.client() as queue:
        assert queue.job(second).state is State.RUNNING
    (go / "now").touch()
    assert ended(daemon, [second]) == [(State.COMPLETED, 0)]
    until(lambda: not (home / f"user-{ANNA}").exists(), "hers, too, also when another daemon than the one that made it removes it")


def _group(process: Path) -> str:
    try:
        return (process / "cgroup").read_text() + (process / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
