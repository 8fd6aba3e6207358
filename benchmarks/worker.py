"""A contender in Python: ``sandbox IMAGE``, ``run IMAGE``, ``whole [--file PATH] -- COMMAND …``; ``--resident BYTES`` first touches so
much memory.

Started by ``contender.py``, which explains the protocol.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable

FILE_FD = 9


def through_sandbox(image: str) -> Callable[[], int]:
    """``with ForegroundSandbox(spec) as box: box.wait()``, what every other way in is made of."""
    from dockless.sandbox.run.foreground import ForegroundSandbox
    from dockless.sandbox.spec import Spec

    null = os.open(os.devnull, os.O_RDWR)
    spec = Spec(argv=("/bin/true",), image=image)

    def once() -> int:
        with ForegroundSandbox(spec, stdin=null, stdout=null) as box:
            return box.wait().exit_code

    return once


def through_run(image: str) -> Callable[[], int]:
    """``dockless.run``, the front door."""
    import dockless

    def once() -> int:
        return dockless.run(image, ["/bin/true"], stdin=dockless.DEVNULL, stdout=dockless.DEVNULL).returncode

    return once


def as_process(argv: list[str], file: str) -> Callable[[], int]:
    """A whole process by posix_spawn(3), the cheapest way that Python has: fork, exec, everything that it loads, exit, wait."""
    quiet = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    if file:
        quiet.append((os.POSIX_SPAWN_OPEN, FILE_FD, file, os.O_RDONLY, 0))

    def once() -> int:
        pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=quiet)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    return once


def touch(size: int) -> bytearray:
    """So many bytes resident, one write per page. Huge pages are left to the kernel's own settings."""
    memory = bytearray(size)
    view = memoryview(memory)
    for start in range(0, size, 1 << 28):
        block = view[start : start + (1 << 28)]
        block[::4096] = b"\1" * len(block[::4096])
    return memory


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("sandbox", "run", "whole"))
    parser.add_argument("what", nargs="*")
    parser.add_argument("--resident", type=int, default=0)
    parser.add_argument("--file", default="", help=f"a file that the command finds open as fd {FILE_FD}, read anew each time")
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)  # argparse would take away the command's own "--" as well
    words = parser.parse_args(sys.argv[1:cut])
    words.what += sys.argv[cut + 1 :]
    make = {"sandbox": through_sandbox, "run": through_run}
    once = as_process(words.what, words.file) if words.kind == "whole" else make[words.kind](words.what[0])
    kept = touch(words.resident)
    for _ in range(3):  # warm: imports, plan, user namespace
        status = once()
        if status:
            sys.exit(f"exit {status}")
    gc.collect()
    print("ready", flush=True)
    for _ in sys.stdin:
        before = time.perf_counter_ns()
        status = once()
        took = time.perf_counter_ns() - before
        print(took, status, flush=True)
    del kept


if __name__ == "__main__":
    main()
