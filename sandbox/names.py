"""What a sandbox and a volume may be called; a number means a job of the queue."""

from __future__ import annotations

from dockless.base.text import is_name
from dockless.errors import BadInput


def is_job(name: str) -> bool:
    """Whether a name means a job of the queue, never a sandbox: jobs have numbers."""
    return name.isascii() and name.isdecimal() and len(name) < 19


def job_of(name: str) -> int | None:
    """The number of the job that a name means: ``7``, or ``7_2``, the third of the array 7 or of those that started together with job 7.
    None for a sandbox's."""
    first, _, index = name.partition("_")
    if not is_job(first) or (first != name and not is_job(index)):
        return None
    return int(first) + int(index or 0)


def check_id(value: str, what: str = "sandbox id") -> str:
    """``value`` if it can name a directory and a cgroup safely (attack A37) and, for a sandbox, is no job's number; else ``BadInput``."""
    if not is_name(value, "_.-", 64):
        raise BadInput(
            f"{what} {value[:80]!r} is not usable as a name",
            subject=value[:80],
            hint="use up to 64 letters, digits, '_', '.' and '-', starting with a letter or digit",
        )
    if what == "sandbox id" and is_job(value):
        raise BadInput(f"{value} as a name would mean a job", subject=value, hint="begin the name with a letter")
    return value
