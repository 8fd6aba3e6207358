"""``quota set`` and ``Client.reload`` with a real daemon: it goes on with the new settings, its jobs run on."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path

import pytest
from support.boxes import until
from support.requires import requires
from support.scheduling import DaemonProcess, as_user

from dockless.cli import main
from dockless.errors import BadInput, Refused
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec, QuotaInfo, State

pytestmark = requires("userns")
ME = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture
def daemon(home: Path, monkeypatch):
    daemon = DaemonProcess(home, gpus="4x80G", settings="# ours\n[quota]\ndefault = 1\n").start()
    monkeypatch.setenv("DOCKLESS_HOME", str(home))
    yield daemon
    daemon.end()


def mine(daemon: DaemonProcess) -> QuotaInfo:
    with daemon.client() as queue:
        return next(one for one in queue.quotas() if (one.kind, one.name) == ("user", ME))


def job(gpus: str) -> JobSpec:
    return JobSpec(Spec(argv=("sleep", "1000")), gpus=gpus)


def test_the_daemon_has_it_at_once(home, daemon, capfd):
    with daemon.client() as queue:
        first = queue.submit(job("1"))
        until(lambda: queue.job(first).state is State.RUNNING, "it runs")
        with pytest.raises(Refused, match=r"needs 2 GPUs, the quota of user .* is 1"):
            queue.submit(job("2"))
        assert main(["quota", "set", "user", ME, "limit=3", "guarantee=1", "weight=2", "jobs=5"]) == 0
        assert capfd.readouterr().out == (
            f"user {ME}: limit 3, guarantee 1, weight 2, jobs 5 ({home / 'dockless.toml'})\n"
            f"The default no longer holds for {ME}.\n"
            "The weight has no effect: queue.order is 'fifo'. Write order = \"fair\" below [queue].\nThe daemon has read it.\n"
        )
        found = mine(daemon)
        assert (found.limit, found.guarantee, found.weight, found.jobs) == (3, 1, 2, 5)
        second = queue.submit(job("2"))
        until(lambda: queue.job(second).state is State.RUNNING, "it starts")
        assert queue.job(first).state is State.RUNNING
    assert main(["quota", "set", "user", ME, "--unset", "weight", "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert said["before"] == {"limit": 3, "guarantee": 1, "weight": 2, "jobs": 5}
    assert said["after"] == {"limit": 3, "guarantee": 1, "jobs": 5} and said["reloaded"] is True and said["reason"] == ""
    assert mine(daemon).weight is None
    assert (home / "dockless.toml").read_text().startswith("# ours\n[quota]\ndefault = 1\n")
    assert f" op=reload changed=quota.users.{ME} ok\n" in (daemon.home / "state" / "audit.log").read_text()


def test_all_that_the_file_says_holds_from_then_on(home, daemon):
    """Order, guarantees and the rest, not quotas alone; what cannot be read changes nothing."""
    file = home / "dockless.toml"
    file.write_text('[queue]\norder = "fair"\nper_user = 1\n[quota]\ndefault = { limit = 4, guarantee = 2 }\n')
    with daemon.client() as queue:
        assert queue.reload() == file
        queue.submit(job("4"))
        assert mine(daemon).guarantee == 2
        with pytest.raises(Refused, match="would pass the limit of 1"):
            queue.submit(job("1"))
        file.write_text('[queue]\norder = "fare"\n')
        with pytest.raises(BadInput, match=r"queue\.order is 'fare', not one of"):
            queue.reload()
        assert mine(daemon).guarantee == 2
    assert "settings not changed: " in daemon.errors()


def test_where_no_daemon_runs(home, monkeypatch, capfd):
    monkeypatch.setenv("DOCKLESS_HOME", str(home))
    assert main(["quota", "set", "default", "limit=2"]) == 0
    assert capfd.readouterr().out == f"default: limit 2 ({home / 'dockless.toml'})\nNo daemon runs: it holds from the next start.\n"
    assert main(["quota", "set", "default", "--unset", "limit", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["reloaded"] is False


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["show", "user"], "quota show takes nothing else"),
        (["set"], "quota set: whose quota, and what of it?"),
        (["set", "anna", "limit=1"], "'anna' is no kind of quota"),
        (["set", "user", "limit=1"], "which user?"),
        (["set", "default", "limit"], "'limit' is not KEY=NUMBER"),
        (["set", "default", "limit=-1"], "'limit=-1' is not KEY=NUMBER"),
        (["set", "default", "limit=1", "limit=2"], "limit is set twice"),
        (["set", "user", "root", "limt=1"], "a quota has no 'limt'"),
    ],
)
def test_what_is_not_understood(home, monkeypatch, capfd, words, what):
    monkeypatch.setenv("DOCKLESS_HOME", str(home))
    assert main(["quota", *words]) == 125
    assert what in capfd.readouterr().err and not (home / "dockless.toml").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, whose daemon serves others")
def test_others_may_not(home, daemon, monkeypatch):
    def ask(queue):
        os.environ["DOCKLESS_HOME"] = str(home)
        from dockless.cli import quota

        queue.ping()
        with pytest.raises(Exception, match="the settings of this daemon are those of root"):
            monkeypatch.setattr("dockless.sched.connect", lambda: queue)
            quota._own_daemon()
        queue._open()
        queue.reload()

    assert as_user(1, daemon.socket.parent, ask)[:2] == ("error", "NotPermitted")
