"""``metrics``: each line as Prometheus reads it."""

from __future__ import annotations

import contextlib
import re

import pytest

from dockless import sched
from dockless.cli import main, metrics
from dockless.errors import DaemonUnavailable
from dockless.sandbox.gpus import gpu, lease
from dockless.sched import HostInfo

LINE = re.compile(r'[a-z_]+({[a-z]+="([^"\\\n]|\\.)*"(,[a-z]+="([^"\\\n]|\\.)*")*})? [0-9.e+]+')


@pytest.fixture
def shown(home, monkeypatch, capfd):
    def shown(host: HostInfo | None = None) -> list[str]:
        def connect():
            if host is None:
                raise DaemonUnavailable("nobody")
            return contextlib.nullcontext(type("Queue", (), {"info": lambda self: host})())

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


def test_gpus(shown, monkeypatch):
    """What a slice does not tell is left out; numbers are whole."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G,mig=1,busy=0")
    with lease.lease(gpu.parse_request(next(unit.uuid for unit in gpu.units(gpu.inventory()) if unit.parent))):
        lines = shown()
    assert [line.rpartition(" ")[2] for line in lines if line.startswith("dockless_gpu_leased")] == ["0", "1"]
    assert [line.rpartition(" ")[2] for line in lines if line.startswith("dockless_gpu_memory_bytes")] == [str(80 << 30)] * 2
    assert [line.rpartition(" ")[2] for line in lines if line.startswith("dockless_gpu_power_watts")] == ["300.5"]
    assert all('simulated="true"' in line for line in lines[1:])


def test_each_has_an_explanation():
    assert all(text.endswith(".") and name.startswith("dockless_") for name, text in metrics._HELP.items())
