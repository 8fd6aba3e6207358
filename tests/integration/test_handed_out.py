"""Devices of other kinds than NVIDIA's: leased as GPUs are, by what no two can have, their nodes."""

from __future__ import annotations

import json
import os
import pwd
import signal
import stat
import subprocess
import sys

import pytest
from support.boxes import until
from support.described import KIND, describe
from support.requires import requires
from support.scheduling import DaemonProcess, as_user

import dockless
from dockless import doctor
from dockless.cli import main
from dockless.errors import BadInput, NotEnoughGpus, Refused, UnknownGpu
from dockless.sandbox.gpus import handed_out, lease, own_nodes
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec, State
from dockless.sched.engine.gpus.hostgpus import HostGpus

pytestmark = requires("userns")

ANNA = pwd.getpwnam("daemon").pw_uid
SHOW = Spec(argv=("sh", "-c", "ls /dev | grep example | tr '\\n' ' '; echo $DOCKLESS_GPUS; sleep 1000"))


def named(*numbers: int) -> set[str]:
    return {f"{KIND}={number}" for number in numbers}


@pytest.fixture
def simulation(own_host) -> str:
    """A GPU beside the devices, on a host of the test's own: their nodes are everybody's."""
    return own_host("1x80G")


@pytest.fixture
def settings(home, tmp_path, simulation) -> str:
    text = describe(tmp_path / "cdi")
    (home / "dockless.toml").write_text(text)
    return text


@pytest.fixture
def daemon(settings, home, simulation):
    running = DaemonProcess(home, gpus=simulation, settings=settings).start()
    yield running
    running.end()


def test_a_number_of_them(settings):
    box = dockless.start("host", ["sleep", "1000"], devices=[f"{KIND}:3"])
    try:
        assert set(box.gpus) == named(0, 1, 2)
        assert {name for name in lease.holders() if "=" in name} == named(0, 1, 2)
        assert box.exec("sh", "-c", "ls /dev | grep -c example", text=True).stdout == "3\n"
        with pytest.raises(NotEnoughGpus, match=r"2 GPUs of class example.com/gpu asked for, 1 of 4 free"):
            dockless.run("host", ["true"], gpus=2, gpu_class=KIND)
        shown = dockless.run("host", ["sh", "-c", "ls /dev | grep example"], gpus=1, gpu_class=KIND, capture_output=True, text=True)
        assert shown.stdout == "example3\n"
        os.kill(box.inspect()["pid"], signal.SIGKILL)
        until(lambda: not lease.holders(), "nobody has them")
    finally:
        box.rm(force=True)


def test_by_name_they_are_leased_as_well(settings):
    with dockless.Sandbox("host", ["sleep", "1000"], devices=[f"{KIND}=1"]) as box:
        assert set(box.gpus) == named(1)
        for name in ("1", "all"):
            with pytest.raises(NotEnoughGpus, match=r"device example.com/gpu=.* free"):
                dockless.run("host", ["true"], devices=[f"{KIND}={name}"])
    with dockless.Sandbox("host", ["sleep", "1000"], devices=[f"{KIND}=all"]) as box:
        assert set(box.gpus) == named(0, 1, 2, 3), "what all names"
    with pytest.raises(UnknownGpu, match=r"there is no device example.com/gpu=7"):
        dockless.run("host", ["true"], devices=[f"{KIND}=7"])


def test_started_again_it_has_the_same_ones(settings):
    box = dockless.create("host", ["sleep", "1000"], devices=[f"{KIND}=2"])
    try:
        for _ in range(2):
            assert not lease.holders()
            box.start()
            assert {name for name in lease.holders() if "=" in name} == named(2) == set(box.gpus)
            box.stop(grace=0)
            until(lambda: not lease.holders(), "nobody has it")
    finally:
        box.rm(force=True)


def test_two_kinds_with_the_same_nodes(settings, home, tmp_path):
    """Whatever it is called: the kernel gives no node twice."""
    describe(tmp_path / "cdi", "12", "other.com/gpu")
    with dockless.Sandbox("host", ["sleep", "1000"], devices=[f"{KIND}=1"]):
        (home / "dockless.toml").write_text(settings.replace(KIND, "other.com/gpu"))
        with pytest.raises(NotEnoughGpus, match=r"other.com/gpu asked for, 1 of 2 free"):
            dockless.run("host", ["true"], devices=["other.com/gpu:2"])
        with pytest.raises(NotEnoughGpus, match=r"device other.com/gpu=1 is leased"):
            lease.take(["other.com/gpu=1"])
        assert dockless.run("host", ["true"], devices=["other.com/gpu:1"]).exit_code == 0
    (home / "dockless.toml").write_text(settings.replace(f'["{KIND}"]', f'["{KIND}", "other.com/gpu"]'))
    with pytest.raises(NotEnoughGpus, match="this host has 0 of it"):
        dockless.run("host", ["true"], devices=["other.com/gpu:1"])


def test_jobs_have_them_in_turn_and_each_its_own(daemon, capsys):
    with daemon.client() as queue:
        first, second, third = (queue.submit(JobSpec(SHOW, gpus=f"2,class={KIND}")) for _ in range(3))
        until(lambda: sum(queue.job(job).state is State.RUNNING for job in (first, second)) == 2, "two of them run")
        had = [set(queue.job(job).devices) for job in (first, second)]
        assert had[0] | had[1] == named(0, 1, 2, 3) and not had[0] & had[1]
        assert queue.why(third).reason == "needs 2 GPUs of class example.com/gpu, 0 free; waits for job 1, which has no time limit"
        queue.cancel(first, grace=0)
        until(lambda: queue.job(third).state is State.RUNNING, "the third runs")
        assert set(queue.job(third).devices) == had[0]


def test_commands_tell_of_them(daemon, capsys):
    assert main(["submit", "--device", f"{KIND}:2", "--name", "wide", "host", "--", "sleep", "1000"]) == 0
    with daemon.client() as queue:
        until(lambda: queue.job(1).state is State.RUNNING, "it runs")
    capsys.readouterr()
    assert main(["info"]) == 0
    table = [line.split() for line in capsys.readouterr().out.splitlines() if KIND in line]
    assert [row[:5] for row in table[:3]] == [
        ["1", KIND, f"{KIND}=0", "job", "1"],
        ["2", KIND, f"{KIND}=1", "job", "1"],
        ["3", KIND, f"{KIND}=2", "free"],
    ]
    for command in (["top", "--once"], ["queue", "1"], ["usage", "--by", "gpu"], ["metrics"], ["gpu", "list"]):
        assert main(command) == 0
        assert KIND in capsys.readouterr().out, command
    daemon.end()
    for command in (["top", "--once"], ["info"]):
        assert main(command) == 0
        assert KIND in capsys.readouterr().out, command
    daemon.start()


def test_what_is_refused(daemon):
    def refused(error: type[Exception], job: JobSpec, match: str) -> None:
        with daemon.client() as queue, pytest.raises(error, match=match):
            queue.submit(job)

    refused(NotEnoughGpus, JobSpec(gpus=f"5,class={KIND}"), "5 GPUs of class example.com/gpu asked for, this host has 4 of it")
    refused(BadInput, JobSpec(gpus="1,class=other.com/gpu"), "devices other.com/gpu are not leased on this host")
    refused(BadInput, JobSpec(Spec(cdi=(f"{KIND}=1",)), gpus=f"1,class={KIND}"), "device example.com/gpu=1 is leased as a GPU is")
    refused(UnknownGpu, JobSpec(Spec(cdi=(f"{KIND}=9",))), "no device example.com/gpu=9")
    refused(NotEnoughGpus, JobSpec(gpus="2"), "2 GPUs asked for, this host has 1 in all")
    refused(BadInput, JobSpec(gpus=f"device=0,{KIND}=0"), "names GPUs, and devices of another kind")


def test_the_log_says_where_it_looked_and_calls_none_a_gpu(settings, tmp_path, capfd):
    gpus = HostGpus()
    try:
        gpus.hand_out((KIND, "other.com/gpu"))
        gpus.drain({f"{KIND}=1": "a fan"})
        gpus.drain({})
    finally:
        gpus.close()
    said = capfd.readouterr().err
    assert f"there are no devices of kind other.com/gpu: no file in {tmp_path / 'cdi'} has one" in said and "/etc/cdi" not in said
    assert f"device {KIND}=1 is out of service: a fan" in said and f"device {KIND}=1 is in service again" in said


def test_a_file_that_is_broken_is_named(settings, home, tmp_path, capfd):
    """In a program that has not imported json.decoder, too, without which the interpreter's scanner has no error to raise."""
    (file,) = (tmp_path / "cdi").iterdir()
    file.write_text("{")
    gpus = HostGpus()
    try:
        gpus.hand_out((KIND,))
    finally:
        gpus.close()
    assert f"{file}:1 is not JSON" in capfd.readouterr().err
    status, what, step = doctor._settings()
    assert status == "note" and f"there are no devices of kind {KIND}: " in what and f"{file}:1 is not JSON" in what and step
    listed = subprocess.run([sys.executable, "-m", "dockless", "gpu", "list"], capture_output=True, text=True)
    assert listed.returncode == 0 and not listed.stderr, listed


def test_quotas_by_kind_and_of_all(daemon, home, settings):
    (home / "dockless.toml").write_text(settings + f'[quota]\ndefault = {{ limit = 3, classes = {{ "{KIND}" = 1 }} }}\n')
    assert main(["config", "check"]) == 0
    with daemon.client() as queue:
        queue.reload()
        with pytest.raises(Refused, match=r"needs 2 GPUs, the quota of user \S+ is 1 of class example.com/gpu"):
            queue.submit(JobSpec(SHOW, gpus=f"2,class={KIND}"))
        first, second = (queue.submit(JobSpec(SHOW, gpus=f"1,class={KIND}")) for _ in range(2))
        until(lambda: queue.job(first).state is State.RUNNING, "it runs")
        assert "uses 1 of 1 of class example.com/gpu" in queue.why(second).reason


def test_a_daemon_killed_and_two_of_them(daemon, settings, simulation, tmp_path_factory):
    """The devices stay leased beside a daemon that is not there, and another daemon gives those that are left."""
    with daemon.client() as queue:
        job = queue.submit(JobSpec(SHOW, gpus=f"3,class={KIND}"))
        until(lambda: queue.job(job).state is State.RUNNING, "it runs")
    daemon.kill9()
    other = DaemonProcess(tmp_path_factory.mktemp("o"), gpus=simulation, settings=settings).start()
    try:
        with other.client() as queue:
            mine, wide = queue.submit(JobSpec(SHOW, gpus=f"1,class={KIND}")), queue.submit(JobSpec(SHOW, gpus=f"2,class={KIND}"))
            until(lambda: queue.job(mine).state is State.RUNNING, "it has what is left")
            assert set(queue.job(mine).devices) == named(3)
            assert queue.job(wide).state is State.PENDING
            daemon.start()
            with daemon.client() as first:
                assert first.job(job).state is State.RUNNING and set(first.job(job).devices) == named(0, 1, 2)
                assert [gpu.outside for gpu in first.info().gpus] == [False, False, False, False, True]
                first.cancel(job, grace=0)
            until(lambda: queue.job(wide).state is State.RUNNING, "the other has them")
    finally:
        other.end()


def test_those_that_start_together_have_each_its_own(daemon):
    with daemon.client() as queue:
        jobs = queue.submit_gang([JobSpec(SHOW, gpus=f"{count},class={KIND}", role=f"r{count}") for count in (1, 2)])
        until(lambda: all(queue.job(job).state is State.RUNNING for job in jobs), "they run")
        devices = [queue.job(job).devices for job in jobs]
        assert [len(one) for one in devices] == [1, 2] and len({*devices[0], *devices[1]}) == 3


def test_one_that_is_drained_is_given_to_nobody(daemon):
    with daemon.client() as queue:
        queue.drain([f"{KIND}=0", "2"], reason="fan")
        job, late = queue.submit(JobSpec(SHOW, gpus=f"2,class={KIND}")), queue.submit(JobSpec(SHOW, gpus=f"1,class={KIND}"))
        until(lambda: queue.job(job).state is State.RUNNING, "it runs")
        assert set(queue.job(job).devices) == named(2, 3)
        assert queue.job(late).state is State.PENDING
        queue.undrain(["1"])
        until(lambda: queue.job(late).state is State.RUNNING, "it runs")
        assert set(queue.job(late).devices) == named(0)


def overlapping(directory, *devices: tuple[str, str]) -> None:
    """Describe devices by these names that have the nodes of these numbers."""
    described = json.loads((directory / "example.com-gpu.json").read_text())
    nodes = {device["name"]: device["containerEdits"]["deviceNodes"][0] for device in described["devices"]}
    described["devices"] = [
        {"name": name, "containerEdits": {"deviceNodes": [nodes[number] for number in numbers]}} for name, numbers in devices
    ]
    (directory / "example.com-gpu.json").write_text(json.dumps(described))


def test_of_two_with_a_node_in_common_one_alone_is_leased(settings, home, tmp_path, simulation, capsys):
    """The first, whatever they have beside it: the other would have a part of what is leased."""
    overlapping(tmp_path / "cdi", ("a", "12"), ("b", "23"))
    node = os.stat("/dev/full").st_rdev
    why = f"it has the character device {os.major(node)}:{os.minor(node)} in common with {KIND}=a"
    line = f"device {KIND}=b cannot be leased: {why}"
    gpus = HostGpus()
    try:
        gpus.hand_out((KIND,))
        assert gpus.in_words == "1 simulated GPU, 1 other device"
        assert [unit.uuid for unit in gpus.devices] == [f"{KIND}=a"] and gpus.unleased == {f"{KIND}=b": why}
    finally:
        gpus.close()
    assert line in capsys.readouterr().err and line in doctor._settings()[1]
    with dockless.Sandbox("host", ["sleep", "1000"], devices=[f"{KIND}=a"]), pytest.raises(BadInput, match=line):
        dockless.run("host", ["true"], devices=[f"{KIND}=b"])
    for words in (["info"], ["gpu", "list"]):
        assert main(words) == 0 and why in capsys.readouterr().out
    running = DaemonProcess(home, gpus=simulation, settings=settings).start()
    try:
        assert main(["info"]) == 0 and f"{line}.\n" in capsys.readouterr().out
        with running.client() as queue:
            with pytest.raises(BadInput, match=line):
                queue.submit(JobSpec(SHOW, gpus=f"device={KIND}=b"))
            with pytest.raises(NotEnoughGpus, match="this host has 1 of it"):
                queue.submit(JobSpec(SHOW, gpus=f"2,class={KIND}"))
    finally:
        running.end()


def test_nodes_that_are_known_to_be_everybodys(settings, tmp_path, monkeypatch):
    """AMD's tool names /dev/kfd in each device."""
    overlapping(tmp_path / "cdi", ("a", "13"), ("b", "23"), ("all", "123"))
    assert [*handed_out.unleased((KIND,))] == [f"{KIND}=b", f"{KIND}=all"]
    monkeypatch.setattr(handed_out, "CONTROL", ("/dev/urandom", "/dev/none"))
    assert not handed_out.unleased((KIND,)) and [unit.uuid for unit in handed_out.inventory((KIND,))] == [f"{KIND}=a", f"{KIND}=b"]
    assert handed_out.read(KIND).names["all"] == ("a", "b")


def test_a_node_of_two_kinds_is_the_first_ones(settings, tmp_path):
    describe(tmp_path / "cdi", "12", "other.com/gpu")
    kinds = (KIND, "other.com/gpu")
    assert {unit.model for unit in handed_out.inventory(kinds)} == {KIND}
    assert all(why.endswith(f" in common with {name.replace('other', 'example')}") for name, why in handed_out.unleased(kinds).items())
    assert [*handed_out.unleased(kinds)] == ["other.com/gpu=1", "other.com/gpu=2"]


@requires("root")
def test_another_user_has_what_is_leased_to_her_whatever_the_mode_of_its_node(home, tmp_path, simulation):
    """Inside alone, and of that device alone."""
    before = {*os.listdir(own_nodes.PLACE)} if os.path.isdir(own_nodes.PLACE) else set()  # of starters that were killed
    text = describe(tmp_path / "cdi", "01")
    closed = {"0": (1, 5), "1": (1, 7)}  # as zero and full
    file = tmp_path / "cdi" / "example.com-gpu.json"
    said = json.loads(file.read_text())
    for device in said["devices"]:
        for node in device["containerEdits"]["deviceNodes"]:
            if (number := node["path"][-1]) in closed:
                node["hostPath"] = f"{tmp_path}/node{number}"
    for number, numbers in closed.items():
        os.mknod(tmp_path / f"node{number}", 0o600 | stat.S_IFCHR, os.makedev(*numbers))
    file.write_text(json.dumps(said))
    running = DaemonProcess(home, gpus=simulation, settings=text).start()
    try:
        script = "head -c 3 /dev/example0 | od -An -tx1; ls -l /dev/example*; chmod 600 /dev/example0; id -u"
        job = as_user(ANNA, running.socket.parent, lambda q: q.submit(JobSpec(Spec(argv=("sh", "-c", script)), gpus=f"1,class={KIND}")))
        assert job[0] == "ok", job
        other = as_user(ANNA, running.socket.parent, lambda q: q.submit(JobSpec(Spec(cdi=("other.com/gpu=0",)))))
        assert other[:2] == ("error", "NotPermitted"), other
        with running.client() as queue:
            done = queue.wait(job[1], timeout=60)
            written = "\n".join(line.text for line in queue.logs(job[1]))
            assert done.state is State.COMPLETED, (done.reason, written)
        assert written.splitlines()[0].split() == ["00", "00", "00"]
        assert "/dev/example1" not in written
        script = "head -c 1 /dev/example1 | wc -c; exit 1"
        box = dockless.start("host", ["sh", "-c", script], devices=[f"{KIND}=1"], restart="on-failure:1")
        try:
            until(lambda: [row.text for row in box.logs()] == [b"1", b"1"], "it is restarted")
        finally:
            box.rm(force=True)
        assert not {*os.listdir(own_nodes.PLACE)} - before
    finally:
        running.end()
