"""A job of the queue as a job file, and as a job again."""

from __future__ import annotations

import dataclasses

import pytest
from support.orders import job_of, jobs_of

from dockless._cloning import _OF_GPUS, file_of, with_options
from dockless._jobfiles import keywords, order_of, start_together
from dockless._options import make_spec
from dockless._submitting import make_job
from dockless.cli.parser import Namespace
from dockless.errors import BadInput
from dockless.sandbox.spec import Bind, Spec, Tmpfs, Volume
from dockless.sched import JobSpec
from dockless.sched.formats import read
from dockless.sched.formats.own import document, toml

OPTIONS = {
    "env": {"A": "1", "B": 'it\'s "x"\nof two lines'},
    "workdir": "/w",
    "user": "1000:1000",
    "group_add": [7, "video"],
    "hostname": "h",
    "domainname": "d.example",
    "add_hosts": {"a": "10.0.0.1", "b": "::1"},
    "sysctls": {"net.ipv4.ip_forward": "1"},
    "entrypoint": ["/bin/sh", "-c"],
    "profile": "untrusted",
    "root": "tmpfs",
    "root_size": "1G",
    "disk": "10G",
    "mounts": ["/data:/data:ro", "/a:/b:norecursive", "cache:/cache", "/c:/d:idmap"],
    "tmpfs": ["/t:size=64M,mode=700,uid=3,gid=4,noexec", "/u"],
    "shm_size": "64M",
    "log_size": "1M",
    "keep_log": False,
    "tty": True,
    "interactive": True,
    "devices": ["/dev/fuse", "/dev/kvm:/dev/x:r", "amd.com/gpu=0"],
    "network": ["lab:ip=10.1.0.5,ip=fd00::5,mac=02:42:0a:01:00:05,alias=db,alias=sql", "bridge"],
    "publish": ["127.0.0.1:5000-5005:6000-6005/udp", "8080:80", "[::1]:80:80"],
    "dns": ["10.0.0.1", "fd00::1"],
    "dns_search": ["lab.example"],
    "dns_options": ["ndots:2"],
    "allow_out": ["10.0.0.0/8", "[fd00::/8]:443", "*.pypi.org:80,8000-8080/tcp", "fd00::1"],
    "allow_host": False,
    "net_rate": "10M",
    "log_denied": True,
    "namespaces": {"ipc": "host", "time": "new"},
    "time_offset": 60,
    "cap_add": ["NET_ADMIN"],
    "cap_drop": ["ALL"],
    "seccomp": "unconfined",
    "ulimits": {"nofile": [1024, 4096], "core": "unlimited"},
    "umask": "027",
    "oom_score_adj": 100,
    "cpu_affinity": "0-1",
    "stop_signal": "RTMIN+1",
    "timeout": "1h",
    "grace": 3,
    "idle_timeout": "5m",
    "ttl": "1d",
    "health": False,
    "best_effort": True,
    "cpus": 1.5,
    "cpu_weight": 200,
    "cpu_burst": "50ms",
    "cpuset": "0-1",
    "mems": "0",
    "memory": "4G",
    "memory_high": "3G",
    "memory_low": 0,
    "memory_min": "1M",
    "swap": "0",
    "oom_group": False,
    "io": ["8:0:rbps=50M,wiops=1000"],
    "io_weight": 50,
    "pids": 100,
    "hugetlb": "2MB=1G",
    "dmem": "drm/0/vram=1G",
}
ALONE = {"cpu_burst": {"cpus": 2}, "time_offset": {"namespaces": {"time": "new"}}, "root_size": {"root": "tmpfs"}, "swap": {"memory": "1G"}}
_OF_NETWORKS = ("publish", "dns", "dns_search", "dns_options", "allow_out", "allow_host", "net_rate", "log_denied")
ALONE |= {name: {"network": "bridge"} for name in _OF_NETWORKS}


def again(job: JobSpec) -> JobSpec:
    """As it comes back from the text of its file."""
    return job_of(read(toml(document(file_of([job]))), "job.toml", keywords=keywords()), "job.toml")


def test_there_is_a_value_of_each_option():
    assert OPTIONS.keys() == {*keywords()} - {"pull", "platform", *_OF_GPUS}


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_comes_back(name):
    job = make_job("img:1", ("a", "b c"), ALONE.get(name, {}) | {name: OPTIONS[name]})
    assert job.spec != Spec(("a", "b c"), "img:1") and again(job) == job


def test_a_health_check_comes_back():
    from dockless.base.healthcheck import HealthCheck

    job = JobSpec(make_spec("img:1", health=HealthCheck(["curl", "x"], interval=5.0, retries=2)))
    assert again(job) == job


def test_what_the_queue_was_told_comes_back_but_not_what_the_job_waited_for():
    said = {
        "priority": -7, "time_limit": 5400.5, "name": "night", "group": "vision", "on_reboot": "requeue", "singleton": True, "retries": 3,
        "retry_on": [1, 75], "warn": "USR1@90s", "notify": "fail,end", "notify_to": "ann@lab.example",
    }  # fmt: skip
    job = make_job("host", ("true",), {"gpus": "device=0,2", "gpu_memory": "2G"}, **said)
    assert again(job) == job
    waited = dataclasses.replace(job, hold=True, begin=1e9, after=("ok:12",), array_limit=4)
    assert again(waited) == job
    told = {field.name for field in dataclasses.fields(JobSpec) if getattr(waited, field.name) != getattr(JobSpec(), field.name)}
    of_files = {"role", "min_failed", "min_succeeded", "ports", "reserve_cpus", "secrets"}
    assert told == {field.name for field in dataclasses.fields(JobSpec)} - of_files


GANG = """name = "g"
retries = 2
[roles.worker]
count = 3
image = "x"
command = ["work"]
gpus = 1
min_failed = "never"
min_succeeded = 2
reserve_cpus = 1.5
ports = { http = 2 }
[roles.chief]
command = ["lead"]
env = { A = "1" }
"""


def test_all_that_start_together_are_cloned():
    """As they were, or with changes to all, or to those of one role; one alone stays one that is told its rank."""

    def gang(text):
        return jobs_of(read(text, "job.toml", keywords=keywords()), "job.toml")

    jobs = gang(GANG)
    file = file_of(jobs)
    assert [job.role for job in jobs] == ["chief", *["worker"] * 3]
    assert gang(toml(document(file))) == jobs and start_together(file)
    changed = jobs_of(with_options(file, {"env": {"B": "2"}, "memory": "1G"}, ()), "jobs")
    assert [(dict(job.spec.env), job.spec.limits.memory_max) for job in changed] == [
        ({"A": "1", "B": "2"}, 1 << 30), *[({"B": "2"}, 1 << 30)] * 3,
    ]  # fmt: skip
    changed = jobs_of(with_options(file, {"gpus": 2}, ["other"], "worker"), "jobs")
    assert changed[0] == jobs[0] and {(job.spec.argv, job.gpus) for job in changed[1:]} == {(("other",), "2")}
    with pytest.raises(BadInput, match="there is no role 'ps'") as caught:
        with_options(file, {}, (), "ps")
    assert caught.value.hint == "its roles are chief, worker"
    with pytest.raises(BadInput, match="there is no role 'main'"):
        with_options(file_of([JobSpec(Spec(("true",)))]), {}, (), "main")
    alone = gang("[roles.worker]\ncommand = ['true']\n")
    assert len(alone) == 1 and start_together(file_of(alone)) and gang(toml(document(file_of(alone)))) == alone


def test_jobs_that_no_file_can_say_are_not_cloned():
    first, second = (JobSpec(Spec((word,)), role="worker") for word in "ab")
    other = dataclasses.replace(first, role="ps")
    named, limited = dataclasses.replace(first, name="x"), dataclasses.replace(other, time_limit=60.0)
    for jobs in ([first, second], [first, other, first], [first, named], [first, limited]):
        with pytest.raises(BadInput, match="cannot be written in a file"):
            file_of(jobs)


@pytest.mark.parametrize("roles", ["", "count = 2\n", "[roles.a]\n[roles.b]\nscript = 'true'\n"])
def test_secrets_are_in_no_clone_and_its_job_has_them(roles):
    text = f"""script = "curl -H '<% $secrets.token %>' x"\nenv = {{ A = "a", B = "<% $secrets.password %>!" }}\n{roles}"""
    text += "[secrets]\ntoken = { env = 'HOME' }\npassword = 'hunter2'\n"
    jobs = order_of(read(text, "job.toml", keywords=keywords()), "job.toml").jobs
    file = file_of(jobs)
    printed = toml(document(file))
    assert "hunter2" not in printed and "DOCKLESS_COMMANDS" not in printed and "hunter2" not in repr((jobs, file))
    assert "curl -H '<% $secrets.token %>' x" in printed and 'B = "<% $secrets.password %>!"' in printed
    assert document(file)["secrets"] == {"token": {"env": "SECRET_TOKEN"}, "password": {"env": "SECRET_PASSWORD"}}
    assert order_of(file, "job 12").jobs == jobs and with_options(file, {}, ()) == file
    assert with_options(file, {"env": {"B": "new"}}, ()).secrets.keys() == {"token"}
    assert not with_options(file, {"env": {"B": ""}}, ["x"]).secrets
    if len(jobs) > 1:
        other = dataclasses.replace(jobs[0], secrets=(("token", "x"), ("password", "other")))
        with pytest.raises(BadInput, match="cannot be written in a file"):
            file_of([other, *jobs[1:]])


def test_what_looks_like_a_secret_and_is_none_is_cloned_as_it_is():
    """A job that was submitted without a file has such text, beside secrets that it has, too."""
    env = (("A", "<% $secrets.x %>"), ("B", "<% $Secrets.y %>"), ("C", "<% $secrets.z %>"))
    for argv in (("x", "<% $secrets.x %>"), ("sh", "-c", "echo <% $secrets.x %> <% $z %>")):
        for secrets in ((), (("z", "hunter2"),)):
            job = JobSpec(Spec(argv, env=env, hostname="<%$secrets.h%>"), secrets=secrets)
            assert order_of(file_of([job]), "job 3").jobs == (job,)
    with pytest.raises(BadInput, match=r"job 3: env\.W refers to the secret 'nope'") as caught:
        order_of(with_options(file_of([job]), {"env": {"W": "<% $secrets.nope %>"}}, ()), "job 3")
    assert caught.value.hint == "clone it with --edit, and write it down under secrets"


def test_what_only_python_can_say_is_told():
    for mount in (Bind("/a:b", "/c"), Bind("/a", "/c", idmap=False)):
        with pytest.raises(BadInput, match="the mount of /c cannot be written in a file"):
            file_of([JobSpec(Spec(("true",), mounts=(mount,)))])


@pytest.mark.parametrize(
    ("before", "said", "after"),
    [
        ("2,memory=9,class=H100", {}, "2,memory=9,class=H100"),
        ("2,memory=9,class=H100", {"gpus": 3}, "3,memory=9,class=H100"),
        ("2,memory=9,class=H100", {"gpus": "3,memory=7"}, "3,memory=7,class=H100"),
        ("2,memory=9,class=H100", {"gpu_class": "whole"}, "2,class=whole,memory=9"),
        ("memory=9", {"gpu_memory": 8}, "memory=8"),
        ("device=0,2", {"gpu_memory": 8}, "device=0,2,memory=8"),
        ("device=0,2", {"gpus": "all"}, "all"),
        ("", {"gpu_class": "whole"}, "class=whole"),
    ],
)
def test_of_the_gpus_stays_what_is_not_said(before, said, after):
    file = file_of([JobSpec(Spec(("true",)), gpus=before)])
    assert with_options(file, said, ()).roles[0].gpus == after


def test_options_of_the_command_line_go_before_what_the_job_had():
    from dockless.cli import parser_of
    from dockless.cli.sandbox_options import keywords as of_line

    def changed(*words: str, command: tuple[str, ...] = ()) -> JobSpec:
        options: Namespace = parser_of("clone").full().parse_args(["12", *words])
        return job_of(with_options(file_of([job]), of_line(options), command), "job 12")

    job = make_job(
        "img", ("a",), {"gpus": 2, "env": {"A": "1", "B": "2"}, "memory": "1G", "cpus": 2, "mounts": ["/a:/a"], "keep_log": False}
    )
    assert changed() == job and changed(command=("b", "c")).spec.argv == ("b", "c")
    assert changed("-e", "B=3", "-e", "C=4").spec.env == (("A", "1"), ("B", "3"), ("C", "4"))
    assert changed("-m", "2G", "--gpus", "1").spec.limits == dataclasses.replace(job.spec.limits, memory_max=2 << 30)
    assert changed("--gpus", "1").gpus == "1" and changed("--gpu-memory", "1G").gpus == f"2,memory={1 << 30}"
    more = changed("-v", "b:/b", "--mount", "type=tmpfs,target=/t,size=1M", "--mount", "type=bind,source=/c,target=/c,ro")
    assert sorted(more.spec.mounts, key=lambda mount: mount.target) == [
        Bind("/a", "/a"), Volume("b", "/b"), Bind("/c", "/c", readonly=True), Tmpfs("/t", size=1 << 20),
    ]  # fmt: skip
    assert changed("--no-healthcheck").spec.health.disabled and changed("--health-cmd", "x").spec.health.argv == ("/bin/sh", "-c", "x")
    assert changed("--best-effort", "--network", "host", "--security-opt", "seccomp=unconfined").spec.seccomp == "unconfined"
