"""Mounts and resource limits as people write them."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from dockless import _options as options
from dockless._mounts import parse_mount
from dockless._options import make_spec
from dockless.base.healthcheck import HealthCheck
from dockless.cgroups import Limits
from dockless.errors import BadInput
from dockless.sandbox.spec import Bind, HostDevice, Namespaces, Rlimit, Spec, Tmpfs, Volume


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        ("/a:/b", Bind("/a", "/b")),
        ("/a:/b:ro", Bind("/a", "/b", readonly=True)),
        ("/a:/b:rw", Bind("/a", "/b")),
        ("/a:/b:rbind", Bind("/a", "/b")),
        ("/a:/b:bind", Bind("/a", "/b", recursive=False)),
        ("/a:/b:norecursive", Bind("/a", "/b", recursive=False)),
        ("/a:/b:ro,bind,idmap", Bind("/a", "/b", readonly=True, recursive=False, idmap=True)),
        ("/a:/b:rprivate,nosuid,nodev", Bind("/a", "/b")),
        ("cache:/b", Volume("cache", "/b")),
        ("cache:/b:ro", Volume("cache", "/b", readonly=True)),
    ],
)
def test_mounts(text, mount):
    assert parse_mount(text) == mount


@pytest.mark.parametrize(
    ("text", "hint"),
    [("/a", "data:/a"), ("/a:/b:z", "SELinux"), ("/a:/b:ro,Z", "SELinux"), ("/a:/b:rshared", "mount it before"), ("/a:/b:U", "idmap"),
     ("/a:/b:cached", "leave it out"), ("v:/b:nocopy", "leave it out"), ("/a:/b:wat", "with :ro")],
)  # fmt: skip
def test_what_docker_writes_there_is_answered(text, hint):
    with pytest.raises(BadInput) as caught:
        parse_mount(text)
    assert hint in caught.value.hint


@pytest.mark.parametrize("text", ["/a", ":/b", "/a:", "/a:/b:ro,rw", "/a:/b:wat", "cache:/b:idmap", ""])
def test_mounts_that_cannot_be_meant(text):
    with pytest.raises(BadInput):
        parse_mount(text)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("nofile=5", (5, 5)), ("nofile=5:5", (5, 5)), ("nofile=5:6", (5, 6)), ("nofile=5:unlimited", (5, -1)),
        ("nofile=unlimited", (-1, -1)), ("RLIMIT_NOFILE=0:-1", (0, -1)),
    ],
)  # fmt: skip
def test_resource_limits(text, limit):
    assert make_spec("host", ("true",), ulimits=[text]).rlimits == (Rlimit("nofile", *limit),)


@pytest.mark.parametrize("text", ["nofile=6:5", "nofile=unlimited:5", "nofile=1:2:3", "nofile=", "=5", "nofile=five", "nofile=-2"])
def test_resource_limits_that_cannot_be_meant(text):
    with pytest.raises(BadInput):
        make_spec("host", ("true",), ulimits=[text])


HERE = os.getcwd()
KEYWORDS = [
    ("entrypoint", "tool", "entrypoint", ("tool",)), ("entrypoint", b"tool", "entrypoint", ("tool",)),
    ("entrypoint", "", "entrypoint", ()), ("entrypoint", ["a", b"b"], "entrypoint", ("a", "b")), ("entrypoint", None, "entrypoint", None),
    ("env", {"A": "1"}, "env", (("A", "1"),)), ("env", ["A=1=2", "B=", "A=3"], "env", (("A", "3"), ("B", ""))),
    ("workdir", Path("/w"), "workdir", "/w"), ("user", 5, "user", "5"), ("user", "a:b", "user", "a:b"),
    ("group_add", [0, "70000", "video"], "groups", (0, 70000, "video")), ("hostname", "h", "hostname", "h"),
    ("domainname", "d", "domainname", "d"), ("add_hosts", {"a": "1.2.3.4"}, "hosts", (("a", "1.2.3.4"),)),
    ("devices", ["/dev/a", "/dev/b:r", "/dev/c:/dev/d", "/dev/e:/dev/f:rwm"], "devices",
     (HostDevice("/dev/a", "/dev/a"), HostDevice("/dev/b", "/dev/b", "r"), HostDevice("/dev/c", "/dev/d"),
      HostDevice("/dev/e", "/dev/f", "rwm"))),
    ("sysctls", {"net.core.somaxconn": 5}, "sysctls", (("net.core.somaxconn", "5"),)),
    ("profile", "untrusted", "profile", "untrusted"),
    ("root", "readonly", "root", "readonly"), ("network", "host", "network", "host"), ("tty", True, "tty", True),
    ("interactive", True, "interactive", True),
    ("best_effort", True, "best_effort", True),
    ("shm_size", "1M", "shm_size", 1 << 20), ("disk", "1M", "disk", 1 << 20),
    ("log_size", 5, "log_size", 5), ("keep_log", False, "keep_log", False),
    ("time_offset", -3, "time_offset", -3),
    ("oom_score_adj", 7, "oom_score_adj", 7),
    ("mounts", ["/a:/b", Volume("v", "/c")], "mounts", (Bind("/a", "/b"), Volume("v", "/c"))),
    ("mounts", ["./a:/b", "..:/c"], "mounts", (Bind(f"{HERE}/a", "/b"), Bind(os.path.dirname(HERE), "/c"))),
    ("tmpfs", ["/t:rw,noexec,nosuid,size=64k", "/u:exec"], "mounts", (Tmpfs("/t", size=65536, noexec=True), Tmpfs("/u"))),
    ("tmpfs", ["/t"], "mounts", (Tmpfs("/t"),)), ("tmpfs", ["/t:size=1M"], "mounts", (Tmpfs("/t", size=1 << 20),)),
    ("tmpfs", ["/t:mode=700,size=2K", "/u:mode=01755"], "mounts", (Tmpfs("/t", size=2048, mode=0o700), Tmpfs("/u", mode=0o1755))),
    ("namespaces", {"pid": "host", "time": "new"}, "namespaces", Namespaces(pid="host", time="new")),
    ("namespaces", Namespaces(ipc="host"), "namespaces", Namespaces(ipc="host")),
    ("memory", "1M", "limits", Limits.parse(memory=1 << 20)), ("pids", 7, "limits", Limits.parse(pids=7)),
    ("limits", Limits.parse(pids=7), "limits", Limits.parse(pids=7)),
    ("devices", ["amd.com/gpu=0"], "cdi", ("amd.com/gpu=0",)),
    ("cap_add", "SYS_PTRACE", "cap_add", ("SYS_PTRACE",)), ("cap_drop", ["ALL", "CHOWN"], "cap_drop", ("ALL", "CHOWN")),
    ("seccomp", "unconfined", "seccomp", "unconfined"), ("seccomp", "", "seccomp", ""), ("seccomp", "p.json", "seccomp", f"{HERE}/p.json"),
    ("seccomp", Path("/p.json"), "seccomp", "/p.json"),
    ("ulimits", {"nofile": (5, "6"), "core": 0}, "rlimits", (Rlimit("nofile", 5, 6), Rlimit("core", 0, 0))),
    ("ulimits", [Rlimit("core", 1, 2)], "rlimits", (Rlimit("core", 1, 2),)),
    ("ulimits", ["nofile=infinity"], "rlimits", (Rlimit("nofile", -1, -1),)),
    ("umask", "022", "umask", 0o022), ("umask", 0o777, "umask", 0o777), ("umask", 0, "umask", 0), ("umask", "777", "umask", 0o777),
    ("cpu_affinity", [3, 1, 3], "cpus", (1, 3)), ("cpu_affinity", "0-2,5", "cpus", (0, 1, 2, 5)), ("cpu_affinity", "", "cpus", ()),
    ("stop_signal", "INT", "stop_signal", 2), ("stop_signal", 0, "stop_signal", 0),
    ("timeout", "2m", "timeout", 120.0), ("timeout", 1.5, "timeout", 1.5), ("grace", 3, "grace", 3.0),
    ("idle_timeout", "5m", "idle_timeout", 300.0), ("ttl", 60, "ttl", 60.0),
    ("health", HealthCheck(["a"], 5), "health", HealthCheck(("a",), 5.0)), ("health", False, "health", HealthCheck(disabled=True)),
]  # fmt: skip


@pytest.mark.parametrize(("keyword", "given", "field", "kept"), KEYWORDS, ids=lambda value: str(value)[:20])
def test_each_keyword_changes_its_own_field_alone(keyword, given, field, kept):
    assert make_spec("img", ("a",), **{keyword: given}) == dataclasses.replace(Spec(("a",), "img"), **{field: kept})


def test_a_root_in_memory_has_a_size():
    made = make_spec("img", root="tmpfs", root_size="2M")
    assert (made.root, made.root_size) == ("tmpfs", 2 << 20)
    assert make_spec("host", root_size=1).root_size == 1 and make_spec("host", root="tmpfs", root_size=1).root_size == 1


def test_every_keyword_is_in_the_table():
    assert {keyword for keyword, *_ in KEYWORDS} >= {row.name for row in options.KEYWORDS} - {
        "gpu_class",
        "gpu_memory",
        "gpus",
        "labels",
        "platform",
        "pull",
        "root_size",
        *("publish", "dns", "dns_search", "dns_options", "egress", "allow_out", "allow_host", "net_rate", "log_denied"),  # test_networks.py
    }


@pytest.mark.parametrize(
    ("keywords", "subject"),
    [
        ({"env": ["A"]}, "A"), ({"group_add": [4294967295]}, "groups"), ({"group_add": [""]}, "group_add"),
        ({"group_add": ["1" * 20]}, "group_add"), ({"group_add": [-1]}, "group_add"), ({"group_add": ["²"]}, "group_add"),
        ({"shm_size": 0}, "shm_size"), ({"log_size": "0K"}, "log_size"), ({"root_size": 5}, "root_size"),
        ({"root_size": 5, "root": "disk"}, "root_size"), ({"root_size": 5, "root": "readonly"}, "root_size"),
        ({"profile": "untrusted", "network": "host"}, "network"), ({"profile": "untrusted", "root": "disk"}, "root"),
        ({"hostname": "h", "namespaces": {"uts": "host"}}, "hostname"),
        ({"namespaces": {"net": "host"}}, "net"), ({"namespaces": {"pid": "old"}}, "pid"),
        ({"limits": Limits(), "memory": 1}, "limits"), ({"limits": Limits(), "pids": 1}, "limits"),
        ({"tmpfs": ["/t:size=0"]}, "/t:size=0"), ({"tmpfs": ["/t:mode="]}, "/t:mode="), ({"tmpfs": ["/t:mode=8"]}, "/t:mode=8"),
        ({"tmpfs": ["/t:mode=001777"]}, "/t:mode=001777"), ({"tmpfs": ["/t:weight=1"]}, "/t:weight=1"),
        ({"tmpfs": ["/t:size"]}, "tmpfs size"),
        ({"mounts": ["v:/c:idmap"]}, "v:/c:idmap"), ({"mounts": ["/a:/b:wat"]}, "/a:/b:wat"),
        ({"umask": 0o1000}, "umask"), ({"umask": "1000"}, "umask"), ({"umask": -1}, "umask"), ({"umask": "u=rwx"}, "umask"),
        ({"umask": ""}, "umask"), ({"umask": "8"}, "umask"),
        ({"ulimits": {"": 1}}, "ulimits"), ({"ulimits": {"nofile": (1, 2, 3)}}, "ulimits"), ({"ulimits": {"nofile": ()}}, "ulimits"),
        ({"ulimits": {"nofile": "-2"}}, "ulimits"), ({"ulimits": {"nofile": (-1, 5)}}, "ulimits"),
        ({"ulimits": {"nofile": (6, 5)}}, "ulimits"),
        ({"timeout": "soon"}, "timeout"), ({"grace": "-1"}, "grace"), ({"stop_signal": "NOPE"}, "stop_signal"),
        ({"cpu_affinity": "x"}, "x"), ({"user": 1.5}, "user"),
    ],
    ids=str,
)  # fmt: skip
def test_each_refusal_names_its_keyword(keywords, subject):
    with pytest.raises(BadInput) as caught:
        make_spec("img", ("a",), **keywords)
    assert caught.value.subject == subject and caught.value.hint


@pytest.mark.parametrize(
    ("image", "keywords"),
    [("host", {"root_size": 5}), ("img", {"root": "tmpfs", "root_size": 5}),
     ("img", {"profile": "untrusted", "network": "none", "root": "readonly"}),
     ("img", {"network": "host", "root": "disk"}), ("img", {"hostname": "h", "namespaces": {"pid": "host"}}),
     ("img", {"namespaces": {"uts": "host"}}), ("img", {"limits": None, "memory": "1M"}), ("img", {"limits": Limits(), "memory": None})],
    ids=str,
)  # fmt: skip
def test_what_goes_together(image, keywords):
    make_spec(image, ("a",), **keywords)


def test_what_is_missing_of_a_mount_is_said():
    for text, what in (("/a:/b:z,y", "has the unknown option 'y'"), ("/a", "cannot be read"), ("/a:/b:ro,rw", "cannot be read")):
        with pytest.raises(BadInput, match=what):
            parse_mount(text)
    assert parse_mount("~/x:/b") == Bind(os.path.expanduser("~/x"), "/b")


def test_a_relative_path_where_there_is_no_directory(tmp_path, monkeypatch):
    place = tmp_path / "gone"
    place.mkdir()
    monkeypatch.chdir(place)
    place.rmdir()
    with pytest.raises(BadInput, match="the current directory is gone") as caught:
        make_spec("img", ("a",), seccomp="p.json")
    assert caught.value.subject == "seccomp"
    assert parse_mount("/a:/b") == Bind("/a", "/b")
