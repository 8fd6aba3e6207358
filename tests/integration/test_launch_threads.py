"""Starting from several threads, beside others that allocate, import, fork and hold locks: the host stays what it was."""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.boxes import run, sh, until
from support.requires import requires

from dockless.errors import CommandNotFound
from dockless.sandbox.run.foreground import ForegroundSandbox
from dockless.sandbox.spec import Spec

pytestmark = requires("userns")

THREADS = 8


def _open_files() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
    return found


def _all(work, count: int = THREADS) -> list[BaseException]:
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


@pytest.fixture
def noise():
    """Four threads that make the host busy in the ways that break a careless fork: allocator, import lock, other locks, children."""
    stop = threading.Event()
    lock = threading.RLock()

    def allocate() -> None:
        while not stop.is_set():
            _ = [bytearray(size) for size in (10, 1000, 100_000, 5_000_000)]

    def imports() -> None:
        while not stop.is_set():
            for name in ("colorsys", "this_is_no_module", "wave"):
                sys.modules.pop(name, None)
                try:
                    importlib.import_module(name)
                except ImportError:
                    continue

    def locks() -> None:
        while not stop.is_set():
            with lock:
                os.getpid()

    def children() -> None:
        while not stop.is_set():
            subprocess.run(["true"], check=False)

    threads = [threading.Thread(target=work) for work in (allocate, imports, locks, children)]
    for thread in threads:
        thread.start()
    yield
    stop.set()
    for thread in threads:
        thread.join()


def test_eight_threads_among_noise(noise):
    sh("true")  # what is kept once per process exists from here on
    codes = []

    def work(number: int) -> None:
        for turn in range(4):
            codes.append((run(Spec(argv=("/bin/sh", "-c", f"exit {number * 4 + turn}"))).exit.code, number * 4 + turn))

    assert _all(work) == []
    assert len(codes) == THREADS * 4 and all(got == wanted for got, wanted in codes)


def test_the_host_is_unharmed():
    libc = ctypes.CDLL(None)
    sh("true")
    gc.collect()
    before, mask = _open_files(), signal.pthread_sigmask(signal.SIG_BLOCK, [])
    threads = len(os.listdir("/proc/self/task"))

    def work(number: int) -> None:
        for _ in range(3):
            run(Spec(argv=("true",)))
            with pytest.raises(CommandNotFound):
                run(Spec(argv=("no-such-program",)))

    assert _all(work) == []
    gc.collect()
    assert _open_files() == before
    assert libc.prctl(3, 0, 0, 0, 0) == 1, "still dumpable"
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    until(lambda: len(os.listdir("/proc/self/task")) == threads, "the threads are gone, also for the kernel")


def test_first_starts_of_a_process_race():
    """What is probed and made once per process is made right when eight threads want it first."""
    program = (
        "import threading\nfrom support.boxes import sh\ncodes = []\n"
        "threads = [threading.Thread(target=lambda: codes.append(sh('exit 5').exit.code)) for _ in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\nprint(codes)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, timeout=60)
    assert done.stdout.strip() == str([5] * 8), done.stderr


def test_the_thread_that_started_it_may_end():
    """No parent-death signal by thread: a pool's worker ends, the sandbox goes on (launch.md)."""
    made: list[ForegroundSandbox] = []

    def work() -> None:
        made.append(ForegroundSandbox(Spec(argv=("sleep", "1000"))).__enter__())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    box = made[0]
    try:
        with pytest.raises(TimeoutError):
            box.wait(0.3)
    finally:
        box.__exit__(None, None, None)


def test_several_threads_wait_for_one():
    with ForegroundSandbox(Spec(argv=("/bin/sh", "-c", "sleep 0.2; exit 6"))) as box:
        codes: list[int | None] = []
        assert _all(lambda _: codes.append(box.wait(20).code)) == []
    assert codes == [6] * THREADS


def test_a_start_copies_no_page_tables():
    """CLONE_VM: after a fork each page of ours that we write would fault once more, be it 256 MiB of them. getrusage(2)"""
    program = (
        "import mmap, resource\nfrom dockless.sandbox.run.foreground import ForegroundSandbox\nfrom dockless.sandbox.spec import Spec\n"
        "hold = mmap.mmap(-1, 256 << 20, flags=mmap.MAP_PRIVATE)\nhold.madvise(mmap.MADV_NOHUGEPAGE)\n"
        "def write():\n    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    for at in range(0, len(hold), 4096): hold[at] = 1\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before\n"
        "first = write()\nwith ForegroundSandbox(Spec(argv=('true',))) as box: box.wait()\nprint(first, write())\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    first, again = map(int, done.stdout.split())
    assert first >= 65536 and again < 1000


def test_python_level_signal_handlers_run_in_the_host_only():
    """A handler of ours must not run in the vfork child, on our memory."""
    seen: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(os.getpid()))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        for _ in range(20):
            assert run(Spec(argv=("true",))).exit.code == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen and set(seen) == {os.getpid()}


def test_a_forked_child_can_start_as_well():
    sh("true")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = run(Spec(argv=("/bin/sh", "-c", "exit 4"))).exit.code or 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
    assert Path(f"/proc/{os.getpid()}").exists()
