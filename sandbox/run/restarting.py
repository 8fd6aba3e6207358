"""Restarting a sandbox when its program has ended, as its restart policy says. native/launcher/restarter.c waits, and calls ``main``.

The file ``restart`` in its directory is there as long as the policy holds: ``give_up`` takes it away. It is locked as long as a restarter
lives; in it are the restarter's pid, the pause before the next restart, and why the last try failed. The link ``restart-when`` says after
which ends it is restarted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
import sys

from dockless.base import paths, signal
from dockless.base.locks import is_locked
from dockless.base.path import Path
from dockless.base.pidfds import hold
from dockless.base.typing import NoReturn
from dockless.base.waits import readable
from dockless.errors import SandboxGone, Unsupported
from dockless.sandbox.plan.plan import SLOT_LOG, SLOT_RESTART, SLOT_RESTART_LOCK, SLOT_STATE, Op, Plan
from dockless.sandbox.restart import Restart
from dockless.sandbox.run import process
from dockless.sandbox.run.choosing import chosen
from dockless.sandbox.run.host_names import group_name, is_restarter
from dockless.sandbox.run.places import DESCRIPTORS, by_name, open_directory

NAME = "restart"
_WHEN = "restart-when"
FIRST = 0.1
"""Seconds until a program is restarted that has ended for the first time, or ran for ``SETTLED`` seconds; the restarter waits twice as long
each time."""
MOST = 60.0
"""Seconds that it waits at most."""
SETTLED = 10.0
_PID_SIZE, _PAUSE_AT, _REASON_AT, _ROOM = 11, 16, 32, 4096
"""What stands where in the file, and what it has room for: native/launcher/restarter.c."""
_PAUSE = struct.Struct("<QQ")
_NOT_EXECUTED = "cannot execute "
"""What the restarter writes before a program and the number of an error: native/launcher/restarter.c."""
_FOREVER = 0xFFFFFFFF
_ORDERS = struct.Struct("<QQQIII")
_VARIABLES = ("HOME", "PATH", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR", "DBUS_SESSION_BUS_ADDRESS")
_PREFIXES = ("DOCKLESS_", "XDG_")
_MOST_SAID = 1024
"""Letters, of what was left out."""
_MOST_ARGUMENTS, _MOST_VARIABLES = 127, 255
"""Of what restarts it: native/launcher/restarter.c has room for no more."""
_NOTHING = Plan((Op("UMASK"),), None, {})
_CODE = f"""import os, sys
sys.path += sys.argv[2:]
try:
    from dockless.sandbox.run.restarting import main
except ImportError as error:
    text = os.fsencode(f"{{error}}{{sys.argv[1]}}")[:{_ROOM - _REASON_AT - 1}]
    os.pwrite({SLOT_RESTART_LOCK}, text.ljust({_ROOM - _REASON_AT}, b"\\0"), {_REASON_AT})
    sys.exit(1)
main()"""


def orders(policy: Restart, restarts: int) -> bytes:
    """What a restarter does, where ``restarts`` are behind it. ``Unsupported``"""
    if not sys.executable:
        hint = "start it from a program whose sys.executable is Python, or by the command line"
        raise Unsupported("which Python could restart it is not known", subject="restart", hint=hint)
    given = [path for path in sys.path if os.path.isabs(path)]
    paths = [path for path in given if os.geteuid() or _is_roots_alone(path)]
    left_out = [path for path in given if path not in paths]
    said = f"; not root's alone, so left out: {', '.join(left_out)}"[:_MOST_SAID] if left_out else ""
    arguments = [sys.executable, "-I", "-c", _CODE, said, *paths]
    environment = [f"{name}={value}" for name, value in os.environ.items() if name in _VARIABLES or name.startswith(_PREFIXES)]
    if len(arguments) > _MOST_ARGUMENTS or len(environment) > _MOST_VARIABLES:
        what = (
            f"{len(paths)} entries of sys.path"
            if len(arguments) > _MOST_ARGUMENTS
            else f"{len(environment)} variables of DOCKLESS_ and XDG_"
        )
        raise Unsupported(f"{what} are more than a restart policy can keep", subject="restart", hint="start it with fewer of them")
    left = max(0, policy.most - restarts) if policy.most else _FOREVER
    times = (int(seconds * 1e9) for seconds in (FIRST, MOST, SETTLED))
    head = _ORDERS.pack(*times, left, len(arguments), len(environment))
    return head + b"".join(os.fsencode(text) + b"\0" for text in (*arguments, *environment))


def _is_roots_alone(path: str) -> bool:
    """Whether nobody but root can change what is there, or make it where it is gone: it and all above it belong to root, and no group or
    other may write there. The sticky bit does not help: where root's directory is removed another may make it."""
    for end in {path, os.path.realpath(path)}:
        place = Path(end)
        for each in (place, *place.parents):
            try:
                found = os.lstat(each)
            except FileNotFoundError:
                continue
            except OSError:
                return False
            if found.st_uid or (found.st_mode & 0o022 and not stat.S_ISLNK(found.st_mode)):
                return False
    return True


def set_when(directory: Path, policy: Restart, restarts: int) -> None:
    """For the keeper, which looks when the program has ended: a link to ``always``, ``failure`` or ``never``. It must not follow it, and
    may not read our files. ``OSError`` where there is no room."""
    over = policy.most and restarts >= policy.most
    temporary = directory / f"{_WHEN}.tmp"
    temporary.unlink(missing_ok=True)
    os.symlink("never" if over or not policy else "failure" if policy.when == "on-failure" else "always", temporary)
    os.rename(temporary, directory / _WHEN)


def slots(given: bytes, directory: Path, opened: contextlib.ExitStack, lock: int = -1, name: str = NAME) -> dict[int, int]:
    """What the launcher needs for ``given`` orders. ``lock``: of the restarter that calls us; else the file ``name`` is made and locked.
    ``OSError`` where there is no room."""
    memory = os.memfd_create("dockless-restart", os.MFD_CLOEXEC)
    opened.callback(os.close, memory)
    os.write(memory, given)
    if lock < 0:
        lock = os.open(directory / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        opened.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.write(lock, bytes(_ROOM))
    return {SLOT_RESTART: memory, SLOT_RESTART_LOCK: lock}


def holds(directory: Path) -> bool:
    """Whether its policy holds: it has one, and nobody has stopped it."""
    return os.path.lexists(directory / NAME)


def waits(directory: Path) -> bool:
    """Whether somebody is there who restarts it."""
    return is_locked(directory / NAME)


def reason(directory: Path) -> str:
    """Why the last try to restart it failed; empty where none did."""
    written = _read(directory)[_REASON_AT:].partition(b"\0")[0].decode(errors="replace")
    what, _, number = written.rpartition(": ")
    if not what.startswith(_NOT_EXECUTED) or not number.isdigit():
        return written
    program = what.removeprefix(_NOT_EXECUTED)
    return f"the Python that it was started by, {program}, cannot be executed: {os.strerror(int(number))}; start it again by another one"


def due(directory: Path) -> float | None:
    """When the pause ends in which its restarter waits, in seconds since 1970; None where none has begun."""
    said = _read(directory)[_PAUSE_AT:_REASON_AT]
    return _PAUSE.unpack(said)[1] / 1e9 or None if len(said) == _PAUSE.size else None


def _read(directory: Path) -> bytes:
    try:
        fd = os.open(directory / NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(fd, _ROOM, 0)
    except OSError:
        return b""
    finally:
        os.close(fd)


def set_reason(lock: int, text: str) -> None:
    """In room that was set aside."""
    room = _ROOM - _REASON_AT
    os.pwrite(lock, text.encode(errors="replace")[: room - 1].ljust(room, b"\0"), _REASON_AT)


def forget(directory: Path) -> None:
    """Its policy holds no more. Nobody restarts it just now. ``Unwritable``"""
    with paths.writing("the records of a sandbox", directory):
        (directory / NAME).unlink(missing_ok=True)


def give_up(directory: Path) -> None:
    """Its policy holds no more: nobody restarts it until somebody starts it. Waits for one who is just doing it."""
    if not holds(directory):
        return
    if not waits(directory):
        return forget(directory)
    with contextlib.suppress(SandboxGone), chosen(directory):
        _end_restarter(directory)


def _end_restarter(directory: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(directory / NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            forget(directory)
            _end(fd, directory)
        finally:
            os.close(fd)


def change(directory: Path, policy: Restart, restarts: int, keeper: int) -> None:
    """Another policy for what runs, by one who has it chosen. ``keeper``: a pidfd of its keeper. Who waits for its end is another one
    then: the keeper has what it was started with. Errors: ``LaunchFailed``, ``Unsupported``, ``Unwritable``; the old one then holds."""
    if not policy:
        return _end_restarter(directory)
    given, new = orders(policy, restarts), directory / f"{NAME}.tmp"
    with contextlib.ExitStack() as opened, paths.writing("the records of a sandbox", directory):
        new.unlink(missing_ok=True)
        state = open_directory(directory)
        opened.callback(os.close, state)
        fds = slots(given, directory, opened, name=new.name) | {SLOT_STATE: state, SLOT_LOG: keeper}
        process.errand(_NOTHING, fds, name=f"restarts {group_name(directory)}", restarts=True)
        old = os.open(directory / NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC) if holds(directory) else -1
        if old >= 0:
            opened.callback(os.close, old)
        os.rename(new, directory / NAME)
        if old >= 0:
            _end(old, directory)


def _end(fd: int, directory: Path) -> None:
    """The restarter that holds the lock. Its pid is nobody else's as long as it does, and nobody else takes it meanwhile; whatever is
    written in the file, only a process that is called so is killed."""
    pid = os.pread(fd, _PID_SIZE - 1, 0)
    if not pid.isdigit() or not int(pid):
        return
    try:
        restarter = hold(int(pid))
    except (ProcessLookupError, OverflowError):
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        if is_restarter(int(pid), directory):
            signal.pidfd_send_signal(restarter, signal.SIGKILL)
            readable(restarter)
    finally:
        os.close(restarter)


def main() -> NoReturn:
    """What a restarter executes: exit code 0 where it runs again, or is to run no more. The sandbox's directory and the lock are open."""
    for fd in (SLOT_STATE, SLOT_RESTART_LOCK):
        os.set_inheritable(fd, False)
    code = 0
    try:
        _restart(Path(f"{DESCRIPTORS}/{SLOT_STATE}"))
    except BaseException as error:
        set_reason(SLOT_RESTART_LOCK, str(error) or type(error).__name__)
        code = 1
    os._exit(code)


def _restart(directory: Path) -> None:
    from dockless.sandbox.run import detached
    from dockless.sandbox.run.box import Box

    if not _is_ours(directory):  # or it was removed
        return
    with chosen(directory):  # nobody renames it any more
        directory = by_name(directory)
        box = Box(directory.name, directory)
        ended = box.exit()
        if _is_ours(directory) and (ended is None or ended.restarting):
            detached.restart_by_policy(box, SLOT_RESTART_LOCK)
            set_reason(SLOT_RESTART_LOCK, "")


def _is_ours(directory: Path) -> bool:
    """Whether nobody has stopped it."""
    try:
        return os.path.samestat(os.stat(directory / NAME), os.fstat(SLOT_RESTART_LOCK))
    except FileNotFoundError:
        return False
