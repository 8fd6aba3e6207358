"""Agents for tests that need no sandbox: ours as an ordinary child, and strangers that say whatever a test wants."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator

from dockless import native
from dockless.sandbox.files.agent import Agent
from dockless.sandbox.files.files import Files


def child() -> subprocess.Popen[bytes]:
    """The agent's program with pipes, as it is run inside."""
    program = native.agent()
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([f"/proc/self/fd/{program}"], pass_fds=[program], bufsize=0, **streams)


def connect(user: str | None = None) -> Agent:
    process = child()
    assert process.stdin and process.stdout
    stdin, stdout = os.dup(process.stdin.fileno()), os.dup(process.stdout.fileno())
    process.stdin.close()
    process.stdout.close()
    return Agent(stdin, stdout, lambda: process.wait() and None)


@contextlib.contextmanager
def files() -> Iterator[Files]:
    """``Files`` over this host's own files."""
    with Files(connect) as found:
        yield found


@contextlib.contextmanager
def saying(*answers: bytes) -> Iterator[Files]:
    """``Files`` whose agent answers each batch of requests with the next of these, whatever was asked, and then ends."""
    threads = []

    def stranger(user: str | None) -> Agent:
        their_in, our_out = os.pipe2(os.O_CLOEXEC)
        our_in, their_out = os.pipe2(os.O_CLOEXEC)
        thread = threading.Thread(target=_say, args=(their_in, their_out, list(answers)), daemon=True)
        threads.append(thread)
        thread.start()
        return Agent(our_out, our_in, lambda: None)

    with Files(stranger) as found:
        yield found
    for thread in threads:
        thread.join()


def _say(their_in: int, their_out: int, answers: list[bytes]) -> None:
    with contextlib.suppress(OSError):
        for answer in answers:
            if not os.read(their_in, 1 << 20):
                break
            while answer:
                answer = answer[os.write(their_out, answer) :]
    os.close(their_out)
    os.close(their_in)
