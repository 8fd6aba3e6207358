"""The sentence for each operation that can fail: what, why, and what to do next."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dockless.base.paths import HINTS
from dockless.errors import BadInput, CommandNotExecutable, CommandNotFound, IdMapError, LaunchFailed
from dockless.images.layers.layers import Layer
from dockless.sandbox.plan import failure
from dockless.sandbox.plan.builder import IDMAP
from dockless.sandbox.plan.operations import OPERATIONS
from dockless.sandbox.plan.plan import Command, Op, Plan

PROGRAM = Command(("/bin/tool",), ("/bin/tool",), ())


def explained(op: Op, code: int, *before: Op, **more) -> Exception:
    plan = Plan((*before, op), PROGRAM, **more)
    return failure.explain(plan, len(before), code)


@pytest.mark.parametrize("place", [(name, code) for name, operation in sorted(OPERATIONS.items()) for code in sorted(operation.hints)])
def test_what_helps_where_something_is_known(place):
    name, code = place
    error = explained(Op(name, a=b"" if name in ("SECCOMP", "AFFINITY") else "/x"), code)
    assert isinstance(error, LaunchFailed)
    assert (error.index, error.errno, error.hint) == (0, code, OPERATIONS[name].hints[code])
    assert str(error).splitlines()[0].endswith(f"(operation 0 of 2): {os.strerror(code)}")


@pytest.mark.parametrize("code", [0, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN])
def test_what_helps_anywhere(code):
    error = explained(Op("SETSID"), code, Op("SETSID"))
    said = os.strerror(code) if code else "the launcher was killed"
    assert (str(error).splitlines()[0], error.hint) == (
        f"cannot start a session of its own, without a terminal (operation 1 of 3): {said}",
        failure._ANYWHERE[code],
    )
    assert (error.index, error.step, error.subject) == (1, "start a session of its own, without a terminal", "setsid")
    assert failure.explain(Plan((), PROGRAM), 0, code).hint == failure._ANYWHERE[code]


def test_what_nobody_knows():
    error = explained(Op("HOSTNAME", a="box"), errno.EIO)
    assert (error.subject, error.hint) == ("box", "see every step with --explain")
    error = failure.explain(Plan((), PROGRAM), 0, errno.EIO)
    assert (str(error).splitlines()[0], error.step, error.index) == (f"cannot run /bin/tool: {os.strerror(errno.EIO)}", "exec", 0)
    assert failure.explain(Plan((), PROGRAM), 0, 0).args[0] == "cannot run /bin/tool: the launcher was killed"


@pytest.mark.parametrize(
    ("index", "command", "refused"),
    [(-1, PROGRAM, True), (0, PROGRAM, False), (1, PROGRAM, False), (2, PROGRAM, True), (0, None, False), (1, None, True)],
)
def test_a_plan_that_was_refused_as_a_whole(index, command, refused):
    error = failure.explain(Plan((Op("SETSID"),), command), index, errno.EINVAL)
    assert (error.step == "validate") == refused
    if refused:
        assert (error.index, error.errno, error.hint) == (index, errno.EINVAL, "this is a bug in dockless")


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EFBIG, errno.ENOMEM])
def test_a_launcher_that_could_not_be_started_for_want_of_something(code):
    assert failure.not_started(OSError(code, "why")).hint == HINTS[code]


def test_a_launcher_that_could_not_be_started():
    error = failure.not_started(OSError(errno.EBADF, "why"))
    assert (error.args[0], error.index, error.step, error.errno) == (
        "cannot start the launcher: why",
        -1,
        "start the launcher",
        errno.EBADF,
    )
    assert (error.subject, error.hint) == ("launcher", "a standard stream is closed: give the sandbox stdin, stdout and stderr")
    for code in (errno.EPERM, errno.ENOSYS):
        assert "clone3" in failure.not_started(OSError(code, "why")).hint
    assert failure.not_started(OSError(errno.EIO, "why")).hint == "run 'dockless doctor'"
    unknown = failure.not_started(OSError("words"))
    assert (unknown.errno, unknown.args[0], unknown.hint) == (0, "cannot start the launcher: words", "run 'dockless doctor'")


def test_a_time_limit_that_passed_before_the_start():
    plan = Plan((), PROGRAM, timeout=1.5, idle=2, ttl=3)
    error = failure.too_late(plan, 3)
    assert error.args[0] == "the timeout of 1.5 s passed before the program was started"
    assert (error.index, error.step, error.errno, error.subject) == (3, "start", 0, "timeout")
    assert failure.too_late(plan, 3, "idle_timeout").args[0] == "the idle_timeout of 2 s passed before the program was started"
    assert failure.too_late(plan, 3, "ttl").subject == "ttl"
    assert failure.too_late(Plan((), PROGRAM), 3).args[0] == "the time in which it had to start passed before the program was started"


@pytest.mark.parametrize(
    ("candidates", "program", "code", "kind", "hint"),
    [
        (("/a/x", "/b/x"), "x", errno.ENOENT, CommandNotFound, "looked in /a, /b"),
        (("/a/x",), "x", errno.ENOTDIR, CommandNotFound, "looked in /a"),
        (("/a/x",), "/a/x", errno.ENOENT, CommandNotFound, "check the path inside the image"),
        (("/a/x",), "/a/x", errno.EACCES, CommandNotExecutable, "make it executable, and check that its file system is not mounted noexec"),
        (("/a/x",), "x", errno.ENOEXEC, CommandNotExecutable, "it is neither a program for this processor nor a script with a '#!' line"),
        (("/a/x",), "x", errno.E2BIG, CommandNotExecutable, "arguments and environment together are too long"),
        *[(("/a/x",), "x", code, CommandNotExecutable, "check the file inside the image") for code in (errno.EPERM, errno.ELIBBAD)],
        *[(("/a/x",), "x", code, CommandNotExecutable, "check the file inside the image") for code in (errno.ELOOP, errno.ETXTBSY)],
        (("/a/x",), "x", errno.EIO, LaunchFailed, "see every step with --explain"),
    ],
)
def test_a_program_that_cannot_be_run(candidates, program, code, kind, hint):
    error = failure.explain(Plan((), Command(candidates, (program,), ())), 0, code)
    assert type(error) is kind and (error.subject, error.hint) == (program, hint)


LAYER = Layer(Path("/store/index"), Path("/store/tar"))


def test_a_layer_that_cannot_be_mounted():
    """Named by its file, whether the operation names it or not; other file systems are not layers."""
    source = Op("FS_STRING", 16, a="source", b="/store/index")
    for code, hint in {**failure._LAYER_HINTS, errno.EIO: "run 'dockless images check', then remove the image and load it again"}.items():
        error = explained(Op("FS_CREATE", 16), code, source)
        assert error.args[0] == f"cannot mount the layer /store/index (operation 1 of 2): {os.strerror(code)}"
        assert (error.index, error.step, error.errno, error.subject, error.hint) == (1, "mount erofs", code, "/store/index", hint)
        held = explained(Op("MOUNT_ATTR", 17, x=1), code, Op("SETSID"), held={17: LAYER})
        assert (held.subject, held.index) == ("/store/index", 1)
    for op, before in (
        (Op("FS_CREATE", 16), Op("FS_STRING", 17, a="source", b="/store/index")),
        (Op("FS_CREATE", 16), Op("FS_STRING", 16, a="size", b="5")),
        (Op("FSMOUNT", 16, 18), source),
        (Op("FS_CREATE", 16), Op("OPEN", 16, a="source", b="/store/index", slot_out=16)),
    ):
        assert explained(op, errno.EIO, before).step != "mount erofs"


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EPERM])
def test_owners_that_cannot_be_mapped(code):
    slots = {16: "bind /data", 17: "layer a"}
    error = explained(Op("MOUNT_ATTR", 16, a="", x=IDMAP, c=0x8000), code, slots=slots)
    assert error.args[0] == "cannot map the owners of /data: its file system, or one mounted below it, does not allow that"
    assert (error.index, error.step, error.errno, error.subject) == (-1, "map the owners of /data", code, "/data")
    assert error.hint == "leave ':idmap' out, or add :norecursive to leave out what is mounted below it"
    alone = explained(Op("MOUNT_ATTR", 16, a="", x=IDMAP), code, slots=slots)
    assert alone.args[0] == "cannot map the owners of /data: its file system does not allow that" and alone.hint == "leave ':idmap' out"
    for op, number in (
        (Op("MOUNT_ATTR", 17, a="", x=IDMAP), code),
        (Op("MOUNT_ATTR", 16, a="", x=1), code),
        (Op("MOUNT_ATTR", 16, a="", x=IDMAP), errno.EIO),
        (Op("FSMOUNT", 16, 18, x=IDMAP), code),
    ):
        assert not explained(op, number, slots=slots).step.startswith("map the owners")


@pytest.mark.parametrize(
    ("op", "code", "kind", "subject"),
    [
        (Op("SPAWN"), errno.EISDIR, LaunchFailed, "stdin"),
        (Op("WRITE", a="/proc/self/timens_offsets", b="monotonic 5 0"), errno.ERANGE, BadInput, "time_offset"),
        (Op("SET_IDS", x=7 | 8 << 32, b=b""), errno.EINVAL, IdMapError, "7"),
        (Op("MOVE_MOUNT", 16, a="/x", b=5), errno.EXDEV, LaunchFailed, "/x"),
        (Op("MKTARGET", 16, 17, a="/x"), errno.EROFS, LaunchFailed, "/x"),
    ],
)
def test_what_the_caller_can_mend(op, code, kind, subject, monkeypatch):
    error = explained(op, code)
    assert type(error) is kind and error.subject == subject
    assert "(operation" not in error.args[0] and error.hint
    if op.name == "SET_IDS":
        assert error.args[0] == "user 7:8 is not in the id map"
        for user, word in ((0, "below 65536"), (1000, "/etc/subuid")):
            monkeypatch.setattr(os, "geteuid", lambda user=user: user)
            assert word in explained(op, code).hint
    elif op.name != "WRITE":
        assert "(operation 0 of 2)" in explained(op, errno.EIO).args[0], "any other failure is an operation's"


def test_what_only_looks_like_the_callers():
    for op, code in (
        (Op("OPEN_TREE", 16, 17, a=""), errno.ENOENT),
        (Op("OPEN_TREE", 16, 17, a=""), errno.ELOOP),
        (Op("MOVE_MOUNT", 16, a="/x"), errno.EXDEV),
        (Op("OPEN", 16, 17, a="/x", b=5), errno.EXDEV),
        (Op("MKDIR", 16, a="/x"), errno.EROFS),
        (Op("CLONE"), errno.EISDIR),
        (Op("WRITE", a="/proc/self/oom_score_adj", b="x"), errno.ERANGE),
        (Op("FS_IDS", b=b"", x=7), errno.EINVAL),
    ):
        assert "(operation 0 of 2)" in explained(op, code).args[0], op
