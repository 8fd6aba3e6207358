"""The options that ``run`` and ``submit`` share: each becomes its own keyword of ``dockless.run`` and no other."""

from __future__ import annotations

import os

import pytest

from dockless.cli import sandbox_options
from dockless.cli.parser import Parser
from dockless.errors import BadInput
from dockless.sandbox.spec import Bind, Tmpfs, Volume


def parsed(*words: str):
    parser = Parser("run", "run")
    sandbox_options.sandbox_options(parser)
    return sandbox_options.keywords(parser.parse(words))


NOTHING = parsed()
LINES = [
    ("--rm", {}), ("--init", {}),
    ("-e A=1", {"env": {"A": "1"}}), ("--env A=1=2 --env B=", {"env": {"A": "1=2", "B": ""}}),
    ("--env A=1 --env A=2", {"env": {"A": "2"}}),
    ("--env GIVEN", {"env": {"GIVEN": "by the caller"}}), ("--env NOT_GIVEN", {"env": {}}),
    ("-w /w", {"workdir": "/w"}), ("-u 5:6", {"user": "5:6"}), ("--group-add 5 --group-add 6", {"group_add": ["5", "6"]}),
    ("--hostname h", {"hostname": "h"}), ("--domainname d", {"domainname": "d"}),
    ("--add-host a:1.2.3.4 --add-host b:::1", {"add_hosts": ["a:1.2.3.4", "b:::1"]}),
    ("--log-size 5M", {"log_size": "5M"}), ("--log-opt max-size=10m --log-opt max-file=3", {"log_size": 30 << 20}),
    ("--log-opt max-size=1k", {"log_size": 1024}), ("--log-driver none", {"keep_log": False}), ("--log-driver json-file", {}),
    ("--device nvidia.com/gpu=0 --device nvidia.com/gpu=2 --device /dev/a", {"gpus": "device=0,2", "devices": ["/dev/a"]}),
    ("--device nvidia.com/gpu=all", {"gpus": "all"}),
    ("--device /dev/a --device /dev/b:/dev/c:r", {"devices": ["/dev/a", "/dev/b:/dev/c:r"]}),
    ("--sysctl a.b=1 --sysctl c.d=2", {"sysctls": ["a.b=1", "c.d=2"]}),
    ("--entrypoint e", {"entrypoint": "e"}),
    ("--timeout 5", {"timeout": "5"}), ("--grace 6", {"grace": "6"}), ("--stop-signal INT", {"stop_signal": "INT"}),
    ("--root tmpfs", {"root": "tmpfs"}), ("--root-size 5", {"root_size": "5"}), ("--read-only", {"root": "readonly"}),
    ("--read-only --root readonly", {"root": "readonly"}),
    ("-v /a:/b -v v:/c", {"mounts": ["/a:/b", "v:/c"]}), ("--tmpfs /t", {"tmpfs": ["/t"]}), ("--shm-size 5", {"shm_size": "5"}),
    ("--mount type=bind,source=/a,target=/b", {"mounts": [Bind("/a", "/b")]}),
    ("--mount type=bind,src=/a,dst=/b,readonly", {"mounts": [Bind("/a", "/b", readonly=True)]}),
    ("--mount type=bind,src=/a,destination=/b,ro=true,idmap=1", {"mounts": [Bind("/a", "/b", readonly=True, idmap=True)]}),
    ("--mount type=bind,src=/a,dst=/b,ro=0,rw,idmap=false", {"mounts": [Bind("/a", "/b")]}),
    ("--mount type=bind,src=/a,dst=/b,bind-nonrecursive", {"mounts": [Bind("/a", "/b", recursive=False)]}),
    ("--mount source=v,target=/b", {"mounts": [Volume("v", "/b")]}),
    ("--mount type=volume,src=v,dst=/b,ro", {"mounts": [Volume("v", "/b", readonly=True)]}),
    ("--mount type=tmpfs,target=/t", {"mounts": [Tmpfs("/t")]}),
    ("--mount type=tmpfs,target=/t,uid=5,gid=7", {"mounts": [Tmpfs("/t", uid=5, gid=7)]}),
    ("--mount type=tmpfs,target=/t,tmpfs-size=1K,tmpfs-mode=700", {"mounts": [Tmpfs("/t", size=1024, mode=0o700)]}),
    ("-v /a:/b --mount src=v,dst=/c", {"mounts": ["/a:/b", Volume("v", "/c")]}),
    ("-m 4G", {"memory": "4G"}), ("-m 1G --memory-swap 3G", {"memory": "1G", "swap": 2 << 30}),
    ("-m 1G --memory-swap 1G", {"memory": "1G", "swap": 0}),
    ("--memory-swap=-1", {"swap": None}), ("--memory-high 5", {"memory_high": "5"}), ("--memory-low 5", {"memory_low": "5"}),
    ("--memory-min 5", {"memory_min": "5"}), ("--cpus 1.5", {"cpus": "1.5"}), ("--cpu-weight 5", {"cpu_weight": "5"}),
    ("--cpu-burst 5", {"cpu_burst": "5"}), ("--cpuset-cpus 0-3", {"cpuset": "0-3"}), ("--cpuset-mems 0", {"mems": "0"}),
    ("--pids-limit 5", {"pids": "5"}), ("--io /a:rbps=5", {"io": ["/a:rbps=5"]}), ("--io-weight 5", {"io_weight": "5"}),
    ("--device-read-bps /a:5 --device-write-bps /a:6 --device-read-iops /a:7 --device-write-iops /b:8",
     {"io": ["/a:rbps=5,wbps=6,riops=7", "/b:wiops=8"]}),
    ("--io /a:rbps=5 --device-write-bps /a:6", {"io": ["/a:rbps=5,wbps=6"]}),
    ("--hugetlb 2MB=1G", {"hugetlb": "2MB=1G"}), ("--best-effort", {"best_effort": True}),
    ("--profile untrusted", {"profile": "untrusted"}), ("--network host", {"network": "host"}), ("--net none", {"network": "none"}),
    *((f"--{flag} host", {"namespaces": {name: "host"}}) for name, flag in
      (("user", "userns"), ("pid", "pid"), ("ipc", "ipc"), ("uts", "uts"), ("cgroup", "cgroupns"), ("time", "timens"))),
    ("--time-offset 5", {"time_offset": 5, "namespaces": {"time": "new"}}),
    ("--time-offset 5 --timens host", {"time_offset": 5, "namespaces": {"time": "host"}}),
    ("--cap-add A --cap-add B", {"cap_add": ["A", "B"]}), ("--cap-drop ALL", {"cap_drop": ["ALL"]}),
    ("--security-opt seccomp=unconfined", {"seccomp": "unconfined"}), ("--security-opt seccomp:p.json", {"seccomp": "p.json"}),
    ("--security-opt no-new-privileges --security-opt no-new-privileges:true --security-opt no_new_privs", {}),
    ("--ulimit nofile=5 --ulimit core=0", {"ulimits": ["nofile=5", "core=0"]}), ("--gpus all", {"gpus": "all"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "gpus"), [("", "device=0,2"), ("--gpus 1", "1"), ("--device nvidia.com/gpu=1", "device=1"), ("--device /dev/a", "device=0,2")]
)
def test_the_variable_of_nvidia_docker(monkeypatch, line, gpus):
    monkeypatch.setenv("NV_GPU", "0,2")
    assert parsed(*line.split())["gpus"] == gpus
    monkeypatch.setenv("NV_GPU", "")
    assert parsed()["gpus"] is None


@pytest.mark.parametrize(
    ("line", "said"), [("--gpu-class whole", "--gpu-class whole is given"), ("--device amd.com/gpu:2", "--device amd.com/gpu:2 is given")]
)
def test_what_is_wrong_with_that_variable_names_it(monkeypatch, line, said):
    monkeypatch.setenv("NV_GPU", "0")
    with pytest.raises(BadInput, match=f"NV_GPU=0 is set, which names GPUs, and {said}") as caught:
        parsed(*line.split())
    assert caught.value.subject == "NV_GPU" and "unset the variable" in caught.value.hint


@pytest.mark.parametrize(("line", "given"), LINES, ids=[line for line, _ in LINES])
def test_each_option_is_its_keyword(monkeypatch, line, given):
    monkeypatch.setenv("GIVEN", "by the caller")
    monkeypatch.delenv("NOT_GIVEN", raising=False)
    assert parsed(*line.split()) == NOTHING | given


def test_nothing_said_is_nothing_given():
    assert {name: value for name, value in NOTHING.items() if value} == {}


@pytest.mark.parametrize(
    ("line", "subject", "said"),
    [
        ("--read-only --root tmpfs", "--root", "--read-only and --root tmpfs"),
        ("--log-opt max-size=1M --log-size 1M", "--log-opt", "--log-opt and --log-size"),
        ("--gpus 1 --device nvidia.com/gpu=0", "--gpus", "--gpus and --device"),
        ("--gpus 1 --gpus device=0", "--gpus", "--gpus 1 and --gpus device=0"),
        ("--log-opt max-file=3", "--log-opt", "without max-size"),
        ("--log-opt max-size=0", "--log-opt", "no room"),
        ("--log-opt max-size=1M --log-opt max-file=0", "--log-opt", "no room"),
        ("--log-opt tag=x", "--log-opt", "is unknown"),
        ("--log-opt max-size", "--log-opt", "is unknown"),
        ("--memory-swap 1G", "--memory-swap", "without --memory"),
        ("-m 2G --memory-swap 1G", "--memory-swap", "is less than --memory"),
        ("--device-read-bps 5", "5", "--device-read-bps '5' cannot be read"),
        ("--device-write-iops :5", ":5", "--device-write-iops"), ("--device-write-bps /a:", "/a:", "--device-write-bps"),
        ("--env =5", "--env", "there is no name"),
        ("--security-opt label=x", "label=x", "is not possible"), ("--security-opt seccomp=", "seccomp=", "is not possible"),
        ("--security-opt no-new-privileges=false", "no-new-privileges=false", "is not possible"),
        ("--mount target=/b", "target=/b", "there is no source"), ("--mount source=v", "source=v", "there is no target"),
        ("--mount type=tmpfs,size=5", "type=tmpfs,size=5", "there is no target"),
        ("--mount type=nfs,target=/b", "type=nfs,target=/b", "type 'nfs' is unknown"),
        ("--mount src=v,dst=/b,target=/c", "src=v,dst=/b,target=/c", "target is given twice"),
        ("--mount src,dst=/b", "src,dst=/b", "'src' is not KEY=VALUE"),
        ("--mount src=v,dst=/b,ro=yes", "src=v,dst=/b,ro=yes", "neither true nor false"),
        ("--mount src=v,dst=/b,idmap", "src=v,dst=/b,idmap", "'idmap' is no setting of a volume"),
        ("--mount src=v,dst=/b,ro,rw", "src=v,dst=/b,ro,rw", "ro and rw are given"),
        ("--mount src=./v,dst=/b", "src=./v,dst=/b", "a volume has a name"),
        ("--mount src=/v,dst=/b", "src=/v,dst=/b", "a volume has a name"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_said(line, subject, said):
    with pytest.raises(BadInput) as caught:
        parsed(*line.split())
    assert caught.value.subject == subject and said in str(caught.value) and caught.value.hint


def test_a_path_of_a_bind_may_be_relative():
    assert parsed("--mount", "type=bind,source=a,target=/b")["mounts"] == [Bind(f"{os.getcwd()}/a", "/b")]


def test_files_of_variables_come_before_the_line(tmp_path, monkeypatch):
    monkeypatch.setenv("GIVEN", "by the caller")
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"\xef\xbb\xbfA=1\r\n\n# B=2\n  C= 3 \nGIVEN\n#\n")
    second.write_text("A=4\nD=5")
    assert parsed("--env-file", str(first), "--env-file", str(second), "--env", "D=6")["env"] == {
        "A": "4", "C": " 3 ", "GIVEN": "by the caller", "D": "6"
    }  # fmt: skip
    for text, said in (
        ("A=1\nB C=2\n", "line 2: the name 'B C' has a blank in it"),
        ("A=1\0\n", "line 1 contains a NUL byte"),
        ("\n=5", "line 2: there is no name"),
    ):
        second.write_text(text)
        with pytest.raises(BadInput, match=said) as caught:
            parsed("--env-file", str(second))
        assert caught.value.subject in ("--env-file", "--env") and caught.value.hint
    with pytest.raises(BadInput, match="No such file"):
        parsed("--env-file", str(tmp_path / "none"))


def test_how_long_a_file_of_variables_may_be(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox_options, "_LARGEST_FILE", 5)
    file = tmp_path / "file"
    file.write_text("A=234")
    assert parsed("--env-file", str(file))["env"] == {"A": "234"}
    file.write_text("A=2345")
    with pytest.raises(BadInput, match="longer than any environment"):
        parsed("--env-file", str(file))


def test_the_image_and_the_command():
    def words(*line):
        parser = Parser("run", "run")
        sandbox_options.image_options(parser, "usage")
        end = line.index("--") if "--" in line else len(line)
        options = parser.parse(line[:end])
        options.command = list(line[end + 1 :]) if "--" in line else None
        return sandbox_options.image_and_command(options)

    assert words("img") == ("img", []) and words("img", "--", "a", "b") == ("img", ["a", "b"]) and words("--", "a") == ("host", ["a"])
    for line, said in (
        (("img", "ls", "x"), "'ls x' follows the image"),
        (("img", "--"), "no command after '--'"),
        ((), "neither an image nor a command"),
    ):
        with pytest.raises(BadInput, match=said):
            words(*line)
