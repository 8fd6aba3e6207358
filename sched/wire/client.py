"""The client of the daemon: plain blocking calls over one unix socket.

Nothing here asks again and again: ``wait`` and ``logs(follow=True)`` block until the daemon has something to say. Waiting outlives a
restart of the daemon: the client connects again and asks again, for ``patience`` seconds.

A client trusts the socket because of where it is: root's lies in a directory only root can write, a user's in her own.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Generator, Iterable, Iterator, Sequence

from dockless.base import paths
from dockless.base.checks import check, checked
from dockless.base.descriptors import received
from dockless.base.path import Path
from dockless.base.records import read
from dockless.base.typing import TYPE_CHECKING, Any, Literal
from dockless.base.waits import Pause, blocking
from dockless.errors import DaemonUnavailable, SchedError, UnknownJob
from dockless.sched.jobs import Job, JobSpec
from dockless.sched.wire import protocol
from dockless.sched.wire.listing import Listing, read_page
from dockless.sched.wire.protocol import Ahead, Awaited, DaemonInfo, GpuInfo, HostInfo, JobEvent, LogLine, QuotaInfo, ReservationInfo, Why
from dockless.sched.wire.submitting import Submitting
from dockless.sched.wire.top import GpuShare

if TYPE_CHECKING:
    from dockless.sched.used import Exceeded, Used
    from dockless.sched.wire.top import Top

ROOT_SOCKET = paths.SOCKET_OF_ROOT
_AT_ONCE = 1000
"""Jobs of one request: so many are ended, held or released well within the time that a client waits for an answer."""
_SLICING = 60.0
"""Seconds more for an answer that a GPU's driver has to give."""
_A_MOMENT = Pause(-1, 0.1)
_RELOADED = 60.0
"""Seconds for the answer to ``reload``: the daemon lists its GPUs again first, and waits 10 s for a driver that hangs."""


def own_socket() -> Path:
    """The socket of this user's own daemon (root's, for root)."""
    return paths.runtime() / "daemon.sock"


def socket_path() -> Path:
    """The daemon to talk to: ``DOCKLESS_SOCKET``, else the user's own where there is one, else root's."""
    named = os.environ.get("DOCKLESS_SOCKET")
    if named:
        return Path(named)
    own = own_socket()
    if own.exists() or os.environ.get("DOCKLESS_HOME") or not ROOT_SOCKET.exists():
        return own
    return ROOT_SOCKET


def connect(path: Path | str | None = None, *, timeout: float = 10.0) -> Client:
    """A connected client. ``timeout``: seconds for connecting. Raises DaemonUnavailable."""
    client = Client(path, timeout=timeout)
    client._open()
    return client


class Client(Submitting):
    """One connection to the daemon; a context manager. Not for several threads at once: give each its own."""

    def __init__(self, path: Path | str | None = None, *, timeout: float = 10.0, patience: float = 30.0) -> None:
        super().__init__(Path(path) if path is not None else socket_path(), timeout)
        self.patience = patience

    # -- jobs

    @checked
    def queue(
        self,
        *,
        ended: bool = False,
        user: str = "",
        group: str = "",
        states: Sequence[str] = (),
        since: float | None = None,
        until: float | None = None,
        limit: int = 0,
    ) -> Listing:
        """Waiting and running jobs in the order they will start; with ``ended`` also those that have ended, newest first, after them.
        ``user``, ``group``, ``states``: only those. ``since``, ``until``, seconds since 1970: those that had not ended before, and were
        submitted until then. ``limit``: at most so many waiting and so many ended ones, up to 100,000; how many more there are is ``more``
        of the list. 0 for all."""
        found = Listing()
        asked = {"group": group or None, "states": [*map(str, states)] or None, "since": since, "until": until}
        page = self._call("queue", ended=ended, user=user, limit=limit, pages=True, **asked)
        try:
            while "count" in page:
                found += read_page(page)
                page = self._receive(self.timeout)
        except BaseException:  # what follows on this connection belongs to nobody
            self.close()
            raise
        found += map(Job.from_dict, page.get("jobs", ()))  # an older daemon's answer is one line
        found.more = int(page.get("more", 0))
        return found

    @checked
    def job(self, job: int) -> Job:
        """One job with its attempts. Raises UnknownJob."""
        return Job.from_dict(self._call("job", job=job)["job"])

    @checked
    def why(self, job: int) -> Why:
        """Why a job waits, when it starts, and what would let it start now or earlier. Raises UnknownJob, NotPermitted."""
        found = self._call("why", job=job)["why"]
        lists: dict[str, Any] = {name: tuple(found.get(name, ())) for name in ("sooner", "endless", "earlier")}
        for name, kind in (("ahead", Ahead), ("awaited", Awaited)):
            lists[name] = tuple(kind(**{k: v for k, v in one.items() if k in kind.__slots__}) for one in found.get(name, ()))
        return Why(**{k: v for k, v in found.items() if k in Why.__slots__} | lists)

    @checked
    def events(self, job: int) -> list[JobEvent]:
        """What happened to a job, the oldest first: submitted, held, started, preempted, ended. At most the newest 1,000. Raises
        UnknownJob, NotPermitted."""
        return [read(JobEvent, one, "event", newer=True) for one in self._call("events", job=job)["events"]]

    @checked
    def cancel(self, job: int, *, grace: float | None = None) -> Job:
        """End a job: a waiting one at once, a running one by its stop signal and, ``grace`` seconds later, SIGKILL.
        Returns as soon as the wish is on disk; ``wait`` for the end. Raises UnknownJob, NotPermitted."""
        return self.cancel_many([job], grace=grace)[0]

    def cancel_many(self, jobs: Iterable[int], *, grace: float | None = None) -> list[Job]:
        """End them all; they come in the order asked for. Of a thousand, none is ended if one is unknown or somebody else's."""
        check("grace", grace, float | None)
        return self._each("cancel", jobs, grace=grace)

    def hold(self, jobs: int | Iterable[int]) -> list[Job]:
        """Keep waiting jobs from starting until they are released. Raises Refused where one does not wait, UnknownJob, NotPermitted."""
        return self._each("hold", [jobs] if type(jobs) is int else jobs)

    def release(self, jobs: int | Iterable[int]) -> list[Job]:
        """Let held jobs start when their turn comes; one that is not held stays as it is. Raises NotPermitted where an administrator holds
        another's, Refused, UnknownJob."""
        return self._each("release", [jobs] if type(jobs) is int else jobs)

    def requeue(self, jobs: int | Iterable[int], *, grace: float | None = None) -> list[Job]:
        """End the running attempts of jobs, by stop signal and ``grace`` seconds later SIGKILL; then they wait for another. A job that has
        ended is submitted again: what comes back for it is the new job. Raises Refused where one waits already, UnknownJob, NotPermitted,
        and the errors of a submit."""
        check("grace", grace, float | None)
        return self._each("requeue", [jobs] if type(jobs) is int else jobs, grace=grace)

    def _each(self, op: str, jobs: Any, **fields: Any) -> list[Job]:
        ids = _ids(jobs)
        found: dict[int, Job] = {}
        once = list(dict.fromkeys(ids))
        for start in range(0, len(once), _AT_ONCE):
            part = once[start : start + _AT_ONCE]
            answer = self._call(op, jobs=part, **fields)
            there = {job.id: job for job in map(Job.from_dict, answer["jobs"])}
            # A job may go on as another, and those that start together as one.
            found |= {old: there[new] for old, new in zip(part, answer.get("new", part), strict=True) if new in there}
        return _in_order(ids, found)

    @checked
    def spec(self, job: int) -> JobSpec:
        """What was asked for, of a job of one's own, to submit it again, or another like it. Of jobs that have ended those that each user
        submitted last are kept. Raises Refused, UnknownJob, NotPermitted."""
        return read(JobSpec, self._call("spec", job=job)["spec"], "job", newer=True)

    @checked
    def wait(self, job: int, *, timeout: float | None = None) -> Job:
        """Block until the job has ended. Raises TimeoutError after ``timeout`` seconds, UnknownJob, NotPermitted."""
        return self.wait_many([job], timeout=timeout)[0]

    def wait_many(self, jobs: Iterable[int], *, timeout: float | None = None) -> list[Job]:
        """Block until all of them have ended; they come in the order asked for."""
        check("timeout", timeout, float | None)
        ids = _ids(jobs)
        return next(blocking(self.waiting(ids, timeout=timeout)))

    def waiting(self, ids: Sequence[int], *, timeout: float | None = None) -> Iterator[list[Job] | Pause]:
        """``wait_many`` in steps: what has to be waited for, and at last the jobs."""
        deadline = None if timeout is None else time.monotonic() + timeout
        found: dict[int, Job] = {}
        once = list(dict.fromkeys(ids))
        for start in range(0, len(once), protocol.MAX_JOBS_PER_REQUEST):
            for job in (yield from self._wait_for(once[start : start + protocol.MAX_JOBS_PER_REQUEST], deadline, timeout)):
                found[job.id] = job
        yield _in_order(ids, found)

    def _wait_for(self, ids: list[int], deadline: float | None, timeout: float | None) -> Generator[Pause, None, list[Job]]:
        lost_since: float | None = None
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                self._send("wait", {"jobs": ids, "timeout": left})
                yield Pause(self.fileno(), None if left is None else left + 5.0)
                answer = self._receive(self.timeout)
                if answer.get("timeout"):
                    raise TimeoutError(f"{answer['left']} of {len(ids)} jobs have not ended after {timeout} s")
                return [Job.from_dict(item) for item in answer["jobs"]]
            except DaemonUnavailable as error:
                if deadline is not None and time.monotonic() > deadline:
                    raise
                lost_since = self._patient(error, lost_since)
                yield _A_MOMENT

    @checked
    def logs(self, job: int, *, follow: bool = False, attempt: int = 0) -> Iterator[LogLine]:
        """What the job wrote, in order; with ``follow`` until it has ended, also over a restart of the daemon. ``attempt`` 0: the newest.
        A line with ``dropped`` stands for output that is not kept any more."""
        yield from blocking(self.reading(job, follow=follow, attempt=attempt))

    def reading(self, job: int, *, follow: bool = False, attempt: int = 0, after: int = 0) -> Iterator[LogLine | Pause]:
        """``logs`` in steps: what has to be waited for, and the lines. ``after``: bytes of output that are known already."""
        lost_since: float | None = None
        while True:
            try:
                for message in self._stream("logs", job=job, follow=follow, attempt=attempt, after=after):
                    if isinstance(message, Pause):
                        yield message
                        continue
                    lost_since = None
                    attempt = int(message.get("attempt", attempt))
                    for row in message.get("lines", ()):
                        line = LogLine(str(row[0]), str(row[1]), str(row[2]), bool(row[3]), int(row[4]) if len(row) > 4 else 0)
                        after += line.size
                        yield line
                return
            except DaemonUnavailable as error:
                if not follow:
                    raise
                lost_since = self._patient(error, lost_since)
                yield _A_MOMENT

    # -- a program that enters a job, ``wire.entered``: the connection is for nothing else then

    def exec(self, job: int, program: dict[str, Any], size: tuple[int, int] | None) -> socket.socket:
        """Our end of a socket to it, for its standard streams or its terminal. Raises UnknownJob, NotPermitted, SandboxGone, Refused."""
        self._send("exec", {"job": job, "program": program, "size": size})
        answer, fd = self._with_descriptor()
        if answer.get("streams") and fd >= 0:
            return socket.socket(fileno=fd)
        if fd >= 0:
            os.close(fd)
        raise SchedError("the daemon answered something else", hint="client and daemon are of different versions: restart the daemon")

    def leave(self, job: int, program: dict[str, Any]) -> int:
        """A program that enters a job and goes on by itself: its pid, as the host numbers it. The same errors, and those of a start."""
        return int(self._call("exec", job=job, program=program, alone=True)["pid"])

    def attach(self, job: int) -> tuple[Literal["terminal", "stdin", "output"], int]:
        """What a job has for who attaches, and a descriptor, the caller's to close: our side of its terminal, one to write to its standard
        input, or -1 where it has output alone, which ``logs`` gives. Raises UnknownJob, NotPermitted, SandboxGone."""
        self._send("attach", {"job": job})
        answer, fd = self._with_descriptor()
        return answer["attached"], fd

    def _with_descriptor(self) -> tuple[dict[str, Any], int]:
        """The next answer, and what came with it, -1 for nothing."""
        assert self._socket is not None
        self._socket.settimeout(self.timeout)
        try:
            said, fds = received(self._socket, 1 << 16)
        except OSError as error:
            raise self._lost(error) from None
        if not said:
            raise self._lost(None)
        self._buffer += said
        try:
            return self.answer(), fds.pop() if fds else -1
        finally:
            for fd in fds:
                os.close(fd)

    def answer(self) -> dict[str, Any]:
        """The daemon's next word on it, or the error that it tells."""
        return self._receive(self.timeout)

    def say(self, op: str, fields: dict[str, Any]) -> bool:
        """Our next word; False where the connection has ended."""
        if self._socket is None:
            return False
        self._send(op, fields)
        return True

    # -- the host

    def info(self) -> HostInfo:
        """GPUs and who holds them, quotas and what is used of them."""
        data = self._call("info")["info"]
        gpus = tuple(map(_gpu, data.pop("gpus", ())))
        quotas = tuple((str(q[0]), str(q[1]), int(q[2]), q[3]) for q in data.pop("quotas", ()))
        reservations = tuple(read(ReservationInfo, one, "reservation", newer=True) for one in data.pop("reservations", ()))
        unleased = tuple((str(name), str(why)) for name, why in data.pop("unleased", ()))
        rest = {k: v for k, v in data.items() if k in HostInfo.__slots__}
        return HostInfo(gpus=gpus, quotas=quotas, reservations=reservations, unleased=unleased, **rest)

    def top(self) -> Top:
        """What the GPUs, the running jobs and the users do at this moment; read anew at most once a second, whoever asks."""
        from dockless.sched.wire.top import Top

        return read(Top, self._call("top")["top"], "top", newer=True)

    @checked
    def usage(self, *, since: float | None = None, until: float | None = None, by: str = "user") -> list[Used]:
        """What was used from the day of ``since`` to that of ``until``, seconds since 1970 (default: the last 30 days); by ``user``,
        ``group``, ``gpu``, ``day``, ``week`` or ``month``. Days are those of UTC; what runs counts until now."""
        from dockless.sched.used import Used

        return [read(Used, one, "used", newer=True) for one in self._call("usage", since=since, until=until, by=by)["used"]]

    def quotas(self) -> list[QuotaInfo]:
        """The default, where the settings have one; of each user with a quota or a job, then of each group with a quota."""
        return [read(QuotaInfo, one, "quota", newer=True) for one in self._call("quotas")["quotas"]]

    def exceeded(self, gpus: Sequence[str]) -> list[Exceeded]:
        """The quotas that these GPUs, by UUID, exceed, which the caller has leased outside the queue."""
        from dockless.sched.used import Exceeded

        return [read(Exceeded, one, "quota", newer=True) for one in self._call("exceeded", gpus=list(gpus))["exceeded"]]

    @checked
    def drain(self, gpus: Sequence[str] = (), *, everything: bool = False, reason: str = "") -> None:
        """Start nothing more on these GPUs (numbers or UUIDs), or on the host at all; what runs goes on. Holds until ``undrain``. Raises
        NotPermitted, UnknownGpu, BadInput."""
        self._call("drain", gpus=list(gpus), all=everything, reason=reason)

    @checked
    def undrain(self, gpus: Sequence[str] = (), *, everything: bool = False) -> None:
        """Start jobs there again. Raises NotPermitted, UnknownGpu, BadInput."""
        self._call("undrain", gpus=list(gpus), all=everything)

    @checked
    def create_slices(self, gpu: int, profiles: Sequence[str]) -> list[str]:
        """The UUIDs of new MIG slices of a GPU, all of them or none, made by root's daemon for an administrator. Raises NotPermitted,
        UnknownGpu, BadInput for a profile that it does not have, NotEnoughGpus where there is no room, GpuError."""
        self._anew()
        self._send("mig_create", {"gpu": gpu, "profiles": list(profiles)})
        return [str(uuid) for uuid in self._receive(self.timeout + _SLICING)["created"]]

    @checked
    def remove_slices(self, slices: Sequence[str]) -> None:
        """Remove MIG slices, by UUID. Raises NotPermitted, UnknownGpu, NotEnoughGpus for one that is leased, GpuError for one on which
        something computes."""
        self._anew()
        self._send("mig_remove", {"slices": list(slices)})
        self._receive(self.timeout + _SLICING)

    def ping(self) -> DaemonInfo:
        data = self._call("ping")["daemon"]
        return DaemonInfo(**{k: v for k, v in data.items() if k in DaemonInfo.__slots__} | {"socket": str(self.path)})

    def reload(self) -> Path:
        """Have the daemon read its settings again, as SIGHUP does; the file that it reads. Raises BadInput, and the daemon goes on with
        what it had; NotPermitted for who is no administrator."""
        self._send("reload", {})
        return Path(self._receive(max(self.timeout, _RELOADED))["file"])

    def shutdown(self) -> None:
        """Ask the daemon to end. Running jobs go on; the next daemon takes them up again."""
        self._call("shutdown")
        self.close()

    # -- what goes on over a restart of the daemon

    def _patient(self, error: DaemonUnavailable, lost_since: float | None) -> float:
        """Whether the daemon is to be asked again, in a moment: jobs run on without it, so a restart is no reason to stop waiting. Since
        when it has been away; ``error`` where that is longer than ``patience``."""
        now = time.monotonic()
        lost_since = lost_since or now
        if now - lost_since > self.patience:
            raise error
        return lost_since


def _ids(jobs: Iterable[int]) -> tuple[int, ...]:
    check("jobs", jobs, Iterable[int])
    ids = tuple(jobs)
    check("jobs", ids, tuple[int, ...])
    return ids


def _gpu(item: dict[str, Any]) -> GpuInfo:
    """Fields of a newer daemon are ignored."""
    known = {name: value for name, value in item.items() if name in GpuInfo.__slots__}
    shares = ({name: value for name, value in one.items() if name in GpuShare.__slots__} for one in item.get("shares", ()))
    return GpuInfo(**known | {"shares": tuple(GpuShare(**one) for one in shares)})


def _in_order(ids: Iterable[int], found: dict[int, Job]) -> list[Job]:
    """``UnknownJob``: one is no longer remembered."""
    for number in ids:
        if number not in found:
            raise UnknownJob(f"job {number} ended and was forgotten", subject=str(number), hint="see queue.keep_jobs")
    return [found[number] for number in ids]
