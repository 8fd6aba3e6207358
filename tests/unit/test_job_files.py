"""Job files of other systems, as their documents have them: what becomes of each in dockless's own form is in tests/golden/job-files."""

from __future__ import annotations

import dataclasses
import getpass
import json
import os
import random
import subprocess
import time
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.orders import job_of, jobs_of

from dockless._jobfiles import jobs_of_list, keywords, order_of, read_job_file, start_together
from dockless._jobfiles import read_text as job_file_of
from dockless.base import json_lines, toml_lines, yaml
from dockless.base.records import plain
from dockless.cli import main
from dockless.errors import BadInput
from dockless.sandbox.spec import Spec
from dockless.sched.formats import FORMATS, JobFile, read
from dockless.sched.formats.own import document, toml
from dockless.sched.formats.templates import with_values
from dockless.sched.jobs import JobSpec, options_of
from dockless.sched.parsing import MAX_AFTER, parse_array

TWO = parse_array(2)
FILES = Path(__file__).resolve().parents[1] / "golden" / "job-files"
MIRRORED = sorted(f"mirrored/{path.name}" for path in (FILES / "mirrored").iterdir() if path.suffix != ".txt")
REFUSED = ["mirrored/compose-deploy-refused.yml", "mirrored/full-example.yml"]
NAMES = sorted(path.name for path in FILES.iterdir() if path.is_file() and path.suffix != ".txt") + [
    name for name in MIRRORED if name not in REFUSED
]
"""Those below ``mirrored`` have the structure of the real files that they name, and nothing else of them."""


def read_text(text: str, name: str, **more: object) -> JobFile:
    return read(text, name, keywords=keywords(), directory="/here", environment={}, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_in_our_own_form(name, golden):
    file = read_text((FILES / name).read_text(), name)
    notes = "".join(f"# {note}\n" for note in file.notes)
    ours = toml(document(file))
    golden(f"job-files/{name}.txt", f"# {file.format}\n{notes}{ours}")
    assert "hunter2" not in ours and "hunter2" not in repr(file) and "quoted" not in repr(file)
    again = read_text(ours, "again.toml")
    assert toml(document(again)) == ours and again.notes == ()
    assert tomllib.loads(ours) == json.loads(json.dumps(document(file)))


@pytest.mark.parametrize("name", REFUSED)
def test_all_that_is_wrong_with_a_real_file_is_told_at_once(name, golden):
    with pytest.raises(BadInput) as caught:
        read_text((FILES / name).read_text(), name)
    golden(f"job-files/{name}.txt", "\n".join([f"{caught.value} ({caught.value.hint})", *caught.value.__notes__]) + "\n")


@pytest.mark.parametrize("name", [name for name in MIRRORED if name not in REFUSED])
def test_real_files_become_jobs(name):
    file = read_text((FILES / name).read_text(), name)
    jobs = jobs_of(file, name)
    assert len(jobs) == sum(role.count for role in file.roles)


@pytest.mark.parametrize("name", NAMES)
def test_a_format_can_be_forced_and_is_recognised_without_a_name(name):
    text = (FILES / name).read_text()
    file = read_text(text, name)
    assert read_text(text, name, format=file.format) == file
    if file.format != "dockless" or name.endswith(".json"):
        unnamed = read_text(text, "-")
        assert (unnamed.format, unnamed.name, [role.name for role in unnamed.roles]) == (
            file.format, file.name, [role.name for role in file.roles],
        )  # fmt: skip


WRONG = [
    ("a.toml", "memroy = '1G'", "a.toml:1: memroy is unknown", "did you mean memory?"),
    ("a.toml", "command = 'x y'", "command is one text, not a list", "script"),
    ("a.toml", "command = ['x']\nscript = 'x'", "script stands beside command", "one of them"),
    ("a.toml", "[roles.a]\ncount = 0", "roles.a.count is 0, not a whole number", "such a number"),
    ("a.toml", "[roles.a]\ncount = 2\nmin_succeeded = 3", "roles.a.min_succeeded is 3, not a whole number from 1 to 2", "such a number"),
    ("a.toml", "[roles.a]\nmin_failed = 0", "roles.a.min_failed is 0, not a whole number", "such a number"),
    ("a.toml", "ports = ['8080:80']", "a.toml:1: ports is a list, not a mapping", "publish = ["),
    ("a.toml", "[roles.a]\nname = 'x'", "roles.a.name is unknown", ""),
    ("a.toml", "ports = {a = 1}\n[roles.a]", "a.toml:1: ports stands beside the roles", "the role that it is for"),
    ("a.toml", "min_failed = 2\n[roles.a]", "a.toml:1: min_failed stands beside the roles", "the role that it is for"),
    ("a.toml", "command = 3\n[roles.a]\ncommand = ['b']", "a.toml:1: command is 3, not a list", "a list"),
    ("a.toml", "gpus = 1\ngpus = 2", "a.toml is not TOML", "--format"),
    ("a.json", '{"name": "a",\n "name": "b"}', "a.json:2: 'name' is there twice", "remove"),
    ("a.json", '{"name": "a",\n b}', "a.json:2 is not JSON", "that line"),
    ("a.json", '{"jobName": "a", "image": "b", "taskRoles": [{"name": "x"}]}', "taskRoles[0].taskNumber is missing", "give"),
    ("a.json", '{"jobName": "a b", "image": "b", "taskRoles": []}', "jobName 'a b' cannot be read", "make a name"),
    ("a.yaml", "protocolVersion: 2\nname: a\ntype: job\ntaskRoles: {}", "a.yaml:4: taskRoles is empty", "one role"),
    ("a.yaml", "services:\n  a: {image: x, privilegd: true}", "a.yaml:2: services.a.privilegd is unknown", "did you mean privileged?"),
    ("a.yaml", "services:\n  a: {image: x, build: .}", "services.a.build is not possible here", "push it"),
    ("a.yaml", "services:\n  a: {image: x, gpus: [{count: 1, device_ids: ['0']}]}", "stands beside device_ids", "one of them"),
    ("a.yaml", "services:\n  a: {image: x, gpus: [{count: 1, capabilities: [gpu, tpu]}]}", "has 'tpu', which no GPU has", "there are"),
    ("a.yaml", "services:\n  a: {image: x, runtime: nvidia, environment: [NVIDIA_VISIBLE_DEVICES=all]}", "asks for no GPUs", "gpus: all"),
    ("a.yaml", "services:\n  a: {image: '${X:?say it}'}", "needs the variable X: say it", "X=…"),
    ("a.yaml", "services:\n  a: {image: x, command: $}", "stands for nothing", "$$"),
    ("a.yaml", "services:\n  a: {image: x, command: '${A:-${B}}'}", "stands for nothing", "none in the default of another"),
    ("a.yaml", f"services:\n  a: {{image: x, entrypoint: '{'x' * 65537}'}}", "is one line of more than 65536 characters", "a list"),
    ("a.yaml", "services: {a: {image: x}}\nservices: {}", "a.yaml:2: 'services' is there twice", "remove"),
    ("a.params", "worker_count=1\nworker_image=x\ncommand=x\nworker_memry=1", "a.params:4: worker_memry is unknown", "worker_memory"),
    ("a.params", "command=x\nworker_image=x", "worker_image stands without worker_count", "worker_count=1"),
    ("a.params", "nonsense", "a.params:1: 'nonsense' is not key=value", "key=value"),
    ("a.sh", "echo", "a.sh:1: there is no interpreter", "#!"),
    ("a.sh", "#!/bin/sh\n#SBATCH --gppus=2", "a.sh:2: --gppus is unknown", "did you mean --gpus?"),
    ("a.sh", "#!/bin/sh\n#SBATCH --nodes=2", "--nodes is 2, and a script has one task", "one host"),
    ("a.sh", "#!/bin/sh\n#SBATCH --time=soon", "--time 'soon' cannot be read", "minutes"),
    ("a.sh", "#!/bin/sh\n#SBATCH --gpus=2 --gres=gpu:1", "do not agree", "one of them"),
    ("a.sh", "#!/bin/sh\n#SBATCH --gres=gpu:a100:1,gpu:h100:1", "--gres asks for GPUs of a100 and of h100", "of one class"),
    ("a.sh", "#!/bin/sh\n#SBATCH --licenses=x", "--licenses is not possible here", "leave it out"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "said", "hint"), WRONG)
def test_what_is_wrong_is_said_with_its_place(name, text, said, hint):
    with pytest.raises(BadInput) as caught:
        read_text(text, name)
    assert said in str(caught.value) and hint in caught.value.hint and caught.value.hint


ALL_WRONG = [
    ("a.toml", "gpsu = 1\n[roles.a]\ncount = 0\ncommand = 'x'\n[roles.b]\n\nports = { 'x y' = 1 }\nimage = 3.5\nscript = []\n",
     {"gpsu": 1, "roles.a.count": 3, "roles.a.command": 4, "roles.b.ports.x y": 7, "roles.b.script": 9}),
    ("a.json", '{"jobName": "a b", "image": "i",\n "taskRoles": [\n  {"name": "x", "taskNumber": 0,\n   "cpuNumber": 1, "memoryMB": "1",'
     '\n   "gpuNumber": 0, "command": ""}],\n "nope": 1}',
     {"jobName": 1, "taskRoles[0].memoryMB": 4, "taskRoles[0].taskNumber": 3, "taskRoles[0].command": 5, "nope": 6}),
    ("a.yaml", "protocolVersion: 3\nname: a\ntype: job\nprerequisites:\n- {name: i, type: dockerimage}\ntaskRoles:\n"
     "  w:\n    dockerImage: j\n"
     "    resourcePerInstance: {cpu: 1, memoryMB: 1, gpu: -1}\n    commands:\n    - ok\n"
     "    - <% $parameters.a %>\n    - <% $parameters.b %>\n",
     {"protocolVersion": 1, "prerequisites[0].uri": 5, "taskRoles.w.dockerImage": 8, "taskRoles.w.resourcePerInstance.gpu": 9,
      "taskRoles.w.commands[1]": 12, "taskRoles.w.commands[2]": 13}),
    ("b.yaml", "services:\n  a:\n    image: x\n    build: .\n    restart: maybe\n  b:\n    immage: y\n    command: '\"'\n",
     {"services.a.build": 4, "services.a.restart": 5, "services.b.image": 6, "services.b.immage": 7, "services.b.command": 8}),
    ("c.yaml", "name: [a]\nservices:\n", {"name": 1, "services": 2}),  # that they are missing, and not that none is to run
    ("a.params", "nonsense\nworker_count=x\nworker_image=i\ncommand=c\ncommand=d\nworker_memory=much\npriority=high\nfoo=1\n",
     {"a.params": 1, "worker_count": 2, "command": 5, "worker_memory": 6, "priority": 7, "foo": 8}),
    ("a.sh", "#!/bin/sh\n#SBATCH --gppus=2\n#SBATCH --time=soon 'x\n#SBATCH --time=soon\n#SBATCH --nodes=2\n#SBATCH --mem=x --array=3-1\n",
     {"--gppus": 2, "a.sh": 3, "--time": 4, "--nodes": 5, "--mem": 6, "--array": 6}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "lines"), ALL_WRONG)
def test_all_that_is_wrong_is_told_at_once_with_its_lines(name, text, lines, tmp_path, capfd):
    with pytest.raises(BadInput) as caught:
        read_text(text, name)
    told = [f"{caught.value} ({caught.value.hint})", *caught.value.__notes__]
    assert {line.partition(" ")[0].strip(":"): line for line in told} and len(told) == len(lines)
    for subject, line in lines.items():
        assert [one for one in told if one.startswith(f"{name}:{line}: ") and (subject == name or f" {subject} " in one)], (subject, told)
    path = tmp_path / name
    path.write_text(text)
    assert main(["convert", str(path)]) == 125
    assert [str(path) in line for line in capfd.readouterr().err.splitlines() if "hint:" not in line] == [True] * len(lines)


def test_all_keywords_that_are_wrong_are_told_at_once(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(
        "name = 'a'\nmemory = 'much'\nswap = '1G'\ntime_limit = 'soon'\n[roles.a]\nimage = 'No/Such:::'\n"
        "gpus = '2,capabilities=x,nothing=1'\nshm_size = 'x'\n[roles.b]\nscript = 'true'\nulimits = { nofile = 'x' }\n"
    )
    file = read_job_file(str(path))
    with pytest.raises(BadInput) as caught:
        jobs_of(file, str(path))
    told = [str(caught.value), *caught.value.__notes__]
    assert [int(line.split(":")[1]) for line in told] == [2, 4, 6, 7, 8, 11], told


def test_the_line_of_a_key_is_found_in_any_spelling():
    text = """# [no]
a = \"\"\"
[b]
c = 1\"\"\"
"d.e".'f g' = [ # ]
  1, "]",
]
[h . "i"]
j.k = { x = 1 }
[[l]]
m = '''
[n]'''
[[l]]
m = 1
[l.o]
p = 2
[[l.q]]
r = 3
s = "#" # = 1
"""
    assert tomllib.loads(text)
    assert toml_lines.lines_of(text) == {
        ("a",): 2, ("d.e",): 5, ("d.e", "f g"): 5, ("h",): 8, ("h", "i"): 8, ("h", "i", "j"): 9, ("h", "i", "j", "k"): 9,
        ("l",): 10, ("l", 0): 10, ("l", 0, "m"): 11, ("l", 1): 13, ("l", 1, "m"): 14, ("l", 1, "o"): 15, ("l", 1, "o", "p"): 16,
        ("l", 1, "q"): 17, ("l", 1, "q", 0): 17, ("l", 1, "q", 0, "r"): 18, ("l", 1, "q", 0, "s"): 19,
    }  # fmt: skip
    text = '{"a": [1,\n {"b:,": {}},\n []], "c": {"d":\n "x,y"}, "e\\u0041": null}'
    assert json_lines.lines_of(text) == {
        (): 1, ("a",): 1, ("a", 0): 1, ("a", 1): 2, ("a", 1, "b:,"): 2, ("a", 2): 3, ("c",): 3, ("c", "d"): 3, ("eA",): 4,
    }  # fmt: skip
    assert json_lines.twice(text) == 0 and json_lines.twice('{"a": [{"b": 1}, {"b": 1,\n"b": 2}]}') == 2


@pytest.mark.parametrize(
    ("said", "gpus", "queue", "options"),
    [
        ("--requeue", "", {"on_reboot": "requeue"}, {}),
        ("--requeue --no-requeue", "", {}, {}),
        ("--priority=5", "", {"priority": 5}, {}),
        ("--nice=5", "", {"priority": -5}, {}),
        ("--nice", "", {"priority": -100}, {}),
        ("--signal=B:USR1", "", {"warn": "USR1@60"}, {}),
        ("--mail-type=BEGIN,fail,TIME_LIMIT_80 --mail-user=ann@x.org", "", {"notify": "start,fail", "notify_to": "ann@x.org"}, {}),
        ("--mail-type=ALL", "", {"notify": "start,end,fail,preempt"}, {}),
        ("--mail-user=ann --mail-type=NONE", "", {}, {}),
        ("-c 4 --mem-per-cpu=2G", "", {}, {"cpus": 4, "memory": "8G", "env": {"SLURM_CPUS_PER_TASK": "4"}}),
        ("--mem-per-cpu=2G", "", {}, {"memory": "2G"}),
        ("-G 2 --cpus-per-gpu=3 --mem-per-gpu=5", "2", {},
         {"cpus": 6, "memory": "10M", "env": {"SLURM_CPUS_PER_TASK": "6", "SLURM_GPUS": "2"}}),
        ("--gres=gpu:1,gpu:a100:2", "3", {}, {"env": {"SLURM_GPUS": "3"}, "gpu_class": "a100"}),
        ("--gpus=nvidia_a100-sxm4-80gb:2", "2", {}, {"env": {"SLURM_GPUS": "2"}, "gpu_class": "nvidia_a100-sxm4-80gb"}),
        ("--gres=gpu:a100_1g.5gb:2 --gpus=2", "2", {}, {"env": {"SLURM_GPUS": "2"}, "gpu_class": "1g.5gb"}),
        ("--gres=gpu:3g.20gb:1", "1", {}, {"env": {"SLURM_GPUS": "1"}, "gpu_class": "3g.20gb"}),
        ("--gres=gpu:h100:0", "", {}, {}),
        ("--reservation=ml101", "", {}, {}),
    ],
)  # fmt: skip
def test_what_lines_of_a_batch_script_ask_for(said, gpus, queue, options):
    found = read_text(f"#!/bin/sh\n#SBATCH {said}\n", "-")
    assert (found.roles[0].gpus, found.queue, found.roles[0].options) == (gpus, queue, options)


@pytest.mark.parametrize("said", ["30", "2:30", "1:02:03", "2-3", "2-3:04", "2-3:04:05", "0", "UNLIMITED"])
def test_times_as_slurm_counts_them(said):
    meant = {
        "30": 1800, "2:30": 150, "1:02:03": 3723, "2-3": 183600, "2-3:04": 183840, "2-3:04:05": 183845, "0": 0, "UNLIMITED": 0,
    }  # fmt: skip
    assert read_text(f"#!/bin/sh\n#SBATCH -t {said}\n", "-").queue == {"time_limit": meant[said]}


@pytest.mark.parametrize(
    ("said", "gpus"),
    [
        ("gpus: all", "all"),
        ("gpus: [{count: 2}]", "2"),
        ("gpus: [{device_ids: ['0', '2']}]", "device=0,2"),
        ("deploy: {resources: {reservations: {devices: [{capabilities: [gpu]}]}}}", "all"),
        ("deploy: {resources: {reservations: {devices: [{capabilities: [gpu], device_ids: [GPU-1]}]}}}", "device=GPU-1"),
        ("deploy: {resources: {reservations: {generic_resources: [{discrete_resource_spec: {kind: gpu, value: 2}}]}}}", "2"),
        ("gpus: all\n    deploy: {resources: {reservations: {devices: [{capabilities: [gpu], count: all}]}}}", "all"),
        ("tty: false", ""),
        ("deploy: {resources: {reservations: {devices: [{capabilities: [[gpu, video]], count: 1}]}}}", "1,capabilities=video"),
        ("gpus: [{device_ids: ['0'], capabilities: [gpu, compute, utility]}]", "device=0,capabilities=compute,utility"),
        ("runtime: nvidia\n    environment: {NVIDIA_VISIBLE_DEVICES: none}", ""),
        ("runtime: nvidia\n    environment: {NVIDIA_VISIBLE_DEVICES: all}\n    gpus: all", "all"),
    ],
)
def test_gpus_of_compose_and_swarm(said, gpus):
    assert read_text(f"services:\n  a:\n    image: x\n    {said}\n", "a.yml").roles[0].gpus == gpus


def test_what_compose_has_in_common_with_the_host():
    text = """services:
  a:
    image: x
    network_mode: host
    ipc: host
    pid: private
    extra_hosts: {host.docker.internal: host-gateway, b: 10.0.0.1}
    volumes: [v:/v, /own]
    configs: [{source: c, target: etc/c}]
    environment: {A: , B: 1}
volumes: {v: {external: {name: shared}}}
configs: {c: {file: ./c.txt}, unused: {external: true}}
"""
    file = read_text(text, "a.yaml")
    assert file.roles[0].options == {
        "network": "host", "namespaces": {"ipc": "host"}, "add_hosts": ["host.docker.internal:127.0.0.1", "b:10.0.0.1"],
        "mounts": ["shared:/v", "/here/c.txt:/etc/c:ro"], "env": {"B": "1"},
    }  # fmt: skip
    assert file.notes == (
        "a.yaml:10: services.a.environment: A has no value, and the caller's is not taken",
        "a.yaml:8: services.a.volumes[1]: it has no name: what is written there is the job's own, and goes with it",
    )
    own = read_text(text.replace("    network_mode: host\n", ""), "a.yaml")
    assert own.roles[0].options["add_hosts"] == ["b:10.0.0.1"] and "host.docker.internal is not known" in " ".join(own.notes)
    for wrong, said in (("pid: 'service:b'", "pid is 'service:b'"), ("configs: [unused]", "'unused' is no file"), ("ipc: a", "ipc is 'a'")):
        kept = text.replace("    configs: [{source: c, target: etc/c}]\n", "") if wrong.startswith("configs") else text
        kept = kept.replace("    ipc: host\n", "") if wrong.startswith("ipc") else kept
        with pytest.raises(BadInput, match=said):
            read_text(kept.replace("pid: private", wrong), "a.yaml")


COMPOSE_NETWORKS = [
    ("ports: ['8080:80', '127.0.0.1:53:53/udp', 9090, 9091]", {"network": "bridge", "publish": ["8080:80", "127.0.0.1:53:53/udp"]},
     ["'9090' is not published", "'9091' is not published"]),
    ("ports: [{target: 80, published: '8080', host_ip: '::1', protocol: udp, mode: host, name: web}]",
     {"network": "bridge", "publish": ["[::1]:8080:80/udp"]}, ["there is one host"]),
    ("ports: [{target: 80}]", {}, ["'80/tcp' is not published"]),
    ("ports: ['80:80']\n    network_mode: host", {"network": "host"}, ["listens on the host itself"]),
    ("ports: ['80:80']\n    network_mode: none", {"network": "none"}, ["nobody reaches the service from the host"]),
    ("ports: ['80:80']\n    scale: 2", {}, ["several instances"]),
    ("networks: [default]", {}, ["each is found by its name"]),
    ("network_mode: bridge", {"network": "bridge"}, []),
    ("network_mode: none\n    dns: 10.0.0.1", {"network": "none"}, ["each is found by its name"]),
    ("network_mode: bridge\n    dns: 10.0.0.1\n    dns_search: [a, b]\n    dns_opt: ['ndots:2']",
     {"network": "bridge", "dns": ["10.0.0.1"], "dns_search": ["a", "b"], "dns_options": ["ndots:2"]}, []),
    ("network_mode: bridge\n    extra_hosts: ['up:host-gateway']", {"network": "bridge", "add_hosts": ["up:host-gateway"]}, []),
    ("networks: [outer]", {"network": "lab"}, []),
    ("networks: {outer: {aliases: [db, sql], ipv4_address: 10.1.0.5}, inner: }\n    ports: ['80:80']",
     {"network": "lab:ip=10.1.0.5,alias=db,alias=sql", "publish": ["80:80"]}, []),
    ("networks: [inner]\n    expose: [80]\n    mac_address: '02:42:0a:01:00:05'", {},
     ["each is found by its name", "reach each other's ports", "an address of its own"]),
]  # fmt: skip


@pytest.mark.parametrize(("said", "options", "notes"), COMPOSE_NETWORKS)
def test_networks_of_compose(said, options, notes):
    text = f"""services:
  a:
    image: x
    {said}
networks: {{outer: {{external: true, name: lab}}, inner: }}
"""
    file = read_text(text, "a.yaml")
    not_made, told = file.notes[0], file.notes[1:]
    assert file.roles[0].options == options
    assert "networks: inner is not made" in not_made
    assert len(told) == len(notes) and all(note in " ".join(told) for note in notes), told


@pytest.mark.parametrize(
    ("said", "why"),
    [("network_mode: 'service:b'", "network_mode is 'service:b'"), ("ports: [true]", "ports.0. is true, not a port"),
     ("networks: [undefined]", "networks has 'undefined', which the file does not name"),
     ("networks: [default]\n    network_mode: bridge", "network_mode stands beside networks"), ("dns: nope", "dns has 'nope', which is no"),
     ("dns: [10.0.0.1, nope]\n    network_mode: bridge", "dns has 'nope', which is no address"),
     ("ports: [{published: 80}]", "target is missing"), ("ports: [1.5]", "not a port")],
)  # fmt: skip
def test_networks_of_compose_that_cannot_be(said, why):
    with pytest.raises(BadInput, match=why):
        read_text(f"services:\n  a:\n    image: x\n    {said}\n", "a.yaml")


@pytest.mark.parametrize(
    ("said", "size"), [("4", "4G"), ("256Gi", "256G"), ("10G", "10G"), ("512Mi", "512M"), ("1.5", "1.5G"), ("64 GB", "")]
)
def test_memory_of_dlc_without_a_unit_is_gib(said, size):
    text = f"command=x\nworker_count=1\nworker_image=i\nworker_memory={said}\n"
    if size:
        assert read_text(text, "-").roles[0].options["memory"] == size
    else:
        with pytest.raises(BadInput):
            read_text(text, "-")


# -- secrets


def secret_job(command: str, value: str = 'it\'s "quoted" $HOME `id`\n') -> str:
    return f"{command}\nname = 'x'\n[secrets]\ntoken = {json.dumps(value)}\n"


def test_a_secret_reaches_the_commands_and_stands_in_no_listing(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(secret_job("""script = "printf %s \\"<% $secrets.token %>\\" > out" """, "hunter2"))
    job = job_of(read_job_file(str(path)), "job.toml")
    assert "hunter2" not in repr(job) and "hunter2" not in str(plain(job.spec))
    env = dict(with_values(job.spec.env, dict(job.secrets)))
    subprocess.run(job.spec.argv, env=env | {"PATH": os.environ["PATH"]}, cwd=tmp_path, check=True)
    assert (tmp_path / "out").read_text() == "hunter2"


@pytest.mark.parametrize(
    "where", ["command = ['x', '<% $secrets.token %>']", "image = '<% $secrets.token %>'", "hostname = '<% $secrets.token %>'"]
)
def test_a_secret_where_everybody_reads_it_is_refused(tmp_path, where):
    path = tmp_path / "job.toml"
    path.write_text(secret_job(where))
    with pytest.raises(BadInput, match="everybody on the host"):
        job_of(read_job_file(str(path)), "job.toml")


def test_a_secret_of_the_environment(tmp_path, monkeypatch):
    path = tmp_path / "job.toml"
    path.write_text("command = ['env']\nenv = { A = '<% $secrets.token %>' }\n[secrets]\ntoken = { env = 'OUR_TOKEN' }\n")
    monkeypatch.delenv("OUR_TOKEN", raising=False)
    with pytest.raises(BadInput, match="the secret token has no value"):
        job_of(read_job_file(str(path)), "job.toml")
    lines = tmp_path / "jobs.jsonl"
    lines.write_text('{"command": ["env"], "env": {"A": "<% $secrets.token %>"}, "secrets": {"token": {"env": "OUR_TOKEN"}}}\n')
    with pytest.raises(BadInput, match="the secret token has no value") as caught:
        jobs_of_list(str(lines))
    assert caught.value.hint == "set the variable OUR_TOKEN"  # whichever command reads it
    monkeypatch.setenv("OUR_TOKEN", "x")
    job = job_of(read_job_file(str(path)), "job.toml")
    assert job.secrets == (("token", "x"),) and with_values(job.spec.env, dict(job.secrets)) == (("A", "x"),)


@pytest.mark.parametrize("names", [["a b"], ["a\n"], ["a", "a"], ["1"], ["x" * 65], [f"n{at}" for at in range(101)]])
def test_what_names_secrets_is_bounded(names):
    """A client may send others than a file can say."""
    with pytest.raises(BadInput, match="each with a name of its own"):
        JobSpec(Spec(argv=("true",)), secrets=tuple((name, "value") for name in names))


REFERENCES = ("<% $secrets.docker-pw %>", "<% $secrets.a.b %>", "<% $secrets %>", "<% $Secrets.a %>", "<% $secret.a %>", "<%$secrets.a b%>")


@pytest.mark.parametrize("written", REFERENCES)
def test_a_reference_that_is_not_written_right_is_refused(written, capfd):
    """Its text would run. Text of others may hold such by itself, where a file has no secrets."""
    script, env = f"script = 'echo [{written}]'\n", f"script = 'x'\nenv = {{ A = '[{written}' }}\n"
    for text, where in ((script, "command"), (env, "env.A"), (f"command = ['x', '{written}']\n", "command")):
        (told,) = all_told(f"{text}[secrets]\na = 'b'\n", "a.toml")
        assert told.startswith(f"a.toml:{2 if where == 'env.A' else 1}: {where} has '{written[:9]}"), told
    if not written.startswith("<% $secrets.a"):
        assert job_of(read_text(script, "a.toml"), "a.toml").spec.argv[2] == f"echo [{written}]"
    text = OPENPAI_2.replace('["true"]', f'["echo [{written}]"]') + "secrets: {docker-pw: X, a: b}\n"
    (told,) = all_told(text, "a.yaml")
    assert told.startswith("a.yaml:") and "taskRoles.r.commands" in told and ("no reference" in told or "no value" in told), told


def test_a_long_reference_is_written_right():
    name = "x" * 64
    text = f"script = 'echo <% $secrets.{name} %> <% of another <%{' ' * 20}$secrets.{name}{' ' * 20}%>'\n[secrets]\n{name} = '1'\n"
    assert job_of(read_text(text, "a.toml"), "a.toml").secrets == ((name, "1"),)


@pytest.mark.parametrize(
    ("text", "name", "hint"),
    [
        ("script = '<% $secrets.a %>'\n[secrets]\na = ''\n", "a.toml", 'write it down, or { env = "NAME" }'),
        ("script = '<% $secrets.a %>'\n[secrets]\na = { env = 'NOT_SET' }\n", "a.toml", "set the variable NOT_SET"),
        ('secrets: {a: ""}', "a.yaml", "write it down under secrets"),
        ("secrets: {a: null}", "a.yaml", "write it down under secrets"),
    ],
)
def test_what_to_do_about_a_secret_without_a_value(text, name, hint, monkeypatch):
    monkeypatch.delenv("NOT_SET", raising=False)
    text = text if name == "a.toml" else OPENPAI_2.replace('["true"]', '["<% $secrets.a %>"]') + text
    with pytest.raises(BadInput, match="the secret a has no value") as caught:
        jobs_of(read_text(text, name), name)
    assert caught.value.hint == hint


def test_each_secret_of_a_converted_file_has_a_variable_of_its_own():
    """Names of other cases, or that differ at their ends, too. What nothing refers to is left out: who submits it would be asked for it."""
    long = ["x" * 63 + end for end in "ab"]
    names = ["tok", "TOK", "Tok", *long]
    used = "".join(f"<% $secrets.{name} %>" for name in names)
    secrets = "".join(f"{name} = 'v'\n" for name in [*names, "unused"])
    found = document(read_text(f"script = 'echo {used}'\n[secrets]\n{secrets}other = {{ env = 'SECRET_TOK' }}\n", "a.toml"))["secrets"]
    assert list(found) == names
    assert [one["env"] for one in found.values()] == [
        "SECRET_TOK", "SECRET_TOK_2", "SECRET_TOK_3", "SECRET_" + "X" * 57, "SECRET_" + "X" * 55 + "_2",
    ]  # fmt: skip
    taken = "script = '<% $secrets.tok %><% $secrets.other %>'\n[secrets]\ntok = 'v'\nother = { env = 'SECRET_TOK' }\n"
    found = document(read_text(taken, "a.toml"))["secrets"]
    assert found == {"tok": {"env": "SECRET_TOK_2"}, "other": {"env": "SECRET_TOK"}}


def test_secrets_of_a_job_are_those_that_its_role_refers_to_and_are_bounded():
    text = "script = 'true'\n[roles.a]\nenv = { A = '-<% $secrets.x %>-' }\n[roles.b]\n[secrets]\nx = '1'\ny = '2'\n"
    a, b = jobs_of(read_text(text, "job.toml"), "job.toml")
    assert (a.secrets, b.secrets) == ((("x", "1"),), ())
    assert with_values(a.spec.env, {"x": "<% $secrets.x %>"}) == (("A", "-<% $secrets.x %>-"),)
    assert with_values((("A", "<%$secrets.x%> <% $secrets.z %>"),), {"x": "1"}) == (("A", "1 <% $secrets.z %>"),)
    long = f"script = 'true'\nenv = {{ A = '{'<%$secrets.x%>' * 50}' }}\n[secrets]\nx = '{'y' * 30_000}'\n"
    with pytest.raises(BadInput, match="variables with secrets have more than 1048576 characters"):
        job_of(read_text(long, "job.toml"), "job.toml")


# -- as jobs


def test_every_option_of_a_file_arrives(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(
        "name = 'n'\ngpus = 2\ntime_limit = '2h'\npriority = -3\nmemory = '1G'\nulimits = { nofile = [1, 2] }\nshm_size = '64M'\n"
        "command = ['a', 'b']\nhealth = { argv = ['true'], interval = '10s' }\n"
    )
    job = job_of(read_job_file(str(path)), "job.toml", name="other", priority=None)
    assert (job.name, job.gpus, job.time_limit, job.priority) == ("other", "2", 7200.0, -3)
    assert job.spec.argv == ("a", "b") and job.spec.limits.memory_max == 1 << 30 and job.spec.shm_size == 64 << 20
    assert job.spec.health is not None and job.spec.health.interval == 10.0 and job.spec.rlimits[0].hard == 2


def test_a_batch_script_longer_than_an_argument_runs_whole(tmp_path):
    path = tmp_path / "long.sh"
    filling = "# \N{EURO SIGN} $1 ' \" `\n" * 20_000
    path.write_text(f'#!/bin/sh\n{filling}echo "$0" "$1" "$#"\n{filling}echo end\n')
    command = read_job_file(str(path), arguments=("a b",)).roles[0].command
    assert max(len(word.encode()) for word in command) < 128 * 1024
    assert subprocess.run(command, capture_output=True, text=True).stdout == f"{path} a b 1\nend\n"
    path.write_text(f"#!/usr/bin/python3\n{filling}")
    with pytest.raises(BadInput, match="has more than 131071 bytes") as caught:
        read_job_file(str(path))
    assert caught.value.hint == "save it as a file, and start that: python3 FILE"


def test_what_the_keywords_refuse_names_the_file(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text("memory = 'much'")
    with pytest.raises(BadInput, match=r"job\.toml:1: memory 'much' cannot be read"):
        job_of(read_job_file(str(path)), "job.toml")


def test_a_file_of_several_instances_becomes_jobs_that_start_together():
    file = read_text((FILES / "stack.yaml").read_text(), "stack.yaml")
    assert start_together(file)
    assert [job.role for job in jobs_of(file, "stack.yaml")] == ["train", "train", "train", "all"]


def test_what_stands_above_the_roles_is_for_those_that_do_not_say_it():
    above = "command = ['above']\nimage = 'x'\ngpus = 2\ncount = 3\n"
    own = "[roles.a]\ncommand = ['a']\nimage = 'y'\ngpus = 1\ncount = 4\n"
    file = read_text(above + own, "a.toml")
    (a,) = file.roles
    lines = {"image": 2, "command": 1, "gpus": 3, "count": 4}
    assert file.notes == tuple(f"a.toml:{line}: {key}: has no effect: every role has its own" for key, line in lines.items())
    assert (a.command, a.image, a.gpus, a.count) == (("a",), "y", "1", 4)
    file = read_text(above + own + "[roles.b]\n", "a.toml")
    assert not file.notes and read_text("script = 'x'\n" + own, "a.toml").notes
    _, b = file.roles
    assert (b.command, b.image, b.gpus, b.count) == (("above",), "x", "2", 3)


@pytest.mark.parametrize("name", ["openpai-2-two-roles.yaml", "openpai-distributed.json", "own-roles.json", "dlc-cluster.params"])
def test_roles_keep_their_rules_and_ports(name):
    file = read_text((FILES / name).read_text(), name)
    jobs = jobs_of(file, name)
    for role in file.roles:
        of_role = [job for job in jobs if job.role == role.name]
        assert len(of_role) == role.count and len({*of_role}) == 1
        (job,) = {*of_role}
        assert (job.min_failed or None, job.min_succeeded or None) == (role.min_failed, role.min_succeeded)
        assert dict(text.split(":") for text in job.ports) == {label: str(count) for label, count in role.ports.items()}
    firsts = [job.role for job in jobs if job.role in ("master", "chief")]
    assert [job.role for job in jobs][: len(firsts)] == firsts


OPENPAI = """{"jobName": "a", "image": "x", "gpuType": "%s", "dataDir": "$PAI_DEFAULT_FS_URI/data", "taskRoles": [
    {"name": "r", "taskNumber": 1, "cpuNumber": 1, "memoryMB": 100, "gpuNumber": %s, "command": "true"}]}"""
OPENPAI_2 = """
protocolVersion: 2
name: a
type: job
jobRetryCount: -2
prerequisites: [{type: dockerimage, name: i, uri: x}]
taskRoles:
  r: {dockerImage: i, resourcePerInstance: {cpu: 1, memoryMB: 100, gpu: 0, ports: {http: 0}}, commands: ["true"]}
"""


@pytest.mark.parametrize(("model", "count", "gpu_class"), [("H100", 1, "H100"), ("H100", 0, ""), ("", 1, "")])
def test_a_type_of_gpus_is_a_class(model, count, gpu_class):
    assert read_text(OPENPAI % (model, count), "a.json").roles[0].options.get("gpu_class", "") == gpu_class
    dlc = f"kind=TFJob\nworker_count=1\nworker_image=x\ncommand=true\nworker_gpu={count}\nworker_gpu_type={model}\n"
    assert read_text(dlc, "a.params").roles[0].options.get("gpu_class", "") == gpu_class


@pytest.mark.parametrize(
    ("policy", "counts", "succeeded", "note"),
    [
        ("ChiefWorker", {"chief": 1, "ps": 2, "worker": 3}, {"chief": 1}, ""),
        ("ChiefWorker", {"master": 1, "worker": 3}, {"master": 1}, ""),
        ("ChiefWorker", {"ps": 2, "worker": 1}, {"worker": 1}, ""),
        ("ChiefWorker", {"ps": 2, "worker": 3}, {"worker": 3}, "the first worker does not decide alone"),
        ("AllWorkers", {"ps": 2, "worker": 3}, {"worker": 3}, ""),
        ("AllWorkers", {"worker": 3}, {}, ""),
        ("AllWorkers", {"chief": 1, "worker": 3}, {}, ""),
        ("AllWorkers", {"chief": 1, "ps": 2}, {"chief": 1}, ""),
        ("AllWorkers", {"chief": 1, "ps": 2, "worker": 3}, {"worker": 3}, "the chief ends with the workers"),
        ("AllWorkers", {"ps": 2}, {}, ""),
        ("", {"chief": 1, "ps": 2, "worker": 3}, {}, ""),
    ],
)
def test_who_decides_that_a_job_of_dlc_has_succeeded(policy, counts, succeeded, note):
    text = "".join(f"{name}_count={count}\n{name}_image=x\n" for name, count in counts.items())
    file = read_text(f"kind=TFJob\ncommand=true\nsuccess_policy={policy}\n{text}", "a.params")
    assert {role.name: role.min_succeeded for role in file.roles if role.min_succeeded} == succeeded
    assert bool(note) == bool(file.notes) and note in " ".join(file.notes)


ALONE = [
    ("a.yaml", "services:\n  web: {image: x, environment: {RANK: mine}}\n", "web", "mine"),
    ("a.params", "kind=TFJob\nworker_count=1\nworker_image=x\ncommand=true\n", "worker", "0"),
    ("a.json", OPENPAI % ("", 0), "r", "0"),
]


@pytest.mark.parametrize(("name", "text", "role", "rank"), ALONE)
def test_one_alone_is_told_its_rank_as_many_are(name, text, role, rank):
    """As one that starts together with nobody; in an array by the same variables."""
    file = read_text(text, name)
    assert start_together(file) and not start_together(file, array=True)
    assert [job.role for job in jobs_of(file, name)] == [role]
    env = dict(job_of(file, name, array=TWO).spec.env)
    assert (env["MASTER_ADDR"], env["WORLD_SIZE"], env["RANK"]) == ("127.0.0.1", "1", rank)
    assert json.loads(env["TF_CONFIG"])["task"] == {"type": role, "index": 0}
    assert ("PAI_HOST_IP_r_0" in env) == (role == "r")
    host = dataclasses.replace(file.roles[0], options={"network": "host"})
    assert "MASTER_ADDR" not in dict(job_of(dataclasses.replace(file, roles=(host,)), name, array=TWO).spec.env)


@pytest.mark.parametrize(
    ("limit", "reserved", "cores", "memory"),
    [
        ("cpus: '0.5', memory: 50M", "cpus: '2.5', memory: 20M", 2500, 50 << 20),
        ("cpus: 4", "cpus: 2, memory: 20M", 4000, 20 << 20),
        ("pids: 9", "memory: 20M", 0, 20 << 20),
        ("memory: 50M", "cpus: 0.25", 250, 50 << 20),
    ],
)
def test_the_queue_counts_what_compose_reserves(limit, reserved, cores, memory):
    text = f"services:\n  a:\n    image: x\n    deploy:\n      resources: {{limits: {{{limit}}}, reservations: {{{reserved}}}}}\n"
    file = read_text(text, "a.yaml")
    again = read_text(toml(document(file)), "again.toml")
    (job,), (other,) = jobs_of(file, "a.yaml"), jobs_of(again, "again.toml")
    assert job == other and not file.notes
    found = options_of(job, "ann")
    assert (found.millicores, found.memory) == (cores, memory)
    assert job.spec.limits.cpu_max == (None if "cpus" not in limit else cores / 1000 if cores == 4000 else 0.5)


@pytest.mark.parametrize(
    ("said", "where"),
    [
        ("deploy: {resources: {limits: {memory: 512M}, reservations: {memory: 1G}}}", "deploy.resources.reservations.memory"),
        ("mem_limit: 512M\n    mem_reservation: 1G", "mem_reservation"),
    ],
)
def test_memory_that_is_reserved_beyond_the_limit_is_told_in_composes_words(said, where):
    (told,) = all_told(f"services:\n  a:\n    image: x\n    {said}\n", "a.yaml")
    line = 5 if where == "mem_reservation" else 4
    assert told.startswith(f"a.yaml:{line}: services.a: {where} 1 GiB is more than the limit 512 MiB"), told


def test_cores_that_are_reserved_stand_above_the_roles_or_in_one():
    text = "script = 'true'\nreserve_cpus = 2\n[roles.a]\n[roles.b]\nreserve_cpus = 0.5\n"
    assert [job.reserve_cpus for job in jobs_of(read_text(text, "job.toml"), "job.toml")] == [2.0, 0.5]
    assert all_told("script = 'x'\nreserve_cpus = 10000000", "job.toml") == ["job.toml:2: 1e+07 reserved cores are out of range"]


def test_openpais_jobs_know_their_user_and_where_files_are():
    file = read_text(OPENPAI % ("", 0), "a.json")
    env = dict(job_of(file, "a.json", array=TWO).spec.env)
    assert dict(job_of(read_text(toml(document(file)), "a.toml"), "a.toml", array=TWO).spec.env) == env  # once it is converted, too
    assert (env["PAI_USER_NAME"], env["PAI_DATA_DIR"]) == (getpass.getuser(), "file:///data")
    assert env["PAI_OUTPUT_DIR"] == "file:///Output/a"
    assert env["PAI_HOST_IP_r_0"] == "127.0.0.1" and env["PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX"] == "0"
    own = json.dumps({**json.loads(OPENPAI % ("", 0)), "jobEnvs": {"PAI_OUTPUT_DIR": "/own"}})
    assert dict(job_of(read_text(own, "a.json"), "a.json").spec.env)["PAI_OUTPUT_DIR"] == "/own"


@pytest.mark.parametrize(
    ("completion", "failed", "succeeded"),
    [
        ("", 1, 3),
        ("completion: {minFailedInstances: -1, minSucceededInstances: -1}, ", None, None),
        ("completion: {minFailedInstances: 2, minSucceededInstances: 1}, ", 2, 1),
    ],
)
def test_when_a_job_of_openpai_has_ended(completion, failed, succeeded):
    """What is not said of successes is the number of instances; -1: when all have ended."""
    file = read_text(OPENPAI_2.replace("r: {", f"r: {{instances: 3, {completion}"), "a.yaml")
    (role,) = file.roles
    assert (role.min_failed, role.min_succeeded) == (failed, succeeded)
    env = role.options["env"]
    told = env["PAI_MIN_FAILED_TASK_COUNT_r"], env["PAI_MIN_SUCCEEDED_TASK_COUNT_r"]
    assert told == (str(failed or -1), str(succeeded or -1))
    first = read_text(OPENPAI % ("", 0), "a.json").roles[0]
    assert (first.min_failed, first.min_succeeded, first.options["env"]["PAI_MIN_SUCCEEDED_TASK_COUNT_r"]) == (1, None, "-1")


def test_more_successes_than_instances_are_refused():
    for number in (-2, 0, 3):
        (told,) = all_told(OPENPAI_2.replace("r: {", f"r: {{instances: 2, completion: {{minSucceededInstances: {number}}}, "), "a.yaml")
        wrong = f"minSucceededInstances is {number}, not -1 or a whole number from 1 to 2"
        assert wrong in told, told
    one = (OPENPAI % ("", 0)).replace('"taskNumber": 1', '"taskNumber": 1, "minSucceededTaskCount": 2')
    assert "minSucceededTaskCount is 2, not a whole number from 1 to 1" in all_told(one, "a.json")[0]
    unread = OPENPAI_2.replace("r: {", "r: {instances: x, completion: {minSucceededInstances: 2}, ")
    assert len(all_told(unread, "a.yaml")) == 1
    assert len(all_told("[roles.a]\nscript = 'x'\ncount = 'x'\nmin_succeeded = 2\n", "a.toml")) == 1


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.params", "job_type=XJob\ncommand=x\nworker_count=1\nworker_image=x", "a.params:1: job_type is 'XJob'"),
        ("a.sh", "#!/bin/sh\n#SBATCH --array=0-3%0\n", "a.sh:2: --array 0-3%0 lets none of its jobs run"),
        ("a.toml", "script = 'x'\nreserve_cpus = true", "a.toml:2: reserve_cpus is true, not a number"),
        ("a.toml", "script = 'x'\nname = []", "a.toml:2: name is a list, not a text"),
        ("a.toml", "script = 'x'\ncount = { a = 1 }", "a.toml:2: count is a mapping, not a whole number"),
        ("a.json", '{"command": [null]}', "a.json:1: command[0] is null, not a text"),
        ("a.toml", "script = 'x'\nenv = true", "a.toml:2: env is true, not a mapping"),
    ],
)
def test_what_is_wrong_is_told_in_the_words_of_its_file(name, text, told):
    (found,) = all_told(text, name)
    assert found.startswith(told), found


def test_parameters_stand_in_addresses_of_prerequisites():
    text = OPENPAI_2.replace("uri: x}]", "uri: 'x:<% $parameters.tag %>'}, {type: data, name: d, uri: ['/data/<% $parameters.set %>']}]")
    text = text.replace("r: {", "r: {data: d, ").replace('["true"]', '["ls <% $data.uri[0] %>"]')
    (role,) = read_text(f"{text}parameters: {{tag: 7, set: cifar}}\n", "a.yaml").roles
    assert (role.image, role.options["mounts"], role.command[2]) == ("x:7", ["/data/cifar:/data/cifar:ro"], "ls /data/cifar")
    with pytest.raises(BadInput, match=r"a\.yaml:6: prerequisites\[0\]\.uri refers to \$parameters\.tag, which is no value"):
        read_text(f"{text}parameters: {{set: cifar}}\n", "a.yaml")


def test_what_real_files_of_openpai_say_beyond_the_schema():
    file = read_text(OPENPAI_2, "a.yaml")
    assert file.queue == {"retries": MAX_AFTER} and file.roles[0].ports == {"http": 1}


def test_what_cannot_start_together_is_refused():
    def read_own(text):
        return read_text(text, "job.toml")

    with pytest.raises(BadInput, match=r"job\.toml has 10000 instances, and at most 256 can start together"):
        jobs_of(read_own("count = 10000\nscript = 'true'"), "job.toml")
    with pytest.raises(BadInput, match="array stands beside several roles or instances"):
        jobs_of(read_own("array = 3\ncount = 2\nscript = 'true'"), "job.toml")
    with pytest.raises(BadInput, match=r"job\.toml:1: array stands beside ports"):
        order_of(read_own("array = 3\nscript = 'true'\nports = { http = 1 }"), "job.toml")
    assert not start_together(read_own("script = 'true'"))
    assert start_together(read_own("script = 'true'\nports = { http = 1 }"))


def test_a_list_of_jobs_names_each_line_that_is_wrong(tmp_path):
    path = tmp_path / "jobs.jsonl"
    path.write_text('{"name": "a", "command": ["true"]}\n{"nmae": "b"}\n{"memory": "x"}\nnonsense\n{"array": 3}\n')
    with pytest.raises(BadInput) as caught:
        jobs_of_list(str(path))
    *notes, none = [str(caught.value), *caught.value.__notes__]
    assert [note.partition(":")[2].partition(":")[0].partition(" ")[0] for note in notes] == ["2", "3", "4", "5"]
    assert none == "none of the jobs was queued"
    path.write_text('{"comand": 3}\n' * 50)
    with pytest.raises(BadInput) as caught:
        jobs_of_list(str(path))
    told = [str(caught.value), *caught.value.__notes__]
    assert len(told) == 22 and told[19].startswith(f"{path}:20: ")
    assert told[20:] == ["there may be more: correct these first", "none of the jobs was queued"]
    path.write_text('{"command": ["true"], "roles": {"a": {"count": 3}, "b": {}}}\n')
    with pytest.raises(BadInput, match=r"several instances: a \(3\), b \(1\); here stands one"):
        jobs_of_list(str(path))
    path.write_text('{"name": "a", "command": ["true"]}\n' * 3)
    assert [job.name for job in jobs_of_list(str(path))] == ["a"] * 3


@pytest.mark.parametrize(
    "wrong", ["gpus = 'lots'", "image = 'No/Such:::'", "env = 3", "after = 5", "retry_on = 3", "notify = 7", "name = 'x'"]
)
def test_a_file_that_is_wrong_is_named(wrong):
    command = "" if wrong.startswith("name") else "command = ['true']\n"
    with pytest.raises(BadInput, match=r"job\.toml") as caught:
        job_of(read_text(command + wrong, "job.toml"), "job.toml")
    assert caught.value.hint


def test_every_order_to_the_queue_can_stand_in_a_file():
    text = "name = 'a'\ncommand = ['true']\nsingleton = true\nretries = 2\nretry_on = [75]\nnotify = 'end,fail'\nnotify_to = 'a@b.example'"
    job = job_of(read_text(text, "job.toml"), "job.toml")
    assert (job.singleton, job.retries, job.retry_on, job.notify, job.notify_to) == (True, 2, (75,), ("end", "fail"), "a@b.example")


def test_the_format_that_is_said_holds():
    assert read_text("services: {a: {image: busybox}}", "stack.toml", format="compose").roles[0].image == "busybox"
    with pytest.raises(BadInput):
        read_text("name = 'x'", "job.toml", format="compose")


def test_a_compose_file_takes_its_own_directory_and_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("IMAGE", "busybox")
    (tmp_path / "compose.yaml").write_text((FILES / "compose.yaml").read_text())
    (role,) = read_job_file(str(tmp_path / "compose.yaml")).roles
    assert role.image == "busybox" and f"{tmp_path}/data:/data:ro" in role.options["mounts"]


def test_arguments_go_to_a_batch_script_alone(tmp_path):
    path = tmp_path / "job.sh"
    path.write_text("#!/bin/sh\necho $1")
    assert read_job_file(str(path), arguments=["x"]).roles[0].command[-2:] == (str(path), "x")
    with pytest.raises(BadInput, match="takes no arguments"):
        read_text("name = 'x'", "a.toml", arguments=["x"])


def test_convert(capfd):
    assert main(["convert", str(FILES / "dlc-cluster.params")]) == 0
    out, err = capfd.readouterr()
    assert tomllib.loads(out)["roles"]["worker"]["image"] == "registry.example:5000/eflops/pytorch:v1" and "workspace_id" in err
    assert main(["convert", "-q", "--json", str(FILES / "dlc-cluster.params")]) == 0
    again, err = capfd.readouterr()
    assert json.loads(again) == tomllib.loads(out) and err == ""
    assert main(["convert", str(FILES / "nothing.toml")]) == 125


# -- what hostile text does


V2 = "protocolVersion: 2\nname: x\ntype: job\nprerequisites: [{name: i, type: dockerimage, uri: i}]\n"
ROLE_2 = "dockerImage: i, resourcePerInstance: {cpu: 1, memoryMB: 1, gpu: 0}"
BOMBS = [
    "[" * 500_000,
    "{a: " * 100_000,
    "- " * 300_000,
    "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40)),
    "a: &a {b: 1}\n" + "c: {<<: [" + "*a," * 20_000 + "]}",
    "&a [*a]",
    '{"a": ' * 50_000,
    "//" * 400_000,
    "/*" * 400_000,
    '"\\"' * 200_000,
    "services: {a: {image: '" + "${A:-${" * 50_000 + "'}}",
    "[" * 3000,
    "a." * 100_000 + "b = 1",
    "a = {" + "'a' . " * 100_000 + "b = 1}",
    "#!/bin/sh\n" + "#SBATCH -c1\n" * 80_000,
    "#!/bin/sh\n#SBATCH " + "-c1 " * 100_000,
    "#!/bin/sh\n#SBATCH --dependency=" + "afterok:1," * 60_000,
    "worker_count=" + "9" * 500_000,
    '{"x": ' + "[" * 900 + "0," * 500_000 + "0" + "]" * 900 + "}",
    '{"x": ' + '{"": ' * 900 + '{"a": 1, "a": 2}' + "}" * 900 + "}",
    "x = [" + "1,\n" * 300_000 + "]",
    "".join(f"[[x.y]]\na{n}.b = 1\n" for n in range(40_000)),
    f"{V2}parameters: {{a: {'x' * 100_000}}}\ntaskRoles: {{w: {{{ROLE_2}, commands: ['{'<% $parameters.a %>' * 10_000}']}}}}",
]  # fmt: skip


@pytest.mark.parametrize("text", BOMBS, ids=range(len(BOMBS)))
@pytest.mark.parametrize("name", ["-", "a.yaml", "a.json", "a.toml"])
def test_a_text_that_would_take_for_ever_is_refused_at_once(text, name):
    began = time.thread_time()
    try:
        read_text(text, name)
    except BadInput as error:
        assert str(error).isprintable() and len(str(error)) < 2000 and error.hint
    assert time.thread_time() - began < 5


LONG = [
    f"{V2}parameters: {{a: &x '{'x' * 100_000}<% $parameters.b %>', b: 1}}\ntaskRoles: {{w: {{{ROLE_2}, commands: [{'*x, ' * 600}]}}}}",
    f"x-a: &x '{'x' * 500_000}'\nservices: {{a: {{image: i, command: [{'*x, ' * 200}]}}}}",
]  # fmt: skip


@pytest.mark.parametrize("text", LONG, ids=["openpai", "compose"])
def test_what_aliases_make_of_a_long_text_is_bounded(text):
    with pytest.raises(BadInput, match="more than 50000 values"):
        read_text(text, "a.yaml")


def mutated(text: str, choices: random.Random) -> str:
    words = [
        "\0",
        "\x1b[2J",
        "null",
        "-1",
        "1e999",
        "''",
        "[]",
        "{}",
        "&a",
        "*a",
        "<<",
        "$",
        "${X",
        "<% $secrets.x %>",
        "\n",
        ": ",
        "=",
        "\u202e",
        "9" * 30,
    ]
    for _ in range(choices.randint(1, 4)):
        at, length = choices.randrange(len(text)), choices.choice((0, 1, 3, 20))
        text = text[:at] + choices.choice([*words, text[at : at + 40]]) + text[at + length :]
    return text


@settings(max_examples=600, deadline=None)
@given(name=st.sampled_from(NAMES), seed=st.integers(0, 2**32))
def test_any_text_is_a_job_or_is_refused(name, seed):
    text = mutated((FILES / name).read_text(), random.Random(seed))
    try:
        file = read_text(text, name)
        assert toml(document(read_text(toml(document(file)), "a.toml"))) == toml(document(file))
    except BadInput as error:
        assert str(error).isprintable() and error.hint
        str(error).encode()


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=60), format=st.sampled_from(("", *FORMATS)), name=st.sampled_from(("-", "a.toml", "a.yaml", "a.json")))
def test_any_short_text(text, format, name):
    try:
        read_text(text, name, format=format)
    except BadInput as error:
        assert error.hint


# -- YAML


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"), ("22:22", "22:22"), ("2024-01-01", "2024-01-01"), ("1.5", 1.5), ("0x1f", 31), ("0o17", 15), ("08", 8), ("~", None),
        ("'1'", "1"), ("!!str 1", "1"), ("!!float 1", 1.0), ("true", True), ("", None), ("1e3", 1000.0), ("- 1\n-", [1, None]),
        ("a: &x {b: 1, c: 2}\nd: {<<: *x, c: 3}", {"a": {"b": 1, "c": 2}, "d": {"b": 1, "c": 3}}),
        ("{<<: [{a: 1}, {a: 2, b: 3}]}", {"a": 1, "b": 3}), ("'<<': 1", {"<<": 1}),
    ],
)  # fmt: skip
def test_yaml(text, value):
    assert yaml.loads(text, "f")[0] == value


@pytest.mark.parametrize(
    "text", ["a: 1\na: 2", "!!python/object:os.system x", "!!int x", "a: *b", "--- 1\n--- 2", "{[a]: 1}", "<<: 1", "%", "a: \x00"]
)
def test_yaml_refused(text):
    with pytest.raises(BadInput):
        yaml.loads(text, "f")


def test_yaml_lines():
    assert yaml.loads("a:\n  b:\n  - 1\n  - c: 2\n", "f")[1][("a", "b", 1, "c")] == 4


def test_an_interrupt_while_lines_are_read_says_that_nothing_is_queued(tmp_path):
    def progress(done: int, of: int) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "jobs.jsonl"
    path.write_text('{"command": ["true"]}\n' * 300)
    with pytest.raises(KeyboardInterrupt, match="none of the jobs was queued"):
        jobs_of_list(str(path), progress)


def all_told(text: str, name: str, **queue: object) -> list[str]:
    """What the file is refused with: the place and the first words of each."""
    with pytest.raises(BadInput) as caught:
        order_of(job_file_of(text, name, "/here", "", ()), name, **queue)
    return [str(caught.value), *getattr(caught.value, "__notes__", ())]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.toml", 'comand = ["true"]\nmemory = "64Q"', ["a.toml:1: comand is unknown", "a.toml:2: memory '64Q'"]),
        ("a.toml", 'gpu = 2\narrays = "3"\nmemory = "64Q"\ntime_limit = "q"\nretries = "x"',
         [f"a.toml:{line}: " for line in range(1, 6)]),
        ("a.toml", 'retry_on = 75\non_reboot = "x"\nnetwork = 5\nprofile = "x"\npull = "x"\nscript = "x"',
         [f"a.toml:{line}: " for line in range(1, 6)]),
        ("a.toml", 'script = "x"\narray = "9-1"\nmemory = "64Q"', ["a.toml:2: array '9-1'", "a.toml:3: memory"]),
        ("a.toml", 'script = "x"\nmounts = ["x"]\nmemory = "64Q"', ["a.toml:2: mount 'x'", "a.toml:3: memory"]),
        ("a.toml", 'script = "x"\ntime_limit = "q"\nmemory = "64Q"\n[roles.a]\n[roles.b]\n[roles.c]',
         ["a.toml:2: time_limit 'q'", "a.toml:3: memory"]),
        ("c.yaml", "services:\n  a:\n    image: x\n    mem_limit: 10Q\n  b:\n    image: x\n    mem_limit: 10Q\n"
         "    environment:\n      - =2\n",
         ["c.yaml:4: services.a: mem_limit '10Q'", "c.yaml:7: services.b: mem_limit '10Q'", "c.yaml:8: services.b: environment name"]),
        ("d.yaml", "protocolVersion: 2\nname: a\ntype: job\nprerequisites:\n  - {type: dockerimage, name: i, uri: 'X::y'}\ntaskRoles:\n"
         "  r: {dockerImage: i, resourcePerInstance: {cpu: 1, memoryMB: 100, gpu: 0}, commands: ['true']}",
         ["d.yaml:7: taskRoles.r: 'X::y' is not an image reference"]),
        ("a.toml", 'script = "x"\n[env]\nA = [1]\nB = { x = 1 }',
         ["a.toml:2: env.A is a list, not a text", "a.toml:2: env.B is a mapping"]),
        ("a.json", '{"image": "host"}', ["a.json says no command, and the image host has none"]),
        ("a.yaml", "", ["a.yaml is empty"]),
    ],
)  # fmt: skip
def test_all_that_is_wrong_with_keys_and_values_is_told_once_in_the_order_of_lines(name, text, said):
    told = all_told(text, name)
    assert len(told) == len(said) and all(line.startswith(one) for line, one in zip(told, said, strict=True)), told


def test_what_the_caller_says_is_not_blamed_on_the_file():
    text = 'script = "x"\ntime_limit = "1h"\n[roles.a]\n[roles.b]\n'
    assert [line.partition(" cannot")[0] for line in all_told(text, "a.toml", time_limit="q")] == ["time_limit 'q'"]


def test_toml_without_blanks_is_no_parameter_file():
    for text in ('image="host"\ncommand=["true"]\n', 'name="a"\nscript="x"\n[env]\nworkers="1"\n[roles.worker_count]\n'):
        found = job_file_of(text, "-", "/here", "", ())
        assert found.format == "dockless", text
    assert job_file_of("name=a\ncommand=x\nworker_count=1\nworker_image=x\n", "-", "/here", "", ()).format == "dlc"


def test_variables_are_texts_as_the_file_writes_them():
    (job,) = order_of(job_file_of('script = "x"\nenv = { A = true, B = 1 }', "a.toml", "/here", "", ()), "a.toml").jobs
    assert job.spec.env == (("A", "true"), ("B", "1"))


def test_each_line_of_a_list_tells_all_that_is_wrong_with_it(tmp_path):
    path = tmp_path / "jobs.jsonl"
    path.write_text('{"command": ["a"], "priority": "x", "hold": 3}\n{"command": ["a"]}\n{"comand": ["a"], "array": 3, "pull": "never"}\n')
    with pytest.raises(BadInput) as caught:
        jobs_of_list(str(path))
    said = [note.removeprefix(str(path)) for note in (str(caught.value), *caught.value.__notes__[:-1])]
    assert len(said) == 5 and [one.split(" ")[0] for one in said] == [":1:", ":1:", ":3:", ":3:", ":3:"], said
    path.write_text("\n")
    with pytest.raises(BadInput, match="is empty"):
        jobs_of_list(str(path))


@pytest.mark.parametrize(("name", "text"), [case[:2] for case in (*ALL_WRONG, *WRONG)])
def test_what_is_told_of_a_file_that_is_submitted_begins_with_what_is_wrong_with_its_keys(name, text):
    with pytest.raises(BadInput) as caught:
        read_text(text, name)
    keys = {str(caught.value), *(note.partition(" (")[0] for note in getattr(caught.value, "__notes__", ()))}
    told = {line.partition(" (")[0] for line in all_told(text, name)}
    assert len(keys) <= len(told) and (name.endswith((".toml", ".json")) or len(keys) == len(told))


INJECTED = [
    ("compose.yaml", [
        ("container_name: t", "contaner_name: t", "services.test.contaner_name is unknown"),
        ("user: 1000", "working_dir: inside", "services.test: working directory 'inside' is not absolute"),
        ("volumes:\n      - ./data:/data:ro", "volumes:\n      - ./data:data", "services.test: mount target 'data' is not"),
        ("{soft: 1024, hard: 4096}", "{soft: 5, hard: 4}", "services.test: ulimits: nofile: the soft limit is above the hard one"),
        ("interval: 5s", "interval: soon", "services.test: health.interval 'soon'"),
        ("memory: 50M", "memory: 50Q", "services.test: deploy.resources.limits.memory '50Q'"),
        ("count: 1", "count: -3", "services.test.deploy.resources.reservations.devices[0].count is -3"),
    ]),
    ("openpai-2-two-roles.yaml", [
        ("name: horovod", "name: horovod\nretries: 3", "retries is unknown"),
        ("minSucceededInstances: 1", "minSuceededInstances: 1", "taskRoles.master.completion.minSuceededInstances is unknown"),
        ("    commands: [sleep 10", "    instances: none\n    commands: [sleep 10", "taskRoles.master.instances is 'none'"),
        ("  worker:\n", "  work-er:\n", "taskRoles.work-er is no name of a role"),
        ("taskRetryCount: 1", "taskRetryCount: x", "taskRoles.work-er.taskRetryCount is 'x'"),
        ("dockerImage: official\n    resourcePerInstance: {cpu: 16, memoryMB: 16384, gpu: 4}\n    commands: [sleep inf",
         "dockerImage: other\n    resourcePerInstance: {cpu: 16, memoryMB: 16384, gpu: 4}\n    commands: [sleep inf",
         "taskRoles.work-er.dockerImage is 'other'"),
    ]),
    ("openpai-distributed.json", [
        ("registry.example/pai.run.tensorflow", "No/Such:::", "'No/Such:::' is not an image reference"),
        ('"codeDir"', '"codDir"', "codDir is unknown"),
        ('"memoryMB": 8192', '"memoryMB": "8G"', "taskRoles[0].memoryMB is '8G'"),
        ('"shmMB": 128', '"shmMB": 999999', "taskRoles[1].shmMB is 999999"),
        ('"retryCount": 2', '"retryCount": 5000', "retries are out of range"),
        ('"isDebug": true', '"=": true', "environment name '=' is empty"),
    ]),
    ("dlc-cluster.params", [
        ("name=yourtaskname", f"name={'x' * 200}", f"name '{'x' * 40}' is too long"),
        ("kind=PyTorchJob", "knd=PyTorchJob", "knd is unknown"),
        ("worker_count=1", "worker_count=one", "worker_count 'one' cannot be read"),
        ("worker_cpu=4", "cpu=0.0001", "cpu 0.0001: the kernel gives no less"),
        ("worker_memory=4\n", "memory=much\n", "memory 'much' is no size"),
        ("worker_image=registry.example:5000/eflops/pytorch:v1", "worker_image=No/Such:::", "'No/Such:::' is not an image reference"),
    ]),
    ("array.sbatch", [
        ("-J night", "--tiem 3 --gpus=x", "--tiem is unknown"),
        ("#SBATCH --array=1-9:2", "#SBATCH --array=0-300000", "--array '300001' is"),
        ("--requeue --hold", "--priority=9999999 --hlod", "--priority 9999999 is out of range"),
        ("afterok:1:2,singleton", "afterok:0-0", "--dependency 'afterok:0-0' cannot be read"),
        ("/data:/data:ro", "/data:data", "mount target 'data' is not an absolute path"),
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes"), INJECTED, ids=[name for name, _ in INJECTED])
def test_misspelt_keys_and_wrong_values_of_other_formats_are_told_at_once_with_their_lines(name, changes):
    text = (FILES / name).read_text()
    for old, new, _ in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    told = all_told(text, name)
    for _, new, said in changes:
        first, last = (text[:at].count("\n") + 1 for at in (text.index(new), text.index(new) + len(new)))
        assert [line for line in told for number in range(first, last + 1) if line.startswith(f"{name}:{number}: {said}")], (said, told)
    besides = ["--gpus 'x' cannot be read", "--hlod is unknown"] if name == "array.sbatch" else []
    assert len(told) == len(changes) + len(besides) and all(any(one in line for line in told) for one in besides), told


def test_what_stands_for_a_value_that_could_not_be_read_is_not_found_wrong(tmp_path):
    """Nor what needs the value, of our own form, too."""
    roles = '[roles."x y"]\nports = { "a b" = 0 }\nimage = []\n[roles.b]\ncount = "x"\npull = "never"\n'
    told = all_told(f'script = "x"\ntime_limit = "q"\nwarn = "USR1@2m"\n{roles}', "a.toml")
    assert [line.split(" ")[1] for line in told] == ["time_limit", *["roles.x"] * 3, "roles.b.count"], told
    (told,) = all_told('script = "x"\ncpus = "many"\ncpu_burst = 1\n', "a.toml")
    assert told.startswith("a.toml:2: cpus"), told
    secrets = "protocolVersion: 2\nname: a\ntype: job\nprerequisites: [{type: dockerimage, name: i, uri: host}]\ntaskRoles:\n  r:\n"
    told = all_told(
        f"{secrets}    {{dockerImage: i, resourcePerInstance: {{cpu: 1, memoryMB: x, gpu: 0}}, commands: [<% $secrets.a %>]}}", "a.yaml"
    )
    assert [line.partition(" ")[2].partition(" ")[0] for line in told] == ["secrets", "taskRoles.r.resourcePerInstance.memoryMB"], told


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("env = { A = '<% $secrets.b %>' }", "a.toml:2: env.A refers to the secret 'b', which the file does not have"),
        ("hostname = '<% $secrets.a %>'", "a.toml:2: a secret stands where everybody on the host can read it"),
        ("[secrets.c]\nenv = 'NOT_SET'", "a.toml:2: the secret c has no value"),
    ],
)
def test_what_is_wrong_with_a_secret_names_its_line(said, told, monkeypatch):
    monkeypatch.delenv("NOT_SET", raising=False)
    (found,) = all_told(f"script = 'x'\n{said}\n[secrets]\na = 'b'\n", "a.toml")
    assert found.startswith(told)


def test_a_batch_scripts_line_ends_at_a_sign_of_comments_as_for_sbatch():
    """Also within a word: that is told. get_argument() of Slurm's src/sbatch/opt.c"""
    text = """#!/bin/sh
#SBATCH -J '# no' --container-image="nvcr.io#nvidia/pytorch:24.01" --time=3 # 'time=4
#SBATCH --container-workdir=/a\\#b --mem=1G#x --time=4
"""
    file = read_text(text, "a.sh")
    (role,) = file.roles
    assert (file.name, role.image, file.queue["time_limit"]) == ("# no", "nvcr.io/nvidia/pytorch:24.01", 180)
    assert (role.options["memory"], role.options["workdir"]) == ("1G", "/a#b")
    why = "the line ends there, as it does for sbatch: write it in quotes where it belongs to the value"
    assert file.notes == (f"a.sh:3: '--mem=1G#': {why}",)
    with pytest.raises(BadInput, match=r"a\.sh:2: a quote does not end"):
        read_text("#!/bin/sh\n#SBATCH --mem='1G # x\n", "a.sh")


def test_what_export_does_not_take_along_is_said_with_what_to_write():
    notes = read_text("#!/bin/sh\n#SBATCH --export=ALL,HOME,A=1\n", "a.sh").notes
    assert [note.partition(": write ")[2] for note in notes] == ["NAME=VALUE for each variable", "HOME=VALUE"]


def test_the_second_of_two_roles_is_told_with_its_own_line():
    """OpenPAI's roles of version 1 stand in a list."""
    text = (
        (FILES / "openpai-distributed.json")
        .read_text()
        .replace('"cpuNumber": 2, "memoryMB": 16384', '"cpuNumber": 9999999, "memoryMB": 16384')
    )
    (told,) = all_told(text, "a.json")
    assert told.startswith("a.json:16: taskRoles[1]: cpuNumber 1e+07"), told
