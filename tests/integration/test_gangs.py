"""Job files of several roles: their jobs start together, reach each other, and end together. A real daemon, simulated GPUs."""

from __future__ import annotations

import contextlib
import json
import os

import pytest
from support.boxes import until
from support.networks import own_network
from support.requires import requires
from support.scheduling import DaemonProcess

from dockless.cli import main
from dockless.sandbox.run import own_networks
from dockless.sched import connect

pytestmark = requires("userns")

MEETING = """
name = "meeting"
[roles.worker]
count = 2
gpus = 1
command = ["python3", "-c", '''
import os, socket, time
for _ in range(400):
    try:
        s = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
        break
    except OSError:
        time.sleep(0.05)
s.sendall(os.environ["RANK"].encode())
print("heard", s.recv(20).decode())
''']
[roles.master]
ports = { http = 2 }
command = ["python3", "-c", '''
import os, socket
s = socket.create_server(("", int(os.environ["MASTER_PORT"])))
came = []
for _ in range(int(os.environ["WORLD_SIZE"]) - 1):
    c, _ = s.accept()
    came.append(c.recv(9).decode())
    c.sendall(b"welcome")
print("ranks", *sorted(came))
print("knows", socket.gethostbyname("worker"), os.environ["TF_CONFIG"])
''']
"""


@pytest.fixture
def daemon(home, monkeypatch):
    monkeypatch.delenv("DOCKLESS_SOCKET", raising=False)
    with own_network() if os.geteuid() == 0 else contextlib.nullcontext():
        process = DaemonProcess(home, gpus="4x80G").start()
        yield process
        process.end()


def submitted(tmp_path, text, *more, name="job.toml"):
    path = tmp_path / name
    path.write_text(text)
    assert main(["submit", "--json", str(path), *more]) == 0


def numbers(capfd):
    return json.loads(capfd.readouterr().out)["ids"]


def logs(capfd, job):
    capfd.readouterr()
    assert main(["logs", str(job)]) == 0
    return capfd.readouterr().out


def test_workers_reach_their_master(daemon, tmp_path, capfd):
    submitted(tmp_path, MEETING)
    ids = numbers(capfd)
    with connect() as queue:
        jobs = queue.wait_many(ids, timeout=60)
    assert [(job.state, job.reason, job.options.role, job.options.role_index) for job in jobs] == [
        ("COMPLETED", "", "master", 0), ("COMPLETED", "", "worker", 0), ("COMPLETED", "", "worker", 1),
    ]  # fmt: skip
    assert len(jobs[1].devices) == len(jobs[2].devices) == 1 and jobs[1].devices != jobs[2].devices
    said = logs(capfd, f"{ids[0]}_0")
    assert "ranks 1 2\n" in said
    _, address, cluster = said.splitlines()[1].split(" ", 2)
    own = [job.options.ports[0] for job in jobs]
    if os.geteuid() == 0 or not own_networks.why_none():  # each has an address of its own
        assert address.startswith("10.")
        at = [f"{name}:{port}" for name, port in zip(("master-0", "worker-0", "worker-1"), own, strict=True)]
    else:
        assert address == "127.0.0.1"
        at = [f"127.0.0.1:{port}" for port in own]
    assert json.loads(cluster) == {"cluster": {"master": at[:1], "worker": at[1:]}, "task": {"type": "master", "index": 0}}
    assert len(jobs[0].options.ports) == 3
    assert logs(capfd, f"{ids[0]}_1") == "heard welcome\n"
    together = logs(capfd, ids[0])
    assert "worker 0 | heard welcome\nworker 1 | heard welcome\n" in together and together.startswith("master 0 | ranks 1 2\n")


OF_ONE = {
    "one.yaml": "services: {main: {image: host, command: [env]%s}}",
    "one.params": "worker_count=1\nworker_image=host\ncommand=env\n",
    "one.json": '{"jobName": "a", "image": "host", "taskRoles": [{"name": "main", "taskNumber": 1, "cpuNumber": 1, "memoryMB": 100,'
    ' "gpuNumber": 0, "command": "env", "portList": [{"label": "http", "beginAt": 0, "portNumber": 2}]}]}',
}


@pytest.mark.parametrize(
    ("name", "more"),
    [
        *((name, "") for name in OF_ONE),
        ("one.yaml", ", network_mode: host"),
        pytest.param("one.yaml", ", pid: host", marks=requires("cgroup2")),
    ],
)
def test_a_job_of_one_instance_is_told_what_many_are(daemon, tmp_path, capfd, name, more):
    """No more than its lines is in its log, and it is shown as the one job that it is."""
    role = "worker" if name == "one.params" else "main"
    submitted(tmp_path, OF_ONE[name].replace("%s", more), "--best-effort", name=name)
    (first,) = numbers(capfd)
    with connect() as queue:
        assert queue.wait(first, timeout=60).state == "COMPLETED"
    env = dict(line.split("=", 1) for line in logs(capfd, first).splitlines() if "=" in line)
    port = env["DOCKLESS_PORT"]
    assert {key: env[key] for key in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "DOCKLESS_ROLE")} == {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "DOCKLESS_ROLE": role,
    }  # fmt: skip
    assert json.loads(env["TF_CONFIG"]) == {"cluster": {role: [f"127.0.0.1:{port}"]}, "task": {"type": role, "index": 0}}
    assert main(["queue", str(first)]) == 0
    assert "starts together" not in capfd.readouterr().out
    if name == "one.json":
        assert (env["PAI_HOST_IP_main_0"], env["PAI_TASK_ROLE_main_HOST_LIST"]) == ("127.0.0.1", f"127.0.0.1:{int(port) + 1}")
        assert env["PAI_CONTAINER_HOST_http_PORT_LIST"] == f"{int(port) + 1},{int(port) + 2}"


def test_the_first_that_fails_ends_the_others(daemon, tmp_path, capfd):
    submitted(tmp_path, '[roles.a]\nscript = "sleep 60"\n[roles.b]\nscript = "exit 3"\n')
    first, second = numbers(capfd)
    assert main(["wait", str(first)]) == 3
    with connect() as queue:
        jobs = queue.wait_many([first, second])
    assert [job.state for job in jobs] == ["FAILED", "FAILED"]
    assert jobs[0].reason == f"job {second} (b 0): exit code 3" and jobs[1].exit_code == 3


def test_it_is_done_when_enough_have_succeeded(daemon, tmp_path, capfd):
    submitted(tmp_path, '[roles.chief]\nscript = "exit 0"\nmin_succeeded = 1\n[roles.ps]\nscript = "sleep 60"\n')
    first, second = numbers(capfd)
    assert main(["wait", str(first)]) == 0
    with connect() as queue:
        found = queue.job(second)
    assert found.state == "COMPLETED" and found.reason.startswith("ended when the others were done")


def test_a_failure_that_may_be_does_no_harm(daemon, tmp_path, capfd):
    submitted(tmp_path, '[roles.a]\nscript = "exit 2"\nmin_failed = "never"\n[roles.b]\nscript = "sleep 0.2"\n')
    first, second = numbers(capfd)
    assert main(["wait", str(first)]) == 0
    with connect() as queue:
        assert queue.job(second).state == "COMPLETED"


def test_they_start_together_or_not_at_all(daemon, tmp_path, capfd):
    submitted(tmp_path, '[roles.a]\ncount = 3\ngpus = 1\nscript = "sleep 300"\n')
    one = numbers(capfd)
    submitted(tmp_path, '[roles.a]\ncount = 2\ngpus = 1\nscript = "true"\n')
    two = numbers(capfd)
    with connect() as queue:
        until(lambda: all(queue.job(number).state == "RUNNING" for number in one), "they run")
        assert [queue.job(number).state for number in two] == ["PENDING", "PENDING"]
        assert "needs 2 GPUs, 1 free" in queue.job(two[1]).reason and "needs 2 GPUs, 1 free" in queue.why(two[1]).reason
        queue.cancel(one[1])  # one of them: that is a failure of its role
        assert [job.state for job in queue.wait_many(one)] == ["CANCELLED"] * 3
        assert [job.state for job in queue.wait_many(two)] == ["COMPLETED"] * 2


def test_they_are_cloned_and_cancelled_as_one(daemon, tmp_path, capfd):
    submitted(tmp_path, '[roles.chief]\nscript = "sleep 300"\n[roles.ps]\ncount = 2\nscript = "sleep 300"\n')
    first = numbers(capfd)
    assert main(["clone", "--json", str(first[0]), "--role", "ps", "--", "sh", "-c", "echo of $WORLD_SIZE; sleep 300"]) == 0
    second = numbers(capfd)
    assert len(second) == 3
    with connect() as queue:
        jobs = [queue.job(number) for number in second]
        assert [(job.options.role, job.command) for job in jobs] == [
            ("chief", "sh -c 'sleep 300'"), *[("ps", "sh -c 'echo of $WORLD_SIZE; sleep 300'")] * 2,
        ]  # fmt: skip
        until(lambda: all(queue.job(number).state == "RUNNING" for number in (*first, *second)), "they run")
    until(lambda: logs(capfd, second[1]) == "of 3\n", "it is told of the others")
    for name in (str(first[1]), f"{first[0]}_0", f"{first[0]}_1"):
        assert main(["clone", name]) == 125
        assert f"dockless clone {first[0]} submits all of them again" in capfd.readouterr().err
    assert main(["clone", "--print", str(first[0]), "-e", "A=1"]) == 0
    assert capfd.readouterr().out.count('A = "1"') == 2
    assert main(["queue", str(first[0])]) == 0
    assert capfd.readouterr().out.count("starts together with job") == 3
    assert main(["cancel", "--grace", "0", "--mine"]) == 0
    assert capfd.readouterr().out == "".join(
        f"job {one[0]} ({one[0]} to {one[2]}, which start together): ending\n" for one in (first, second)
    )
    with connect() as queue:
        assert {job.state for job in queue.wait_many([*first, second[0]], timeout=60)} == {"CANCELLED"}


def test_what_is_too_wide_is_refused(daemon, tmp_path, capfd):
    path = tmp_path / "job.toml"
    path.write_text('[roles.a]\ncount = 5\ngpus = 1\nscript = "true"\n')
    assert main(["submit", str(path)]) == 125
    assert "need 5 GPUs, and this host has" in capfd.readouterr().err
    path.write_text('[roles.a]\ncount = 257\nscript = "true"\n')
    assert main(["submit", str(path)]) == 125
    assert "has 257 instances, and at most 256 can start together" in capfd.readouterr().err
    with connect() as queue:
        assert queue.queue() == []


def test_the_first_stands_for_all(daemon, tmp_path, capfd):
    text = '[roles.a]\ncount = 2\ngpus = 1\nscript = "sleep 300"\n'
    submitted(tmp_path, text, "--hold")
    ids = numbers(capfd)
    with connect() as queue:
        assert [queue.job(number).reason for number in ids] == [f"held by {queue.job(ids[0]).user}"] * 2
        queue.release(ids[1])
        until(lambda: [queue.job(number).state for number in ids] == ["RUNNING"] * 2, "they run")
        queue.requeue(ids[1], grace=0)
        until(lambda: [(queue.job(number).state, queue.job(number).attempt) for number in ids] == [("RUNNING", 2)] * 2, "they run again")
        queue.cancel(ids[0], grace=0)
        assert [job.state for job in queue.wait_many(ids, timeout=30)] == ["CANCELLED"] * 2


def test_they_are_tried_again_together(daemon, tmp_path, capfd):
    script = "[ $DOCKLESS_ATTEMPT = 2 ]"
    submitted(tmp_path, f'retries = 1\n[roles.a]\nscript = "{script}"\n[roles.b]\nscript = "true"\n')
    ids = numbers(capfd)
    with connect() as queue:
        jobs = queue.wait_many(ids, timeout=30)
    assert [(job.state, job.attempt) for job in jobs] == [("COMPLETED", 2), ("COMPLETED", 2)]


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_a_daemon_that_comes_back_goes_on_with_them(daemon, tmp_path, capfd, kill):
    submitted(tmp_path, '[roles.a]\nscript = "exit 0"\n[roles.b]\nscript = "sleep 2; exit 4"\n')
    ids = numbers(capfd)
    with connect() as queue:
        until(lambda: "has ended" in queue.job(ids[0]).reason, "one has ended")
        before = queue.job(ids[1]).options.ports
    daemon.kill9() if kill else daemon.stop()
    daemon.start()
    with connect() as queue:
        jobs = queue.wait_many(ids, timeout=30)
    assert [(job.state, job.exit_code) for job in jobs] == [("FAILED", 4), ("FAILED", 4)]
    assert jobs[1].options.ports == before


def test_two_with_the_hosts_network_have_different_ports(daemon, tmp_path, capfd):
    text = '[roles.a]\ncount = 2\nnetwork = "host"\nscript = "sleep 300"\n'
    found = []
    for _ in range(2):
        submitted(tmp_path, text)
        ids = numbers(capfd)
        with connect() as queue:
            until(lambda ids=ids: all(queue.job(number).state == "RUNNING" for number in ids), "they run")
            found += [port for number in ids for port in queue.job(number).options.ports]
    assert len(set(found)) == 4


def test_the_output_of_all_is_followed_to_the_end(daemon, tmp_path, capfd):
    submitted(tmp_path, '[roles.a]\nscript = "echo one; sleep 1; echo three"\n[roles.b]\nscript = "sleep 0.5; echo two >&2"\n')
    first, second = numbers(capfd)
    assert main(["logs", "-f", str(first)]) == 0
    assert capfd.readouterr() == ("a 0 | one\na 0 | three\n", "b 0 | two\n")
    assert main(["queue", "-q", str(first)]) == 0
    assert capfd.readouterr().out == f"{first}\n{second}\n"
    assert main(["wait", "-q", str(first)]) == 0
    assert main(["why", f"{first}_1"]) == 0
    assert f"job {second} does not wait: it is COMPLETED" in capfd.readouterr().out


def test_all_of_them_are_submitted_again(daemon, tmp_path, capfd):
    submitted(tmp_path, '[roles.a]\nscript = "true"\n[roles.b]\ncount = 2\nscript = "true"\n')
    ids = numbers(capfd)
    with connect() as queue:
        queue.wait_many(ids, timeout=30)
        queue.requeue(ids[1])
        again = [number + len(ids) for number in ids]
        jobs = queue.wait_many(again, timeout=30)
    assert [(job.state, job.gang, job.options.role) for job in jobs] == [("COMPLETED", again[0], role) for role in ("a", "b", "b")]
