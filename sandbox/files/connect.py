"""The agent of a sandbox that runs, as a user of it, and who that user is."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable

from dockless import native
from dockless.base.typing import Protocol
from dockless.sandbox.accounts import MAX_FILE, Account, resolve_user
from dockless.sandbox.enter import Entry
from dockless.sandbox.files import wire
from dockless.sandbox.files.agent import Agent
from dockless.sandbox.files.calls import look_or_none, named
from dockless.sandbox.files.files import Files
from dockless.sandbox.files.inside import kind_of
from dockless.sandbox.files.wire import Request

_PIPE = 1 << 20


class EnteredAgent(Protocol):
    @property
    def used(self) -> Callable[[], None]: ...

    def close(self) -> None: ...


class Enter(Protocol):
    """How a program enters the sandbox, ``sandbox/run/door.py``."""

    def __call__(self, entry: Entry, stdio: tuple[int, int, int], *, program: int) -> EnteredAgent: ...


def files_of(enter: Enter) -> Files:
    """The files of the sandbox that is entered so."""
    return Files(lambda user: connect(enter, None if user is None else account_of(enter, user)))


def connect(enter: Enter, user: Account | None = None) -> Agent:
    """Start the agent as this user, the sandbox's own for None. Errors: those of ``door.enter``."""
    with contextlib.ExitStack() as opened:
        their_in, our_out = os.pipe2(os.O_CLOEXEC)
        opened.callback(os.close, our_out)
        our_in, their_out = os.pipe2(os.O_CLOEXEC)
        opened.callback(os.close, our_in)
        with open(their_in, "rb"), open(their_out, "wb"):
            for fd in (our_out, our_in):
                with contextlib.suppress(OSError):  # a user has room for so many large ones, and no more
                    fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE)
            entry = Entry(("dockless-agent",), workdir="/", account=user, given=True)
            # It writes nothing to its standard error, and no device of the host need be open inside.
            entered = enter(entry, (their_in, their_out, their_out), program=native.agent())
        opened.pop_all()
    return Agent(our_out, our_in, entered.close, entered.used)


def account_of(enter: Enter, user: str) -> Account:
    """Who ``name|uid[:group|gid]`` is in the sandbox as it is now. ``BadInput`` where it has no such user."""
    agent = connect(enter)
    try:
        return resolve_user(user, _read(agent, b"/etc/passwd"), _read(agent, b"/etc/group"))
    finally:
        agent.close()


def _read(agent: Agent, path: bytes) -> bytes | None:
    """As much of a file as accounts are looked for in; None where there is none."""
    found = look_or_none(agent, path)
    if found is None or kind_of(found[0].mode) != "file":
        return None
    contents = b""
    for offset in range(0, MAX_FILE, wire.CHUNK):
        open_ = named(wire.OPEN, path, flags=wire.WITH_READ)
        read = Request(wire.READ, handle=wire.LAST, offset=offset, length=wire.CHUNK)
        opened, answer, _ = agent.ask(open_, read, Request(wire.CLOSE, handle=wire.LAST))
        if opened.error or answer.error:
            return None
        contents += answer.contents
        if len(answer.contents) < wire.CHUNK:
            break
    return contents
