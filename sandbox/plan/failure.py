"""The sentence for a failed operation: what was done, to what, why the kernel refused, and what to do next."""

from __future__ import annotations

import errno
import os

from dockless.base.paths import HINTS
from dockless.errors import BadInput, CommandNotExecutable, CommandNotFound, DocklessError, IdMapError, LaunchFailed, SandboxError
from dockless.sandbox.plan.builder import IDMAP
from dockless.sandbox.plan.plan import Command, Op, Plan

_E = errno
_ANYWHERE: dict[int, str] = {
    0: "the kernel killed it, probably for want of memory: raise the memory limit",
    _E.EMFILE: "too many open files: raise ulimit -n, and --ulimit nofile if it is given",
    _E.ENFILE: "the host has too many open files: raise sysctl fs.file-max",
    _E.ENOMEM: "there is no memory for it: raise the memory limit, and --ulimit as, data or stack if they are given",
    _E.EAGAIN: "too many processes: raise ulimit -u or pids.max, and --ulimit nproc if it is given",
}
"""Whatever the operation was."""


def explain(plan: Plan, index: int, error: int) -> DocklessError:
    """The error for operation ``index`` of the plan. ``error`` 0: the launcher was killed while it was there."""
    total = len(plan.ops) + (plan.command is not None)
    if not 0 <= index < total:
        return LaunchFailed(
            f"the launcher refused the plan: {os.strerror(error)}",
            index=index,
            step="validate",
            errno=error,
            hint="this is a bug in dockless",
        )
    if index == len(plan.ops) and plan.command is not None:
        return _exec_failed(plan.command, index, error)
    op = plan.ops[index]
    from dockless.sandbox.plan.operations import OPERATIONS, words

    step = words(op, plan)
    special = _special(op, error) or _owners_not_mapped(plan, op, error) or _layer_failed(plan, index, error)
    if special is not None:
        return special
    reason = os.strerror(error) if error else "the launcher was killed"
    message = f"cannot {step} (operation {index} of {total}): {reason}"
    hint = OPERATIONS[op.name].hints.get(error) or _ANYWHERE.get(error, "see every step with --explain")
    return LaunchFailed(message, index=index, step=step, errno=error, subject=_subject(op), hint=hint)


def not_started(error: OSError) -> LaunchFailed:
    """The launcher itself could not be started: no process, no fd, no memory, or a closed standard stream."""
    hints = {number: HINTS[number] for number in (_E.EMFILE, _E.ENFILE, _E.EAGAIN, _E.EFBIG, _E.ENOMEM)} | {
        _E.EBADF: "a standard stream is closed: give the sandbox stdin, stdout and stderr",
        _E.EPERM: "this process may not use clone3: a seccomp filter around it refuses",
        _E.ENOSYS: "this process may not use clone3: a seccomp filter around it refuses",
    }
    number = error.errno or 0
    return LaunchFailed(
        f"cannot start the launcher: {error.strerror or error}",
        index=-1,
        step="start the launcher",
        errno=number,
        subject="launcher",
        hint=hints.get(number, "run 'dockless doctor'"),
    )


def too_late(plan: Plan, index: int, deadline: str = "timeout") -> SandboxError:
    """A deadline, by its keyword, ended the start itself, or whoever waited for it did."""
    seconds = {"timeout": plan.timeout, "idle_timeout": plan.idle, "ttl": plan.ttl}[deadline]
    return LaunchFailed(
        f"{f'the {deadline} of {seconds:g} s' if seconds else 'the time in which it had to start'} passed before the program was started",
        index=index,
        step="start",
        errno=0,
        subject=deadline,
        hint=f"raise the {deadline}, and look with --explain --time at what takes so long",
    )


def _subject(op: Op) -> str:
    return op.a if isinstance(op.a, str) and op.a else op.name.lower()


def _exec_failed(command: Command, index: int, error: int) -> SandboxError:
    program = command.argv[0]
    if error in (_E.ENOENT, _E.ENOTDIR):
        if len(command.candidates) > 1 or "/" not in program:
            looked = ", ".join(os.path.dirname(c) for c in command.candidates)
            return CommandNotFound(f"{program}: command not found", subject=program, hint=f"looked in {looked}")
        return CommandNotFound(
            f"{program}: no such file, or its interpreter is missing", subject=program, hint="check the path inside the image"
        )
    hints = {
        _E.EACCES: "make it executable, and check that its file system is not mounted noexec",
        _E.ENOEXEC: "it is neither a program for this processor nor a script with a '#!' line",
        _E.E2BIG: "arguments and environment together are too long",
    }
    if error in hints or error in (_E.EPERM, _E.ELIBBAD, _E.ELOOP, _E.ETXTBSY):
        hint = hints.get(error, "check the file inside the image")
        return CommandNotExecutable(f"{program}: cannot be executed: {os.strerror(error)}", subject=program, hint=hint)
    return LaunchFailed(
        f"cannot run {program}: {os.strerror(error) if error else 'the launcher was killed'}",
        index=index,
        step="exec",
        errno=error,
        subject=program,
        hint=_ANYWHERE.get(error, "see every step with --explain"),
    )


_LAYER_HINTS = {
    _E.ENOENT: "its index or its tar is gone from the store: load or pull the image again",
    _E.ENOTBLK: "this kernel mounts no EROFS from a file (Linux 6.12 and newer do): remove the image, load it again to have it unpacked",
    _E.EOPNOTSUPP: "this kernel mounts no EROFS with such small blocks (Linux 6.4 and newer do): remove the image, load it again",
}


def _layer_failed(plan: Plan, index: int, error: int) -> DocklessError | None:
    """An index that the kernel does not mount: named by its file, for the operation that fails has no name in it."""
    op = plan.ops[index]
    source = next((str(o.b) for o in plan.ops[:index] if o.name == "FS_STRING" and o.slot_in == op.slot_in and o.a == "source"), "")
    if op.slot_in in plan.held:
        source = str(plan.held[op.slot_in].path)
    elif op.name != "FS_CREATE" or not source:
        return None
    hint = _LAYER_HINTS.get(error, "run 'dockless images check', then remove the image and load it again")
    message = f"cannot mount the layer {source} (operation {index} of {len(plan.ops)}): {os.strerror(error)}"
    return LaunchFailed(message, index=index, step="mount erofs", errno=error, subject=source, hint=hint)


def _owners_not_mapped(plan: Plan, op: Op, error: int) -> DocklessError | None:
    """A bind whose file system, or one mounted below it, cannot be idmapped, or is already. mount_setattr(2)"""
    what, _, source = plan.slots.get(op.slot_in, "").partition(" ")
    if op.name != "MOUNT_ATTR" or not op.x & IDMAP or what != "bind" or error not in (_E.EINVAL, _E.EPERM):
        return None
    return LaunchFailed(
        f"cannot map the owners of {source}: its file system{', or one mounted below it,' if op.c else ''} does not allow that",
        index=-1,
        step=f"map the owners of {source}",
        errno=error,
        subject=source,
        hint=f"leave ':idmap' out{', or add :norecursive to leave out what is mounted below it' if op.c else ''}",
    )


def _special(op: Op, error: int) -> DocklessError | None:
    """Failures that are the caller's input, said in the caller's words."""
    if op.name == "OPEN_TREE" and isinstance(op.a, str) and op.a and error in (_E.ENOENT, _E.ENOTDIR, _E.EACCES):
        what = "does not exist" if error != _E.EACCES else "may not be read by this user"
        return LaunchFailed(
            f"mount source {op.a} {what}", index=-1, step=f"open {op.a}", errno=error, subject=op.a, hint="check the path on the host"
        )
    if op.name == "OPEN_TREE" and isinstance(op.a, str) and op.a and error == _E.ELOOP:
        message = f"mount source {op.a} goes through a link of /proc"
        return LaunchFailed(message, index=-1, step=f"open {op.a}", errno=error, subject=op.a, hint="name the file or directory itself")
    if op.name == "MOVE_MOUNT" and isinstance(op.a, str) and op.b and error == _E.EXDEV:
        message = f"cannot mount anything at {op.a}: a link of the image leads it to the root, /proc, /sys or /dev"
        return LaunchFailed(message, index=-1, step=f"mount at {op.a}", errno=error, subject=op.a, hint="mount it at another path")
    if op.name == "MKTARGET" and isinstance(op.a, str) and error == _E.EROFS:
        message = f"cannot make {op.a} to mount on: what is there is read-only"
        hint = "mount it at a path that exists, or that no link of the image leads to /proc, /sys or /dev"
        return LaunchFailed(message, index=-1, step=f"make {op.a}", errno=error, subject=op.a, hint=hint)
    if op.name == "CHDIR" and isinstance(op.a, str) and error in (_E.ENOENT, _E.ENOTDIR, _E.EACCES):
        what = {_E.ENOENT: "does not exist", _E.ENOTDIR: "is not a directory", _E.EACCES: "may not be entered by this user"}[error]
        message = f"the working directory {op.a} {what} in the sandbox"
        return LaunchFailed(message, index=-1, step=f"go to {op.a}", errno=error, subject=op.a, hint="choose another one, or make it first")
    if op.name in ("SPAWN", "STREAMS") and error == _E.EISDIR:
        message = "a standard stream is a directory, which would give the program everything around it"
        return LaunchFailed(message, index=-1, step="check 0-2", errno=error, subject="stdin", hint="give files, pipes or a terminal")
    if op.name == "WRITE" and op.a == "/proc/self/timens_offsets":
        return BadInput(
            f"this time offset lies before the start of the machine's clocks: {os.strerror(error)}",
            subject="time_offset",
            hint="use a larger one",
        )
    if op.name == "SET_IDS" and error == _E.EINVAL:
        user, group = op.x & 0xFFFFFFFF, op.x >> 32
        hint = "add a range to /etc/subuid" if os.geteuid() else "use an id below 65536"
        return IdMapError(f"user {user}:{group} is not in the id map", subject=str(user), hint=hint)
    return None
