"""``metrics``: each line as Prometheus reads it."""

from __future__ import annotations

import contextlib
import re
from types import SimpleNamespace

import pytest

from dockless import sched
from dockless.cli import main
from dockless.errors import DaemonUnavailable
from dockless.sandbox.gpus import gpu, lease
from dockless.sched import HostInfo
from dockless.sched.wire import metrics
from dockless.sched.wire.top import GpuUse, JobUse, Top, UserUse

LINE = re.compile(r'[a-z_]+({[a-z]+="([^"\\\n]|\\.)*"(,[a-z]+="([^"\\\n]|\\.)*")*})? [0-9.e+]+')


@pytest.fixture
def shown(home, monkeypatch, capfd):
    def shown(host: HostInfo | None = None, top: Top | None = None) -> list[str]:
        top = top or Top(1.0)

        def connect():
            if host is None:
                raise DaemonUnavailable("nobody")
            return contextlib.nullcontext(SimpleNamespace(info=lambda: host, top=lambda: top))

        monkeypatch.setattr(sched, "connect", connect)
        assert main(["metrics"]) == 0
        lines = capfd.readouterr().out.splitlines()
        for line in lines:
            assert line.startswith("# ") or LINE.fullmatch(line), line
        return [line for line in lines if not line.startswith("#")]

    return shown


def test_neither_a_daemon_nor_gpus(shown):
    assert shown() == ["dockless_daemon_up 0"]


def test_the_queue_and_its_quotas(shown):
    assert shown(HostInfo(waiting=3, running=2, quotas=(("user", 'a"n\\', 1, 4), ("group", "lab", 2, None)))) == [
        "dockless_daemon_up 1",
        "dockless_jobs_waiting 3",
        "dockless_jobs_running 2",
        r'dockless_quota_gpus_used{kind="user",name="a\"n\\"} 1',
        'dockless_quota_gpus_used{kind="group",name="lab"} 2',
        r'dockless_quota_gpus_limit{kind="user",name="a\"n\\"} 4',
    ]


def test_how_jobs_that_start_together_count():
    """They wait as one and run as several."""
    lines = metrics.text(HostInfo(waiting=1, running=4), Top(1.0, users=(UserUse("ann", running=4, waiting=1),))).splitlines()
    told = [line.partition(" Jobs ")[2] for line in lines if line.startswith("# HELP") and "_jobs_" in line]
    one, each = "; those that start together are one.", ", each of those that start together."
    assert [line.endswith(one) for line in told] == [True, False, True, False]
    assert [line.endswith(each) for line in told] == [False, True, False, True]


def test_cores_and_memory(shown):
    assert shown(HostInfo(cores=60.0, cores_used=2.5, memory=480 << 30, memory_used=0))[3:] == [
        "dockless_cores 60",
        "dockless_cores_asked 2.5",
        f"dockless_memory_bytes {480 << 30}",
        "dockless_memory_asked_bytes 0",
    ]


def test_gpus(shown, monkeypatch):
    """What a slice does not tell is left out; numbers are whole."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G,mig=1,busy=0")
    with lease.lease(gpu.parse_request(next(unit.uuid for unit in gpu.units(gpu.inventory()) if unit.parent))):
        lines = shown()
    assert [line.rpartition(" ")[2] for line in lines if line.startswith("dockless_gpu_leased")] == ["0", "1"]
    assert [line.rpartition(" ")[2] for line in lines if line.startswith("dockless_gpu_memory_bytes")] == [str(80 << 30)] * 2
    assert [line.rpartition(" ")[2] for line in lines if line.startswith("dockless_gpu_power_watts")] == ["300.5"]
    assert all('simulated="true"' in line for line in lines[1:])


def test_what_jobs_and_users_have(shown):
    """Of the daemon's one picture; what a driver does not tell is left out, and a job's name is none of its labels."""
    top = Top(
        1.0,
        (GpuUse(0, "GPU-0", "H100", 10, job=7, user="ann", busy=0.5),),
        (JobUse(7, "ann", "secret", (0,), busy=0.25, used=5), JobUse(8, "ben", "", (1,)), JobUse(9, "ben")),
        (UserUse("ann", 1, 1, 3),),
    )
    lines = shown(HostInfo(), top)
    assert [line for line in lines if line.startswith(("dockless_job_", "dockless_user_"))] == [
        'dockless_user_jobs_waiting{user="ann"} 3',
        'dockless_user_jobs_running{user="ann"} 1',
        'dockless_job_gpus{job="7",user="ann"} 1',
        'dockless_job_gpus{job="8",user="ben"} 1',
        'dockless_job_gpu_busy_ratio{job="7",user="ann"} 0.25',
        'dockless_job_gpu_memory_used_bytes{job="7",user="ann"} 5',
    ]
    assert 'dockless_gpu_leased{gpu="0",uuid="GPU-0",model="H100",user="ann"} 1' in lines


def test_each_has_an_explanation():
    assert all(text.endswith(".") and name.startswith("dockless_") for name, text in metrics.HELP.items())
