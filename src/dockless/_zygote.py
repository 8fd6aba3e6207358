"""``dockless.Zygote``: calls in a Python that has imported its modules already, each in a sandbox of its own.

::

    with dockless.Zygote("my-python", preload=["numpy"], memory="1G", profile="untrusted") as zygote:
        print(zygote.call("math:hypot", 3, 4).value)
        print(zygote.run_code("import numpy\nnumpy.arange(n).sum().item()", {"n": 10}, timeout="5s").value)
        with zygote.branch(["torch"]): ...

In an event loop: ``dockless.aio.Zygote``. How it is done: ``sandbox.zygote``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from types import TracebackType

from dockless._life import check_labels
from dockless._options import gpus_wanted, image_and_args, make_spec
from dockless._pulling import present
from dockless.base.checks import checked
from dockless.base.dataclass import copied, dataclass
from dockless.base.interrupts import held, waiting
from dockless.base.pickling import Unpicklable
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.base.units import parse_duration
from dockless.errors import BadInput, CallFailed, CallTimedOut, SandboxGone, Unsupported
from dockless.sandbox.spec import Spec

if TYPE_CHECKING:
    from typing import Unpack

    from dockless._keywords import Options
    from dockless.sandbox.zygote.answers import Said
    from dockless.sandbox.zygote.running import Running
    from dockless.sandbox.zygote.server import ZygoteProcess

_MOST = 1000
RESULT, OUTPUT = 16 << 20, 16 << 20
"""Bytes of a result as it crosses, and of each stream that is kept."""


@dataclass(frozen=True, slots=True)
class Called:
    """A call that has returned. ``value``: None, bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset.
    ``stdout``, ``stderr``: what it has printed, 16 MiB of each at most. ``seconds``: from the call to its answer."""

    value: Any
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0


class Zygote(Unpicklable):
    """A Python in a sandbox of ``image`` that has imported ``preload``. Entering starts it, leaving ends it and all of its calls.

    Each call runs in a process forked off it, in a sandbox of its own with every other keyword, ``Options``: its own processes, files, IPC,
    network and cgroup, from which it reaches neither the zygote nor other calls. ``timeout``: that of a call. ``size``: how many sandboxes
    wait for calls. Memory that the modules take is shared by all calls until it is written. The image needs Python 3.8 or newer.
    No GPUs, no ``privileged``, no seccomp profiles of one's own, no capabilities beyond the profile's. Safe to use from several threads.
    """

    _instead = "make another one there"

    @checked
    def __init__(self, image: str | None = None, preload: Iterable[str] = (), *, size: int = 4, **options: Unpack[Options]) -> None:
        if not 1 <= size <= _MOST:
            raise BadInput(f"{size} sandboxes that wait for calls", subject="size", hint=f"give a number from 1 to {_MOST}")
        if gpus_wanted(options) is not None:
            hint = "start what needs GPUs by itself: dockless.run(…, gpus=1)"
            raise Unsupported("sandboxes that wait hold no GPUs, which others could use", subject="gpus", hint=hint)
        self.spec: Spec = make_spec(image_and_args(image, None)[0], **options)
        self.preload = _modules(preload)
        self._size = size
        self._labels = check_labels(options.get("labels"))
        self._pull = options.get("pull") or "missing"
        self._platform = options.get("platform")
        self._parent: Zygote | None = None
        self._process: ZygoteProcess | None = None

    def __repr__(self) -> str:
        return f"<dockless.Zygote {self.spec.image} {', '.join(self.preload)}>"

    def __enter__(self) -> Zygote:
        """Errors: ``ZygoteError`` for a module that cannot be imported or that has started threads, and for an image without Python;
        ``Unsupported``; those of a start."""
        from dockless.sandbox.zygote.server import ZygoteProcess

        if self._process is not None:
            raise BadInput("a Zygote is opened once", subject="zygote", hint="make another one")
        above = None
        if self._parent is None:
            with waiting():
                image = present(self.spec.image, self._pull, None, self._platform)
            self.spec = copied(self.spec, image=image)
        else:
            above = self._parent._opened()
            self.spec = above.spec
        with held():
            self._process = ZygoteProcess(self.spec, self.preload, size=self._size, parent=above, labels=self._labels).__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End it, its calls and its branches. No error if it is closed."""
        if self._process is not None:
            with held():
                self._process.close()

    @checked
    def branch(self, preload: Iterable[str], *, size: int = 4) -> Zygote:
        """Another one, for ``with``: a fork of this one that imports more. It ends with this one at the latest. A call whose ``needs``
        name these modules runs in it."""
        other = copied_zygote(self, _modules(preload), size)
        return other

    @checked
    def call(
        self, function: str, /, *args: Any, timeout: str | float | None = None, needs: Iterable[str] | None = None, **kwargs: Any
    ) -> Called:
        """``"module:function"`` of the image, called with these arguments, of the types that ``Called`` names. ``timeout``: seconds or
        ``"1m"``, else the zygote's. ``needs``: modules; of this zygote and its branches the one is taken that has the most of them.

        Errors: ``CallFailed`` with the exception that it raised, ``CallTimedOut``, ``ZygoteLost``, those of a start."""
        return self._called(self._begin(_function(function, args, kwargs), needs), timeout)

    @checked
    def run_code(
        self,
        source: str,
        variables: Mapping[str, Any] | None = None,
        *,
        timeout: str | float | None = None,
        needs: Iterable[str] | None = None,
    ) -> Called:
        """Python source, run as a program's is. ``variables``: names that it has. The value is that of its last line, where that is an
        expression. Everything else: see ``call``."""
        return self._called(self._begin(_code(source, variables), needs), timeout)

    def _opened(self) -> ZygoteProcess:
        if self._process is None:
            hint = "use it as a context manager: with dockless.Zygote(…) as zygote"
            raise SandboxGone("the zygote is not open", subject=self.spec.image, hint=hint)
        return self._process

    def _begin(self, request: Mapping[str, Any], needs: Iterable[str] | None) -> Running:
        process = self._opened()
        if needs is not None:
            process = process.best(frozenset(_modules(needs)))
        return process.start(request, limit=RESULT, most=OUTPUT)

    def _called(self, running: Running, timeout: str | float | None) -> Called:
        limit = self.spec.timeout if timeout is None else parse_duration(timeout, "timeout")
        began = time.monotonic()
        with held():
            said = running.wait(limit or math.inf)
        return _result(said, limit, out_of_memory=running.out_of_memory, seconds=time.monotonic() - began)


def copied_zygote(like: Zygote, preload: tuple[str, ...], size: int) -> Zygote:
    """A branch of it that is not opened yet."""
    other = Zygote.__new__(Zygote)
    other.__dict__.update(like.__dict__)
    other.preload, other._size, other._parent, other._process = preload, size, like, None
    return other


def _modules(names: Iterable[str]) -> tuple[str, ...]:
    found = (names,) if isinstance(names, str) else (*names,)
    for name in found:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise BadInput(
                f"{str(name)[:60]!r} is no name of a module", subject="preload", hint='write preload=["numpy", "package.module"]'
            )
    return found


def _encoded(value: object, name: str) -> Any:
    from dockless.sandbox.zygote.values import Unencodable, encode

    try:
        return encode(value)
    except Unencodable as error:
        hint = "give numbers, texts, bytes, and lists, tuples, dicts and sets of them"
        raise BadInput(f"{error} cannot be given to a call", subject=name, hint=hint) from None


def _function(function: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    module, colon, name = function.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise BadInput(f"{function[:60]!r} names no function", subject="function", hint='write "module:function"')
    return {"function": function, "args": _encoded(args, "args"), "kwargs": _encoded(dict(kwargs), "kwargs")}


def _code(source: str, variables: Mapping[str, Any] | None) -> dict[str, Any]:
    for name in variables or ():
        if not isinstance(name, str) or not name.isidentifier():
            raise BadInput(f"{str(name)[:60]!r} is no name of a variable", subject="variables", hint="give a dict of names and values")
    return {"code": source, "variables": _encoded(dict(variables or {}), "variables")}


def _result(said: Said, limit: float, *, out_of_memory: bool, seconds: float) -> Called:
    out, err = (text.decode("utf-8", "replace") for text in (said.stdout, said.stderr))
    if said.outcome is not None and "value" in said.outcome:
        from dockless.sandbox.zygote.answers import value_of

        return Called(value_of(said.outcome), out, err, seconds)
    failed = CallTimedOut(f"the call was ended after {limit:g} seconds", subject="timeout") if said.late else _failure(said, out_of_memory)
    failed.stdout, failed.stderr = out, err
    raise failed


def _failure(said: Said, out_of_memory: bool) -> CallFailed:
    from dockless.sandbox.zygote.answers import texts
    from dockless.sandbox.zygote.server import ending

    outcome, status = said.outcome or {}, said.status or {}
    if "raised" in outcome:
        kind, text, trace = texts(outcome["raised"], "type", "message", "traceback")
        failed = CallFailed(f"{kind}: {text[:1000]}", subject=kind, hint="the traceback is in the error's notes")
        failed.kind, failed.text, failed.traceback = kind, text, trace
        failed.add_note(trace)
        return failed
    if "unsent" in outcome:
        hint = "return numbers, texts, bytes, and lists, tuples, dicts and sets of them: array.tolist()"
        return CallFailed(f"the result cannot cross: {str(outcome['unsent'])[:200]}", subject="result", hint=hint)
    why = outcome.get("failed", status.get("failed"))
    if why is not None:
        return CallFailed(f"the call could not begin: {str(why)[:500]}", subject="call", hint="'dockless doctor' checks this host")
    if out_of_memory:
        return CallFailed("the call ended without an answer: the kernel killed it for memory", subject="memory", hint="give it more memory")
    raw = status.get("status")
    return CallFailed(
        f"the call ended without an answer{ending(raw) if isinstance(raw, int) else ''}", subject="call", hint="see its stderr"
    )
