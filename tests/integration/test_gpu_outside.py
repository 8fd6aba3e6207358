"""GPU time of leases outside the queue: in reports, on disk, and in a fair order."""

from __future__ import annotations

import os
import pwd
import tempfile
import time
from collections.abc import Iterator

import pytest
from support.boxes import until
from support.requires import requires
from support.scheduling import DaemonProcess, as_user

from dockless.sandbox.gpus import gpu, lease
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec, State

pytestmark = requires("root", "userns")

ANNA, BEN = (pwd.getpwnam(name) for name in ("daemon", "bin"))
QUICK = (
    "from dockless.sched.engine import outside; outside.EVERY, outside.WRITE_EVERY = 0.1, 0.5\n"
    "from dockless.sched.daemon import main; raise SystemExit(main([]))"
)


@pytest.fixture
def place() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="dockless-outside-", dir="/var/tmp") as place:
        os.chmod(place, 0o777)
        yield place


@pytest.fixture
def daemon(own_host, home) -> Iterator[DaemonProcess]:
    settings = f'[queue]\norder = "fair"\n[groups]\nlab = ["{ANNA.pw_name}"]\n[quota.groups]\nlab = 1\n'
    process = DaemonProcess(home, gpus=own_host("1x80G"), settings=settings, program=("-P", "-c", QUICK)).start()
    yield process
    process.end()
    assert not lease.holders()


def has(uid: int, seconds: float, daemon: DaemonProcess, place: str) -> None:
    """That user has the GPU for so long, without the queue."""

    def work(_):
        os.environ["DOCKLESS_HOME"] = place
        with lease.lease(gpu.parse_request("1")):
            time.sleep(seconds)

    assert as_user(uid, daemon.socket.parent, work) == ("ok", None)


def outside(daemon: DaemonProcess, by: str = "user") -> dict[str, float]:
    with daemon.client() as queue:
        return {used.key: used.outside_seconds for used in queue.usage(by=by) if used.outside_seconds}


def test_it_is_reported_and_stays(daemon, place):
    has(ANNA.pw_uid, 2.0, daemon, place)
    daemon.stop()  # what it has not written yet, it writes now
    daemon.start()
    found = outside(daemon)
    assert outside(daemon, "group").keys() == {"lab"}, "as that of her jobs without a label"
    assert found.keys() == {ANNA.pw_name} and 1.0 < found[ANNA.pw_name] <= 2.0
    has(ANNA.pw_uid, 1.0, daemon, place)
    until(lambda: outside(daemon)[ANNA.pw_name] > found[ANNA.pw_name], "more is written while it runs")


@pytest.mark.parametrize("restarted", [False, True])
def test_a_fair_order_counts_it(daemon, place, restarted):
    """Who has had the GPU by ``run`` comes after who has not, also where the daemon has been started again since."""
    with daemon.client() as queue:
        first = queue.submit(JobSpec(Spec(argv=("true",)), gpus="1"))
        queue.wait(first)
    has(ANNA.pw_uid, 2.0, daemon, place)
    if restarted:
        daemon.stop()
        daemon.start()
    with lease.lease(gpu.parse_request("1")) as held:
        hers, his = (
            as_user(user.pw_uid, daemon.socket.parent, lambda q: q.submit(JobSpec(Spec(argv=("true",)), gpus="1")))[1]
            for user in (ANNA, BEN)
        )
        with daemon.client() as queue:
            until(lambda: queue.job(his).state is State.PENDING is queue.job(hers).state, "both wait")
            held.close()
            done = [queue.wait(number, timeout=60) for number in (hers, his)]
    assert all(job.state is State.COMPLETED for job in done) and done[1].started < done[0].started, done
