"""What runs inside: the image's Python executes this text behind that of ``values.py``, as one, 3.8 or newer and with its standard library
alone.

::

    zygote    imports the modules, then waits on its control socket (descriptor 0)
    a call    one datagram with descriptors: namespaces of a sandbox that waits, a socket for the call, a pipe for its status, its output
              fork: the child is born in that sandbox's PID namespace, enters the others, becomes what any program there is, and is called
    a branch  the same, but it stays a zygote: it imports more, and waits on that socket

What a call is asked, and what it answers, never passes through the zygote.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
import sys

MYPY = False
if MYPY:
    from typing import Any, NoReturn

    from dockless.sandbox.zygote.values import Unencodable, decode, encode

_TEXT = 1 << 16
"""Characters of an exception's message, and of its traceback."""
_REHEARSALS = 20
_REHEARSED = (
    '{"code": "x = [1.5]\\nx[0]", "variables": {"d": [["n", 1]]}, "limit": 1000}',
    '{"function": "builtins:str", "args": {"t": [1]}, "kwargs": {"d": []}, "limit": 1000}',
)
"""Calls that leave nothing behind."""


def _record(error: BaseException) -> dict[str, str]:
    """An exception as texts, without the frames of ours at its beginning."""
    import traceback

    ours = _record.__code__.co_filename
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == ours:
        trace = trace.tb_next
    try:
        message = str(error)
    except BaseException as another:
        message = f"<its message cannot be made: {type(another).__name__}>"
    try:
        text = "".join(traceback.format_exception(type(error), error, trace))
    except BaseException:
        text = ""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return {"type": name[:200], "message": message[:_TEXT], "traceback": text[-_TEXT:]}


# setns(2), prctl(2), capset(2), seccomp(2)
_KINDS = {"net": 0x40000000, "ipc": 0x8000000, "uts": 0x4000000, "cgroup": 0x2000000, "pid": 0x20000000, "mount": 0x20000}
_ORDER = ("net", "ipc", "uts", "cgroup", "mount")
_CALLS = {"x86_64": (126, 434), "aarch64": (91, 434)}
"""Numbers of capset(2) and pidfd_open(2)."""
_CLOSE_RANGE = 436
_BOUNDING_HAS, _BOUNDING_DROP, _SET_SECCOMP, _NO_NEW_PRIVS, _DUMPABLE = 23, 24, 22, 38, 4


class _Kernel:
    """The system calls that Python has not."""

    def __init__(self) -> None:
        import ctypes

        self._ctypes = ctypes
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
        self._capset, self._pidfd_open = _CALLS[os.uname().machine]
        self._setns, self.flush = self._libc.setns, self._libc.fflush
        self._kept: list[Any] = []

    def check(self, result: int, what: str) -> int:
        """``OSError`` for what the kernel has refused."""
        if result < 0:
            number = self._ctypes.get_errno()
            raise OSError(number, f"{what}: {os.strerror(number)}")
        return result

    def setns(self, fd: int, kind: str) -> None:
        self.check(self._setns(fd, _KINDS[kind]), f"enter the {kind} namespace")

    def pidfd_open(self, pid: int) -> int:
        return int(self.check(self._libc.syscall(self._pidfd_open, pid, 0), "pidfd_open"))

    def prctl(self, option: int, value: int = 0) -> int:
        return int(self._libc.prctl(option, value, 0, 0, 0))

    def close_all_but(self, kept: int) -> None:
        """Of what is above the three streams. What the modules had open is the zygote's, and its files' parents lead to its root."""
        for first, last in ((3, kept - 1), (kept + 1, 0xFFFFFFFF)):
            if first <= last:
                self.check(self._libc.syscall(_CLOSE_RANGE, first, self._ctypes.c_uint(last), 0), "close_range")

    def drop_bounding(self, kept: int) -> None:
        for number in range(64):
            if not kept >> number & 1 and self.prctl(_BOUNDING_HAS, number) == 1:
                self.check(self.prctl(_BOUNDING_DROP, number), "drop a capability")

    def steps(self, program: list[dict[str, Any]]) -> list[tuple[str, Any, tuple[Any, ...]]]:
        """What the plan of the sandbox says of its program: limits, ids, capabilities, the filter, in its order (sandbox/compile.py).
        Everything is made here that can be, so that a call's process, which has all of it to itself, copies little: what to call, and
        with what; a number below 0 is a refusal."""
        import _signal  # type: ignore[import-not-found]
        import resource

        found: list[tuple[str, Any, tuple[Any, ...]]] = []
        libc, ctypes = self._libc, self._ctypes
        for op in program:
            name, x = op["name"], op["x"]
            if name == "SIGNALS":
                found.append((name, _signal.pthread_sigmask, (_signal.SIG_SETMASK, ())))
            elif name == "SETSID":
                found.append((name, os.setsid, ()))
            elif name == "UMASK":
                found.append((name, os.umask, (x,)))
            elif name == "CHDIR":
                found.append((name, os.chdir, (op["a"],)))
            elif name == "AFFINITY":
                found.append((name, os.sched_setaffinity, (0, op["a"])))
            elif name == "RLIMIT":
                found.append((name, resource.setrlimit, (op["c"], tuple(op["a"]))))
            elif name == "BOUNDING":
                self.drop_bounding(x)  # of the zygote's own, which none of its calls has more of
            elif name == "SET_IDS":
                uid, gid = x & 0xFFFFFFFF, x >> 32
                found += [(name, _give_stream, (fd, uid, gid)) for fd in (1, 2)]
                if not op["a"]:
                    found.append((name, os.setgroups, (op["b"],)))
                found.append((name, os.setresgid, (gid, gid, gid)))
                found.append((name, os.setresuid, (uid, uid, uid)))
            elif name == "CAPS":
                low, high = x & 0xFFFFFFFF, x >> 32
                header = (ctypes.c_uint32 * 2)(0x20080522, 0)
                data = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)
                found.append((name, libc.syscall, (self._capset, header, data)))
                found.append((name, libc.prctl, (_DUMPABLE, 1, 0, 0, 0)))  # as after an exec: its own files in /proc are its own
            elif name == "NO_NEW_PRIVS":
                found.append((name, libc.prctl, (_NO_NEW_PRIVS, 1, 0, 0, 0)))
            elif name == "SECCOMP":
                raw = base64.b64decode(op["a"])
                kept = ctypes.create_string_buffer(raw, len(raw))
                whole = ctypes.create_string_buffer(struct.pack("@HxxxxxxP", len(raw) // 8, ctypes.addressof(kept)))
                self._kept += kept, whole
                found.append((name, libc.prctl, (_SET_SECCOMP, 2, ctypes.addressof(whole), 0, 0)))
            else:
                raise ValueError(f"a plan with {name}")
        return found


def _give_stream(fd: int, uid: int, gid: int) -> None:
    """So that /dev/stdout can be opened."""
    try:
        os.fchown(fd, uid, gid)
    except OSError:  # root has done so on the host
        pass


class _Zygote:
    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.settings: dict[str, Any] = {}
        self.steps: list[tuple[str, Any, tuple[Any, ...]]] = []
        self.children: dict[int, tuple[int, int]] = {}
        self.kernel = _Kernel()
        self.own = -1

    def serve(self) -> NoReturn:
        """Import what is asked for, then fork until the other end is closed."""
        import select

        _load()
        first, fds = self.receive()
        os.set_inheritable(self.control.fileno(), False)
        for fd in fds:
            os.close(fd)
        asked = json.loads(first)
        if "settings" in asked:  # else a branch has its parent's
            self.settings = asked["settings"]
            self.steps = self.kernel.steps(self.settings["program"])
        failure = _import(asked["preload"]) or _threads() or _shared_memory()
        self.say(failure or {"ready": sys.version.split()[0]})
        if failure:
            os._exit(1)
        _rehearse()
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (1, 2):
            os.dup2(null, fd)
        os.close(null)
        self.own = os.open("/proc/self/ns/pid", os.O_RDONLY)
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        while True:
            for fd, _ in poller.poll():
                if fd != self.control.fileno():
                    self.collect(fd, poller)
                    continue
                kind, fds = self.receive()
                if not kind:
                    os._exit(0)
                self.fork(kind, fds, poller)

    def receive(self) -> tuple[bytes, list[int]]:
        import array

        fds = array.array("i")
        data, ancillary, _, _ = self.control.recvmsg(1 << 18, socket.CMSG_SPACE(16 * fds.itemsize), socket.MSG_CMSG_CLOEXEC)
        for level, kind, raw in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
        return data, list(fds)

    def say(self, what: dict[str, Any]) -> None:
        self.control.sendall(json.dumps(what).encode())

    def fork(self, kind: bytes, fds: list[int], poller: Any) -> None:
        kinds = self.settings["kinds"]
        spaces = dict(zip(kinds, fds))  # noqa: B905
        call, status, out, err = fds[len(kinds) :]
        try:
            self.kernel.setns(spaces["pid"], "pid")
            try:
                pid = os.fork()
                if not pid:
                    _child(self, kind, spaces, call, (out, err))
            finally:
                self.kernel.setns(self.own, "pid")  # a thread is born where its process is
            pidfd = self.kernel.pidfd_open(pid)
        except BaseException as error:
            _tell(status, {"failed": str(error)[:500]})
        else:
            self.children[pidfd] = pid, status
            poller.register(pidfd, 1)
        finally:
            for fd in fds:
                if fd != status:
                    os.close(fd)

    def collect(self, pidfd: int, poller: Any) -> None:
        pid, status = self.children.pop(pidfd)
        poller.unregister(pidfd)
        os.close(pidfd)
        try:
            raw = os.waitpid(pid, 0)[1]
        except OSError:  # a module has collected it
            os.close(status)
        else:
            _tell(status, {"status": raw})


def _tell(status: int, what: dict[str, Any]) -> None:
    try:
        os.write(status, json.dumps(what).encode())
    except OSError:  # nobody waits for it any more
        pass
    os.close(status)


def _child(zygote: _Zygote, kind: bytes, spaces: dict[str, int], call: int, output: tuple[int, int]) -> NoReturn:
    """Each page that this writes to, reference counts among it, is copied for each call: the less the better."""
    kernel = zygote.kernel
    try:
        try:
            os.write(call, b"h")  # who reads it puts us into the sandbox's cgroup
            for space in _ORDER:
                if space in spaces:
                    kernel.setns(spaces[space], space)
            null = os.open("/dev/null", os.O_RDONLY)
            for fd, to in ((null, 0), (output[0], 1), (output[1], 2)):
                os.dup2(fd, to)
            zygote.control.detach()
            zygote.children.clear()
            kernel.close_all_but(call)
            if kind == b"branch":
                zygote.control = socket.socket(fileno=call)
                zygote.serve()
            if zygote.settings["env"]:
                os.environ.update(zygote.settings["env"])
            for name, function, arguments in zygote.steps:
                refused = function(*arguments)
                if refused.__class__ is int and refused < 0:
                    kernel.check(refused, name)
        except BaseException as error:
            failed = {"failed": f"{type(error).__name__}: {str(error)[:500]}"}
            if kind == b"branch":
                os.write(call, json.dumps(failed).encode())
            else:
                _answer(call, failed, 1 << 12)
            os._exit(1)
        own = os.getpid()
        limit, outcome = _called(call, kernel)
        if os.getpid() == own:  # else a process that the call has forked: one answers
            _answer(call, outcome, limit)
        os._exit(0)
    finally:
        os._exit(1)


def _called(channel: int, kernel: _Kernel) -> tuple[int, dict[str, Any]]:
    """What became of what the channel asks for, and how long the answer may be."""
    asked = json.loads(_exactly(channel, int.from_bytes(_exactly(channel, 8), "big")))
    outcome: dict[str, Any]
    try:
        value = _run(asked)
    except BaseException as error:
        outcome = {"raised": _record(error)}
    else:
        try:
            outcome = {"value": encode(value)}
        except Unencodable as error:
            outcome = {"unsent": str(error)}
        except BaseException as error:
            outcome = {"raised": _record(error)}
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            pass
    kernel.flush(None)
    return asked["limit"], outcome


def _exactly(channel: int, size: int) -> bytes:
    raw = b""
    while len(raw) < size:
        part = os.read(channel, min(size - len(raw), 1 << 20))
        if not part:  # nobody needs us any more
            os._exit(0)
        raw = raw + part if raw else part
    return raw


def _run(asked: dict[str, Any]) -> Any:
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()  # else every call would draw the same numbers; Python's own random does this by itself
    if "code" in asked:
        return _execute(asked["code"], decode(asked["variables"]))
    import importlib

    module, _, name = asked["function"].partition(":")
    function: Any = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    return function(*decode(asked["args"]), **decode(asked["kwargs"]))


def _execute(source: str, variables: dict[str, Any]) -> Any:
    """As a module's text; the value of its last line, where that is an expression."""
    import ast
    import linecache
    import types

    name = "<code>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    main.__dict__.update(variables)
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), main.__dict__)
    return None if last is None else eval(compile(ast.Expression(last.value), name, "eval"), main.__dict__)  # type: ignore[attr-defined]


def _answer(channel: int, outcome: dict[str, Any], limit: int) -> None:
    raw = json.dumps(outcome).encode()
    if len(raw) > limit:
        raw = json.dumps({"unsent": f"a result of {len(raw)} bytes, and {limit} are the most"}).encode()
    unsent = len(raw).to_bytes(8, "big") + raw
    while unsent:
        unsent = unsent[os.write(channel, unsent) :]


def _load() -> None:
    """What a call's process itself needs, once for all."""
    import array  # noqa: F401
    import ast  # noqa: F401
    import gc  # noqa: F401
    import importlib  # noqa: F401
    import linecache  # noqa: F401
    import resource  # noqa: F401
    import signal  # noqa: F401
    import threading  # noqa: F401
    import traceback  # noqa: F401
    import types  # noqa: F401


def _import(names: list[str]) -> dict[str, Any]:
    import importlib

    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as error:
            return {"import": dict(_record(error), module=name)}
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return {}


def _threads() -> dict[str, Any]:
    """A fork has the thread alone that forks: what the others held stays locked. Libraries that end theirs before a fork, such as OpenBLAS,
    have ended them after the first one."""
    import gc
    import threading

    names = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if not names:
        gc.collect()
        gc.freeze()  # the collector touches none of it, so it stays shared
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)
        own = str(os.getpid())
        for task in os.listdir("/proc/self/task"):
            if task != own:
                try:
                    with open(f"/proc/self/task/{task}/comm") as comm:
                        names.append(comm.read().strip())
                except OSError:
                    pass
    return {"threads": names} if names else {}


def _shared_memory() -> dict[str, Any]:
    """What is mapped as shared would be shared by all calls, who can write to it if the kernel says that it may become writable: proc(5)"""
    found, name = [], ""
    with open("/proc/self/smaps") as maps:
        for line in maps:
            words = line.split(None, 5)
            if line[0] in "0123456789abcdef":
                name = words[5].strip() if len(words) > 5 else "anonymous"
            elif words[0] == "VmFlags:" and {"mw", "ms"} <= set(line.split()):
                found.append(name[:200])
    return {"shared": found} if found else {}


def _rehearse() -> None:
    """What every call does, here and often enough: Python writes to code while that is new, which each call would do again, on copies."""
    import linecache
    import threading

    main = sys.modules["__main__"]
    after_fork = getattr(threading, "_after_fork", None)  # which every child begins with; there is one thread
    for _ in range(_REHEARSALS):
        if after_fork is not None:
            after_fork()
        for asked in _REHEARSED:
            said = json.dumps({"value": encode(_run(json.loads(asked)))}).encode()
            len(said).to_bytes(8, "big")
    sys.modules["__main__"] = main
    linecache.cache.pop("<code>", None)


def main() -> None:
    """Descriptor 0 is the control socket."""
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open("/dev/null", os.O_RDWR), 0)
    try:
        zygote = _Zygote(control)
    except ImportError as error:
        control.sendall(json.dumps({"import": dict(_record(error), module="ctypes")}).encode())
        return
    zygote.serve()
