"""``info``, ``daemon``, ``doctor``, ``demo`` and ``version``: all that they print, and what they pass on."""

from __future__ import annotations

import contextlib
import json
import os
import platform
from dataclasses import replace

import pytest

import dockless
from dockless import demo, doctor, sched
from dockless.base import idmaps
from dockless.errors import DaemonUnavailable, GpuDriverMissing
from dockless.sandbox.gpus import gpu
from dockless.sandbox.gpus import lease as gpu_lease
from dockless.sched import DaemonInfo, HostInfo
from dockless.sched import daemon as the_daemon
from dockless.sched.wire.protocol import GpuInfo
from dockless.sched.wire.top import GpuShare

DAEMON = DaemonInfo(pid=77, version="1.2", owner_uid=0, user="ann", admin=False, started=940.0, socket="/run/d.sock")
GPUS = (
    GpuInfo(0, "GPU-0", "H100", 80 << 30, job=5, user="bob", since=880.0),
    GpuInfo(1, "GPU-1", "H100", 80 << 30, outside=True),
    GpuInfo(2, "GPU-2", "A2", 16 << 30),
)
HOST = HostInfo(GPUS, waiting=3, running=2, quotas=(("user", "ann", 1, 4), ("user", "bob", 0, 0), ("group", "lab", 2, None)))
TABLE = """\
GPU  MODEL  MEMORY  UUID   HOLDER          USER  SINCE
0    H100   80 GiB  GPU-0  job 5           bob   2m
1    H100   80 GiB  GPU-1  in use outside
2    A2     16 GiB  GPU-2  free
"""
QUOTAS = """\
quota       user ann: 1 of 4 GPUs in use
quota       user bob: 0 of 0 GPUs in use
quota       group lab: 2 GPUs in use, no limit
"""
OUTAGE = "  hint: make room on the disk of the daemon's directory; until then no job is started, and no end is recorded\n"


@pytest.fixture
def info(monkeypatch, say):
    """What ``info`` says where this daemon answers, at 1000 seconds of the clock."""
    monkeypatch.setattr("dockless.cli.output.time.time", lambda: 1000.0)

    def info(*words: str, host: HostInfo = HOST, daemon: DaemonInfo = DAEMON) -> tuple[int, str, str]:
        class Client:
            info = staticmethod(lambda: host)
            ping = staticmethod(lambda: daemon)

        monkeypatch.setattr(sched, "connect", lambda: contextlib.nullcontext(Client))
        return say("info", *words)

    return info


def test_what_the_daemon_knows(info):
    asked = info(host=replace(HOST, cores=32.0, cores_used=1.5, memory=64 << 30, memory_used=3 << 30))[1]
    assert "\ncores       1.5 of 32 asked for by running jobs\nmemory      3 GiB of 64 GiB asked for by running jobs\n" in asked
    head = "daemon      process 77 at /run/d.sock, up 1m; you are ann{}\njobs        2 running, 3 waiting\n"
    assert info() == (0, head.format("") + TABLE + QUOTAS, "")
    simulated = replace(HOST, gpus=(GPUS[2], replace(GPUS[0], simulated=True)), quotas=())
    code, out, err = info(host=simulated, daemon=replace(DAEMON, admin=True))
    assert (code, err) == (0, "") and out.startswith(head.format(", administrator"))
    assert out.splitlines()[-2:] == ["0    H100   80 GiB  GPU-0  job 5   bob   2m", "GPUs are simulated."]
    for error, shown in (("", ""), ("the driver is broken", ": the driver is broken")):
        assert info(host=HostInfo(gpu_error=error))[1].splitlines()[1:] == ["jobs        0 running, 0 waiting", f"gpus        none{shown}"]
    code, out, err = info("--json")
    assert (code, err) == (0, "") and json.loads(out) == json.loads(json.dumps(HOST.as_dict() | {"daemon": DAEMON.as_dict()}))


def test_what_counts_for_shares_is_never_more_than_what_is_in_use(info):
    """Two on one GPU count each; three that start together count for the GPU that they have."""
    each, together = (tuple(GpuShare("ann", 1 << 30, job) for job in jobs) for jobs in ((1, 2), (3, 4, 5)))
    gpus = tuple(GpuInfo(at, f"GPU-{at}", user="ann", shares=shares) for at, shares in enumerate((each, together, ())))
    out = info(host=HostInfo(gpus, quotas=(("user", "ann", 4, None), ("user", "bob", 1, 2))))[1]
    assert out.endswith(
        "quota       user ann: 4 GPUs in use, no limit, of which 3 for shares of a GPU\nquota       user bob: 1 of 2 GPUs in use\n"
    )


def test_a_daemon_that_cannot_write_says_so(info):
    code, out, err = info(daemon=replace(DAEMON, outage="the disk is full"))
    assert (code, err) == (0, "dockless: the disk is full\n" + OUTAGE) and out.endswith(TABLE + QUOTAS)


@pytest.fixture
def _no_daemon(monkeypatch):
    def connect():
        raise DaemonUnavailable("nobody answers", hint="start it")

    monkeypatch.setattr(sched, "connect", connect)


NOBODY = "daemon      nobody answers\n            start it\n"


@pytest.mark.usefixtures("_no_daemon")
def test_gpus_where_no_daemon_answers(home, monkeypatch, say):
    """Held by a lease, in use by somebody else, free."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "3x80G,busy=2")
    units = {unit.index: unit for unit in gpu.units(gpu.inventory())}
    busy = next(index for index, unit in units.items() if unit.processes)
    me = idmaps.user_name(os.geteuid())
    holders = {1: f"a process of {me}  {me}", busy: "in use outside"}
    assert busy != 1
    with gpu_lease.lease(gpu.parse_request("device=1")):
        code, out, err = say("info", "--json")
        shown = say("info")
    assert (code, err) == (0, "") and json.loads(out) == {
        "daemon": None,
        "gpus": [
            {
                "index": index, "uuid": unit.uuid, "model": unit.model, "memory": 80 << 30, "simulated": True,
                "held": index == 1, "user": me if index == 1 else "", "trouble": "", "outside": index == busy, "shares": [],
            }
            for index, unit in units.items()
        ],
        "gpu_error": "",
        "unleased": [],
    }  # fmt: skip
    assert shown[0::2] == (0, "") and shown[1].startswith(NOBODY + "GPU  MODEL ") and shown[1].endswith("\nGPUs are simulated.\n")
    rows = [line.split(f"  {unit.uuid}  ") for line, unit in zip(shown[1].splitlines()[3:-1], units.values(), strict=True)]
    assert rows == [[f"{index}    {unit.model}  80 GiB", holders.get(index, "free")] for index, unit in units.items()]


@pytest.mark.usefixtures("_no_daemon")
def test_the_hosts_display_leaves_a_gpu_free(home, monkeypatch, say, tmp_path):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")
    (state := tmp_path / "state").write_text("graphics 0 4711 4194304\ngraphics 1 4712 1073741824\n")
    monkeypatch.setenv("DOCKLESS_SIMULATED_STATE", str(state))
    assert [row["outside"] for row in json.loads(say("info", "--json")[1])["gpus"]] == [False, True]
    shown = json.loads(say("top", "--json")[1])["gpus"]
    assert [(row["outside"], row["programs"][0]["pid"]) for row in shown] == [(False, 4711), (True, 4712)]


@pytest.mark.usefixtures("_no_daemon")
def test_real_gpus_are_not_called_simulated(home, monkeypatch, say):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "1x80G")
    (unit,) = gpu.units(gpu.inventory())
    monkeypatch.setattr(gpu, "units", lambda found: (replace(unit, uuid="GPU-0", model="H100", simulated=False),))
    assert say("info") == (0, f"{NOBODY}GPU  MODEL  MEMORY  UUID   HOLDER  USER\n0    H100   80 GiB  GPU-0  free\n", "")


@pytest.mark.usefixtures("_no_daemon")
def test_a_gpu_on_which_a_run_computes_is_not_in_use_outside(home, monkeypatch, say):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "1x80G,busy=0")
    (unit,) = gpu.units(gpu.inventory())
    monkeypatch.setattr(gpu_lease, "holders", lambda uuids: {unit.uuid: 4_000_000_000})
    assert unit.processes and "  a process of 4000000000  4000000000\n" in say("info")[1]
    (shown,) = json.loads(say("info", "--json")[1])["gpus"]
    assert (shown["held"], shown["outside"]) == (True, False)


@pytest.mark.usefixtures("_no_daemon")
@pytest.mark.parametrize("problem", ["", "no NVIDIA driver"])
def test_neither_a_daemon_nor_gpus(home, monkeypatch, say, problem):
    asked = []

    def inventory(*, links):
        asked.append(links)
        if problem:
            raise GpuDriverMissing(problem)
        return ()

    monkeypatch.setattr(gpu, "inventory", inventory)
    assert say("info") == (0, f"{NOBODY}gpus        none{': ' + problem if problem else ''}\n", "")
    code, out, err = say("info", "--json")
    assert (code, json.loads(out), err) == (0, {"daemon": None, "gpus": [], "gpu_error": problem, "unleased": []}, "")
    assert asked == [False, False]


@pytest.mark.parametrize(("words", "passed"), [((), []), (("--socket", "/x/s"), ["--socket", "/x/s"])])
def test_the_daemon_and_where_it_listens(monkeypatch, say, words, passed):
    monkeypatch.setattr(the_daemon, "main", lambda arguments: 3 if arguments == passed else 99)
    assert say("daemon", *words) == (3, "", "")


def test_doctor(monkeypatch, say):
    findings = [doctor.Finding("one", "ok", "fine"), doctor.Finding("two", "note", "less", "do this")]
    monkeypatch.setattr(doctor, "examine", lambda: findings)
    code, out, err = say("doctor")
    assert (code, err) == (0, "") and out.splitlines() == doctor.lines(findings) and "fine" in out
    assert say("doctor", "-q")[1].splitlines() == doctor.lines(findings, only_problems=True)
    first = {"name": "one", "status": "ok", "what": "fine", "next_step": ""}
    second = {"name": "two", "status": "note", "what": "less", "next_step": "do this"}
    code, out, err = say("doctor", "--json")
    assert (code, json.loads(out), err) == (0, {"can_run": True, "checks": [first, second]}, "")
    findings.append(doctor.Finding("three", "fail", "broken"))
    assert say("doctor")[0] == 1
    code, out, _ = say("doctor", "--json")
    assert code == 1 and json.loads(out)["can_run"] is False


@pytest.mark.parametrize("words", [(), ("--keep",)])
def test_the_demo(monkeypatch, say, words):
    monkeypatch.setattr(demo, "run_demo", lambda *, keep: 5 if keep else 4)
    assert say("demo", *words) == (5 if words else 4, "", "")


def test_version(say):
    assert say("version") == say("--version") == say("-V") == say("-v") == (0, f"dockless {dockless.__version__}\n", "")
    code, out, err = say("version", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {"version": dockless.__version__, "python": platform.python_version(), "linux": platform.release()}
