"""How a run ended: a frozen record in the manner of ``subprocess.CompletedProcess``, with what only a sandbox knows."""

from __future__ import annotations

from dockless.base.dataclass import dataclass
from dockless.base.exit_codes import exit_code
from dockless.base.text import escaped
from dockless.base.typing import TYPE_CHECKING, Any, Generic, TypeVar
from dockless.errors import CheckFailed, Killed, OutOfMemory, SandboxLost, TimedOut

if TYPE_CHECKING:
    from dockless.cgroups import Usage
    from dockless.sandbox.run.process import Deadline, Exit

T = TypeVar("T")
DEADLINES = {"": "timed out", "timeout": "timed out", "idle_timeout": "was idle for too long", "ttl": "came to the end of its time to live"}
"""By ``Exit.limit``, what happened."""
UNENDED = "what the command started could not be ended in 2 s: the sandbox was ended"
"""Where ``Exit.unended``, of a command that entered a sandbox."""
_SHOWN = 1000
"""Characters or bytes of an output in the text of a result."""


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """``returncode``: the exit code, or minus the signal that ended the command. ``stdout``, ``stderr``: what was captured, None otherwise.

    ``oom_killed``: the kernel killed something inside for memory. ``timed_out``: a deadline passed and the whole tree was killed;
    ``limit``: ``timeout``, ``idle_timeout`` or ``ttl`` then.
    ``usage``: seconds and bytes, each None where this host does not count it. ``started``, ``ended``: seconds since the epoch.
    ``max_rss``: bytes of the largest process. ``gpus``: UUIDs of the leased GPUs. ``warnings``: what ``best_effort`` could not keep.
    ``killed``: it was ended through dockless. ``lost``: its keeper was killed, so nobody saw how it ended. ``stdout_dropped``,
    ``stderr_dropped``: bytes beyond ``max_output``. ``unended``: what a command started in the sandbox could not be ended, so the
    sandbox was.
    """

    args: tuple[str, ...]
    image: str
    returncode: int
    stdout: T
    stderr: T
    signal: int | None = None
    oom_killed: bool = False
    timed_out: bool = False
    usage: Usage | None = None
    started: float = 0.0
    ended: float = 0.0
    max_rss: int = 0
    gpus: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    killed: bool = False
    lost: bool = False
    stdout_dropped: int = 0
    stderr_dropped: int = 0
    limit: Deadline = ""
    unended: bool = False

    def __repr__(self) -> str:
        """Long output is cut: a loop of asyncio's makes a text of what its first task returns, and does nothing with it."""
        fields = ((name, getattr(self, name)) for name in self.__slots__)
        return f"Result({', '.join(f'{name}={_cut(value)}' for name, value in fields)})"

    @property
    def duration(self) -> float:
        """Seconds from the start to the end of everything inside."""
        return max(0.0, self.ended - self.started)

    @property
    def exit_code(self) -> int:
        """As a shell shows it: the code, 128 + signal, 124 for a timeout."""
        return exit_code(self.returncode, self.timed_out)

    def check_returncode(self) -> None:
        """``CheckFailed`` unless the command returned 0 in time: ``TimedOut``, ``SandboxLost``, ``OutOfMemory``, ``Killed``.
        The end of what was captured of its stderr is a note of the error."""
        if self.returncode == 0 and not self.timed_out and not self.unended:
            return
        command = " ".join(self.args)[:80] or f"the command of image {self.image}"
        error = self._kind(f"{command}: {self.why}", result=self, hint="its result, with what it wrote, is the error's .result")
        error.subject = self.image
        if self.stderr:
            error.add_note(f"stderr: {_end_of(self.stderr)}")
        raise error

    @property
    def _kind(self) -> type[CheckFailed]:
        if self.timed_out:
            return TimedOut
        if self.lost:
            return SandboxLost
        if self.oom_killed:
            return OutOfMemory
        return CheckFailed if self.signal is None else Killed

    @property
    def why(self) -> str:
        """How it ended, in words."""
        return f"{self._how}; {UNENDED}" if self.unended else self._how

    @property
    def _how(self) -> str:
        if self.timed_out:
            return DEADLINES[self.limit] + " and was killed"
        if self.lost:
            return "the process that watched the sandbox was killed, and so was everything inside"
        how = f"exit code {self.returncode}" if self.signal is None else f"killed by signal {self.signal}"
        return f"out of memory ({how})" if self.oom_killed else how


def _end_of(output: object) -> str:
    text = output.decode(errors="replace") if isinstance(output, bytes) else str(output)
    lines = text[-_SHOWN:].splitlines()
    return "\n  ".join(escaped(line) for line in lines)


def _cut(value: object) -> str:
    if isinstance(value, (str, bytes)) and len(value) > _SHOWN:
        return f"{value[:_SHOWN]!r}… ({len(value)} in all)"
    return repr(value)


def result_of(
    ended: Exit,
    args: tuple[str, ...],
    image: str,
    stdout: Any,
    stderr: Any,
    gpus: tuple[str, ...] = (),
    warnings: tuple[str, ...] = (),
    dropped: tuple[int, int] = (0, 0),
) -> Result[Any]:
    """The result of a sandbox's exit."""
    how = (ended.signal, ended.oom_killed, ended.timed_out, ended.usage, ended.started, ended.ended, ended.max_rss)
    return Result(
        args, image, ended.returncode, stdout, stderr, *how, gpus, warnings, ended.killed, ended.lost, *dropped, ended.limit, ended.unended
    )
