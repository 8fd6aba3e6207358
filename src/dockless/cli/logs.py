"""``logs``: what a job (a number) or a detached sandbox (a name) wrote, each stream to its own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from dockless.base.later import re
from dockless.base.typing import TYPE_CHECKING
from dockless.base.units import parse_duration, time_of
from dockless.cli.job_names import find_job
from dockless.cli.output import err, json_text, out, write_bytes
from dockless.cli.parser import Namespace, Parser, whole
from dockless.errors import BadInput
from dockless.sandbox.run.logfile import Row

if TYPE_CHECKING:
    from dockless.sched import Job

_AT_ONCE = 48
"""Connections that one user may have to the daemon are 64."""


def logs_options(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", help="a job of the queue (a number), or a detached sandbox")
    parser.add_argument("-f", "--follow", action="store_true", help="until it has ended")
    parser.add_argument("-t", "--timestamps", action="store_true", help="when each line was written, RFC 3339")
    parser.add_argument("-n", "--tail", type=whole(0), metavar="N", help="the last N lines of what there is")
    parser.add_argument(
        "--since", metavar="TIME", help="what was written from then on: 10m ago, 2026-01-31T12:00:00Z, or seconds since 1970"
    )
    parser.add_argument("--until", metavar="TIME", help="what was written before")
    parser.add_argument("--attempt", type=whole(1), default=0, metavar="N", help="of a job; the newest if left out")
    parser.json()


def logs(options: Namespace) -> int:
    from dockless.sandbox.run.box import get

    rows = None
    number = find_job(options.id)
    if number is not None:
        first = _known(number)
        theirs = first.uid != os.geteuid()
        together = first.gang == number and first.options.members > 1 and options.id == str(number)

        def lines(follow: bool) -> Iterator[Row]:
            return _gang(first, options, follow) if together else _job(number, options, follow)
    else:
        if options.attempt:
            raise BadInput(f"--attempt for the sandbox {options.id}", subject="--attempt", hint="leave it out: only jobs have attempts")
        box = get(options.id)
        theirs = os.geteuid() == 0 and not box.foreground and "queue" in box.labels

        def lines(follow: bool) -> Iterator[Row]:
            return box.logs(follow=follow)

        if options.tail is not None and not options.follow and options.since is None and options.until is None:
            rows = box.last_rows(options.tail)

    _print(_wanted(lines, options) if rows is None else iter(rows), options, theirs)
    return 0


def _wanted(lines: Callable[[bool], Iterator[Row]], options: Namespace) -> Iterator[Row]:
    """The rows that were asked for. Those of ``--tail`` are counted first, in what there is by now."""
    since = None if options.since is None else moment(options.since, "--since")
    until = None if options.until is None else moment(options.until, "--until")

    def asked_for(row: Row) -> bool:
        if since is None and until is None:
            return True
        at = time_of(row.at)
        return at is None or ((since is None or at >= since) and (until is None or at < until))

    skipped = 0
    if options.tail is not None:
        skipped = sum(map(asked_for, lines(False))) - options.tail
    for row in lines(options.follow):
        if until is not None and (time_of(row.at) or 0.0) >= until:
            return
        if asked_for(row):
            if skipped <= 0:
                yield row
            skipped -= 1


def moment(text: str, what: str) -> float:
    """Seconds since 1970 of ``10m`` ago, an RFC 3339 time (without a zone: UTC), or such seconds. ``BadInput``"""
    if re.fullmatch(r"[0-9]{9,11}(\.[0-9]{1,9})?", text):
        return float(text)
    at = time_of(text)
    if at is not None:
        return at
    try:
        return time.time() - parse_duration(text, what)
    except BadInput:
        hint = "write 10m for ten minutes ago, a time like 2026-01-31T12:00:00Z, or seconds since 1970"
        raise BadInput(f"{what} {text[:60]!r} cannot be read", subject=what, hint=hint) from None


def _print(rows: Iterator[Row], options: Namespace, theirs: bool) -> None:
    """``theirs``: of another user."""
    for row in rows:
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
        write_bytes(target, (at.encode() + b" " if options.timestamps else b"") + row.written)


def _known(number: int) -> Job:
    from dockless.sched import connect

    with connect() as queue:
        return queue.job(number)


def _job(number: int, options: Namespace, follow: bool) -> Iterator[Row]:
    from dockless.sched import connect

    with connect() as queue:
        for line in queue.logs(number, follow=follow, attempt=options.attempt):
            yield line.row


def _gang(first: Job, options: Namespace, follow: bool) -> Iterator[Row]:
    """Of all that start together, each line with whose it is: one after the other, or with ``follow`` as it comes."""
    from dockless.base.dataclass import replace
    from dockless.sched import connect

    with connect() as queue:
        jobs = [queue.job(first.id + index) for index in range(first.options.members)]

    def rows(job: Job) -> Iterator[Row]:
        name = f"{job.options.role} {job.options.role_index} | ".encode()
        for row in _job(job.id, options, follow):
            yield row if row.dropped else replace(row, text=name + row.text)

    if follow:
        yield from _merged([partial(rows, job) for job in jobs])
    else:
        for job in jobs:
            yield from rows(job)


def _merged(sources: Sequence[Callable[[], Iterator[Row]]]) -> Iterator[Row]:
    """What all of them give, as it comes."""
    from queue import SimpleQueue
    from threading import Thread

    if len(sources) > _AT_ONCE:
        hint = "follow one of them: dockless logs -f ID_0"
        raise BadInput(f"the output of {len(sources)} jobs cannot be followed at once", subject="--follow", hint=hint)
    came: SimpleQueue[Row | BaseException | None] = SimpleQueue()

    def read(source: Callable[[], Iterator[Row]]) -> None:
        try:
            for row in source():
                came.put(row)
            came.put(None)
        except BaseException as error:
            came.put(error)

    for source in sources:
        Thread(target=read, args=(source,), daemon=True).start()
    left = len(sources)
    while left:
        row = came.get()
        if isinstance(row, BaseException):
            raise row
        if row is None:
            left -= 1
        else:
            yield row
