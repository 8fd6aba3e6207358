"""``logs``: what a job (a number) or a detached sandbox (a name) wrote, each stream to its own."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dockless.cli.boxes import find
from dockless.cli.output import err, json_text, out
from dockless.cli.parser import Namespace, Parser
from dockless.errors import SandboxGone

if TYPE_CHECKING:
    from dockless.sandbox.detached import Detached

Line = tuple[str, str, bytes, bool]
_POLL = 0.1


def logs_options(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", help="a job of the queue (a number), or a detached sandbox")
    parser.add_argument("-f", "--follow", action="store_true", help="until it has ended")
    parser.add_argument("-t", "--timestamps", action="store_true", help="when each line was written, RFC 3339")
    parser.add_argument("--attempt", type=int, default=0, metavar="N", help="of a job; the newest if left out")
    parser.json()


def logs(options: Namespace) -> int:
    if options.id.isdecimal():
        lines, theirs = _job(options), _foreign(int(options.id))
    else:
        box = find(options.id)
        lines, theirs = _box(box, options.follow), os.geteuid() == 0 and "queue" in box.labels
    for at, stream, text, partial in lines:
        if options.json:
            out(json_text({"at": at, "stream": stream, "text": text.decode(errors="surrogateescape"), "partial": partial}))
            continue
        target = sys.stderr if stream == "stderr" else sys.stdout
        if target is None:
            continue
        if theirs and target.isatty():
            (err if stream == "stderr" else out)((at + " " if options.timestamps else "") + text.decode(errors="backslashreplace"))
            continue
        target.buffer.write((at.encode() + b" " if options.timestamps else b"") + text + (b"" if partial else b"\n"))
        target.buffer.flush()
    return 0


def _foreign(number: int) -> bool:
    """Whether a job is another user's: on a terminal what it wrote is then escaped. One's own output comes as it is, as that of ``run``."""
    from dockless.sched import connect

    with connect() as queue:
        return queue.job(number).uid != os.geteuid()


def _job(options: Namespace) -> Iterator[Line]:
    from dockless.sched import connect

    with connect() as queue:
        for line in queue.logs(int(options.id), follow=options.follow, attempt=options.attempt):
            yield line.at, line.stream, line.text.encode(errors="surrogateescape"), line.partial


def _box(box: Detached, follow: bool) -> Iterator[Line]:
    """Read the log files as the keeper writes them; it renames ``log`` to ``log.1`` when it grows too large."""
    alive = -1
    if follow:
        try:
            alive = box.pidfd()
        except SandboxGone:
            follow = False
    try:
        older, newer = box.directory / "log.1", box.directory / "log"
        reading: int | None = None
        rest = b""
        first = True
        while True:
            over = not follow or bool(select.select([alive], [], [], 0)[0])
            if reading is None:
                reading = _open(older) if first else None
                reading = _open(newer) if reading is None else reading
                first = False
            if reading is not None:
                while chunk := os.read(reading, 1 << 16):
                    *lines, rest = (rest + chunk).split(b"\n")
                    yield from map(_parse, lines)
                if _replaced(reading, newer):
                    while chunk := os.read(reading, 1 << 16):  # written between our last read and the rename
                        *lines, rest = (rest + chunk).split(b"\n")
                        yield from map(_parse, lines)
                    os.close(reading)
                    reading = None
                    continue
            if over:
                return
            select.select([alive], [], [], _POLL)
    finally:
        for fd in (alive, reading if reading is not None else -1):
            if fd >= 0:
                os.close(fd)


def _open(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None


def _replaced(fd: int, path: Path) -> bool:
    try:
        return os.fstat(fd).st_ino != os.stat(path, follow_symlinks=False).st_ino
    except FileNotFoundError:
        return False


def _parse(line: bytes) -> Line:
    """``<time> stdout|stderr F|P text``, the format of Kubernetes' CRI."""
    at, _, rest = line.partition(b" ")
    stream, _, rest = rest.partition(b" ")
    tag, _, text = rest.partition(b" ")
    if tag not in (b"F", b"P"):
        return "", "stdout", line, False
    return at.decode(errors="replace"), stream.decode(errors="replace"), text, tag == b"P"
