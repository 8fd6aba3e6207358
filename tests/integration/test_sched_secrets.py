"""A67: what a request holds is its user's business: not in the daemon's log, whatever fails in it, and not in what others are shown."""

from __future__ import annotations

import pwd

import pytest
from support.boxes import until
from support.scheduling import DaemonProcess, as_user

from dockless.errors import SchedError
from dockless.sandbox.spec import Bind, Spec
from dockless.sched import Client, JobSpec, State

pytestmark = pytest.mark.requires("userns")

SECRET = "hunter2"
JOB = JobSpec(
    Spec(argv=("true", f"--password={SECRET}"), env=(("TOKEN", SECRET),), mounts=(Bind(f"/nowhere/{SECRET}", "/m"),)), name=f"n{SECRET}"
)

# Each fails with everything it was given in the error's text, where the daemon meets a request's content.
PLACES = {
    "a verb": "admission.Admission.admit = fail",
    "the launch": "detached.start = fail",
    "the end of a job": "ending.end = fail",
    "a callback of the loop": "engine.Engine._enter = later(engine.Engine._enter)",
    "a thread": "engine.Engine._enter = threaded(engine.Engine._enter)",
}
BROKEN = """
import asyncio, sys, threading
from dockless.sandbox.run import detached
from dockless.sched import daemon
from dockless.sched.engine import engine
from dockless.sched.engine.admission import admission
from dockless.sched.engine.lifecycle import ending

def fail(*things, **more):
    raise RuntimeError(f"hunter2 {things} {more}")

def later(enter):
    def entering(self, live):
        asyncio.get_running_loop().call_soon(fail, "hunter2")
        return enter(self, live)
    return entering

def threaded(enter):
    def entering(self, live):
        thread = threading.Thread(target=fail, args=("hunter2",))
        thread.start()
        thread.join()
        return enter(self, live)
    return entering

PLACE
sys.exit(daemon.main())
"""


@pytest.mark.parametrize("place", PLACES)
def test_a_fault_of_ours_does_not_tell_what_was_asked(home, place):
    daemon = DaemonProcess(home, program=("-c", BROKEN.replace("PLACE", PLACES[place]))).start()
    try:
        with daemon.client() as queue:
            if place == "a verb":
                with pytest.raises(SchedError, match="the daemon failed: RuntimeError in ") as caught:
                    queue.submit(JOB)
                assert SECRET not in str(caught.value)
            else:
                number = queue.submit(JOB)
                if place == "the end of a job":
                    until(lambda: "RuntimeError in " in daemon.errors(), "the fault is told")
                else:
                    done = queue.wait(number, timeout=30)
                    assert place != "the launch" or ("RuntimeError in " in done.reason and SECRET not in done.reason)
    finally:
        daemon.stop()
    assert SECRET not in daemon.errors()
    if place != "the launch":
        assert "RuntimeError in " in daemon.errors()


def test_a_repr_does_not_tell_the_environment():
    assert "hunter2" not in repr(JobSpec(Spec(env=(("TOKEN", SECRET),))))


@pytest.mark.requires("root")
def test_others_are_not_told_why_a_job_ended(home):
    anna, bob = (pwd.getpwnam(name).pw_uid for name in ("daemon", "bin"))
    daemon = DaemonProcess(home).start()

    def end(queue: Client):
        return queue.wait(queue.submit(JOB), timeout=30)

    try:
        _, mine = as_user(anna, daemon.socket.parent, end)
        assert mine.state is State.FAILED and SECRET in mine.reason
        outcome, (seen,) = as_user(bob, daemon.socket.parent, lambda q: q.queue(ended=True))
        assert outcome == "ok" and seen.state is State.FAILED
        assert SECRET not in str(seen.as_dict()) and SECRET not in str(as_user(bob, daemon.socket.parent, lambda q: q.job(seen.id)))
    finally:
        daemon.stop()
    assert SECRET not in daemon.errors()
