"""The queue: jobs, quotas, packing, and the daemon that runs them.

Importing this package is cheap (no asyncio, no sqlite3) and never imports the daemon. What a front door needs::

    from dockless.sched import JobSpec, connect

    with connect() as queue:                      # -> Client; DaemonUnavailable if nobody answers
        job_id = queue.submit(JobSpec(Spec(argv=("python", "train.py")), gpus="2", time_limit=3600))
        ids = queue.submit_many([JobSpec(...), ...])        # one transaction: all or none
        ids = queue.submit_array(JobSpec(...), 1000)        # DOCKLESS_ARRAY_ID, DOCKLESS_ARRAY_INDEX in the environment
        jobs = queue.queue()                      # -> list[Job], waiting and running; every waiting one with its reason
        jobs = queue.queue(ended=True, limit=50, user="anna")
        job = queue.job(job_id)                   # -> Job with .attempts filled
        why = queue.why(job_id)                   # -> Why(reason, place, starts_in, sooner, …)
        events = queue.events(job_id)             # -> list[JobEvent(at, event, attempt, detail)]: what happened to it
        job = queue.wait(job_id, timeout=None)    # -> Job; blocks without polling; TimeoutError after ``timeout`` seconds
        jobs = queue.wait_many(ids)               # outlives a restart of the daemon
        job = queue.cancel(job_id, grace=10.0)    # owner or administrator; ending an ended job is no error
        queue.hold(ids), queue.release(ids)       # -> list[Job]; waiting jobs alone
        queue.requeue(ids, grace=10.0)            # -> list[Job]; running ones: another attempt of each
        for line in queue.logs(job_id, follow=True):        # -> Iterator[LogLine(at, stream, text, partial)]
            print(line.text, end="" if line.partial else "\\n")
        info = queue.info()                       # -> HostInfo(gpus=(GpuInfo(index, uuid, model, memory, simulated, job, user, …), …), …)
        top = queue.top()                         # -> Top: what the GPUs do, running jobs, users, at this moment
        used = queue.usage(by="week")             # -> list[Used]: GPU time, also of forgotten jobs
        quotas = queue.quotas()                   # -> list[QuotaInfo]: who has what, and may have
        who = queue.ping()                        # -> DaemonInfo(pid, version, owner_uid, admin, socket, …)
        queue.drain(["0"], reason="disk change")  # administrator; undrain
        queue.shutdown()                          # administrator; running jobs go on

    from dockless.sched.wire.client import socket_path           # DOCKLESS_SOCKET, else the user's own daemon, else root's

The daemon: ``from dockless.sched.daemon import main``, ``main(argv: Sequence[str]) -> int`` is ``dockless daemon``; it stays in the
foreground and writes one line to standard error when it serves. All records are frozen and have ``as_dict()`` for ``--json``.
Errors of the daemon are raised by the client as the same class of ``dockless.errors``, with message, subject and hint.

Files, each with its story at the top:

- ``jobs``: what a job is, its states and options. ``callers``: who asks, and what she may do. ``config``: the daemon's settings;
  ``quota_file``: one of them changed in the file.
- ``formats``: job files of several kinds, read. ``traces``: jobs of the past, for ``dockless simulate``. Both pure.
- ``policy``: who starts, and who gives GPUs back; pure, so the daemon, ``dockless simulate`` and the tests ask the same function.
- ``store``: SQLite, group commit, kept output, what was used.
- ``engine``: starts and ends jobs, and all that happens to them between: held, started again, preempted, told of, idle.
- ``wire``: protocol, client and server; listings, metrics and the audit log. ``used``: a record that ``store`` and ``wire`` share.
- ``daemon``: the process. ``service``: the same as a service of systemd.
"""

from __future__ import annotations

from dockless.sched.jobs import Attempt, AttemptState, Job, JobSpec, State
from dockless.sched.wire.client import Client, connect
from dockless.sched.wire.protocol import (
    Ahead,
    Awaited,
    ClassInfo,
    DaemonInfo,
    GpuInfo,
    HostInfo,
    JobEvent,
    LogLine,
    QuotaInfo,
    ReservationInfo,
    Why,
)

__all__ = [
    "Ahead",
    "Attempt",
    "AttemptState",
    "Awaited",
    "ClassInfo",
    "Client",
    "DaemonInfo",
    "GpuInfo",
    "HostInfo",
    "Job",
    "JobEvent",
    "JobSpec",
    "LogLine",
    "QuotaInfo",
    "ReservationInfo",
    "State",
    "Why",
    "connect",
]
