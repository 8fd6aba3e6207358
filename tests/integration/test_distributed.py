"""Distributed programs as jobs that start together: PyTorch with gloo where it is installed, and the parameter servers of ``examples/``.

A real daemon; as root in a network namespace of the test's own, where such jobs have networks, and nothing of these is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.boxes import until
from support.networks import links, own_network
from support.requires import requires
from support.scheduling import DaemonProcess

import dockless
from dockless import networks
from dockless.cli import main
from dockless.sandbox.network import records
from dockless.sandbox.run import own_networks
from dockless.sandbox.state import RUNNING
from dockless.sched import connect

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PYTHON = "/usr/bin/python3"
ROOT = os.geteuid() == 0
pytestmark = [
    requires("userns", "netns"),
    pytest.mark.skipif(not EXAMPLES.is_dir(), reason="only the installed package is here, not the sources"),
]
needs_torch = pytest.mark.skipif(
    not os.path.exists("/usr/lib/python3/dist-packages/torch"), reason="Debian's python3-torch is not installed"
)


@pytest.fixture
def daemon(home, monkeypatch):
    """At the end nothing of networks is left: no record, no link, no table."""
    monkeypatch.delenv("DOCKLESS_SOCKET", raising=False)
    monkeypatch.chdir(EXAMPLES.parent)
    with own_network() if ROOT else contextlib.nullcontext():
        before = links()
        process = DaemonProcess(home, gpus="4x80G", settings="[host]\ncores = 64\n").start()
        yield process
        process.end()
        until(lambda: not records.every() and links() == before, "the networks of all jobs, and their links, are gone")
        assert not ROOT or tables() == ""


def tables():
    nft = shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin")
    return subprocess.run([nft, "list", "tables"], capture_output=True, text=True, check=True).stdout if nft else ""


def submitted(capfd, path):
    capfd.readouterr()
    assert main(["submit", "--best-effort", "--json", str(path)]) == 0
    return json.loads(capfd.readouterr().out)["ids"]


def ended(capfd, ids, state="COMPLETED"):
    """What all of them wrote, when they have ended."""
    with connect() as queue:
        jobs = queue.wait_many(ids, timeout=100)
    capfd.readouterr()
    assert main(["logs", str(ids[0])]) == 0
    captured = capfd.readouterr()
    assert jobs[0].state == state, (jobs[0].reason, captured.err)
    return captured.out.splitlines()


def written(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return path


def openpai(roles, program):
    """Of protocol 2. ``roles``: by name, how many instances, and how many of them have to succeed."""
    tasks = "".join(
        f"  {name}: {{instances: {count}, completion: {{minSucceededInstances: {succeed}}}, dockerImage: here, data: code,\n"
        f"    resourcePerInstance: {{cpu: 1, memoryMB: 1024, gpu: {int(count == 1)}}},\n"
        f"    commands: ['OMP_NUM_THREADS=1 {PYTHON} {program}']}}\n"
        for name, (count, succeed) in roles.items()
    )
    needs = "  - {protocolVersion: 2, name: here, type: dockerimage, uri: host}\n"
    needs += f"  - {{protocolVersion: 2, name: code, type: data, uri: [{EXAMPLES}]}}\n"
    return f"protocolVersion: 2\nname: job\ntype: job\nprerequisites:\n{needs}taskRoles:\n{tasks}"


def dlc(roles, program, *more):
    lines = [line for role, count in roles.items() for line in (f"{role}_count={count}", f"{role}_image=host")]
    command = f"command=OMP_NUM_THREADS=1 {PYTHON} {program}"
    return "\n".join(("name=job", command, f"data_sources={EXAMPLES}", *lines, *more, ""))


def compose(roles, program):
    service = f"{{image: host, command: {PYTHON} {program}, environment: [OMP_NUM_THREADS=1], volumes: ['{EXAMPLES}:{EXAMPLES}:ro']}}"
    return "services:\n" + "".join(f"  {role}: {service}\n" for role in roles)


SERVERS = {"chief": 1, "worker": 2, "ps": 2, "evaluator": 1}


@pytest.mark.parametrize("form", ["dockless", "openpai-2", "dlc"])
def test_parameter_servers_find_each_other_by_tf_config(daemon, tmp_path, capfd, form):
    program = EXAMPLES / "parameter_server.py"
    path = {
        "dockless": lambda: EXAMPLES / "parameter_server.toml",
        "openpai-2": lambda: written(
            tmp_path, "job.yaml", openpai({role: (count, 1 if role == "chief" else -1) for role, count in SERVERS.items()}, program)
        ),
        "dlc": lambda: written(tmp_path, "job.params", dlc(SERVERS, program, "success_policy=ChiefWorker")),
    }[form]()
    ids = submitted(capfd, path)
    assert len(ids) == 6
    said = ended(capfd, ids)
    assert said[:3] == [
        "chief 0 | trained [2.0, -3.0, 0.5, 1.0] with worker-0 worker-1", "worker 0 | worker-0 is done", "worker 1 | worker-1 is done",
    ]  # fmt: skip


@needs_torch
@pytest.mark.parametrize("form", ["dockless", "openpai-2", "dlc", "compose"])
def test_pytorch_trains_one_model_in_four_roles(daemon, tmp_path, capfd, form):
    roles, program = ("master", "worker", "reader", "checker"), EXAMPLES / "distributed.py"
    path = {
        "dockless": lambda: EXAMPLES / "distributed.toml",
        "openpai-2": lambda: written(tmp_path, "job.yaml", openpai(dict.fromkeys(roles, (1, 1)), program)),
        "dlc": lambda: written(tmp_path, "job.params", dlc({"worker": 4}, program)),
        "compose": lambda: written(tmp_path, "compose.yaml", compose(roles, program)),
    }[form]()
    said = ended(capfd, submitted(capfd, path))
    for rank in range(4):
        assert any(line.endswith(f"rank {rank} of 4: the ranks are 6 together") for line in said)
        assert any(f"rank {rank}: trained [2.0, -3.0, 0.5]" in line for line in said)


@needs_torch
def test_pytorch_after_a_retry(daemon, tmp_path, capfd):
    """One of them fails when all know each other; the others fail for it, and then all begin again, on the same addresses."""
    fails = """import os, sys, torch.distributed as dist
dist.init_process_group("gloo", init_method="env://")
dist.barrier()
if os.environ["DOCKLESS_ATTEMPT"] == "1" and os.environ["RANK"] == "2":
    sys.exit(9)
dist.barrier()
print("over", flush=True)
"""
    script = written(tmp_path, "fails.py", fails)
    text = f"retries = 1\nimage = 'host'\nmounts = ['{script}:/fails.py:ro']\ncommand = ['{PYTHON}', '/fails.py']\n"
    ids = submitted(capfd, written(tmp_path, "job.toml", f"{text}[roles.master]\n[roles.worker]\ncount = 2\n"))
    assert ended(capfd, ids) == ["master 0 | over", "worker 0 | over", "worker 1 | over"]
    with connect() as queue:
        assert queue.job(ids[0]).attempt == 2


WHERE = "import os, socket; print(socket.gethostname(), socket.gethostbyname(socket.gethostname()), os.environ['MASTER_ADDR'])"


@requires("root")
def test_each_finds_its_own_address_by_its_host_name(daemon, tmp_path, capfd):
    """gloo tells the others that one; also where the job has a name or a network of its own."""
    text = f"""image = "host"
command = ["python3", "-c", "{WHERE}"]
[roles.master]
hostname = "mine"
[roles.worker]
[roles.further]
network = "bridge"
[roles."a..b"]
"""
    said = ended(capfd, submitted(capfd, written(tmp_path, "job.toml", text)))
    found = [line.split(" | ")[1].split() for line in said]
    assert [name for name, _, _ in found] == ["mine", "worker-0", "further-0", "rank-3"]
    addresses = [address for _, address, _ in found]
    assert addresses == [f"10.{addresses[0].split('.')[1]}.{addresses[0].split('.')[2]}.{number}" for number in range(2, 6)]
    assert {master for _, _, master in found} == {"master-0"}
    until(lambda: not networks.get("bridge").sandboxes, "nobody is on it")
    networks.remove("bridge")


MEETING = """image = "host"
mounts = ["{place}:/place"]
[roles.master]
command = ["python3", "-c", '''
import os, socket, time
s = socket.create_server(("", int(os.environ["MASTER_PORT"])))
c = s.accept()[0]
open("/place/met", "w").close()
while not os.path.exists("/place/go"):
    time.sleep(0.02)
c.sendall(b"go")
''']
[roles.worker]
command = ["python3", "-c", '''
import os, socket, time
while True:
    try:
        c = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
        break
    except ConnectionRefusedError:
        time.sleep(0.02)
print("told to", c.recv(9).decode())
''']
"""


@pytest.fixture
def meeting(tmp_path, capfd):
    """Begin it; returns its numbers and the directory in which it looks whether it may end, when they have met."""

    def begin():
        place = tmp_path / "place"
        place.mkdir()
        ids = submitted(capfd, written(tmp_path, "job.toml", MEETING.replace("{place}", str(place))))
        until((place / "met").exists, "they have met")
        return ids, place

    return begin


@pytest.mark.parametrize("away", [False, True], ids=["while it works", "while nobody serves"])
def test_a_daemon_that_is_killed_leaves_no_network(daemon, meeting, capfd, away):
    ids, place = meeting()
    daemon.kill9()
    if not away:
        daemon.start()
    (place / "go").touch()
    if away:
        with contextlib.suppress(FileNotFoundError):  # the worker's keeper has written how it ended
            until(lambda: all(box.inner.state() not in RUNNING for box in dockless.list()), "both have ended")
        daemon.start()
    assert ended(capfd, ids) == ["worker 0 | told to go"]


def test_a_job_that_is_cancelled_leaves_no_network(daemon, meeting):
    ids, _ = meeting()
    assert [network.patience for network in records.every()] == ([60] if ROOT or not own_networks.why_none() else [])
    with connect() as queue:
        queue.cancel(ids[0], grace=0)
        assert [job.state for job in queue.wait_many(ids, timeout=30)] == ["CANCELLED"] * 2


CALL = """import socket, sys, time
while True:
    try:
        print(socket.create_connection((sys.argv[1], 80)).recv(9).decode())
        break
    except ConnectionRefusedError:
        time.sleep(0.02)
"""
SERVE = "import socket\ns = socket.create_server(('', 80))\nwhile True: s.accept()[0].sendall(b'here')"


@requires("root")
def test_who_begins_early_is_not_told_that_there_is_no_route(home):
    """On the network of jobs that start together; on others it is told so after three seconds."""
    with own_network():
        boxes = []
        try:
            for name, patience in (("early", 60), ("other", 0)):
                subnet = f"10.99.{patience}.0/24"
                records.create(name, subnets=[subnet], internal=True, patience=patience)
                boxes.append(dockless.start(["python3", "-c", CALL, f"10.99.{patience}.9"], network=name))
            early, other = boxes
            assert other.wait(timeout=30).exit_code == 1 and early.inner.alive
            assert "No route to host" in "".join(map(str, other.logs()))
            boxes.append(dockless.start(["python3", "-c", SERVE], network="early:ip=10.99.60.9"))
            assert early.wait(timeout=30).exit_code == 0 and "here" in "".join(map(str, early.logs()))
        finally:
            for box in boxes:
                box.inner.remove()
