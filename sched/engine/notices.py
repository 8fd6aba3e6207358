"""What becomes of jobs, told to their owners by mail and to a web address: bounded, outside the loop, and never in a job's way.

How it is sent is the administrator's alone (``[notify]`` in the settings). A user says which events and, within ``notify.domains``, to
which address for mail. No web address of hers is ever opened: root's daemon would reach what she cannot. A message has the job's number,
name, state and times; nothing of its command, its environment, or of why it failed, which can hold words of these.

Messages that cannot be sent are tried again twice, and lost when the daemon ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import re
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Sequence

from dockless.base.dataclass import dataclass, replace
from dockless.base.settings import MAIL_ADDRESS
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.base.units import format_duration
from dockless.errors import BadInput
from dockless.sched.config import Ways
from dockless.sched.engine.faults import describe, say

if TYPE_CHECKING:
    from email.message import EmailMessage

    from dockless.sched.jobs import Job

MOST = 1000
"""Messages that wait; what comes beyond is lost, and the log says how many."""
AN_HOUR = 200
"""Of one user: nobody's array of ten thousand jobs fills a mailbox."""
THREADS = 2
AGAIN = (30.0, 300.0)
"""Seconds until a message is tried again."""
TIMEOUT = 20.0
"""Seconds that a mail program, a server or a web address may take."""
_ADDRESS = re.compile(MAIL_ADDRESS)
_WORDS = {"start": "started", "end": "ended", "fail": "failed", "preempt": "was ended and waits again", "idle": "does not use its GPUs"}


@dataclass(frozen=True, slots=True)
class Notice:
    """``to``: an address, "" for the job's owner."""

    event: str
    job: Job
    to: str = ""
    tries: int = 0


class Notices:
    """Sends them with a few threads of its own, which keep no daemon from ending. ``tell`` is called in the loop."""

    def __init__(self) -> None:
        self.ways = Ways()
        self._work: queue.SimpleQueue[tuple[Ways, Notice] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._waiting = self._lost = 0
        self._hour = -1
        self._of: Counter[str] = Counter()
        self._closed = False

    def tell(self, notice: Notice) -> None:
        """Soon; returns at once."""
        if not self.ways.any or self._closed:
            return
        if (hour := int(time.monotonic() // 3600)) != self._hour:
            if self._lost:
                say(f"{self._lost} notices were too many, and were not sent")
            self._hour, self._lost = hour, 0
            self._of.clear()
        if self._waiting >= MOST or self._of[notice.job.user] >= AN_HOUR:
            self._lost += 1
            return
        self._of[notice.job.user] += 1
        self._waiting += 1
        while len(self._threads) < THREADS:
            loop = asyncio.get_running_loop()
            self._threads.append(threading.Thread(target=self._send, args=(loop,), name="dockless-notify", daemon=True))
            self._threads[-1].start()
        self._work.put((self.ways, notice))

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        while (work := self._work.get()) is not None:
            error: Exception | None = None
            try:
                send(*work)
            except Exception as caught:
                error = caught
            with contextlib.suppress(RuntimeError):  # the daemon has ended
                loop.call_soon_threadsafe(self._tried, work[1], error)

    def _tried(self, notice: Notice, error: Exception | None) -> None:
        if error is not None and notice.tries < len(AGAIN) and not self._closed:
            again = replace(notice, tries=notice.tries + 1)
            asyncio.get_running_loop().call_later(AGAIN[notice.tries], lambda: self._work.put((self.ways, again)))
            return
        self._waiting -= 1
        if error is not None:
            say(f"job {notice.job.id}: its notice cannot be sent: {describe(error)}")

    def close(self) -> None:
        """What is not sent by now is lost."""
        self._closed = True
        for _ in self._threads:
            self._work.put(None)


def check_address(text: str, domains: Sequence[str]) -> None:
    """``BadInput`` for what is none, or is in none of the domains that the administrator has named."""
    name, _, domain = text.rpartition("@")
    if not _ADDRESS.fullmatch(text) or ".." in text or not name:
        raise BadInput(f"{text[:60]!r} is no address for mail", subject="notify_to", hint="write name@domain")
    if domain.lower() not in {one.lower() for one in domains}:
        known = f"use one of {', '.join(domains)}" if domains else "notify.domains in dockless.toml says which are allowed: none are"
        raise BadInput(f"mail to {domain[:60]!r} is not allowed here", subject="notify_to", hint=known)


def address(notice: Notice, ways: Ways) -> str:
    """The owner's is her account's, in the first domain where there is one. Empty where an account's name is no address."""
    found = notice.to or (f"{notice.job.user}@{ways.domains[0]}" if ways.domains else notice.job.user)
    return found if _ADDRESS.fullmatch(found) else ""


def send(ways: Ways, notice: Notice) -> None:
    """By all ways there are. Blocking; raises what went wrong with the first that failed."""
    with contextlib.ExitStack() as rest:  # each is tried, whatever becomes of the others
        if ways.webhook:
            rest.callback(_post, ways.webhook, facts(notice))
        to = address(notice, ways)
        if to and ways.sendmail:
            rest.callback(_by_program, ways.sendmail, to, letter(notice, to, ways))
        elif to and ways.smtp:
            rest.callback(_by_smtp, ways.smtp, to, letter(notice, to, ways))


def facts(notice: Notice) -> dict[str, Any]:
    """What is told of a job."""
    job = notice.job
    return {
        "event": notice.event,
        "host": socket.gethostname(),
        "job": job.id,
        "name": job.name,
        "user": job.user,
        "state": str(job.state),
        "gpus": job.gpu_count,
        "attempt": job.attempt,
        "submitted": job.submitted,
        "started": job.started,
        "ended": job.ended,
        "exit_code": job.exit_code,
    }


def letter(notice: Notice, to: str, ways: Ways) -> EmailMessage:
    """RFC 5322. A line break in a name cannot begin another header: the library refuses it, and names have none."""
    from email.message import EmailMessage
    from email.utils import formatdate

    job, host = notice.job, socket.gethostname()
    name = f" ({job.name})" if job.name.isprintable() and job.name else ""
    lines = [f"Job {job.id}{name} on {host} {_WORDS[notice.event]}.", "", f"State:      {job.state}", f"GPUs:       {job.gpu_count}"]
    for what, at in (("Submitted", job.submitted), ("Started", job.started), ("Ended", job.ended)):
        if at:
            lines.append(f"{what + ':':<12}{formatdate(at)}")
    if job.ended and job.started:
        lines.append(f"Ran for:    {format_duration(float(round(job.ended - job.started)))}")
    if job.exit_code is not None:
        lines.append(f"Exit code:  {job.exit_code}")
    message = EmailMessage()
    message["From"] = ways.sender or f"dockless@{host}"
    message["To"] = to
    message["Subject"] = f"Job {job.id}{name} {_WORDS[notice.event]}"
    message["Date"] = formatdate(time.time())
    message["Auto-Submitted"] = "auto-generated"
    message.set_content("\n".join(lines) + "\n")
    return message


def _by_program(program: str, to: str, message: EmailMessage) -> None:
    """sendmail(8), as mail servers install it."""
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
    done = subprocess.run(
        [program, "-i", "--", to], input=bytes(message), env=environment, cwd="/", timeout=TIMEOUT, capture_output=True, check=False
    )
    if done.returncode:
        raise OSError(done.returncode, os.path.basename(program))


def _by_smtp(server: str, to: str, message: EmailMessage) -> None:
    import smtplib

    host, _, port = server.partition(":")
    with smtplib.SMTP(host, int(port or 25), timeout=TIMEOUT) as connection:
        connection.send_message(message, to_addrs=[to])


def _post(url: str, values: dict[str, Any]) -> None:
    """Neither a redirection nor a proxy of the environment is followed: it goes where the settings say, or nowhere."""
    import json
    import urllib.request

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), Stay)
    request = urllib.request.Request(url, json.dumps(values).encode(), {"Content-Type": "application/json"}, method="POST")
    with opener.open(request, timeout=TIMEOUT):
        pass
