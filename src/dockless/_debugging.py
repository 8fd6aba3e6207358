"""``box.debug`` and ``box.spawn_debug``: programs of another image that look into a sandbox that runs.

::

    print(box.debug("tools", "strace", "-p", "2", "-c", timeout="5s", text=True).stderr)
    with box.spawn_debug("tools", "gdb", "-p", "2", tty=True) as gdb: ...

How they get there: ``sandbox.run.debug``.
"""

from __future__ import annotations

from functools import partial

from dockless._executing import Enterable, Execution, Size, captured
from dockless._pulling import present
from dockless.base.checks import checked
from dockless.base.interrupts import waiting
from dockless.base.paths import Argument
from dockless.base.typing import TYPE_CHECKING, Any, overload
from dockless.errors import BadInput
from dockless.images.pull_policy import PullPolicy

if TYPE_CHECKING:
    from typing import Unpack

    from dockless._keywords import BytesDebug, TextDebug
    from dockless._result import Result
    from dockless.sandbox.enter import Entry


class Debuggable(Enterable):
    """What a handle of a sandbox that runs can do with the programs of another image."""

    def _look(self, image: str, write: bool, entry: Entry, stdio: tuple[int, int, int], **how: Any) -> Any:
        """Start what looks into it: ``sandbox.run.debug.enter``."""
        raise NotImplementedError

    @overload
    def debug(
        self, image: str, *argv: Argument, write: bool = False, pull: PullPolicy = "missing", check: bool = False,
        input: str | None = None, **options: Unpack[TextDebug],
    ) -> Result[str]: ...  # fmt: skip
    @overload
    def debug(
        self, image: str, *argv: Argument, write: bool = False, pull: PullPolicy = "missing", check: bool = False,
        input: bytes | None = None, **options: Unpack[BytesDebug],
    ) -> Result[bytes]: ...  # fmt: skip
    @checked
    def debug(
        self, image: str, *argv: Argument, write: bool = False, pull: PullPolicy = "missing", check: bool = False, input: Any = None,
        **options: Any,
    ) -> Result[Any]:  # fmt: skip
        """Execute a command of ``image`` among the sandbox's processes, and wait for its end. It is root of the sandbox's ids, with
        CAP_SYS_PTRACE over its processes; the sandbox's files are in ``/target``, read-only unless ``write``. ``host``: the host's own
        programs. ``pull``: as at a start. ``workdir``, if left out: the image's. Everything else: see ``exec``.

        Errors: those of ``exec`` and of a start; ``Unsupported`` for a sandbox with the host's processes or user namespace.
        """
        return self._executed(partial(self._look, tools(image, pull, options), write), argv, captured(options, input), input, check)

    @overload
    def spawn_debug(
        self, image: str, *argv: Argument, write: bool = False, pull: PullPolicy = "missing", tty: bool = False, size: Size = None,
        **options: Unpack[TextDebug],
    ) -> Execution[str]: ...  # fmt: skip
    @overload
    def spawn_debug(
        self, image: str, *argv: Argument, write: bool = False, pull: PullPolicy = "missing", tty: bool = False, size: Size = None,
        **options: Unpack[BytesDebug],
    ) -> Execution[bytes]: ...  # fmt: skip
    @checked
    def spawn_debug(self, image: str, *argv: Argument, write: bool = False, pull: PullPolicy = "missing", **options: Any) -> Execution[Any]:
        """Start one and go on: to ``debug`` what ``spawn`` is to ``exec``."""
        return self._spawned(partial(self._look, tools(image, pull, options), write), argv, options)


def tools(image: str, pull: PullPolicy, options: dict[str, Any]) -> str:
    """The name of the image, which the store has then. ``BadInput``"""
    if "user" in options:
        raise BadInput("what looks into a sandbox is its root", subject="user", hint="leave 'user' out, or use exec")
    with waiting():
        return present(image, pull)
