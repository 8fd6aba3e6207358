"""GPUs that are leased outside the queue, beside root's daemon: its quotas allow them, or the start is refused."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.boxes import until
from support.requires import requires
from support.scheduling import DaemonProcess, as_user

import dockless
from dockless import _gpus
from dockless.aio import run as run_async
from dockless.base import idmaps
from dockless.cli import main
from dockless.errors import Refused
from dockless.sandbox.gpus import lease
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec, State

pytestmark = requires("root", "userns")

FOREVER = ["sleep", "1000"]
ME = idmaps.user_name(os.geteuid())
ANNA, BEN = (pwd.getpwnam(name) for name in ("daemon", "bin"))


@pytest.fixture
def daemon(own_host, home) -> Iterator[DaemonProcess]:
    settings = f"[quota]\ndefault = 1\n[quota.users]\n{ME} = {{ limit = 3, classes = {{ H100 = 2 }} }}\n{BEN.pw_name} = 4\n"
    process = DaemonProcess(home, gpus=own_host("4x80G"), settings=settings).start()
    yield process
    process.end()
    assert not lease.holders()


def test_what_a_quota_does_not_allow_is_refused(daemon, capfd):
    """Whoever asks: the library, ``asyncio``, the command line, a sandbox that was created before; and nothing stays leased."""
    refused = f"3 GPUs asked for, and the quota of user {ME} is 3 at once, of which 1 is in use"
    with daemon.client() as queue:
        job = queue.submit(JobSpec(Spec(argv=("sleep", "1000")), gpus="1"))
        until(lambda: queue.job(job).state is State.RUNNING, "it runs")
        with pytest.raises(Refused, match=refused) as found:
            dockless.run("host", ["true"], gpus=3)
        assert "dockless submit" in found.value.hint
        with pytest.raises(Refused, match=refused):
            asyncio.run(run_async("host", ["true"], gpus=3))
        with pytest.raises(Refused, match=refused):
            dockless.start("host", FOREVER, gpus=3)
        assert main(["run", "--gpus", "3", "host", "--", "true"]) == 125 and refused in capfd.readouterr().err
        created = dockless.create("host", FOREVER, gpus=3)
        with pytest.raises(Refused, match=refused):
            created.start()
        created.rm()
        assert len(lease.holders()) == 1
        assert dockless.run("host", ["true"], gpus=2).returncode == 0
        queue.cancel(job, grace=0)


def test_each_user_by_her_own(daemon):
    """Where she has a job, none is left to ``run``; another's quota lets him have more."""

    def asks(wanted: str):
        def work(_):
            os.environ |= {"DOCKLESS_SOCKET": "daemon.sock", "DOCKLESS_HOME": place}
            with _gpus.lease(wanted) as held:
                return len(held.uuids)

        return work

    with tempfile.TemporaryDirectory(prefix="dockless-quotas-", dir="/var/tmp") as place, daemon.client() as queue:
        os.chmod(place, 0o777)
        job = as_user(ANNA.pw_uid, daemon.socket.parent, lambda q: q.submit(JobSpec(Spec(argv=("sleep", "1000")), gpus="1")))[1]
        until(lambda: queue.job(job).state is State.RUNNING, "it runs")
        outcome, name, text = as_user(ANNA.pw_uid, daemon.socket.parent, asks("1"))
        assert (outcome, name) == ("error", "Refused"), text
        assert text == f"1 GPU asked for, and the quota of user {ANNA.pw_name} is 1 at once, of which 1 is in use"
        assert as_user(BEN.pw_uid, daemon.socket.parent, asks("3")) == ("ok", 3)
        queue.cancel(job, grace=0)
        queue.wait(job)
        assert as_user(ANNA.pw_uid, daemon.socket.parent, asks("1")) == ("ok", 1)
        assert as_user(ANNA.pw_uid, daemon.socket.parent, asks("2"))[1] == "Refused"


def test_of_many_at_the_same_time_no_more_start_than_the_quota_allows(daemon):
    def one(_: int) -> object:
        with contextlib.suppress(Refused):
            return dockless.start("host", FOREVER, gpus=1)
        return None

    with ThreadPoolExecutor(4) as pool:
        boxes = [box for box in pool.map(one, range(4)) if box is not None]
    assert len(boxes) <= 3
    for box in boxes:
        box.rm(force=True)


def test_a_quota_of_a_class(own_host, home):
    settings = f"[quota.users]\n{ME} = {{ classes = {{ whole = 2 }} }}\n"
    daemon = DaemonProcess(home, gpus=own_host("4x80G"), settings=settings).start()
    try:
        with pytest.raises(
            Refused, match=f"3 whole GPUs asked for, and the quota of user {ME} is 2 at once, of which 0 are in use"
        ) as found:
            dockless.run("host", ["true"], gpus=3)
        assert found.value.hint == "ask for at most 2, or ask the administrator for a larger quota"
        assert dockless.run("host", ["true"], gpus=2).returncode == 0
    finally:
        daemon.end()


def test_without_a_daemon_or_with_one_that_knows_no_such_question(own_host, home, monkeypatch):
    simulation = own_host("2x80G")
    assert dockless.run("host", ["true"], gpus=2).returncode == 0
    settings = f"[quota.users]\n{ME} = 1\n"
    code = (
        "from dockless.sched.wire.verbs import Verbs; table = Verbs.table\n"
        "Verbs.table = lambda self: {name: verb for name, verb in table(self).items() if name != 'exceeded'}\n"
        "from dockless.sched.daemon import main; raise SystemExit(main([]))"
    )
    daemon = DaemonProcess(home, gpus=simulation, settings=settings, program=("-P", "-c", code)).start()
    try:
        assert dockless.run("host", ["true"], gpus=2).returncode == 0
    finally:
        daemon.end()
