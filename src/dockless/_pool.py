"""``dockless.Pool``: sandboxes that are made before they are needed, so that a run costs little more than the exec of its program.

::

    with dockless.Pool("python:3.12", size=4, memory="1G", profile="untrusted") as pool:
        result = pool.run(["python", "-c", "print(1)"], capture_output=True, text=True)
        with pool.take(["cat"], stdin=PIPE, stdout=PIPE) as box: ...

In an event loop: ``dockless.aio.Pool``. How they wait: ``sandbox.run.pool``.
"""

from __future__ import annotations

import _thread
import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType

from dockless._box import Sandbox
from dockless._call import box_for, result_from
from dockless._life import check_labels
from dockless._options import environment, given_items, gpus_wanted, image_and_args, make_spec
from dockless._pulling import present
from dockless._result import Result
from dockless._stdio import Stdio, Stream, Text
from dockless._streams import S, StreamSettings
from dockless.base.checks import checked
from dockless.base.dataclass import copied
from dockless.base.interrupts import held, waiting
from dockless.base.paths import Argument, StrPath
from dockless.base.pickling import Unpicklable
from dockless.base.typing import TYPE_CHECKING, Any, overload
from dockless.base.units import parse_duration
from dockless.errors import BadInput, SandboxGone, Unsupported
from dockless.sandbox.spec import Spec, check_beginning

if TYPE_CHECKING:
    from typing import Unpack

    from dockless._keywords import AnyTake, AnyTakeRun, BytesTake, BytesTakeRun, Options, TextTake, TextTakeRun
    from dockless.sandbox.run.foreground import ForegroundSandbox as Inner
    from dockless.sandbox.run.pool import Pool as Waiting

    Arguments = Sequence[Argument] | None

_MOST = 1000


class NamedPool:
    """A pool that ``dockless pool create`` has made. ``BadInput`` where there is none."""

    def __init__(self, name: str) -> None:
        from dockless.sandbox.run import named_pools

        self.about, self._plan = named_pools.read(name)
        self.spec: Spec = self.about.wanted.spec
        self._labels = self.about.wanted.labels

    def _give(self, spec: Spec, stdio: Sequence[int]) -> Inner:
        from dockless.sandbox.run import taking

        return taking.take(self.about, self._plan, spec, stdio)


class Pool(Unpicklable):
    """``size`` sandboxes of an image that wait for a program each. Entering makes them, leaving ends those that wait.

    ``expire``: after which one that nobody has taken ends, seconds or ``"10m"``; None for never. Another take makes new ones. Every other
    keyword: ``Options``, the same for all of them; their deadlines begin when they are taken. No GPUs: those are leased for one run.
    What is mounted is what was there when the sandbox was made, the image what it was when the pool was. Safe to use from several threads.
    """

    _instead = "make another one there"

    @checked
    def __init__(self, image: str | None = None, *, size: int = 4, expire: str | float | None = None, **options: Unpack[Options]) -> None:
        if not 1 <= size <= _MOST:
            raise BadInput(f"a pool of {size} sandboxes", subject="size", hint=f"give a number from 1 to {_MOST}")
        if gpus_wanted(options) is not None:
            hint = "start what needs GPUs by itself: dockless.run(…, gpus=1)"
            raise Unsupported("sandboxes that wait hold no GPUs, which others could use", subject="gpus", hint=hint)
        if options.get("interactive"):
            raise BadInput("interactive is for detached sandboxes", subject="interactive", hint="give take(stdin=dockless.PIPE)")
        self.spec: Spec = make_spec(image_and_args(image, None)[0], **options)
        self.size = size
        self._expire = 0.0 if expire is None else parse_duration(expire, "expire")
        self._labels = check_labels(options.get("labels"))
        self._pull = options.get("pull") or "missing"
        self._platform = options.get("platform")
        self._waiting: Waiting | None = None

    def __repr__(self) -> str:
        return f"<dockless.Pool {self.spec.image} {self.waiting} of {self.size}>"

    @property
    def waiting(self) -> int:
        """How many sandboxes wait, or are just being made."""
        return 0 if self._waiting is None else self._waiting.waiting

    def __enter__(self) -> Pool:
        """Errors: those of a start."""
        from dockless.sandbox.run.pool import Pool as Waiting

        if self._waiting is not None:
            raise BadInput("a Pool is opened once", subject="pool", hint="make another one")
        with waiting():
            image = present(self.spec.image, self._pull, None, self._platform)
        self.spec = copied(self.spec, image=image)
        with held():
            self._waiting = Waiting(self.spec, size=self.size, expire=self._expire, labels=self._labels).__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the sandboxes that wait. Those that were taken go on. No error if it is closed."""
        if self._waiting is not None:
            with held():
                self._waiting.close()

    @overload
    def take(self, args: Arguments = None, **options: Unpack[TextTake]) -> Sandbox[str]: ...
    @overload
    def take(self, args: Arguments = None, **options: Unpack[BytesTake]) -> Sandbox[bytes]: ...
    @overload
    def take(self, args: Arguments = None, **options: Unpack[AnyTake]) -> Sandbox[Any]: ...
    def take(self, args: Arguments = None, **options: Any) -> Sandbox[Any]:
        """A sandbox of the pool for ``with``, which runs ``args``, the image's own command if left out; once, as ``dockless.Sandbox``.
        ``env`` is added to the pool's, ``workdir`` is a directory that is there. Streams: as of ``Sandbox``. Where none waits, one is
        made meanwhile."""
        return _taken(self, args, **options)

    @overload
    def run(self, args: Arguments = None, **options: Unpack[TextTakeRun]) -> Result[str]: ...
    @overload
    def run(self, args: Arguments = None, **options: Unpack[BytesTakeRun]) -> Result[bytes]: ...
    @overload
    def run(self, args: Arguments = None, **options: Unpack[AnyTakeRun]) -> Result[Any]: ...
    def run(self, args: Arguments = None, *, input: Any = None, check: bool = False, **options: Any) -> Result[Any]:
        """Run a command in a sandbox of the pool and wait for its end: as ``dockless.run``, with the keywords of ``take``."""
        with held(), self._box_for(args, input=input, **options) as box:
            out, err = box.communicate(input)
            result = result_from(box, out, err)
        if check:
            result.check_returncode()
        return result

    def _give(self, spec: Spec, stdio: Sequence[int]) -> Inner:
        if self._waiting is None:
            raise SandboxGone("the pool is not open", subject="pool", hint="use it as a context manager: with dockless.Pool(…) as pool")
        return self._waiting.take(spec, stdio)

    def _box_for(self, args: Arguments, **options: Any) -> Sandbox[Any]:
        return box_for(lambda image, args, **options: _taken(self, args, **options), None, args, **options)


def _taken(pool: Pool, args: Arguments, **options: Any) -> Taken[Any]:
    """``BadInput`` for a keyword of the pool: its sandboxes are made by then."""
    try:
        return Taken(pool, args, **options)
    except TypeError:
        from dockless._keywords import Options, TakeOptions

        for name in Options.__annotations__.keys() & options.keys() - TakeOptions.__annotations__.keys():
            hint = f"Pool(…, {name}=…): a take says the command, env, workdir and streams"
            raise BadInput(f"{name} is set on the pool, not on a take", subject=name, hint=hint) from None
        raise


class Taken(Sandbox[S]):
    """A sandbox of a pool. It is taken when it is entered."""

    @checked
    def __init__(
        self,
        pool: Pool | NamedPool,
        args: Sequence[Argument] | None = None,
        *,
        env: Mapping[str, str] | Iterable[str] = (),
        workdir: StrPath = "",
        stdin: Stream = None,
        stdout: Stream = None,
        stderr: Stream = None,
        text: bool | None = None,
        encoding: str | None = None,
        errors: str | None = None,
        bufsize: int = -1,
        max_output: str | int | None = None,
        on_stdout: Callable[[Any], object] | None = None,
        on_stderr: Callable[[Any], object] | None = None,
    ) -> None:
        spec = pool.spec
        variables = spec.env if env == () else tuple((dict(spec.env) | dict(environment(given_items(env)))).items())
        argv = image_and_args(spec.image, args)[1]
        directory = os.fspath(workdir)
        check_beginning(variables, directory, 0)
        self._spec = copied(spec, argv=argv, env=variables, workdir=directory or spec.workdir)
        self._pool = pool
        self._labels = pool._labels
        self._given_up = False
        self._settings = StreamSettings(
            stdin, stdout, stderr, text=Text(text, encoding, errors), bufsize=bufsize, max_output=max_output, on_stdout=on_stdout,
            on_stderr=on_stderr, tty=spec.tty,
        )  # fmt: skip
        self._held = contextlib.ExitStack()
        self._rename_lock = _thread.allocate_lock()

    def _prepare(self) -> str:
        if self._box is not None:
            raise BadInput("a Sandbox runs once", subject=self._box.id, hint="take another one")
        return self.spec.image

    def _launch(self, image: str, stdio: Stdio) -> Inner:
        return self._pool._give(self.spec, stdio.theirs)
