"""What somebody asked of a sandbox: to stop, or a signal. Whoever asks writes it beside the records, for ``events`` alone."""

from __future__ import annotations

import contextlib
import os
import time

from dockless.base.path import Path

STOP, KILL = "asked-stop", "asked-kill"
NAMES = (STOP, KILL)


def note(directory: Path, name: str, number: int) -> None:
    """Note that it was asked now. What cannot be written is not noted: nobody is kept from ending a sandbox by a full disk."""
    with contextlib.suppress(OSError):
        temporary = directory / f"{name}.tmp"
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb") as stream:
            stream.write(f"{number} {time.time_ns()}\n".encode())
        os.rename(temporary, directory / name)


def parse(raw: bytes) -> tuple[int, float]:
    """The signal, and when. ``ValueError`` for what is none."""
    number, blank, at = raw.decode("ascii").removesuffix("\n").partition(" ")
    if not (blank and number.isdigit() and at.isdigit()) or len(number) > 2 or len(at) > 20 or not raw.endswith(b"\n"):
        raise ValueError("it is no such note")
    return int(number), int(at) / 1e9
