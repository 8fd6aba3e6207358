"""Bad input, by the names that the list of section "Bad input" has for it: one clear error each with its hint, nothing left behind.

(Nothing left behind: the residue check of tests/conftest.py runs after each of these.)
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from support.boxes import load, sh
from support.make_image import file, symlink
from support.requires import cgroup2_mount, requires

import dockless
from dockless.base import paths
from dockless.cgroups import Limits
from dockless.errors import (
    BadInput,
    CommandNotExecutable,
    CommandNotFound,
    DocklessError,
    GpuDriverMissing,
    IdMapError,
    LaunchFailed,
    LimitUnavailable,
    UnknownGpu,
    UnknownImage,
    Unsupported,
)
from dockless.sandbox import features
from dockless.sandbox.compile import compile_plan
from dockless.sandbox.features import Features
from dockless.sandbox.names import check_id
from dockless.sandbox.run import detached
from dockless.sandbox.run.foreground import ForegroundSandbox
from dockless.sandbox.spec import Bind, Mount, Rlimit, Spec, Tmpfs, Volume

pytestmark = requires("userns")


def _refused(kind: type[DocklessError], *words: str, **fields) -> DocklessError:
    """The error of a start, foreground and detached: its class, words that its message has, a hint, no directory that stays."""
    fields = {"argv": ("true",), **fields}
    for start in (lambda spec: ForegroundSandbox(spec).__enter__(), detached.start):
        with pytest.raises(kind) as caught:
            start(Spec(**fields))
        said = str(caught.value)
        assert "\n" not in said and all(word in said for word in words), said
        assert caught.value.hint, said
    assert detached.list_all() == []
    running = paths.state() / "running"
    assert not running.exists() or os.listdir(running) == []
    return caught.value


def test_unknown_image():
    _refused(UnknownImage, "no-such-image", image="no-such-image:1")


def test_mount_source_missing():
    error = _refused(LaunchFailed, "/no/such/place", "does not exist", mounts=(Bind("/no/such/place", "/m"),))
    assert error.subject == "/no/such/place"


def test_mount_source_that_is_not_absolute():
    _refused(BadInput, "relative", mounts=(Bind("relative", "/m"),))


def test_mount_source_that_may_not_be_read():
    if os.access("/root", os.X_OK):
        pytest.skip("root may read everything; test_sandbox_mounts.py has it for owners")
    _refused(LaunchFailed, "may not be read", mounts=(Bind("/root/x", "/m"),))


def test_mount_of_a_directory_on_a_file(tmp_path):
    _refused(LaunchFailed, "/etc/passwd", mounts=(Bind(str(tmp_path), "/etc/passwd"),))


@pytest.mark.parametrize("target", ["/", "//", "/tmp/..", "/."])
def test_mount_on_the_root(tmp_path, target):
    for mount in (Bind(str(tmp_path), target), Tmpfs(target)):
        _refused(BadInput, mounts=(mount,))


def test_mount_target_that_is_not_absolute():
    with pytest.raises(BadInput, match="absolute"):
        Spec(mounts=(Tmpfs("tmp"),))


@requires("single-id")
def test_id_map_too_small():
    error = _refused(IdMapError, "1000", user="1000")
    assert "subuid" in error.hint or "newuidmap" in error.hint


def test_id_outside_of_every_map():
    if os.geteuid() != 0 and not _ranges():
        pytest.skip("this user has a single id: test_id_map_too_small")
    error = _refused(IdMapError, "2000000000", user="2000000000")
    assert "/etc/subuid" in error.hint or "/etc/subgid" in error.hint


def _ranges() -> bool:
    from dockless.base.idmaps import default_map

    return not default_map().single


@pytest.mark.parametrize(
    "limits",
    [{"memory": "-1"}, {"cpus": "0"}, {"cpus": "-2"}, {"memory": "12 apples"}, {"pids": "-5"}],
    ids=lambda d: "-".join(map(str, *d.items())),
)
def test_impossible_limit(limits):
    with pytest.raises(BadInput) as caught:
        Limits.parse(**limits)
    assert str(caught.value)


def test_absent_controller():
    """Where cgroup v2 lacks the controller the error names it, and the limit is not silently dropped."""
    from dockless.cgroups import find_delegation

    place = find_delegation()
    if place.path is not None and "memory" in place.controllers:
        pytest.skip("this host has the memory controller")
    error = _refused(LimitUnavailable, limits=Limits(memory_max=64 << 20))
    assert isinstance(error, LimitUnavailable) and error.controller == "memory"
    ran = sh("echo fine", limits=Limits(memory_max=64 << 20), best_effort=True)
    assert ran.out == "fine\n"


@requires("root", "hybrid")
def test_a_change_of_an_absent_limit_says_why_too():
    with (
        dockless.Sandbox(["sleep", "100"]) as box,
        pytest.raises(LimitUnavailable, match="the memory controller in cgroup v1 only"),
    ):
        box.update(memory="1G")


@requires("root", "hybrid")
def test_absent_controller_on_a_hybrid_host_says_why():
    error = _refused(LimitUnavailable, limits=Limits(cpu_max=1.0))
    assert cgroup2_mount() is not None
    assert "cpu" in f"{error} {error.hint}" and ("v1" in f"{error} {error.hint}" or "hybrid" in f"{error} {error.hint}")


def test_gpu_that_does_not_exist(monkeypatch):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")
    _refused(UnknownGpu, "GPU-00000000-dead", gpus=("GPU-00000000-dead-beef-0000-000000000000",))


def test_no_gpu_driver(monkeypatch):
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("this host has an NVIDIA driver")
    monkeypatch.delenv("DOCKLESS_SIMULATED_GPUS", raising=False)
    _refused(GpuDriverMissing, "NVIDIA", gpus=("GPU-00000000-dead-beef-0000-000000000000",))


@pytest.mark.parametrize("program", ["there-is-no-such-program", "/there/is/none", "./relative"])
def test_command_not_found(program):
    error = _refused(CommandNotFound, program, argv=(program,))
    assert error.exit_code == 127 and error.subject == program


@pytest.mark.parametrize("program", ["/etc/passwd", "/etc", "/dev/null"])
def test_command_not_executable(program):
    assert _refused(CommandNotExecutable, program, argv=(program,)).exit_code == 126


@requires("overlay")
def test_commands_that_the_kernel_refuses(tmp_path):
    entries = [
        file("garbage", b"\x7fELF" + bytes(60), 0o755),
        file("text", "just text\n", 0o755),
        file("script", "#!/no/such/interpreter\n", 0o755),
        symlink("loop", "loop"),
    ]
    ref = load(tmp_path, entries)
    assert _refused(CommandNotExecutable, "/garbage", image=ref, argv=("/garbage",)).exit_code == 126
    assert _refused(CommandNotExecutable, "/text", image=ref, argv=("/text",)).exit_code == 126
    assert _refused(CommandNotFound, "/script", image=ref, argv=("/script",)).exit_code == 127
    assert _refused(CommandNotExecutable, "/loop", image=ref, argv=("/loop",)).exit_code == 126


def test_arguments_too_long():
    _refused(CommandNotExecutable, "too long", argv=("true", "x" * 3_000_000))


def test_kernel_too_old():
    from dockless.images import host_image
    from dockless.sandbox.resolve import resolve

    here = features.probe()
    old = replace(here, release="5.4.0", missing=(("openat2", "5.6"), ("close_range", "5.9"), ("mount_setattr", "5.12")))
    with pytest.raises(Unsupported) as caught:
        compile_plan(resolve(Spec(argv=("true",)), host_image(), old))
    said = str(caught.value)
    assert "5.4.0" in said and "openat2" in said and "5.14" in caught.value.hint


def test_machine_that_nobody_has():
    with pytest.raises(Unsupported, match="mips"):
        Features(release="6.1", machine="mips").require_floor()


@pytest.mark.parametrize(
    "fields",
    [
        {"umask": -1}, {"umask": 0o7777777}, {"oom_score_adj": 5000}, {"oom_score_adj": -1001}, {"shm_size": -1}, {"root_size": -1},
        {"disk": -1},
        {"rlimits": (Rlimit("nofile", 2000, 1000),)}, {"rlimits": (Rlimit("nofile", -2, -2),)},
        {"rlimits": (Rlimit("no-such-limit", 1, 1),)}, {"cpus": (-1,)}, {"cpus": (100_000,)}, {"groups": (-1,)}, {"groups": (1 << 32,)},
        {"stop_signal": 65}, {"stop_signal": -1}, {"timeout": -1.0}, {"grace": float("nan")}, {"timeout": float("inf")},
        {"mounts": (Tmpfs("/m", size=-1),)}, {"mounts": (Tmpfs("/m", mode=-1),)}, {"time_offset": 5},
        {"hostname": "a b"}, {"hostname": "x" * 65}, {"hostname": "-a\n"}, {"user": "-1"}, {"user": "4294967295"}, {"user": "nobody:"},
        {"env": (("A=B", "c"),)}, {"env": (("", "c"),)}, {"env": (("A", "b\0c"),)}, {"argv": ("true", "a\0b")}, {"argv": ("",)},
        {"workdir": "relative"}, {"mounts": (Volume("../up", "/m"),)},
        {"cap_add": ("NO_SUCH_CAP",)}, {"seccomp": "/no/such/profile.json"},
    ],
    ids=lambda fields: "-".join(f"{k}={v}" for k, v in fields.items())[:60],
)  # fmt: skip
def test_impossible_values(fields):
    """Each is refused in Python, in words, before anything is made."""
    with pytest.raises(DocklessError) as caught, ForegroundSandbox(Spec(**{"argv": ("true",), **fields})):
        pass
    assert not isinstance(caught.value, LaunchFailed), f"the kernel had to refuse it: {caught.value}"


@pytest.mark.parametrize(
    "make", [lambda: Rlimit("nofile", 1, 1 << 64), lambda: Mount("bind", "/m", "/tmp\0x"), lambda: Tmpfs("/m", mode=1.5)]
)
def test_records_that_cannot_be(make):
    with pytest.raises(BadInput):
        make()


def test_a_clock_before_the_boot():
    if os.geteuid() != 0:
        pytest.skip("as root is enough")
    from dockless.sandbox.spec import Namespaces

    with (
        pytest.raises(DocklessError) as caught,
        ForegroundSandbox(Spec(argv=("true",), namespaces=Namespaces(time="new"), time_offset=-(10**9))),
    ):
        pass
    assert caught.value.hint and "explain" not in caught.value.hint


def test_a_time_limit_that_passes_during_the_start():
    """Not "killed, probably for want of memory": the sentence names the timeout. A start that wins the race just times out."""
    for _ in range(20):
        try:
            ended = sh("sleep 5", timeout=0.000_001).exit
        except DocklessError as error:
            assert "the timeout" in str(error) and "memory" not in error.hint, (error, error.hint)
        else:
            assert ended.timed_out


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "a\n", "a\0b", "x" * 65, "-a", "é", "a b"])
def test_names_that_are_no_names(name):
    """A37."""
    with pytest.raises(BadInput):
        check_id(name)
    if name:
        with pytest.raises(BadInput):
            ForegroundSandbox(Spec(argv=("true",)), id=name)
        with pytest.raises(BadInput):
            detached.start(Spec(argv=("true",)), id=name)
        with pytest.raises(BadInput):
            detached.find(name)


@pytest.mark.parametrize("name", ["7", "0", "012", "9" * 18])
def test_a_jobs_number_names_no_sandbox(name):
    for start in (ForegroundSandbox, detached.start):
        with pytest.raises(BadInput, match=f"^{name} as a name would mean a job"):
            start(Spec(argv=("true",)), id=name)
    assert detached.find(name) is None
    assert check_id(name, "volume name") == name


def test_a_number_too_long_for_a_job_names_a_sandbox():
    assert check_id("9" * 20) == "9" * 20
    box = detached.start(Spec(argv=("true",)), id="9" * 20)
    try:
        assert detached.find("9" * 20) == box
    finally:
        box.remove()


def test_error_documents():
    """What --json prints of an error."""
    with pytest.raises(CommandNotFound) as caught, ForegroundSandbox(Spec(argv=("there-is-no-such-program",))):
        pass
    document = caught.value.as_dict()
    assert document["error"] == "command_not_found" and document["subject"] == "there-is-no-such-program" and document["hint"]


@requires("user", "overlay")
def test_a_user_cannot_limit_her_disk(tmp_path):
    """Only root can set project quotas: an error, or a warning."""
    spec = Spec(argv=("/bin/true",), image=load(tmp_path), disk=1 << 20)
    with pytest.raises(LimitUnavailable, match="only root can set project quotas") as caught:
        detached.start(spec)
    assert caught.value.hint == "leave the limit out, or say --best-effort"
    box = detached.start(replace(spec, best_effort=True))
    box.wait(30)
    assert "no limit on its disk is enforced: only root can set project quotas" in box.document.warnings
    box.remove()
