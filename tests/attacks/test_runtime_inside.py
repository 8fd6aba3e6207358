"""What a program tries from inside: mounts, devices, kernel settings, neighbours, new namespaces, terminals, bombs, survivors.

Rows A36, A40–A49 of the list of attacks; the table is in README.md beside this file. Every attack is tried as root inside, in the default
profile unless it says otherwise; the system calls are made raw, so that no tool's own manners stand between.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import requires as machine
from support.boxes import DEADLINE, alive, children_of, load, log_paths, ok, run, running, sh, until
from support.requires import requires

from dockless.cgroups import Limits
from dockless.sandbox.rootfs import MASKED
from dockless.sandbox.spec import Bind, Mount, Namespaces, Spec, Tmpfs

pytestmark = requires("userns")

EPERM, ENOENT, EACCES, ENOSYS, EROFS, ENXIO, EINVAL = 1, 2, 13, 38, 30, 6, 22

# Numbers by architecture: the attacks below name system calls.
_NUMBERS = {
    "x86_64": {
        "mount": 165, "umount2": 166, "unshare": 272, "setns": 308, "ptrace": 101, "process_vm_readv": 310, "open_by_handle_at": 304,
        "mknodat": 259,
        "bpf": 321, "keyctl": 250, "add_key": 248, "kexec_load": 246, "init_module": 175, "delete_module": 176, "reboot": 169,
        "swapon": 167,
        "settimeofday": 164, "clock_settime": 227, "fsopen": 430, "open_tree": 428, "move_mount": 429, "mount_setattr": 442,
        "pidfd_getfd": 438,
        "pivot_root": 155, "chroot": 161, "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425, "iopl": 172, "acct": 163,
        "quotactl": 179,
        "syslog": 103, "vhangup": 153, "personality": 135, "request_key": 249, "name_to_handle_at": 303, "fanotify_init": 300,
    },
    "aarch64": {
        "mount": 40, "umount2": 39, "unshare": 97, "setns": 268, "ptrace": 117, "process_vm_readv": 270, "open_by_handle_at": 265,
        "mknodat": 33,
        "bpf": 280, "keyctl": 219, "add_key": 217, "kexec_load": 104, "init_module": 105, "delete_module": 106, "reboot": 142,
        "swapon": 224,
        "settimeofday": 170, "clock_settime": 112, "fsopen": 430, "open_tree": 428, "move_mount": 429, "mount_setattr": 442,
        "pidfd_getfd": 438,
        "pivot_root": 41, "chroot": 51, "perf_event_open": 241, "userfaultfd": 282, "io_uring_setup": 425, "acct": 89, "quotactl": 60,
        "syslog": 116, "vhangup": 58, "personality": 92, "request_key": 218, "name_to_handle_at": 264, "fanotify_init": 262,
    },
}  # fmt: skip
NR = _NUMBERS.get(os.uname().machine, {})

_CALL = """
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <sys/syscall.h>
/* call NUMBER [argument ...]: "=text" is a pointer to text, anything else a number. Prints "ok" or the errno. */
int main(int argc, char **argv) {
    long a[6] = {0};
    for (int i = 2; i < argc && i < 8; i++) a[i - 2] = argv[i][0] == '=' ? (long)(argv[i] + 1) : strtol(argv[i], 0, 0);
    long result = syscall(strtol(argv[1], 0, 0), a[0], a[1], a[2], a[3], a[4], a[5]);
    if (result < 0) printf("%d\\n", errno);
    else printf("ok\\n");
    return 0;
}
"""


_CALL_IN_PYTHON = """#!/usr/bin/env python3
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
arguments = [a[1:].encode() if a.startswith("=") else ctypes.c_long(int(a, 0)) for a in sys.argv[2:8]]
print("ok" if libc.syscall(ctypes.c_long(int(sys.argv[1])), *arguments) >= 0 else ctypes.get_errno())
"""


@pytest.fixture(scope="module")
def tools() -> Iterator[Mount]:
    """A directory with ``call``: one raw system call, its errno printed. In C where there is a compiler."""
    with tempfile.TemporaryDirectory(prefix="test-tools-") as place:
        os.chmod(place, 0o755)
        program = Path(place) / "call"
        if machine.missing("gcc"):
            program.write_text(_CALL_IN_PYTHON)
        else:
            Path(place, "call.c").write_text(_CALL)
            subprocess.run(["gcc", "-O1", "-static", "-o", program, f"{place}/call.c"], check=True)
        program.chmod(0o755)
        yield Bind(place, "/tools", readonly=True)


def call(tools: Mount, name: str, *arguments: object, **fields) -> str:
    """ "ok" or the errno of one system call made inside."""
    if name not in NR:
        pytest.skip(f"{name} has no number here for {os.uname().machine}")
    words = " ".join(f"'{argument}'" for argument in arguments)
    return ok(f"/tools/call {NR[name]} {words}", mounts=(tools, *fields.pop("mounts", ())), **fields).strip()


# -- A40, A41: control groups ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unshare", ["", "unshare -UrmC ", "unshare -rm "])
@pytest.mark.parametrize(
    "options", ["-t cgroup -o memory none", "-t cgroup -o none,name=x none", "-t cgroup2 none", "-t cgroup -o rdma none"]
)
def test_no_cgroup_can_be_mounted(unshare, options):
    """A40: CVE-2022-0492: no release_agent, because there is no v1 mount to be had."""
    ran = sh(f"mkdir /tmp/c; {unshare}sh -c 'mount {options} /tmp/c && ls /tmp/c && echo mounted'")
    assert "mounted" not in ran.out, ran


def test_cgroup_files_are_readonly():
    """A41: neither one's own limits nor a parent's."""
    script = (
        "cd /sys/fs/cgroup 2>/dev/null || exit 0; for f in cgroup.procs ../cgroup.procs ../../cgroup.procs cgroup.kill memory.max "
        "cgroup.subtree_control;"
        " do echo 1 > $f && echo wrote $f; done; mkdir sub && echo made; mount -o remount,rw /sys/fs/cgroup && echo remounted; true"
    )
    assert ok(script + " 2>/dev/null") == ""


@requires("cgroup2")
def test_the_hosts_cgroup_path_is_not_visible():
    text = ok("cat /proc/self/cgroup /proc/1/cgroup; ls /sys/fs/cgroup; cat /proc/self/mountinfo")
    assert "dockless/" not in text and "run-s-" not in text


# -- A42: devices ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0x800, 0x0101, 0x010B, 0xC300, 0xFE00])  # sda, /dev/mem, kmsg, nvidia0, vda
@pytest.mark.parametrize("fields", [{}, {"cap_add": ("MKNOD",)}, {"profile": "untrusted"}], ids=["default", "with-mknod", "untrusted"])
def test_mknod_is_refused(tools, number, fields):
    for kind in (0o020666, 0o060666):
        assert call(
            tools, "mknodat", -100, "=/tmp/node", kind, number, **fields, **({"mounts": (Tmpfs("/tmp"),)} if fields.get("profile") else {})
        ) == str(EPERM)


@requires("root", "device-filter", "cgroup2")
@pytest.mark.parametrize("number", [(1, 1), (1, 11), (254, 0), (8, 0), (10, 237), (195, 0), (195, 255)])
def test_a_node_that_exists_does_not_open(number, tmp_path):
    """The device filter stands where mknod works: root in the host's user namespace with CAP_MKNOD."""
    script = (
        f"python3 -c \"import os; os.mknod('/dev/x', 0o020666, os.makedev({number[0]}, {number[1]}))\" && echo made;"
        " head -c 1 /dev/x > /dev/null && echo opened; true"
    )
    ran = sh(script, namespaces=Namespaces(user="host"), cap_add=("MKNOD",))
    assert "opened" not in ran.out and ("ermitted" in ran.err or "ermission" in ran.err), ran


@pytest.mark.parametrize(
    "path", ["/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg", "/dev/kvm", "/dev/fuse", "/dev/loop-control", "/dev/mapper", "/dev/console"]
)
def test_dangerous_devices_are_absent(path):
    assert sh(f"[ -e {path} ]").exit.code == 1


# -- A43: the kernel's settings --------------------------------------------------------------------------------------------------------

SETTINGS = (
    "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hotplug", "/proc/sys/vm/panic_on_oom",
    "/proc/sys/fs/binfmt_misc/register",
    "/proc/sys/kernel/ns_last_pid", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper", "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/power/state",
    "/sys/module/kernel/parameters/panic", "/proc/irq/default_smp_affinity", "/proc/sys/kernel/randomize_va_space",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/kernel/unprivileged_bpf_disabled", "/proc/sys/net/core/somaxconn", "/proc/self/attr/current", "/proc/1/attr/current",
    "/proc/mtrr",
)  # fmt: skip


@pytest.mark.parametrize("path", SETTINGS)
def test_kernel_settings_cannot_be_written(path):
    """A29, A39, A43."""
    before = _read(path)
    ran = sh(f"[ -e {path} ] || exit 0; echo 0 > {path} && echo wrote; true")
    assert "wrote" not in ran.out
    assert "ns_last_pid" in path or _read(path) == before


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes() if not path.startswith("/proc/self") else b""
    except OSError:
        return b""


def test_masks_cannot_be_taken_off(tools):
    for path in ("/proc/keys", "/proc/interrupts", "/sys/firmware", "/proc/acpi", "/proc/sys"):
        assert call(tools, "umount2", f"={path}", 2) in (str(EPERM), str(EINVAL), str(ENOENT))
    assert call(tools, "mount", "=none", "=/proc/sys", "=", 32 | 4096, 0) == str(EPERM)  # remount,bind


def test_masked_files_of_the_table_are_all_there():
    """The list covers Docker's default masked paths."""
    docker = {"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
    "/proc/timer_stats",
              "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap"}  # fmt: skip
    assert docker <= set(MASKED)


def test_a_fresh_procfs_cannot_be_mounted(tools):
    """A second procfs would have no masks."""
    assert call(tools, "mount", "=none", "=/tmp", "=proc", 0, 0) == str(EPERM)
    assert "mounted" not in sh("unshare -rmpf sh -c 'mount -t proc none /tmp && echo mounted'").out


# -- A44, A45: other processes, and the kernel's larger doors --------------------------------------------------------------------------

REFUSED = ("mount", "umount2", "setns", "ptrace", "open_by_handle_at", "bpf", "kexec_load", "init_module", "delete_module",
           "reboot", "swapon", "settimeofday", "clock_settime", "fsopen", "open_tree", "move_mount", "mount_setattr", "pidfd_getfd",
           "pivot_root",
           "perf_event_open", "userfaultfd", "io_uring_setup", "iopl", "acct", "quotactl", "syslog", "vhangup",
           "fanotify_init")  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_system_calls_that_a_sandbox_does_not_have(tools, name):
    """A44, A45: EPERM or ENOSYS, from the filter or from the missing capability; ptrace may be had on one's own children only."""
    arguments: tuple[object, ...] = {"ptrace": (16, 1, 0, 0), "setns": (0, 0)}.get(name, (0, 0, 0, 0, 0, 0))
    said = call(tools, name, *arguments)
    allowed = {str(EPERM), str(ENOSYS), "3", "9"} if name in ("ptrace", "setns", "pidfd_getfd") else {str(EPERM), str(ENOSYS)}
    assert said in allowed, said


@pytest.mark.parametrize("flags", [0x10000000, 0x10020000, 0x20000, 0x40000000, 0x2000000, 0x8000000])
def test_no_new_namespaces(tools, flags):
    """A45: the way to most of the last years' holes leads through unshare(CLONE_NEWUSER)."""
    assert call(tools, "unshare", flags) in (str(EPERM), str(ENOSYS))


def test_no_new_namespaces_by_clone3():
    program = (
        "import ctypes, os; l = ctypes.CDLL(None, use_errno=True); a = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17); r = "
        "l.syscall(435, a, 88); print(r if r <= 0 else 'made', ctypes.get_errno())"
    )
    text = ok(f'python3 -c "{program}"')
    assert text.split()[-1] in (str(EPERM), str(ENOSYS))


def test_nobody_else_is_in_sight():
    """A44: no process of the host, and no way through one."""
    text = ok("ls /proc | grep '^[0-9]'")
    assert str(os.getpid()) not in text.split() or os.getpid() < 10
    assert all(int(pid) < 50 for pid in text.split())
    assert sh(f"ls /proc/{os.getpid()}/root/").exit.code != 0
    assert sh("kill -9 -1; kill -9 1; sleep 0.05; [ -d /proc/1 ] && echo init lives").out.strip() in ("init lives", "")


def test_init_cannot_be_killed_or_traced_by_its_program():
    for profile in ("default", "untrusted"):
        ran = sh(
            "trap '' TERM INT HUP USR1 QUIT; for s in TERM INT HUP QUIT USR1 KILL STOP; do kill -$s 1; done; sleep 0.1; echo alive",
            profile=profile,
        )
        assert ran.out == "alive\n" and ran.exit.code == 0
    program = (
        "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\nb = ctypes.create_string_buffer(64)\n"
        "class V(ctypes.Structure): _fields_ = [('p', ctypes.c_void_p), ('n', ctypes.c_size_t)]\n"
        "v = V(ctypes.addressof(b), 64)\nprint(l.process_vm_readv(1, ctypes.byref(v), 1, ctypes.byref(v), 1, 0), ctypes.get_errno(), "
        "l.ptrace(16, 1, 0, 0), ctypes.get_errno())"
    )
    first, error, second, other = map(int, ok(f'python3 -c "{program}"').split())
    assert (first, second) == (-1, -1) and {error, other} <= {EPERM, EACCES, ENOSYS}
    # Without the filter it is init itself that is closed: it has no dump to give, so even its own user's root may not look into it. Where
    # its ids change on the way the kernel sees to that; with the host's user namespace, and for an ordinary user, they do not.
    for user in ("new", "host") if os.geteuid() == 0 else ("new",):
        fields = {"seccomp": "unconfined", "namespaces": Namespaces(user=user)}
        assert ok(f'python3 -c "{program}"', **fields).split() == ["-1", str(EPERM), "-1", str(EPERM)]
        assert sh("cat /proc/1/maps /proc/1/environ; ls /proc/1/fd", **fields).out == ""


def test_init_forwards_nothing_that_the_program_sends_it():
    """A program that signals PID 1 talks to itself at most: it dies of its own SIGTERM, nothing else."""
    ended = sh("kill -TERM 1; sleep 5").exit
    assert ended.signal in (signal.SIGTERM, None)


def test_page_cache_of_a_shared_layer(tmp_path):
    """A45: CVE-2022-0847's shape: files of a lower layer opened read-only, spliced into, mapped and written: the layer stays as it was."""
    from support.make_image import file

    machine.check("overlay")
    ref = load(tmp_path, [file("data/shared", b"A" * 4096)])
    ok(
        "dd if=/dev/zero of=/data/shared bs=1 count=10 conv=notrunc 2>/dev/null; chmod 0 /data/shared; rm /data/shared; echo x > "
        "/data/shared",
        image=ref,
    )
    assert ok("cat /data/shared", image=ref) == "A" * 4096


# -- A36: what the process carries -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"user": "1000"}, {"profile": "untrusted"}], ids=["root", "user", "untrusted"])
def test_nothing_inheritable(fields):
    from dockless.base.idmaps import default_map

    if "user" in fields and default_map().single:
        pytest.skip("a single id")
    status = dict(line.split(":", 1) for line in ok("cat /proc/self/status", **fields).splitlines())
    assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0
    assert set(status["Groups"].split()) <= {"0", "65534"}
    assert status["NoNewPrivs"].strip() == "1"
    assert int(status["SigBlk"], 16) == 0 and int(status["SigIgn"], 16) == 0


# -- A46: terminals --------------------------------------------------------------------------------------------------------------------


def test_tiocsti_and_tioclinux():
    """A46: the program's own terminal, if it has one; never the caller's: it has no controlling terminal; two ioctls are filtered."""
    program = (
        "import fcntl, os\nm, s = os.openpty()\nfor request in (0x5412, 0x541C, 0x100005412):\n"
        " try: fcntl.ioctl(s, request & 0xffffffff, b'x'); print('pushed')\n except OSError as e: print(e.errno)\n"
        "try: os.open('/dev/tty', os.O_RDWR); print('has a terminal')\nexcept OSError as e: print('none', e.errno)"
    )
    text = ok(f'python3 -c "{program}"')
    assert "pushed" not in text and "has a terminal" not in text


# -- A47: bombs ------------------------------------------------------------------------------------------------------------------------


@requires("cgroup2:pids")
def test_fork_bomb():
    """The kernel refuses forks (it counts how many), and never are there more processes than the limit."""
    wait = "while read -r word refused < /sys/fs/cgroup/pids.events && [ $refused -lt 5 ]; do :; done"  # a shell's own words: no fork
    ran = sh(
        f"f() {{ f | f & }}; f; {wait}; read -r now < /sys/fs/cgroup/pids.current; echo $now", limits=Limits(pids_max=64), timeout=60.0
    )
    assert not ran.exit.timed_out and 2 <= int(ran.lines[-1]) <= 64, ran
    assert ran.exit.usage is not None and ran.exit.usage.pids_peak in (None, *range(2, 65))


@requires("cgroup2:pids")
def test_untrusted_has_a_process_limit():
    assert int(ok("cat /sys/fs/cgroup/pids.max", profile="untrusted")) == 512


@requires("cgroup2:memory")
def test_memory_bomb():
    ended = sh("tail /dev/zero", limits=Limits(memory_max=64 << 20, memory_swap_max=0, memory_oom_group=True)).exit
    assert ended.oom_killed and ended.signal == signal.SIGKILL


@requires("cgroup2:memory")
def test_shared_memory_counts():
    ended = sh("head -c 200000000 /dev/zero > /dev/shm/x; echo survived", limits=Limits(memory_max=64 << 20, memory_swap_max=0)).exit
    assert ended.oom_killed


def test_fork_bomb_ends_with_its_sandbox():
    """Without a pids controller a bomb is still one sandbox's: the timeout ends every process of it. (Small fuse: RLIMIT_NPROC.)"""
    from dockless.sandbox.spec import Rlimit

    script = "for i in 1 2 3 4 5 6 7 8 9; do (trap '' TERM; while :; do sleep 100 & wait; done) & done; echo up; wait"
    with running(Spec(argv=("/bin/sh", "-c", script),
                      rlimits=(Rlimit("nproc", 200, 200),))) as (box, output):  # fmt: skip
        until(lambda: "up" in output(), "the bomb is lit")
        tree = children_of(box.process.keeper_pid)
        box.kill()
        box.wait(DEADLINE)
        until(lambda: not any(map(alive, tree)), "all of it is dead")


def test_terminals_and_inodes_are_the_sandboxes_own():
    """PTYs come from a devpts of its own; /dev and the scratch have a size."""
    ok("i=0; while [ $i -lt 2000 ]; do : > /dev/f$i; i=$((i + 1)); done")
    full = sh("head -c 80000000 /dev/zero > /dev/big; stat -c %s /dev/big")
    assert "No space left" in full.err and int(full.out) <= 64 << 20
    program = "import os; ours = [os.openpty() for _ in range(3)]; print(*[os.ttyname(peer) for _, peer in ours])"
    held = [os.openpty() for _ in range(3)]  # of the host, so that its first numbers are taken
    try:
        assert ok(f'python3 -c "{program}"').split() == ["/dev/pts/0", "/dev/pts/1", "/dev/pts/2"]
    finally:
        for pair in held:
            for fd in pair:
                os.close(fd)


def test_log_flood_is_bounded():
    from dockless.sandbox.run import detached

    box = detached.start(Spec(argv=("/bin/sh", "-c", "exec head -c 300000000 /dev/zero"), timeout=60.0))
    try:
        box.wait(60)
        assert sum(path.stat().st_size for path in log_paths(box)) < (64 << 20) * 2 + (2 << 20)
    finally:
        box.remove()


# -- A48: survivors --------------------------------------------------------------------------------------------------------------------

SURVIVOR = (
    "trap '' TERM HUP INT QUIT USR1; (setsid sh -c 'trap \"\" TERM HUP; (setsid sleep 1000 &) ; while :; do sleep 1000; done' &) ; "
    "echo up; while :; do sleep 1000; done"
)


@pytest.mark.parametrize("how", ["kill", "leave", "timeout", "signal"])
def test_nobody_survives(how):
    with running(Spec(argv=("/bin/sh", "-c", SURVIVOR), timeout=2.0 if how == "timeout" else 0.0)) as (box, output):
        until(lambda: "up" in output(), "the survivor is up")
        tree = until(lambda: (t := children_of(box.process.keeper_pid)) and len(t) >= 3 and t, "its children are up")
        if how == "kill":
            box.kill()
        elif how == "signal":
            box.send_signal(signal.SIGKILL)
        if how != "leave":
            box.wait(DEADLINE)
    until(lambda: not any(map(alive, tree)), "everything is dead")


def test_zombie_storm_and_pid_1():
    """Thousands of children that nobody waits for, then the end: in time, nothing left."""
    ran = sh("i=0; while [ $i -lt 300 ]; do (setsid true &) ; i=$((i + 1)); done; exit 9")
    assert ran.exit.code == 9


# -- A49: sockets ----------------------------------------------------------------------------------------------------------------------


def test_abstract_sockets_of_the_host_are_out_of_reach():
    """A49: CVE-2020-15257."""
    import socket

    name = f"\0dockless-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        program = f"import socket; print(socket.socket(socket.AF_UNIX).connect_ex(chr(0) + {name[1:]!r}))"
        assert int(run(Spec(argv=("python3", "-c", program))).out) == 111
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        program = f"import socket; print(socket.socket().connect_ex(('127.0.0.1', {server.getsockname()[1]})))"
        assert int(run(Spec(argv=("python3", "-c", program))).out) == 111


def test_sockets_of_the_host_are_not_in_the_host_image():
    """/run, /var and /tmp of the host do not show: no docker.sock, no dbus."""
    assert ok("find / -xdev -type s 2>/dev/null; find /run /tmp /var -type s 2>/dev/null; true") == ""
