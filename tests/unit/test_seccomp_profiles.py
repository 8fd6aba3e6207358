"""dockless's own profiles: what they allow and refuse, call by call, and how they differ from those of Podman and Docker."""

from __future__ import annotations

import pytest
from support import cbpf
from support.requires import shared

from dockless.base.syscalls import table
from dockless.sandbox.capabilities import ALL, DEFAULT, PROFILES
from dockless.sandbox.seccomp import default, seccomp

KERNEL = (6, 1)
ARCHES = ["x86_64", "aarch64"]
NAMESPACE_FLAGS = {
    "NEWNS": 0x20000,
    "NEWCGROUP": 0x2000000,
    "NEWUTS": 0x4000000,
    "NEWIPC": 0x8000000,
    "NEWUSER": 0x10000000,
    "NEWPID": 0x20000000,
    "NEWNET": 0x40000000,
}
THREAD = 0x3D0F00  # what pthread_create asks for
FORK = 0x1200011  # what fork asks for
EAFNOSUPPORT, EINVAL = cbpf.errno(97), cbpf.errno(22)
HIGH = 1 << 32

# Among them what Python's multiprocessing, a thread pool, NCCL's shared memory and a C library's start use.
NEEDED = """
    read write openat close fstat newfstatat mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn ioctl pread64 pipe2
    sched_yield madvise shmget shmat shmctl dup3 nanosleep getpid socketpair connect sendmsg recvmsg bind listen accept4 execve
    exit exit_group wait4 kill uname fcntl flock fsync ftruncate getcwd chdir getdents64 mkdirat unlinkat readlinkat fchmod umask
    gettimeofday getrlimit getrusage sysinfo getuid setuid setgid setgroups sigaltstack prctl futex sched_setaffinity
    sched_getaffinity epoll_create1 epoll_ctl epoll_pwait set_tid_address clock_gettime clock_nanosleep tgkill mbind set_mempolicy
    get_mempolicy mq_open waitid ppoll pselect6 set_robust_list splice eventfd2 timerfd_create prlimit64 getrandom memfd_create
    statx rseq copy_file_range close_range openat2 faccessat2 pidfd_open futex_waitv membarrier io_setup landlock_create_ruleset
    mlock mlock2 fchmodat2 memfd_secret pidfd_send_signal execveat seccomp capget capset
"""
REFUSED = """
    mount umount2 pivot_root fsopen fsconfig fsmount fspick open_tree move_mount mount_setattr open_tree_attr setns bpf
    perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register keyctl add_key request_key kexec_load
    kexec_file_load init_module finit_module delete_module swapon swapoff reboot acct quotactl quotactl_fd syslog
    open_by_handle_at sethostname setdomainname settimeofday clock_settime vhangup move_pages migrate_pages vmsplice fanotify_init
"""


def program(untrusted=False, caps=DEFAULT, arch="x86_64"):
    made = seccomp.compile_profile(seccomp.default_profile(untrusted), caps, arch, KERNEL)
    cbpf.verify(made)
    return made


def ask(name, *args, untrusted=False, caps=DEFAULT, arch="x86_64"):
    return cbpf.decide(program(untrusted, caps, arch), arch, table(arch)[name], args)


def test_every_name_in_the_profiles_is_a_system_call_of_one_of_our_architectures():
    known = {*table("x86_64"), *table("aarch64")}
    for untrusted in (False, True):
        for entry in seccomp.default_profile(untrusted)["syscalls"]:
            assert set(entry["names"]) <= known
            assert entry["comment"]


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("untrusted", [False, True])
def test_programs_are_small_and_searches_short(arch, untrusted):
    made = program(untrusted, arch=arch)
    assert len(made) // 8 < 250
    for name, number in table(arch).items():
        _, steps, read_args = cbpf.run(made, arch, number)
        if not read_args:
            assert steps <= 13, name


@pytest.mark.parametrize("arch", ARCHES)
def test_calls_without_argument_rules_are_decided_on_the_number_alone(arch):
    """So that the kernel's cache of always-allowed calls holds them and the program does not even run."""
    looks = {name for name, number in table(arch).items() if cbpf.run(program(arch=arch), arch, number)[2]}
    assert looks == {"clone", "unshare", "socket", "ioctl", "personality"}


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("untrusted", [False, True])
def test_what_every_program_needs(arch, untrusted):
    made = program(untrusted, frozenset() if untrusted else DEFAULT, arch)
    for name in NEEDED.split():
        assert cbpf.decide(made, arch, table(arch)[name]) == cbpf.ALLOW, name


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("untrusted", [False, True])
def test_what_is_refused(arch, untrusted):
    for name in REFUSED.split():
        assert ask(name, untrusted=untrusted, arch=arch) == cbpf.EPERM, name


@pytest.mark.parametrize("arch", ARCHES)
def test_clone_makes_processes_and_threads_but_no_namespaces(arch):
    for untrusted in (False, True):
        for flags in (FORK, THREAD, 17, 0x4111):
            assert ask("clone", flags, arch=arch, untrusted=untrusted) == cbpf.ALLOW
        for flag in NAMESPACE_FLAGS.values():
            for extra in (0, FORK, HIGH, sum(NAMESPACE_FLAGS.values())):
                assert ask("clone", flag | extra, arch=arch, untrusted=untrusted) == cbpf.EPERM
        assert ask("clone3", arch=arch, untrusted=untrusted) == cbpf.ENOSYS, "the C library falls back to clone"
    for name in ("clone", "clone3", "unshare", "setns"):
        assert ask(name, NAMESPACE_FLAGS["NEWUSER"], arch=arch, caps=ALL) == cbpf.ALLOW
        assert ask(name, NAMESPACE_FLAGS["NEWUSER"], arch=arch, caps=ALL, untrusted=True) != cbpf.ALLOW


@pytest.mark.parametrize("untrusted", [False, True])
def test_unshare_of_namespaces_is_refused(untrusted):
    for flag in (*NAMESPACE_FLAGS.values(), 0x80):
        assert ask("unshare", flag, untrusted=untrusted) == cbpf.EPERM
        assert ask("unshare", flag | 0x400 | HIGH, untrusted=untrusted) == cbpf.EPERM
    for harmless in (0, 0x200, 0x400, 0x40000):
        assert ask("unshare", harmless, untrusted=untrusted) == cbpf.ALLOW


@pytest.mark.parametrize("untrusted", [False, True])
def test_typing_into_the_callers_terminal_is_refused(untrusted):
    """A46. The kernel looks at 32 bits of the request, so set high bits must not get past (as in CVE-2019-10063)."""
    for request in (0x5412, 0x541C):
        for high in (0, HIGH, 0xFFFFFFFF << 32):
            assert ask("ioctl", 0, request | high, untrusted=untrusted) == cbpf.EPERM
    for request in (0x5401, 0x5413, 0x5411, 0x541B, 0x541D, 0xC020462A):  # the last one: an NVIDIA driver request
        assert ask("ioctl", 0, request, untrusted=untrusted) == cbpf.ALLOW
    assert ask("ioctl", 0, 0x5423, untrusted=untrusted) == (cbpf.EPERM if untrusted else cbpf.ALLOW)


def test_socket_families():
    for high in (0, HIGH):
        assert ask("socket", 38 | high, 5, 0) == EAFNOSUPPORT
        assert ask("socket", 40 | high, 1, 0) == EAFNOSUPPORT
        assert ask("socket", 16 | high, 3, 9 | high) == EINVAL
    for family in (1, 2, 10, 16, 17, 39, 41, 44):
        assert ask("socket", family, 1, 0) == cbpf.ALLOW
    assert ask("socket", 16, 3, 9, caps=ALL) == cbpf.ALLOW
    for family in (1, 2, 10, 16):
        assert ask("socket", family, 1, 0, untrusted=True) == cbpf.ALLOW
    for family in (3, 17, 38, 39, 40, 44, 45, 0xFFFFFFFF):
        assert ask("socket", family, 1, 0, untrusted=True) == EAFNOSUPPORT
    assert ask("socket", 16, 3, 12, untrusted=True) == EAFNOSUPPORT, "nf_tables"


def test_personality():
    for allowed in (0, 8, 0x20000, 0x20008, 0xFFFFFFFF):
        assert ask("personality", allowed) == cbpf.ALLOW
    for refused in (1, 0x0400000, 0x0040000, 8 | HIGH, 0x20000 | 0x400000):
        assert ask("personality", refused) == cbpf.EPERM


@pytest.mark.parametrize(
    "capability, names",
    [
        ("SYS_ADMIN", "mount umount2 pivot_root setns unshare clone3 fsopen bpf perf_event_open syslog sethostname quotactl"),
        ("BPF", "bpf"),
        ("PERFMON", "perf_event_open"),
        ("SYSLOG", "syslog"),
        ("DAC_READ_SEARCH", "open_by_handle_at"),
        ("SYS_CHROOT", "chroot"),
        ("SYS_MODULE", "init_module finit_module delete_module"),
        ("SYS_PACCT", "acct"),
        ("SYS_PTRACE", "kcmp process_madvise"),
        ("SYS_RAWIO", "iopl ioperm"),
        ("SYS_TIME", "settimeofday clock_settime"),
        ("SYS_TTY_CONFIG", "vhangup"),
        ("SYS_BOOT", "reboot"),
    ],
)
def test_a_capability_opens_its_calls_and_no_others(capability, names):
    bare, with_it = program(caps=frozenset()), program(caps=frozenset({f"CAP_{capability}"}))
    flags = [NAMESPACE_FLAGS["NEWUSER"]]
    opened = {
        name
        for name, number in table("x86_64").items()
        if cbpf.decide(bare, "x86_64", number, flags) != cbpf.decide(with_it, "x86_64", number, flags) == cbpf.ALLOW
    }
    assert set(names.split()) <= opened
    if capability != "SYS_ADMIN":
        assert set(names.split()) == opened


def test_debugging_is_for_the_default_only():
    for name in ("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd"):
        assert ask(name) == cbpf.ALLOW
        assert ask(name, untrusted=True) == cbpf.EPERM
        assert ask(name, untrusted=True, caps=ALL) == cbpf.EPERM


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("caps", [DEFAULT, ALL, frozenset()])
def test_untrusted_never_allows_what_the_default_refuses(arch, caps):
    loose, strict = program(False, caps, arch), program(True, caps, arch)
    samples = ([], [1, 1, 0], [2, 1, 0], [16, 3, 9], [38], [0, 0x5412], [0, 0x5423], [FORK], [NAMESPACE_FLAGS["NEWUSER"]], [0x80], [8])
    for name, number in table(arch).items():
        for args in samples:
            if cbpf.decide(strict, arch, number, args) == cbpf.ALLOW:
                assert cbpf.decide(loose, arch, number, args) == cbpf.ALLOW, (name, args)


# ---- beside the others -----------------------------------------------------------------------------------------------------------------

GONE = "query_module set_thread_area get_thread_area epoll_ctl_old epoll_wait_old"
NEW = """uretprobe uprobe set_mempolicy_home_node statmount listmount mseal setxattrat getxattrat listxattrat removexattrat file_getattr
    file_setattr rseq_slice_yield"""
FUTEX = "futex_waitv futex_wait futex_wake futex_requeue"
DIFFERENCES = {
    # (file, capabilities): {(theirs, ours): names}, on x86_64 with all arguments 0; every one with its reason
    ("containers-common-seccomp.json", "default"): {
        # They rely on the kernel's own check; inside a user namespace that check passes and opens the mount code to attackers (A45).
        ("ALLOW", "EPERM"): """pivot_root mount umount2 setns open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr
            syslog reboot fanotify_init keyctl""",
        # clone3: its flags cannot be filtered. The others: not in any kernel that we run on.
        ("ALLOW", "ENOSYS"): f"clone3 {GONE.replace('query_module', '')}",
        # Known and refused, as Docker says it.
        ("ENOSYS", "EPERM"): "add_key request_key io_uring_setup io_uring_enter io_uring_register open_tree_attr",
        # cachestat: the page cache of others' files shows who reads what; nobody needs it. query_module is gone.
        ("EPERM", "ENOSYS"): "query_module cachestat",
        # Newer C libraries use them, as Docker allows them.
        ("EPERM", "ALLOW"): f"io_pgetevents map_shadow_stack {FUTEX}",
        ("ENOSYS", "ALLOW"): NEW,
    },
    ("containers-common-seccomp.json", "all"): {
        ("ALLOW", "ENOSYS"): GONE,
        ("ENOSYS", "EPERM"): "add_key request_key io_uring_setup io_uring_enter io_uring_register",
        ("ALLOW", "EPERM"): "keyctl",  # keyrings are only partly inside a namespace
        ("EPERM", "ALLOW"): f"io_pgetevents map_shadow_stack {FUTEX}",
        ("ENOSYS", "ALLOW"): f"{NEW} open_tree_attr lsm_get_self_attr lsm_set_self_attr lsm_list_modules",
        ("EPERM", "ENOSYS"): "cachestat",
    },
    ("moby-seccomp-default.json", "default"): {
        # Their default is EPERM, ours ENOSYS: a C library that does not know a call's refusal falls back.
        ("EPERM", "ENOSYS"): """_sysctl create_module get_kernel_syms query_module getpmsg putpmsg afs_syscall tuxcall security vserver
            lsm_get_self_attr lsm_set_self_attr lsm_list_modules listns""",
        ("ALLOW", "ENOSYS"): f"{GONE.replace('query_module', '')} cachestat",
        # NUMA placement is everyday work on a GPU host; unshare here is of no namespace (flags 0); pidfd_getfd is weaker than ptrace.
        ("EPERM", "ALLOW"): """mbind set_mempolicy get_mempolicy set_mempolicy_home_node unshare pidfd_getfd uprobe file_getattr
            file_setattr rseq_slice_yield""",
        ("ALLOW", "EPERM"): "vmsplice",  # as Podman: gives pages of ours to a pipe while we still write to them
    },
}


@pytest.mark.parametrize("file, capabilities", DIFFERENCES)
def test_differences_to_podman_and_docker_are_the_listed_ones(file, capabilities):
    place = shared()
    if place is None or not (place / "corpus" / file).exists():
        pytest.skip("the shared folder with Podman's and Docker's profiles is absent (DOCKLESS_SHARED)")
    caps = DEFAULT if capabilities == "default" else ALL
    theirs = seccomp.compile_profile(place / "corpus" / file, caps, "x86_64", KERNEL)
    cbpf.verify(theirs)
    ours = program(caps=caps)
    words = {cbpf.ALLOW: "ALLOW", cbpf.EPERM: "EPERM", cbpf.ENOSYS: "ENOSYS"}
    found: dict[tuple[str, str], set[str]] = {}
    for name, number in table("x86_64").items():
        pair = tuple(words[cbpf.decide(p, "x86_64", number)] for p in (theirs, ours))
        if pair[0] != pair[1]:
            found.setdefault(pair, set()).add(name)
    assert found == {pair: set(names.split()) for pair, names in DIFFERENCES[file, capabilities].items()}


# -- the filters that were compiled when dockless was built


@pytest.fixture
def fresh():
    default.default_filter.cache_clear()
    yield
    default.default_filter.cache_clear()


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", ["default", "untrusted"])
def test_what_was_built_is_what_the_profile_says(name, arch, fresh):
    """On every kernel. Where this fails: make build."""
    found = default.default_filter(name == "untrusted", PROFILES[name], arch)
    with open(f"{default._BUILT}/{name}.{arch}", "rb") as stream:
        assert found == stream.read()
    for kernel in ((5, 14), (6, 1), (99, 0)):
        assert found == seccomp.compile_profile(seccomp.default_profile(name == "untrusted"), PROFILES[name], arch, kernel)


@pytest.mark.parametrize("caps", [frozenset(), DEFAULT | {"CAP_SYS_ADMIN"}, ALL])
def test_other_capabilities_are_compiled_for(caps, fresh):
    assert default.default_filter(False, caps, "x86_64") == seccomp.compile_profile(seccomp.default_profile(), caps, "x86_64")
    assert default.default_filter(False, caps, "x86_64") != default.default_filter(False, DEFAULT, "x86_64")


def test_sources_that_were_not_built_work(tmp_path, monkeypatch, fresh):
    built = default.default_filter(False, DEFAULT, "x86_64")
    default.default_filter.cache_clear()
    monkeypatch.setattr(default, "_BUILT", str(tmp_path / "built"))
    assert default.default_filter(False, DEFAULT, "x86_64") == built
    default.build(str(tmp_path / "built"))
    default.default_filter.cache_clear()
    assert default.default_filter(False, DEFAULT, "x86_64") == built
    assert len([*(tmp_path / "built").iterdir()]) == 2 * len(ARCHES)
