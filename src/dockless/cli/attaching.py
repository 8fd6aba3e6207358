"""``attach``: back to what runs without us, with our terminal or standard streams: see ``dockless._attaching``."""

from __future__ import annotations

import contextlib
import os
import select
import sys

from dockless._attaching import Attachment, TerminalOutput, to_box, to_job
from dockless.base.typing import TYPE_CHECKING
from dockless.cli.parser import Namespace, Parser
from dockless.errors import BadInput, SandboxGone

if TYPE_CHECKING:
    from dockless.cli.signals import Signals
    from dockless.sandbox.run.box import Box
    from dockless.sandbox.run.logfile import Row

_CHUNK = 1 << 16


def attach_options(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", help="a detached sandbox of `dockless ps`, or the number of a job that runs")
    parser.add_argument(
        "--detach-keys", default="ctrl-p,ctrl-q", metavar="KEYS", help="leave a terminal (default: ctrl-p,ctrl-q; '' for none)"
    )
    parser.add_argument(
        "--sig-proxy",
        choices=("true", "false"),
        default="true",
        help="without a terminal: Ctrl-C is for the sandbox's program (default); false, and always for a job: it leaves",
    )
    parser.quiet("no warnings")


def attach(options: Namespace) -> int:
    from dockless.cli import terminal
    from dockless.cli.job_names import find_job

    keys, number = terminal.keys(options.detach_keys), find_job(options.id)
    return _to_job(number, keys) if number is not None else _to_box(options, keys)


def _to_box(options: Namespace, keys: bytes) -> int:
    from dockless.cli.signals import Signals
    from dockless.sandbox.run import box as boxes

    box = boxes.get(options.id)
    with to_box(box) as attached:
        if attached.tty:
            over = _watch(attached, keys)
        else:
            with Signals() if options.sig_proxy == "true" else contextlib.nullcontext() as signals:
                over = _follow(attached, signals, box)
    return box.wait().exit_code if over else _left(box.id)


def _to_job(number: int, keys: bytes) -> int:
    from dockless.cli.jobs import wait_jobs
    from dockless.sched import connect

    with to_job(number) as attached:
        over = _watch(attached, keys) if attached.tty else _follow(attached)
    if not over:
        return _left(str(number))
    with connect() as queue:
        return wait_jobs(queue, [number], None, quiet=True, as_json=False)


def _left(id: str) -> int:
    from dockless.cli.output import err

    err(f"dockless: left {id} running; come back with: dockless attach {id}")
    return 0


def _watch(attached: Attachment, keys: bytes) -> bool:
    from dockless.cli import terminal

    return terminal.watch(attached.terminal, attached.scrollback, attached.output, keys, attached.used)


def _follow(attached: Attachment, signals: Signals | None = None, box: Box | None = None) -> bool:
    """Standard streams that are no terminal: what comes out is shown from now on, what we are given goes in. True when it is over, False
    when we were interrupted. The end of our input is not the end of its own, which others may write to."""
    output, into = attached.output, -1
    with contextlib.suppress(BadInput, SandboxGone):
        into = attached.into
    typed = bytearray()
    reading = into >= 0
    try:
        while True:
            if rows := output.read():
                _show(rows)
                continue
            if output.over:
                return True
            if signals is not None and box is not None:
                signals.pass_on(box)
            ready = _ready(output, 0 if reading and len(typed) < _CHUNK else -1, into if typed else -1, signals)
            if 0 in ready:
                piece = os.read(0, _CHUNK)
                attached.used()
                reading = bool(piece)
                typed += piece
            if into in ready:
                try:
                    del typed[: os.write(into, typed)]
                except BlockingIOError:
                    pass
                except BrokenPipeError:  # nobody in there has it open any more
                    typed.clear()
                    reading = False
    except KeyboardInterrupt:
        return False


def _ready(output: TerminalOutput, typing: int, into: int, signals: Signals | None) -> dict[int, int]:
    poller = select.poll()
    for fd in (output.fd, typing, -1 if signals is None else signals.woken):
        if fd >= 0:
            poller.register(fd, select.POLLIN)
    if into >= 0:
        poller.register(into, select.POLLOUT)
    return dict(poller.poll(output.glance))


def _show(rows: list[Row]) -> None:
    from dockless.cli.output import write_bytes

    for row in rows:
        stream = sys.stderr if row.stream == "stderr" else sys.stdout
        if stream is not None and row.written:
            write_bytes(stream, row.written)
