"""``dockless.run`` and its asynchronous twin ``arun``: one command in a sandbox of its own, from start to result.

::

    keywords ─► Spec ─► lease of GPUs ─► Sandbox: start, bytes in and out, end ─► Result

The signatures are those of ``subprocess.run`` where it has the same thing. Different on purpose: a timeout kills the whole tree and is told
by ``timed_out`` (an exception only with ``check=True``), and a shell string is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any, Literal, overload

from dockless._box import Sandbox
from dockless._result import Result, result_of
from dockless._stdio import PIPE
from dockless.base.paths import Argument
from dockless.errors import BadInput

if TYPE_CHECKING:
    from typing import Unpack

    from dockless._keywords import Options

Stream = int | IO[Any] | None


@overload
def run(
    image: str | Sequence[Argument] | None = None,
    args: Sequence[Argument] | None = None,
    *,
    input: str | None = None,
    capture_output: Literal[True],
    stdin: Stream = None,
    text: Literal[True],
    encoding: str | None = None,
    errors: str | None = None,
    check: bool = False,
    id: str | None = None,
    **options: Unpack[Options],
) -> Result[str]: ...


@overload
def run(
    image: str | Sequence[Argument] | None = None,
    args: Sequence[Argument] | None = None,
    *,
    input: bytes | None = None,
    capture_output: Literal[True],
    stdin: Stream = None,
    text: Literal[False] | None = None,
    check: bool = False,
    id: str | None = None,
    **options: Unpack[Options],
) -> Result[bytes]: ...


@overload
def run(
    image: str | Sequence[Argument] | None = None,
    args: Sequence[Argument] | None = None,
    *,
    input: str | bytes | None = None,
    capture_output: bool = False,
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    text: bool | None = None,
    encoding: str | None = None,
    errors: str | None = None,
    check: bool = False,
    id: str | None = None,
    **options: Unpack[Options],
) -> Result[Any]: ...


def run(
    image: str | Sequence[Argument] | None = None,
    args: Sequence[Argument] | None = None,
    *,
    input: str | bytes | None = None,
    capture_output: bool = False,
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    text: bool | None = None,
    encoding: str | None = None,
    errors: str | None = None,
    check: bool = False,
    id: str | None = None,
    **options: Unpack[Options],
) -> Result[Any]:
    """Run a command in a sandbox and wait for its end. ``image`` None: the host's own system, read-only (pseudo-image ``host``).

    ``run("python:3.12", ["python", "-V"])``, ``run(["ls", "/"])`` on the host's image, ``run("busybox")`` for the image's own command.
    ``input``, ``capture_output``, ``stdin``, ``stdout``, ``stderr``, ``text``, ``encoding``, ``errors``: as in ``subprocess.run``.
    ``check``: ``CheckFailed`` unless it returned 0. Every other keyword: ``Options``. Ctrl-C kills the whole tree and is raised again.

    Errors: ``DocklessError`` (``CommandNotFound``, ``UnknownImage``, ``LimitUnavailable``, …) if it could not be started.
    """
    box = _box(image, args, input, capture_output, stdin, stdout, stderr, text, encoding, errors, id, options)
    # Not `with box`: its file objects are for people who read by themselves.
    try:
        box._start()
        out, err = box.communicate(input)
        result = _result(box, out, err)
    except BaseException as error:
        box.__exit__(type(error), error, error.__traceback__)
        raise
    box.__exit__(None, None, None)
    if check:
        result.check_returncode()
    return result


@overload
async def arun(
    image: str | Sequence[Argument] | None = None,
    args: Sequence[Argument] | None = None,
    *,
    input: str | None = None,
    capture_output: Literal[True],
    stdin: Stream = None,
    text: Literal[True],
    encoding: str | None = None,
    errors: str | None = None,
    check: bool = False,
    id: str | None = None,
    **options: Unpack[Options],
) -> Result[str]: ...


@overload
async def arun(
    image: str | Sequence[Argument] | None = None,
    args: Sequence[Argument] | None = None,
    *,
    input: bytes | None = None,
    capture_output: Literal[True],
    stdin: Stream = None,
    text: Literal[False] | None = None,
    check: bool = False,
    id: str | None = None,
    **options: Unpack[Options],
) -> Result[bytes]: ...


@overload
async def arun(
    image: str | Sequence[Argument] | None = None,
    args: Sequence[Argument] | None = None,
    *,
    input: str | bytes | None = None,
    capture_output: bool = False,
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    text: bool | None = None,
    encoding: str | None = None,
    errors: str | None = None,
    check: bool = False,
    id: str | None = None,
    **options: Unpack[Options],
) -> Result[Any]: ...


async def arun(
    image: str | Sequence[Argument] | None = None,
    args: Sequence[Argument] | None = None,
    *,
    input: str | bytes | None = None,
    capture_output: bool = False,
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    text: bool | None = None,
    encoding: str | None = None,
    errors: str | None = None,
    check: bool = False,
    id: str | None = None,
    **options: Unpack[Options],
) -> Result[Any]:
    """``run`` for asyncio: starting and cleaning up happen in a thread, the waiting in the event loop. A cancelled task kills the tree."""
    async with _box(image, args, input, capture_output, stdin, stdout, stderr, text, encoding, errors, id, options) as box:
        out, err = await box.communicate_async(input)
        result = _result(box, out, err)
    if check:
        result.check_returncode()
    return result


def _box(
    image: str | Sequence[Argument] | None,
    args: Sequence[Argument] | None,
    input: str | bytes | None,
    capture_output: bool,
    stdin: Stream,
    stdout: Stream,
    stderr: Stream,
    text: bool | None,
    encoding: str | None,
    errors: str | None,
    id: str | None,
    options: Options,
) -> Sandbox:
    if input is not None:
        if stdin is not None:
            raise BadInput("input and stdin together", subject="input", hint="give one of them")
        stdin = PIPE
    if capture_output:
        if stdout is not None or stderr is not None:
            raise BadInput("capture_output with stdout or stderr", subject="capture_output", hint="give one of them")
        stdout = stderr = PIPE
    box = Sandbox(image, args, id=id, stdin=stdin, stdout=stdout, stderr=stderr, text=text, encoding=encoding, errors=errors, **options)
    if input is not None:
        box._text.encode(input)  # a wrong type is an error before anything starts
    return box


def _result(box: Sandbox, out: Any, err: Any) -> Result[Any]:
    return result_of(box.wait(), box.spec.argv, box.spec.image, out, err, box.gpus, box.warnings)
