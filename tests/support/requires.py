"""What a test needs of the machine, in a fixed vocabulary.

``@requires("root", "cgroup2:memory", "kernel>=6.7")`` on a test, or ``pytestmark = requires("userns")`` on a module. An unknown word is
an error at collection. A word this machine lacks skips the test and prints the reason; ``DOCKLESS_MUST_RUN=userns,cgroup2:memory`` turns
exactly those skips into failures (``cgroup2`` covers every ``cgroup2:…``; ``all`` covers everything), so that a machine which is meant to
have a feature cannot lose its tests in silence.

Every word is answered by trying the thing, in a throw-away child where it would change this process; answers are kept for the run.
``WORDS`` below is the whole vocabulary.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import pwd
import re
import shutil
import socket
import struct
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.disks import MKFS, with_quotas

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
CONTROLLERS = ("cpu", "cpuset", "dmem", "hugetlb", "io", "memory", "misc", "pids", "rdma")

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _unshare(flags: int) -> None:
    _check(_libc.unshare(flags))


def _mount(source: str, target: str, kind: str, options: str = "") -> None:
    _check(_libc.mount(source.encode(), target.encode(), kind.encode(), 0, options.encode()))


def _in_child(body: Callable[[], None]) -> str:
    """Run ``body`` in a forked child. "" when it returned, else the error it ended with."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except BaseException as error:
            os.write(writer, str(error).encode()[:4000] or b"failed")
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    return said if said or status == 0 else f"the probe ended with wait status {status}"


# ---- one function per word: "" when the machine has it, else the reason ---------------------------------------------------------------


def _root() -> str:
    return "" if os.geteuid() == 0 else "needs root"


def _user() -> str:
    return "" if os.geteuid() != 0 else "needs an ordinary user, this is root"


def _userns() -> str:
    said = _in_child(lambda: _unshare(CLONE_NEWUSER))
    return said and f"no user namespace can be made: {said}"


def _map_single_id(uid: int, gid: int) -> None:
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def _private_mounts() -> None:
    """Enter a mount namespace where mounting is allowed: with a user namespace around it for an ordinary user."""
    uid, gid = os.geteuid(), os.getegid()
    _unshare(CLONE_NEWNS if uid == 0 else CLONE_NEWNS | CLONE_NEWUSER)
    if uid != 0:
        _map_single_id(uid, gid)
    _check(_libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None))  # MS_REC | MS_PRIVATE


def _overlay() -> str:
    def body() -> None:
        _private_mounts()
        _mount("tmpfs", "/tmp", "tmpfs")
        for name in ("lower", "upper", "work", "merged"):
            os.mkdir(f"/tmp/{name}")
        _mount("overlay", "/tmp/merged", "overlay", "lowerdir=/tmp/lower,upperdir=/tmp/upper,workdir=/tmp/work")

    said = _in_child(body)
    return said and f"no overlay can be mounted: {said}"


def _erofs() -> str:
    """Layers that are not unpacked can be mounted from files of the temporary directory."""
    import tempfile

    from dockless.images.layers import erofs

    said = erofs.why_not(Path(tempfile.gettempdir()))
    return said and f"no EROFS can be mounted from a file: {said}"


def _idmap() -> str:
    """Files of the temporary directory can be mounted with their owners mapped: on tmpfs since Linux 6.3."""
    import tempfile

    from dockless.base import idmaps
    from dockless.native import userns
    from dockless.sandbox import features

    accepts = features.accepts_idmap(tempfile.gettempdir(), userns.namespace_fd(idmaps.default_map()))
    return "" if accepts else f"the file system of {tempfile.gettempdir()} cannot map owners"


def _netns() -> str:
    said = _in_child(lambda: _unshare(CLONE_NEWNET if os.geteuid() == 0 else CLONE_NEWUSER | CLONE_NEWNET))
    return said and f"no network namespace can be made: {said}"


def _pasta() -> str:
    """pasta, with a /dev/net/tun for it that root makes itself where the host's is closed, and links between network namespaces."""
    if said := _netns():
        return said
    from dockless.base import idmaps

    if idmaps.find_program("pasta") is None:
        return "pasta is not installed (package passt)"
    if os.geteuid() == 0:
        return "" if os.path.exists("/dev/net/tun") else "the kernel has no /dev/net/tun"
    return "" if os.access("/dev/net/tun", os.R_OK | os.W_OK) else "/dev/net/tun is closed to this user"


def _bridge() -> str:
    """A kernel that has bridges, in a network namespace of our own."""
    if said := _root() or _netns():
        return said

    def make() -> None:
        from dockless.sandbox.network.host import Host

        _unshare(CLONE_NEWNET)
        if not Host().can_bridge():
            raise OSError("the kernel makes no bridges")

    return _in_child(make)


def cgroup2_mount() -> Path | None:
    """Where the cgroup v2 tree is mounted: /sys/fs/cgroup, or …/unified on a hybrid host."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.split()[0] == "cgroup2":
            return Path(before.split()[4])
    return None


def _own_cgroup() -> Path | None:
    """The highest place where this process may make groups: the root of the tree, or of the subtree that was delegated to a user."""
    mount = cgroup2_mount()
    if mount is None or os.geteuid() == 0:
        return mount
    own = next((line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")), "/")
    place, best = mount / own.lstrip("/"), None
    while place != mount and os.access(place, os.W_OK) and os.access(place / "cgroup.procs", os.W_OK):
        place, best = place.parent, place
    return best


def _delegated_controllers() -> frozenset[str]:
    """What the user's systemd hands out, when there is one (then dockless asks it for a scope of its own)."""
    uid = os.geteuid()
    place = (cgroup2_mount() or Path("/nowhere")) / f"user.slice/user-{uid}.slice/user@{uid}.service/cgroup.controllers"
    return frozenset(place.read_text().split()) if not _systemd_user() and place.exists() else frozenset()


def _hands_down(place: Path) -> frozenset[str]:
    """The controllers that groups below ``place`` can have. A group with processes of its own hands down none but what it did before."""
    handed = frozenset((place / "cgroup.subtree_control").read_text().split())
    is_the_root = not (place / "cgroup.type").exists()
    if is_the_root or not (place / "cgroup.procs").read_text().split():
        handed |= frozenset((place / "cgroup.controllers").read_text().split())
    return handed


def _cgroup2(controller: str) -> str:
    if cgroup2_mount() is None:
        return "cgroup v2 is not mounted"
    place = _own_cgroup()
    if place is None and _systemd_user():
        return f"uid {os.geteuid()} may not make groups in {cgroup2_mount()}"
    if place is not None:
        probe = place / f"requires-{os.getpid()}"
        try:
            probe.mkdir()
            probe.rmdir()
        except OSError as error:
            return f"no group can be made in {place}: {error.strerror}"
    if not controller:
        return ""
    found = (_hands_down(place) if place is not None else frozenset()) | _delegated_controllers()
    return "" if controller in found else f"no cgroup v2 {controller} controller here (found: {' '.join(sorted(found)) or 'none'})"


def _hybrid() -> str:
    mount = cgroup2_mount()
    if mount is None:
        return "cgroup v2 is not mounted"
    missing = {"cpu", "memory", "pids"} - set((mount / "cgroup.controllers").read_text().split())
    return "" if missing else "the cgroup v2 tree has its controllers: not a hybrid host"


def _device_filter() -> str:
    """BPF_PROG_LOAD of ``return 1`` as BPF_PROG_TYPE_CGROUP_DEVICE (15). bpf(2)"""
    number = {"x86_64": 321, "aarch64": 280}.get(platform.machine())
    if number is None or _cgroup2(""):
        return _cgroup2("") or f"bpf(2) is not known here for {platform.machine()}"
    code = ctypes.create_string_buffer(struct.pack("<BBhi", 0xB7, 0, 0, 1) + struct.pack("<BBhi", 0x95, 0, 0, 0))
    text = ctypes.create_string_buffer(b"GPL")
    attributes = ctypes.create_string_buffer(struct.pack("<IIQQ", 15, 2, ctypes.addressof(code), ctypes.addressof(text)), 128)
    fd = _libc.syscall(number, 5, attributes, 128)
    if fd < 0:
        return f"no device filter can be loaded: {os.strerror(ctypes.get_errno())}"
    os.close(fd)
    return ""


def _subuid() -> str:
    """A range of ids can be mapped. Root writes maps herself; a user needs a range and the setuid helpers."""
    if os.geteuid() == 0:
        return ""
    for helper in ("newuidmap", "newgidmap"):
        if shutil.which(helper, path="/usr/bin:/bin:/usr/local/bin") is None:
            return f"{helper} is not installed (package uidmap)"
    names = {str(os.geteuid())}
    with contextlib.suppress(KeyError):
        names.add(pwd.getpwuid(os.geteuid()).pw_name)
    for file in ("/etc/subuid", "/etc/subgid"):
        path = Path(file)
        lines = path.read_text().splitlines() if path.exists() else []
        if not any(len(part := line.split(":")) == 3 and part[0] in names and int(part[2]) >= 65536 for line in lines):
            return f"no range of 65536 ids for this user in {file}"
    return ""


def _single_id() -> str:
    return "" if _user() == "" and _subuid() else "needs an ordinary user without a range in /etc/subuid"


def _gpu() -> str:
    return "" if os.path.exists("/dev/nvidiactl") and os.path.exists("/dev/nvidia-uvm") else "no NVIDIA driver on this machine"


def _virtio_disk() -> str:
    place = os.environ.get("DOCKLESS_TEST_DISK")
    if not place:
        return "DOCKLESS_TEST_DISK names no directory on a scratch disk (make test-vm has one)"
    number = os.stat(place).st_dev
    return "" if os.path.exists(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}") else f"{place} is not on a block device"


def busybox() -> Path | None:
    """A statically linked busybox, the smallest root file system there is."""
    found = shutil.which("busybox", path="/usr/lib/busybox:/bin:/usr/bin:/sbin:/usr/sbin:/usr/local/bin")
    if found is None:
        return None
    # A dynamic executable names its loader near the start of the file.
    return None if b"ld-linux" in Path(found).read_bytes()[:4096] or b"ld-musl" in Path(found).read_bytes()[:4096] else Path(found)


def _busybox() -> str:
    return "" if busybox() else "no static busybox (package busybox-static)"


def _systemd_user() -> str:
    uid = os.geteuid()
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}")
    return "" if uid != 0 and (runtime / "systemd/private").exists() and (runtime / "bus").exists() else "no systemd user manager"


def _gcc() -> str:
    return "" if shutil.which("gcc") or shutil.which("cc") else "no C compiler"


def shared() -> Path | None:
    """The folder of real images and hostile tars that lies beside some checkouts: $DOCKLESS_SHARED, or ../shared."""
    place = Path(os.environ.get("DOCKLESS_SHARED") or Path(__file__).resolve().parents[3] / "shared")
    return place if (place / "images").is_dir() else None


def _shared() -> str:
    return "" if shared() else "the shared folder of sample images is absent (DOCKLESS_SHARED)"


def _ipv6() -> str:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return ""
    except OSError as error:
        return f"nobody can listen on ::1: {error.strerror}"


def _package(name: str) -> str:
    from support import debian

    return debian.missing(name) if name in debian.PACKAGES else f"tests/support/debian.py knows no {name}"


def _program(name: str) -> str:
    return "" if shutil.which(name) else f"{name} is not installed"


def _loop() -> str:
    return "" if os.path.exists("/dev/loop-control") else "no loop devices"


def _project_quotas(kind: str) -> str:
    """Disks of this file system can be made, and mounted with project quotas."""
    import tempfile

    if os.geteuid() != 0:
        return "needs root"
    lacking = _loop() or _program(f"mkfs.{kind}")
    if lacking:
        return lacking

    def body() -> None:
        _private_mounts()
        with tempfile.TemporaryDirectory() as place, with_quotas(Path(place) / "disk", kind):
            pass

    said = _in_child(body)
    return said and f"no {kind} with project quotas can be mounted: {said}"


def _module(name: str) -> str:
    return "" if find_spec(name) else f"the Python module {name} is not installed"


def _arch(name: str) -> str:
    return "" if platform.machine() == name else f"needs {name}, this is {platform.machine()}"


def _cross_gcc(target: str) -> str:
    return "" if shutil.which(f"{target}-linux-gnu-gcc") else f"no cross compiler for {target} (package gcc-{target}-linux-gnu)"


def _psi() -> str:
    return "" if os.path.exists("/proc/pressure/memory") else "no pressure stall information (psi=1)"


def _two_accounts() -> str:
    if os.geteuid() != 0:
        return "needs root to act as two other users"
    return "" if not _program("setpriv") else "setpriv is not installed (package util-linux)"


def _kernel_at_least(version: str) -> str:
    wanted = tuple(int(part) for part in version.split("."))
    match = re.match(r"(\d+)\.(\d+)", platform.release())
    have = (int(match[1]), int(match[2])) if match else (0, 0)
    return "" if have >= wanted else f"needs Linux {version}, this is {platform.release()}"


def _cpus_at_least(count: str) -> str:
    return "" if len(os.sched_getaffinity(0)) >= int(count) else f"needs {count} processors"


# word → what answers it. A word that ends in ":" takes a parameter; "cgroup2" stands alone too.
WORDS: dict[str, Callable[[], str] | Callable[[str], str]] = {
    "root": _root,
    "user": _user,
    "userns": _userns,
    "erofs": _erofs,
    "bridge": _bridge,
    "idmap": _idmap,
    "netns": _netns,
    "pasta": _pasta,
    "overlay": _overlay,
    "subuid": _subuid,
    "single-id": _single_id,
    "cgroup2": lambda: _cgroup2(""),
    "cgroup2:": _cgroup2,
    "hybrid": _hybrid,
    "device-filter": _device_filter,
    "psi": _psi,
    "systemd-user": _systemd_user,
    "gpu": _gpu,
    "virtio-disk": _virtio_disk,
    "two-accounts": _two_accounts,
    "busybox": _busybox,
    "gcc": _gcc,
    "cross-gcc:": _cross_gcc,
    "shared": _shared,
    "loop": _loop,
    "ipv6": _ipv6,
    "project-quotas:": _project_quotas,
    "package:": _package,
    "program:": _program,
    "module:": _module,
    "arch:": _arch,
    "kernel>=": _kernel_at_least,
    "cpus>=": _cpus_at_least,
}


class UnknownWord(ValueError):
    """A word that is not in the vocabulary: a bug in the test, never a skip."""

    def __init__(self, word: str) -> None:
        super().__init__(f"requires({word!r}): unknown word; the vocabulary is {' '.join(WORDS)} (tests/support/requires.py)")


def _split(word: str) -> tuple[str, str]:
    match = re.fullmatch(r"([a-z0-9-]+)(?:(:|>=)(.+))?", word)
    if match is None:
        raise UnknownWord(word)
    key, parameter = match[1] + (match[2] or ""), match[3] or ""
    wrong = key not in WORDS
    wrong |= key == "cgroup2:" and parameter not in CONTROLLERS
    wrong |= key == "project-quotas:" and parameter not in MKFS
    wrong |= key.endswith(">=") and re.fullmatch(r"\d+(\.\d+)*", parameter) is None
    if wrong:
        raise UnknownWord(word)
    return key, parameter


@functools.cache
def missing(word: str) -> str:
    """Why this machine cannot serve ``word``; "" when it can."""
    key, parameter = _split(word)
    return WORDS[key](*((parameter,) if parameter else ()))


def must_run(word: str) -> bool:
    """Is a skip for ``word`` a failure in this run?"""
    wanted = {part.strip() for part in os.environ.get("DOCKLESS_MUST_RUN", "").split(",") if part.strip()}
    for part in wanted - {"all"}:
        _split(part)
    return bool(wanted & {"all", word, word.split(":")[0]})


def check(*words: str) -> None:
    """Skip, or fail where DOCKLESS_MUST_RUN says so, unless the machine has all of ``words``. Usable inside a test as well."""
    for word in words:
        reason = missing(word)
        if reason and must_run(word):
            pytest.fail(f"DOCKLESS_MUST_RUN forbids this skip: requires({word!r}): {reason}", pytrace=False)
        if reason:
            raise pytest.skip.Exception(f"requires {word}: {reason}", _use_item_location=True)  # the report names the test, not this line


def requires(*words: str) -> pytest.MarkDecorator:
    """Mark a test, a class or a module with what it needs. ``UnknownWord`` at once for a word that does not exist."""
    for word in words:
        _split(word)
    return pytest.mark.requires(*words)
