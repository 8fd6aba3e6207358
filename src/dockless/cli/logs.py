"""``logs``: what a job (a number) or a detached sandbox (a name) wrote, each stream to its own."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dockless.cli.output import err, json_text, out, write_bytes
from dockless.cli.parser import Namespace, Parser, whole
from dockless.errors import BadInput, SandboxGone
from dockless.sandbox.run.logfile import Log, Row, open_log
from dockless.sandbox.spec import is_job

if TYPE_CHECKING:
    from dockless.sandbox.run.detached import Detached

_POLL = 0.1


def logs_options(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", help="a job of the queue (a number), or a detached sandbox")
    parser.add_argument("-f", "--follow", action="store_true", help="until it has ended")
    parser.add_argument("-t", "--timestamps", action="store_true", help="when each line was written, RFC 3339")
    parser.add_argument("--attempt", type=whole(1), default=0, metavar="N", help="of a job; the newest if left out")
    parser.json()


def logs(options: Namespace) -> int:
    from dockless.sandbox.run import detached

    if is_job(options.id):
        lines, theirs = _job(options), _foreign(int(options.id))
    else:
        if options.attempt:
            raise BadInput(f"--attempt for the sandbox {options.id}", subject="--attempt", hint="leave it out: only jobs have attempts")
        box = detached.get(options.id)
        lines, theirs = _box(box, options.follow), os.geteuid() == 0 and "queue" in box.labels
    for row in lines:
        at, stream, text, partial = row.at, row.stream, row.text, row.partial
        if options.json:
            shown = {"at": at, "stream": stream, "text": text.decode(errors="surrogateescape"), "partial": partial}
            out(json_text({**shown, "dropped": row.dropped}))
            continue
        if row.dropped:
            err(f"dockless: {row.dropped} bytes of output before this line were dropped (how much is kept: --log-size, logs.size)")
            continue
        target = sys.stderr if stream == "stderr" else sys.stdout
        if target is None:
            continue
        if theirs and target.isatty():
            (err if stream == "stderr" else out)((at + " " if options.timestamps else "") + text.decode(errors="backslashreplace"))
            continue
        write_bytes(target, (at.encode() + b" " if options.timestamps else b"") + text + (b"" if partial else b"\n"))
    return 0


def _foreign(number: int) -> bool:
    """Whether a job is another user's: on a terminal what it wrote is then escaped. One's own output comes as it is, as that of ``run``."""
    from dockless.sched import connect

    with connect() as queue:
        return queue.job(number).uid != os.geteuid()


def _job(options: Namespace) -> Iterator[Row]:
    from dockless.sched import connect

    with connect() as queue:
        for line in queue.logs(int(options.id), follow=options.follow, attempt=options.attempt):
            yield Row(line.at, line.stream, line.text.encode(errors="surrogateescape"), line.partial, line.dropped)


def _box(box: Detached, follow: bool) -> Iterator[Row]:
    alive = -1
    if follow:
        try:
            alive = box.pidfd()
        except SandboxGone:
            follow = False
    log = Log(lambda name: open_log(box.directory, name))
    try:
        while True:
            over = not follow or bool(select.select([alive], [], [], 0)[0])
            while rows := log.read():
                yield from rows
            if over:
                return
            select.select([alive], [], [], _POLL)
    finally:
        log.close()
        if alive >= 0:
            os.close(alive)
