"""``dockless.run``: one command in a sandbox of its own, from start to result. In an event loop: ``dockless.aio.run``.

::

    keywords ─► Spec ─► lease of GPUs ─► Sandbox: start, bytes in and out, end ─► Result

The signature is that of ``subprocess.run`` where it has the same thing. Different on purpose: a timeout kills the whole tree and is told
by ``timed_out`` (an exception only with ``check=True``), and a shell string is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dockless._box import Sandbox
from dockless._result import Result, result_of
from dockless._stdio import PIPE, Stream, Text
from dockless.base.interrupts import held
from dockless.base.paths import Argument
from dockless.base.typing import TYPE_CHECKING, Any, TypeVar, overload
from dockless.errors import BadInput

if TYPE_CHECKING:
    from typing import Unpack

    from dockless._async_box import Sandbox as AsyncSandbox
    from dockless._keywords import AnyRun, BytesRun, TextRun

    Image = str | Sequence[Argument] | None
    Arguments = Sequence[Argument] | None

Box = TypeVar("Box", bound="Sandbox[Any] | AsyncSandbox[Any]")


@overload
def run(image: Image = None, args: Arguments = None, **options: Unpack[TextRun]) -> Result[str]: ...
@overload
def run(image: Image = None, args: Arguments = None, **options: Unpack[BytesRun]) -> Result[bytes]: ...
@overload
def run(image: Image = None, args: Arguments = None, **options: Unpack[AnyRun]) -> Result[Any]: ...
def run(image: Image = None, args: Arguments = None, *, input: Any = None, check: bool = False, **options: Any) -> Result[Any]:
    """Run a command in a sandbox and wait for its end. ``image`` None: the host's own system, read-only (pseudo-image ``host``).

    ``run("python:3.12", ["python", "-V"])``, ``run(["ls", "/"])`` on the host's image, ``run("busybox")`` for the image's own command.
    ``input``, ``capture_output``, ``stdin``, ``stdout``, ``stderr``, ``text``, ``encoding``, ``errors``: as in ``subprocess.run``.
    ``on_stdout``, ``on_stderr``: called with each line of text, or with bytes as they come, while it runs. ``max_output``: how much of
    each stream the result has, bytes or ``"64M"``; the rest is dropped and counted there. ``id``: a name of your own.
    ``check``: ``CheckFailed`` unless it returned 0; ``TimedOut``, ``OutOfMemory``, ``Killed`` and ``SandboxLost`` are kinds of it.
    Every other keyword: ``Options``. Ctrl-C kills the whole tree and is raised again.

    Errors: ``DocklessError`` (``CommandNotFound``, ``UnknownImage``, ``LimitUnavailable``, …) if it could not be started.
    """
    with held(), box_for(Sandbox, image, args, input=input, **options) as box:
        out, err = box.communicate(input)
        result = result_from(box, out, err)
    if check:
        result.check_returncode()
    return result


def box_for(
    kind: Callable[..., Box],
    image: Image,
    args: Arguments,
    *,
    input: Any,
    capture_output: bool = False,
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    **options: Any,
) -> Box:
    """The sandbox of a run, not yet started. ``BadInput`` for what does not go together."""
    if input is not None:
        if stdin is not None:
            raise BadInput("input and stdin together", subject="input", hint="give one of them")
        stdin = PIPE
    if capture_output:
        if stdout is not None or stderr is not None:
            raise BadInput("capture_output with stdout or stderr", subject="capture_output", hint="give one of them")
        stdout = stderr = PIPE
    if input is not None:
        Text(options.get("text"), options.get("encoding"), options.get("errors")).encode(input)  # else an error after the start
    return kind(image, args, stdin=stdin, stdout=stdout, stderr=stderr, **options)


def result_from(box: Sandbox[Any] | AsyncSandbox[Any], out: Any, err: Any) -> Result[Any]:
    """The result of a sandbox that has ended."""
    ended = box.poll()
    assert ended is not None
    return result_of(ended, box.spec.argv, box.spec.image, out, err, box.gpus, box.warnings, box.dropped)
