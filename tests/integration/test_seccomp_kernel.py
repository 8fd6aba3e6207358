"""The filters in the real kernel: loaded in a forked child, which then makes the calls and tells the errno of each."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import signal
import struct
import sys

import pytest

from dockless.base.syscalls import table
from dockless.sandbox.capabilities import ALL, DEFAULT
from dockless.sandbox.seccomp import seccomp

ARCH = platform.machine()
NR = table(ARCH) if ARCH in seccomp.ARCHES else {}
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
CLONE_NEWUSER, CLONE_FILES = 0x10000000, 0x400

libc = ctypes.CDLL(None, use_errno=True)

pytestmark = pytest.mark.skipif(ARCH not in seccomp.ARCHES, reason=f"no seccomp table for {ARCH}")


def load(program: bytes) -> None:
    """no_new_privs, then the filter, for this thread."""
    code = ctypes.create_string_buffer(program)
    fprog = struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, fprog, 0, 0)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def call(name: str, *args: int) -> int:
    """errno of a raw system call, 0 if it succeeded."""
    result = libc.syscall(ctypes.c_long(NR[name]), *(ctypes.c_ulong(a & 2**64 - 1) for a in args))
    return ctypes.get_errno() if result == -1 else 0


def confined(program: bytes, body):
    """What ``body()`` returns in a child under the filter; an int below 0 is the signal that ended the child."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            load(program)
            os.write(writer, json.dumps(body()).encode())
        except BaseException as error:
            os.write(writer, json.dumps(repr(error)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else json.loads(said)


def compiled(untrusted=False, caps=None):
    return seccomp.compile_profile(
        seccomp.default_profile(untrusted), (frozenset() if untrusted else DEFAULT) if caps is None else caps, ARCH
    )


@pytest.mark.parametrize("untrusted", [False, True])
def test_refused_calls_fail_as_the_profile_says(untrusted):
    wanted = {
        "mount": errno.EPERM,
        "setns": errno.EPERM,
        "bpf": errno.EPERM,
        "perf_event_open": errno.EPERM,
        "keyctl": errno.EPERM,
        "userfaultfd": errno.EPERM,
        "io_uring_setup": errno.EPERM,
        "open_by_handle_at": errno.EPERM,
        "sethostname": errno.EPERM,
        "clone3": errno.ENOSYS,
        "listns": errno.ENOSYS,
        "cachestat": errno.ENOSYS,
    }
    assert confined(compiled(untrusted), lambda: {name: call(name) for name in wanted}) == wanted


@pytest.mark.parametrize("untrusted", [False, True])
def test_calls_with_argument_rules(untrusted):
    def body():
        return [
            call("unshare", CLONE_NEWUSER),
            call("unshare", CLONE_FILES),
            call("clone", CLONE_NEWUSER | signal.SIGCHLD),
            call("ioctl", 2**31 - 1, 0x5412),
            call("ioctl", 2**31 - 1, 0x5412 | 1 << 32),
            call("ioctl", 2**31 - 1, 0x541C),
            call("ioctl", 2**31 - 1, 0x5413),
            call("socket", 38, 5, 0),
            call("socket", 38 | 1 << 32, 5, 0),
            call("socket", 40, 1, 0),
            call("socket", 1, 1, 0),
            call("socket", 16, 3, 9),
            call("personality", 0xFFFFFFFF),
            call("personality", 0x0400000),
        ]

    refused = errno.EPERM
    assert confined(compiled(untrusted), body) == [
        refused,
        0,
        refused,
        refused,
        refused,
        refused,
        errno.EBADF,
        errno.EAFNOSUPPORT,
        errno.EAFNOSUPPORT,
        errno.EAFNOSUPPORT,
        0,
        errno.EAFNOSUPPORT if untrusted else errno.EINVAL,
        0,
        refused,
    ]


def test_numbers_of_newer_kernels_and_of_x32_do_not_exist():
    def body():
        found = []
        for number in (max(NR.values()) + 1, 1000, 0x40000000 | 39):
            libc.syscall(ctypes.c_long(number))
            found.append(ctypes.get_errno())
        return found

    assert confined(compiled(), body) == [errno.ENOSYS] * 3


@pytest.mark.skipif(ARCH != "x86_64", reason="32-bit calls by int 0x80 are of x86")
def test_a_32_bit_call_kills():
    def body():
        import mmap

        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20 (getpid); int 0x80; ret
        where = ctypes.addressof(ctypes.c_char.from_buffer(page))
        return ctypes.CFUNCTYPE(ctypes.c_int)(where)()

    assert confined(compiled(), body) == -signal.SIGSYS


def test_python_works_inside():
    """Threads, subprocesses, multiprocessing (semaphores, queues, shared memory), sockets, an executor."""
    script = """
import concurrent.futures, multiprocessing, multiprocessing.shared_memory, socket, subprocess, sys, tempfile, threading
def work(q, n): q.put(n * n)
if __name__ == "__main__":
    q = multiprocessing.Queue()
    ps = [multiprocessing.Process(target=work, args=(q, n)) for n in range(3)]
    [p.start() for p in ps]; got = sorted(q.get() for _ in ps); [p.join() for p in ps]
    assert got == [0, 1, 4], got
    shm = multiprocessing.shared_memory.SharedMemory(create=True, size=4096); shm.close(); shm.unlink()
    with concurrent.futures.ProcessPoolExecutor(2) as pool: assert list(pool.map(abs, [-1, -2])) == [1, 2]
    t = threading.Thread(target=lambda: None); t.start(); t.join()
    assert subprocess.run(["/bin/sh", "-c", "echo hi | cat"], capture_output=True).stdout == b"hi\\n"
    s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(); c = socket.create_connection(s.getsockname()); c.close(); s.close()
    print("fine")
"""
    for untrusted in (False, True):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.dup2(writer, 1)
                os.dup2(writer, 2)
                load(compiled(untrusted))
                os.execv(sys.executable, [sys.executable, "-c", script])
            finally:
                os._exit(99)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            said = pipe.read()
        os.waitpid(pid, 0)
        assert said == "fine\n"


def test_every_profile_is_taken_by_the_kernel():
    for untrusted in (False, True):
        for caps in (frozenset(), DEFAULT, ALL):
            assert confined(compiled(untrusted, caps), lambda: call("getpid")) == 0
