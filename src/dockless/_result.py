"""How a run ended: a frozen record in the manner of ``subprocess.CompletedProcess``, with what only a sandbox knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dockless.base.exit_codes import exit_code
from dockless.errors import CheckFailed

if TYPE_CHECKING:
    from dockless.cgroups import Usage
    from dockless.sandbox.run.process import Exit

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """``returncode``: the exit code, or minus the signal that ended the command. ``stdout``, ``stderr``: what was captured, None otherwise.

    ``oom_killed``: the kernel killed something inside for memory. ``timed_out``: ``timeout`` passed and the whole tree was killed.
    ``usage``: seconds and bytes, each None where this host does not count it. ``started``, ``ended``: seconds since the epoch.
    ``max_rss``: bytes of the largest process. ``gpus``: UUIDs of the leased GPUs. ``warnings``: what ``best_effort`` could not keep.
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

    @property
    def duration(self) -> float:
        """Seconds from the start to the end of everything inside."""
        return max(0.0, self.ended - self.started)

    @property
    def exit_code(self) -> int:
        """As a shell shows it: the code, 128 + signal, 124 for a timeout."""
        return exit_code(self.returncode, self.timed_out)

    def check_returncode(self) -> None:
        """``CheckFailed`` unless the command returned 0 in time."""
        if self.returncode == 0 and not self.timed_out:
            return
        command = " ".join(self.args)[:80] or f"the command of image {self.image}"
        error = CheckFailed(f"{command}: {self.why}", result=self, hint="its result, with what it wrote, is the error's .result")
        error.subject = self.image
        raise error

    @property
    def why(self) -> str:
        """How it ended, in words."""
        if self.timed_out:
            return "timed out and was killed"
        how = f"exit code {self.returncode}" if self.signal is None else f"killed by signal {self.signal}"
        return f"out of memory ({how})" if self.oom_killed else how


def result_of(
    ended: Exit, args: tuple[str, ...], image: str, stdout: Any, stderr: Any, gpus: tuple[str, ...], warnings: tuple[str, ...]
) -> Result[Any]:
    """The result of a sandbox's exit."""
    how = (ended.signal, ended.oom_killed, ended.timed_out, ended.usage, ended.started, ended.ended, ended.max_rss)
    return Result(args, image, ended.returncode, stdout, stderr, *how, gpus, warnings)
