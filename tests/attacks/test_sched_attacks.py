"""A55, scheduler abuse: flooding, forged callers, absurd requests, paths that lead elsewhere, a socket full of rubbish.

The daemon runs as root and serves several users here; they are processes of their own that connect with a uid of their own.
"""

from __future__ import annotations

import functools
import itertools
import os
import pwd
import re
import shutil
import socket
import tempfile
import time
from pathlib import Path

import pytest
from support.scheduling import DaemonProcess, as_user

from dockless.sandbox.spec import Bind, Namespaces, Spec
from dockless.sched import Client, JobSpec, State
from dockless.sched.wire import protocol

pytestmark = [pytest.mark.requires("root", "userns")]

# Accounts that every system has and nobody uses: a job of theirs gets a single id.
ANNA, BOB = pwd.getpwnam("daemon").pw_uid, pwd.getpwnam("bin").pw_uid
SETTINGS = """
[quota.users]
daemon = 2
[quota.groups]
vision = 3
[groups]
vision = ["daemon", "bin"]
[queue]
per_user = 20
[host]
cpu_jobs = 4
"""


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory):
    """One daemon for all that leave nothing in it."""
    daemon = DaemonProcess(tmp_path_factory.mktemp("d"), gpus="4x80G", settings=SETTINGS).start()
    yield daemon
    daemon.end()


@pytest.fixture
def daemon(home: Path):
    daemon = DaemonProcess(home, gpus="4x80G", settings=SETTINGS).start()
    yield daemon
    daemon.end()


@pytest.fixture
def anna(daemon):
    return functools.partial(as_user, ANNA, daemon.socket.parent)


@pytest.fixture
def bob(daemon):
    return functools.partial(as_user, BOB, daemon.socket.parent)


def sleeper(**more) -> JobSpec:
    return JobSpec(Spec(argv=("sleep", "1000")), **more)


def refused(outcome, name: str) -> bool:
    return outcome[0] == "error" and outcome[1] == name


def test_who_one_is_comes_from_the_kernel(standing):
    anna = functools.partial(as_user, ANNA, standing.socket.parent)
    assert anna(lambda q: (q.ping().user, q.ping().admin)) == ("ok", ("daemon", False))

    def lie(queue: Client):
        return queue._call("ping", uid=0, user="root", admin=True)["daemon"]["user"]

    assert anna(lie) == ("ok", "daemon")


def test_another_users_job_is_not_hers(daemon, anna, bob):
    with daemon.client() as root:
        secret = JobSpec(Spec(argv=("sh", "-c", "echo secret; sleep 1000")), name="secret plan")
        _, number = anna(lambda q: q.submit(secret))
        for _ in root.logs(number, follow=True):
            break
        for verb in ("cancel", "wait", "job"):
            assert refused(bob(lambda q, verb=verb: getattr(q, verb)(number)), "NotPermitted"), verb
        assert refused(bob(lambda q: list(q.logs(number))), "NotPermitted")
        assert refused(bob(lambda q: q.shutdown()), "NotPermitted")
        _, (seen,) = bob(lambda q: q.queue())
        assert (seen.user, seen.name, seen.command, seen.image) == ("daemon", "", "", "")
        assert root.job(number).state is State.RUNNING and root.job(number).name == "secret plan"
        _, others = bob(lambda q: q.submit(JobSpec(Spec(argv=("sleep", "1000")))))
        assert refused(bob(lambda q: q.cancel_many([others, number])), "NotPermitted")
        assert root.job(others).state is not State.CANCELLED and root.job(number).state is State.RUNNING
        assert anna(lambda q: q.cancel(number, grace=0))[0] == "ok"
        assert root.wait(number, timeout=30).state is State.CANCELLED


def test_a_job_runs_as_its_user(daemon, anna):
    """Files it makes are hers, and what only root can reach is not mounted for her."""
    place = Path(tempfile.mkdtemp(prefix="dk-", dir="/var/tmp"))
    try:
        os.chown(place, ANNA, ANNA)
        job = JobSpec(Spec(argv=("sh", "-c", "echo hers > /data/file"), mounts=(Bind(str(place), "/data"),)))
        outcome, done = anna(lambda q: q.wait(q.submit(job), timeout=30))
        assert outcome == "ok" and done.state is State.COMPLETED, done
        assert ((place / "file").stat().st_uid, (place / "file").read_text()) == (ANNA, "hers\n")
        closed = place / "closed"
        closed.mkdir(mode=0o700)
        (closed / "key").write_text("secret")
        for source in (closed, closed / "key"):
            peek = JobSpec(Spec(argv=("cat", "/data/key", "/data"), mounts=(Bind(str(source), "/data"),)))
            outcome, done = anna(lambda q, peek=peek: q.wait(q.submit(peek), timeout=30))
            assert outcome == "ok" and done.state is State.FAILED
            assert "secret" not in str(anna(lambda q, done=done: [line.text for line in q.logs(done.id)]))
    finally:
        shutil.rmtree(place)


def test_ids_without_an_account_are_not_served(standing):
    assert refused(as_user(61001, standing.socket.parent, lambda q: q.submit(JobSpec())), "NotPermitted")
    assert refused(as_user(65534, standing.socket.parent, lambda q: q.ping()), "NotPermitted")


@pytest.mark.parametrize(
    "job",
    [
        JobSpec(priority=1),
        JobSpec(group="root"),
        JobSpec(Spec(profile="privileged")),
        JobSpec(Spec(namespaces=Namespaces(user="host"))),
        JobSpec(Spec(oom_score_adj=-1000)),
        JobSpec(Spec(mounts=(Bind("/", "/host", idmap=True),))),
    ],
)
def test_what_is_for_root(standing, job):
    assert refused(as_user(ANNA, standing.socket.parent, lambda q: q.submit(job)), "NotPermitted")


def test_flooding_ends_at_the_cap(daemon, anna, bob):
    def flood(queue: Client):
        queue.submit_array(sleeper(gpus="1"), 15)
        queue.submit_many([sleeper(gpus="1")] * 5)
        return queue.submit(sleeper())

    assert refused(anna(flood), "Refused")
    assert refused(anna(lambda q: q.submit_array(sleeper(), 10_000)), "Refused")
    # The others are served all the same.
    assert bob(lambda q: q.wait(q.submit(JobSpec(Spec(argv=("true",)), gpus="1")), timeout=30).state) == ("ok", State.COMPLETED)
    with daemon.client() as root:
        assert len(root.queue(user="daemon")) == 20


def test_quotas_hold_for_a_user_and_her_group(daemon, anna, bob):
    _, mine = anna(lambda q: q.submit_many([sleeper(gpus="1") for _ in range(4)]))
    _, his = bob(lambda q: q.submit_many([sleeper(gpus="1") for _ in range(4)]))
    with daemon.client() as root:
        for number in (*mine[:2], his[0]):
            deadline = time.monotonic() + 20
            while root.job(number).state is not State.RUNNING:
                assert time.monotonic() < deadline, root.job(number)
        gpus = root.info().gpus
        assert sorted(gpu.user for gpu in gpus) == ["", "bin", "daemon", "daemon"]
        assert "user daemon uses 2 of 2" in root.job(mine[2]).reason
        assert "group vision uses 3 of 3" in root.job(his[1]).reason
    assert refused(anna(lambda q: q.submit(sleeper(gpus="3"))), "Refused")
    assert refused(bob(lambda q: q.submit(sleeper(gpus="4"))), "Refused")


@pytest.mark.parametrize(
    "fields",
    [
        {"op": "submit", "jobs": [{"gpus": "-2"}]},
        {"op": "submit", "jobs": [{"gpus": "99999999999999999999"}]},
        {"op": "submit", "jobs": [{"time_limit": -5}]},
        {"op": "submit", "jobs": [{"time_limit": 1e300}]},
        {"op": "submit", "jobs": [{"priority": -(10**30)}]},
        {"op": "submit", "jobs": [{"uid": 0}]},
        {"op": "submit", "jobs": [{"id": 1}]},
        {"op": "submit", "jobs": [{}], "array": -1},
        {"op": "submit", "jobs": [{}], "array": 10**9},
        {"op": "submit", "jobs": [{}, {}], "array": 3},
        {"op": "submit", "jobs": []},
        {"op": "submit", "jobs": [None]},
        {"op": "submit"},
        {"op": "job", "job": -1},
        {"op": "job", "job": "1; DROP TABLE jobs"},
        {"op": "job", "job": 10**40},
        {"op": "job", "job": True},
        {"op": "cancel", "jobs": [1.5]},
        {"op": "cancel", "job": 1},
        {"op": "wait", "jobs": "all"},
        {"op": "wait", "jobs": [1], "timeout": -1},
        {"op": "queue", "limit": -1},
        {"op": "queue", "user": ["x"]},
        {"op": "logs", "job": "../../etc/shadow"},
        {"op": "__class__"},
        {"op": ["submit"]},
        {},
    ],
)
def test_absurd_requests_are_answered_with_an_error(standing, fields):
    with socket.socket(socket.AF_UNIX) as wire:
        wire.settimeout(10)
        wire.connect(str(standing.socket))
        wire.sendall(protocol.encode({"v": protocol.VERSION, **fields}))
        answer = protocol.decode(wire.makefile("rb").readline())
        assert answer["ok"] is False and answer["error"]["code"] in ("bad_input", "unknown_job", "not_enough_gpus")
    with standing.client() as root:
        assert root.queue(ended=True) == []


@pytest.mark.parametrize(
    "raw",
    [
        b"\n",
        b"rubbish\n",
        b"[]\n",
        b"null\n",
        b'{"v":2,"op":"ping"}\n',
        b'{"op":"ping"}\n',
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b'{"v":1',
    ],
)
def test_rubbish_on_the_wire(standing, raw):
    with socket.socket(socket.AF_UNIX) as wire:
        wire.settimeout(10)
        wire.connect(str(standing.socket))
        wire.sendall(raw)
        wire.shutdown(socket.SHUT_WR)
        answer = wire.makefile("rb").readline()
        assert not answer or protocol.decode(answer)["ok"] is False
    with standing.client() as root:
        assert root.ping().pid


def test_a_line_without_end_is_cut_off(standing):
    with socket.socket(socket.AF_UNIX) as wire:
        wire.settimeout(10)
        wire.connect(str(standing.socket))
        sent = 0
        try:
            while sent < 8 * protocol.MAX_REQUEST:
                sent += wire.send(b"x" * 65536)
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert sent < 8 * protocol.MAX_REQUEST
    with standing.client() as root:
        assert root.ping().pid


def test_connections_of_one_user_are_counted(daemon, anna):
    def grab(queue: Client):
        held = []
        for _ in range(200):
            wire = socket.socket(socket.AF_UNIX)
            wire.settimeout(10)
            wire.connect("daemon.sock")
            held.append(wire)
        held[-1].sendall(protocol.encode({"v": 1, "op": "ping"}))
        return protocol.decode(held[-1].makefile("rb").readline())

    outcome, answer = anna(grab)
    assert outcome == "ok" and answer["error"]["code"] == "refused"
    with daemon.client() as root:
        assert root.ping().pid


def test_a_log_that_leads_elsewhere_is_not_read(daemon, anna, tmp_path):
    """CVE-2026-53489's idea: the log of a job becomes a link to a file that only root can read."""
    secret = tmp_path / "secret"
    secret.write_text("t stdout F secret\n")
    with daemon.client() as root:
        _, number = anna(lambda q: q.submit(JobSpec(Spec(argv=("sh", "-c", "echo up; sleep 1000")))))
        for _ in root.logs(number, follow=True):
            break
        (sandbox,) = (daemon.home / "state" / "sandboxes").iterdir()
        for bait in (Path.symlink_to, Path.hardlink_to):
            (sandbox / "log").unlink()
            bait(sandbox / "log", secret)
            assert anna(lambda q: list(q.logs(number))) == ("ok", [])
        assert anna(lambda q: q.cancel(number, grace=0))[0] == "ok"
        root.wait(number, timeout=30)
        assert anna(lambda q: list(q.logs(number))) == ("ok", [])
    assert secret.read_text() == "t stdout F secret\n"


def test_a_user_cannot_name_her_gpus_in_her_environment(daemon, anna):
    """Only a lease shows a GPU: not NVIDIA_VISIBLE_DEVICES, not Spec.gpus."""
    wants = JobSpec(Spec(argv=("sh", "-c", "ls /dev | grep -c nvidia"), env=(("NVIDIA_VISIBLE_DEVICES", "all"),)))
    outcome, job = anna(lambda q: q.wait(q.submit(wants), timeout=30))
    assert outcome == "ok" and job.exit_code == 1
    assert anna(lambda q: [line.text for line in q.logs(job.id)]) == ("ok", ["0"])

    def forge(queue: Client):
        return queue._call("submit", jobs=[{"spec": {"gpus": ["GPU-51d01a7e-d000-4000-8000-000000000000"]}}])

    assert refused(anna(forge), "BadInput")


def _most_resident(pid: int) -> int:
    """Bytes of memory that it has had at most."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) << 10


def test_parts_that_are_never_finished_are_bounded(home: Path):
    """From many connections at once: what is kept of one user is no more than she may have in the queue, and is gone with them."""
    daemon = DaemonProcess(home, settings="[queue]\nper_user = 500\nper_user_size = 8388608\n").start()
    pid = daemon.process.pid

    def flood(size: int, queue: Client) -> tuple[int, int]:
        job = protocol.encode({"spec": {"argv": ["true", "x" * size], "image": "host"}})[:-1]
        part = protocol.submission([job] * min(50, protocol.PART // len(job)), op="part", of=500)
        refused, taken = 0, 0
        wires = [socket.socket(socket.AF_UNIX) for _ in range(40)]
        for wire in wires:
            wire.settimeout(20)
            wire.connect("daemon.sock")
            wire.sendall(part * 3)
            answers = [protocol.decode(line) for line in itertools.islice(wire.makefile("rb"), 3)]
            if all(answer["ok"] for answer in answers):
                taken += int(answers[-1]["kept"])
            else:  # and what came before is kept no more
                refused += 1
        return refused, taken

    try:
        before = _most_resident(pid)
        for size, most in ((100, 500), (100_000, 83)):
            outcome, (refused, taken) = as_user(ANNA, daemon.socket.parent, functools.partial(flood, size))
            assert outcome == "ok" and refused > 20 and 0 < taken <= most, (refused, taken)
            with daemon.client() as root:
                assert not root.queue()
        assert _most_resident(pid) - before < 40 << 20
        outcome, number = as_user(ANNA, daemon.socket.parent, lambda q: q.submit(sleeper()))
        assert outcome == "ok" and number == 1
    finally:
        daemon.end()
