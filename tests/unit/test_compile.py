"""Resolving and compiling: what decides what, without starting anything."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import struct
from dataclasses import replace

import pytest

from dockless.base import json
from dockless.base.records import differences, plain, read
from dockless.cgroups import Limits
from dockless.cgroups.devices import STANDARD_DEVICES
from dockless.errors import BadInput, CommandNotFound, DocklessError, LaunchFailed, SandboxError, Unsupported
from dockless.images import host_image
from dockless.sandbox import features, volumes
from dockless.sandbox.compile import compile_plan
from dockless.sandbox.features import Features
from dockless.sandbox.plan import explain, failure
from dockless.sandbox.plan.plan import Op, Plan, encode, filled_in, read_record
from dockless.sandbox.resolve import resolve
from dockless.sandbox.resolved import Resolved
from dockless.sandbox.run.prepared import Prepared
from dockless.sandbox.spec import Bind, Namespaces, Rlimit, Spec, Tmpfs, Volume

HERE = features.Features("6.18.0", "x86_64", sys_admin=os.geteuid() == 0)
ROOT = replace(HERE, sys_admin=True)


def _resolve(image=None, made: Features = HERE, **fields) -> Resolved:
    return resolve(Spec(**{"argv": ("true",), **fields}), image or host_image(), made)


def _image(**config):
    from dockless.images.model.config import ImageConfig

    image = host_image()
    return replace(image, config=replace(ImageConfig(), **config))


def _plan(**fields) -> Plan:
    return compile_plan(_resolve(**fields))


def _op(plan: Plan, name: str, index: int = -1):
    return [op for op in plan.ops if op.name == name][index]


def test_argv_is_entrypoint_and_command():
    image = _image(entrypoint=("/entry", "-x"), cmd=("a", "b"))
    assert _resolve(image, argv=()).command.argv == ("/entry", "-x", "a", "b")
    assert _resolve(image, argv=("c",)).command.argv == ("/entry", "-x", "c")
    assert _resolve(image, argv=(), entrypoint=("/mine",)).command.argv == ("/mine",)
    assert _resolve(image, argv=("c",), entrypoint=()).command.argv == ("c",)
    with pytest.raises(BadInput):
        _resolve(_image(), argv=())


def test_path_is_searched_as_execvp_does():
    assert _resolve(argv=("prog",), env=(("PATH", "/a:/b/::relative:."),)).command.candidates == ("/a/prog", "/b/prog")
    assert _resolve(argv=("./prog",)).command.candidates == ("./prog",)
    assert _resolve(argv=("/x/prog",)).command.candidates == ("/x/prog",)
    assert _resolve(argv=("prog",), env=(("PATH", ""),)).command.candidates == ("/prog",)


def test_environment_is_layered():
    image = _image(env=(("A", "image"), ("B", "image"), ("PATH", "/image")))
    environment = dict(entry.split("=", 1) for entry in _resolve(image, env=(("B", "mine"), ("C", "mine"))).command.envp)
    assert (environment["A"], environment["B"], environment["C"], environment["PATH"]) == ("image", "mine", "mine", "/image")
    assert environment["HOME"] == "/root" and environment["HOSTNAME"]


def test_workdir():
    assert _resolve(_image(working_dir="/img")).workdir == "/img"
    assert _resolve(_image(working_dir="/img"), workdir="/mine/../other").workdir == "/other"
    assert _resolve(_image(working_dir="relative/x")).workdir == "/relative/x"
    assert _resolve(_image(working_dir="../../x")).workdir == "/x"


def test_stop_signal():
    assert _resolve().stop_signal == signal.SIGTERM
    assert _resolve(stop_signal=2).stop_signal == 2


def test_untrusted_is_hardened():
    resolved = _resolve(profile="untrusted", network="host", cap_add=())
    assert resolved.spec.network == "none" and resolved.spec.root == "readonly" and resolved.capabilities == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="root asks for these")
def test_profiles_of_root():
    resolved = _resolve(profile="privileged")
    assert resolved.idmap is None and resolved.seccomp is None and resolved.capabilities == HERE.capabilities
    assert "NO_NEW_PRIVS" not in [op.name for op in compile_plan(resolved).ops]
    assert _resolve(namespaces=Namespaces(user="host")).idmap is None


def test_the_device_filter_is_roots_and_not_for_the_privileged(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    standard = set(STANDARD_DEVICES)
    for fields, rules in (({}, standard), ({"namespaces": Namespaces(user="host")}, standard), ({"profile": "privileged"}, set())):
        assert set(Prepared(_resolve(made=ROOT, **fields)).rules) == rules
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert Prepared(_resolve(made=replace(ROOT, sys_admin=False))).rules == ()


def test_a_program_that_is_not_there():
    """Where it was looked for is said where a search was made."""
    for path, said in (("/bin:/usr/bin", "looked in /bin, /usr/bin"), ("/", "looked in /"), (":/x", "looked in /x")):
        error = explain_failure(_plan(argv=("tool",), env=(("PATH", path),)), errno.ENOENT)
        assert isinstance(error, CommandNotFound) and error.hint == said and str(error) == "tool: command not found"
    for code in (errno.ENOENT, errno.ENOTDIR):
        error = explain_failure(_plan(argv=("/bin/tool",)), code)
        assert isinstance(error, CommandNotFound) and "interpreter" in str(error) and error.hint == "check the path inside the image"
    assert not isinstance(explain_failure(_plan(argv=("/bin/tool",)), errno.EACCES), CommandNotFound)


@pytest.mark.parametrize(
    ("op", "code", "step", "said"),
    [
        (Op("OPEN_TREE", a="/x"), errno.ENOENT, "open /x", "does not exist"),
        (Op("OPEN_TREE", a="/x"), errno.ENOTDIR, "open /x", "does not exist"),
        (Op("OPEN_TREE", a="/x"), errno.EACCES, "open /x", "may not be read by this user"),
        (Op("OPEN_TREE", a="/x"), errno.ELOOP, "open /x", "a link of /proc"),
        (Op("MOVE_MOUNT", a="/x", b="/y"), errno.EXDEV, "mount at /x", "cannot mount anything at /x"),
        (Op("MKTARGET", a="/x"), errno.EROFS, "make /x", "cannot make /x"),
    ],
)
def test_what_the_caller_named_is_the_subject(op, code, step, said):
    error = failure.explain(Plan((op,), None), 0, code)
    assert isinstance(error, LaunchFailed) and said in str(error) and "operation" not in str(error)
    assert (error.index, error.step, error.errno, error.subject, bool(error.hint)) == (-1, step, code, "/x", True)
    other = failure.explain(Plan((op,), None), 0, errno.EIO)
    assert isinstance(other, LaunchFailed) and (other.index, other.errno) == (0, errno.EIO) and "operation 0 of 1" in str(other)


def explain_failure(plan: Plan, code: int) -> DocklessError:
    return failure.explain(plan, len(plan.ops), code)


def test_what_a_kernel_without_it_cannot_do():
    with pytest.raises(Unsupported):
        _resolve(made=replace(HERE, time_namespace=False), namespaces=Namespaces(time="new"))
    with pytest.raises(Unsupported):
        _resolve(made=replace(HERE, user_namespaces=False))
    with pytest.raises(Unsupported):
        compile_plan(_resolve(made=replace(HERE, missing=(("openat2", "5.6"),))))


def test_numbers_arrive():
    plan = _plan(
        rlimits=(Rlimit("nofile", 7, -1),), umask=0o27, cpus=(min(os.sched_getaffinity(0)),), timeout=1.5, grace=0.25, shm_size=4096
    )
    limit = _op(plan, "RLIMIT")
    assert limit.c == 7 and limit.a == (7).to_bytes(8, "little") + b"\xff" * 8
    assert _op(plan, "UMASK").x == 0o27 and plan.timeout == 1.5 and plan.grace == 0.25
    assert any(op.name == "FS_STRING" and (op.a, op.b) == ("size", "4096") for op in plan.ops)


def test_affinity_mask_is_whole_words():
    cpu = max(os.sched_getaffinity(0))
    mask = _op(_plan(cpus=(cpu,)), "AFFINITY").a
    assert isinstance(mask, bytes) and len(mask) % 8 == 0 and int.from_bytes(mask, "little") == 1 << cpu


def test_volumes_get_their_paths(home):
    mounts = _resolve(mounts=(Volume("data", "/data", readonly=True), Tmpfs("/t"))).mounts
    assert mounts[0].kind == "volume" and mounts[0].readonly and mounts[0].source.startswith(str(home)) and mounts[1] == Tmpfs("/t")


def test_image_volumes_are_places_to_write_below_a_readonly_root():
    image = _image(volumes=("/var/cache", "/data"))
    assert [m.target for m in _resolve(image, root="readonly").mounts] == ["/var/cache", "/data"]
    assert [m.target for m in _resolve(image, root="readonly", mounts=(Tmpfs("/data"),)).mounts].count("/data") == 1
    assert _resolve(image, root="disk").mounts == ()


def test_spec_travels_as_json():
    spec = Spec(
        argv=("a", "b"), env=(("A", "1"),), mounts=(Bind("/a", "/b", readonly=True), Tmpfs("/t", size=5), Volume("v", "/v")),
        rlimits=(Rlimit("core", 0, -1),),
        namespaces=Namespaces(time="new"), limits=Limits.parse(memory="1G", cpus="1.5"), time_offset=5, timeout=1.5, entrypoint=(), umask=0,
    )  # fmt: skip
    assert read(Spec, json.loads(json.dumps(plain(spec)))) == read(Spec, json.loads(json.dumps(differences(spec)))) == spec
    with pytest.raises(BadInput, match="'relative' is not an absolute path"):
        read(Spec, {"mounts": [{"kind": "bind", "target": "relative"}]})


def test_record_of_a_plan_that_never_ran():
    raw = encode(_plan(), times=True)
    record = read_record(raw)
    assert (record.pc, record.phase, record.error) == (-1, "new", 0) and set(record.times) == {0}


def test_a_plan_is_filled_in_for_each_start():
    raw = encode(_plan())
    one, two = filled_in(raw, directory="/a", removed="x", cgroup="y"), filled_in(raw, directory="/b", removed="z")
    assert bytes(one) != bytes(two) and len(one) == len(two) == len(raw)
    ours = os.stat("/proc/self/ns/user")
    place = struct.pack("<QQ", ours.st_dev, ours.st_ino)
    assert bytes(filled_in(raw)).replace(place, bytes(16), 1) == raw and place not in raw
    with pytest.raises(BadInput):
        filled_in(raw, directory="/" + "x" * 5000)


def test_explained_text_and_times():
    plan = _plan()
    times = tuple(1000 * (index + 1) for index in range(len(plan.ops) + 1))
    table = explain.rows(plan, times, started=0)
    assert all(row.seconds == 1e-6 for row in table)
    text = explain.text(table)
    assert text.startswith("keeper:") and "\ninit:" in text and "\nprogram:" in text and "µs" in text
    encoded = plain(table)
    assert encoded[0]["operation"] == plan.ops[0].name and encoded[-1]["actor"] == "program"


def test_explained_commands_are_quoted():
    plan = _plan(argv=("sh", "-c", "echo 'a b'; $(x)"), env=(("A", "b; rm"),))
    last = explain.environment(plan) + explain.rows(plan)[-1].shell
    assert "'A=b; rm'" in last and "'\"'\"'" in last


@pytest.mark.parametrize(("owner", "named", "refused"), [(1000, True, True), (1000, False, False), (None, True, False), (0, True, False)])
def test_only_root_names_a_file_with_a_seccomp_profile(tmp_path, owner, named, refused, monkeypatch):
    """For a user's sandbox root would read whatever file of the host she names, and say what is wrong in it."""
    from dockless.sandbox import resolve

    spec = Spec(argv=("true",), seccomp=str(tmp_path / "profile.json") if named else "unconfined")
    features = Features("6.18.0", "x86_64", sys_admin=True, user_namespaces=True)
    if refused:
        with pytest.raises(Unsupported, match="only root can name a seccomp profile"):
            resolve._refuse(spec, features, True, owner)
        return
    resolve._refuse(spec, features, True, owner)


@pytest.mark.parametrize("fields", [{"user": "70000"}, {"user": "0:70000"}, {"groups": (70000,)}])
@pytest.mark.parametrize("mapped", [True, False])
def test_an_id_that_is_not_mapped_is_refused_by_name(fields, mapped):
    from dockless.base.idmaps import IdMap, Range
    from dockless.sandbox import resolve

    count = 100_000 if mapped else 65536
    idmap = IdMap((Range(0, 200_000, count),), (Range(0, 200_000, count),))
    spec = Spec(argv=("true",), **fields)
    if mapped:
        account = resolve._account(spec, _image(), idmap)
        assert 70000 in (account.uid, account.gid, *account.groups)
        return
    with pytest.raises(DocklessError, match="70000"):
        resolve._account(spec, _image(), idmap)


@pytest.mark.parametrize(
    ("mode", "mine", "good"), [(0o755, True, True), (0o711, True, True), (0o775, True, False), (0o757, True, False), (0o711, False, False)]
)
def test_volumes_lie_where_nobody_else_can_change_them(home, monkeypatch, mode, mine, good):
    home.chmod(mode)
    if not mine:
        monkeypatch.setattr(os, "geteuid", lambda: home.stat().st_uid + 1)
    fd = os.open(home, os.O_RDONLY)
    try:
        with contextlib.nullcontext() if good else pytest.raises(SandboxError, match="can be changed by others") as caught:
            volumes._require_own(fd, home)
        assert caught is None or caught.value.subject == str(home)
    finally:
        os.close(fd)
        home.chmod(0o700)


# -- what is refused, and what just is not ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hostname", "fine"),
    [
        ("h", True), ("h" * 64, True), ("h" * 65, False), ("a.b-c_d.9", True), ("a b", False), ("a/b", False), ("a.b c", False),
        ("a\n", False), ("", True),
    ],
)  # fmt: skip
def test_hostnames(hostname, fine):
    if fine:
        assert _resolve(hostname=hostname).hostname == hostname or not hostname
    else:
        with pytest.raises(BadInput, match="is not usable"):
            _resolve(hostname=hostname)


@pytest.mark.parametrize(
    ("fields", "more", "owner", "subject"),
    [
        ({"profile": "privileged"}, {}, 7, "privileged"),
        ({"profile": "untrusted", "mounts": (Bind("/", "/x", idmap=True),)}, {}, None, "idmap"),
        ({"namespaces": Namespaces(user="host")}, {}, 7, "user namespace"),
        ({}, {"user_namespaces": False}, None, "user namespace"),
        ({"namespaces": Namespaces(time="new")}, {"time_namespace": False}, None, "time namespace"),
        ({"time_offset": 5}, {}, None, "time_offset"),
        ({"time_offset": -(10**12), "namespaces": Namespaces(time="new")}, {}, None, "time_offset"),
        ({"time_offset": 10**12, "namespaces": Namespaces(time="new")}, {}, None, "time_offset"),
        ({"rlimits": (Rlimit("nofiles", 1, 1),)}, {}, None, "nofiles"),
        ({"cpus": (0, 100_000)}, {}, None, "cpus"),
        ({"mounts": (Bind("relative", "/x"),)}, {}, None, "relative"),
        ({"mounts": (Bind("/", "/x"), Bind("/", "/x/"))}, {}, None, "mounts"),
        *[({"mounts": (Bind("/", target),)}, {}, None, target) for target in ("/", "/dev", "/proc", "/sys")],
        *[({"mounts": (Bind("/", target),)}, {}, None, target) for target in ("/proc/x", "/sys/x", "/x/../dev/")],
        ({"argv": ("",)}, {}, None, ""),
    ],
)  # fmt: skip
def test_what_no_sandbox_has(monkeypatch, fields, more, owner, subject):
    """For root, for a user's sandbox that root makes, and for a user."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(DocklessError) as caught:
        resolve(Spec(**{"argv": ("true",), **fields}), host_image(), replace(ROOT, **{"time_namespace": True, **more}), owner=owner)
    assert caught.value.subject == subject


@pytest.mark.parametrize("fields", [{"profile": "privileged"}, {"namespaces": Namespaces(user="host")}])
def test_what_only_root_has(monkeypatch, fields):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unsupported):
        _resolve(made=replace(ROOT, sys_admin=False), **fields)


def test_a_kernel_without_time_namespaces_runs_what_needs_none():
    assert _resolve(made=replace(HERE, time_namespace=False)).spec.namespaces.time == "host"


def test_targets_beside_those_of_the_kernel():
    made = _resolve(mounts=tuple(Bind("/", target) for target in ("/process", "/system", "/dev/x", "/devices", "/x/proc")))
    assert [mount.target for mount in made.mounts] == ["/process", "/system", "/dev/x", "/devices", "/x/proc"]


def test_an_offset_of_the_clock_that_just_fits():
    made = replace(ROOT, time_namespace=True)
    for offset in (0, 5, -1):
        assert _resolve(made=made, time_offset=offset, namespaces=Namespaces(time="new")).spec.time_offset == offset


@pytest.mark.parametrize(("size", "of_each"), [(0, 4096), (9215, 4096), (9216, 4096), (9225, 4100), (9 << 20, 4 << 20)])
def test_room_for_logs(size, of_each):
    assert _resolve(log_size=size).log_limit == of_each


@pytest.mark.parametrize(("roots", "memory"), [("readonly", True), ("disk", False), ("tmpfs", False)])
def test_image_volumes_that_are_mounted_or_reserved_are_left_out(roots, memory):
    image = _image(volumes=("/data", "/mine", "/proc/x", "/dev/x", "/dev"))
    made = _resolve(image, root=roots, mounts=(Bind("/", "/mine"),))
    assert [(mount.kind, mount.target) for mount in made.mounts] == [("bind", "/mine"), *([("tmpfs", "/data")] if memory else [])]


def test_the_environment_says_who_and_where():
    from dockless.sandbox.resolve import DEFAULT_PATH

    environment = dict(entry.split("=", 1) for entry in _resolve(hostname="box").command.envp)
    assert (environment["PATH"], environment["HOSTNAME"], environment["HOME"]) == (DEFAULT_PATH, "box", "/root")


def test_signals_of_the_image():
    assert _resolve(_image(stop_signal=2)).stop_signal == 2
    assert _resolve(_image(stop_signal=2), stop_signal=3).stop_signal == 3


def test_what_a_sandbox_is_when_nothing_is_said():
    said = {name: getattr(Spec(argv=("x",)), name) for name in Spec.__dataclass_fields__}
    assert said == {
        "argv": ("x",), "image": "host", "entrypoint": None, "env": (), "workdir": "", "user": "", "groups": (), "host_groups": (),
        "hostname": "",
        "domainname": "", "hosts": (), "sysctls": (), "devices": (), "cdi": (),
        "profile": "default",
        "root": "disk", "root_size": 0, "disk": 0, "mounts": (), "shm_size": 0, "network": "none", "endpoints": (),
        "ports": (), "dns": (), "dns_search": (), "dns_options": (), "egress": None,
        "namespaces": Namespaces("new", "new", "new", "new", "new", "new", "host"), "limits": Limits(), "best_effort": False, "cap_add": (),
        "cap_drop": (), "seccomp": "", "rlimits": (), "umask": None, "oom_score_adj": None, "cpus": (), "time_offset": 0, "stop_signal": 0,
        "timeout": 0.0, "grace": 0.0, "gpus": (), "log_size": 0, "keep_log": True,
        "tty": False, "interactive": False, "idle_timeout": 0.0, "ttl": 0.0, "health": None,
    }  # fmt: skip
    for mount in (Bind("/a", "/b"), Tmpfs("/b"), Volume("a", "/b")):
        assert (mount.target, mount.readonly, mount.recursive, mount.idmap, mount.size, mount.mode) == ("/b", False, True, None, 0, 0o1777)
