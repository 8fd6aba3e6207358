"""``dockless.submit``: a job for the daemon's queue, and the handle that comes back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dockless._executing import Enterable
from dockless._options import given_options, gpus_wanted, image_and_args, make_spec
from dockless._pulling import present_for, told_whose_store
from dockless.base.checks import check
from dockless.base.dataclass import replace
from dockless.base.typing import TYPE_CHECKING, Any, Literal
from dockless.base.units import parse_duration, parse_time
from dockless.errors import BadInput

if TYPE_CHECKING:
    from typing import Unpack

    from dockless._attaching import Attachment
    from dockless._keywords import Options
    from dockless.base.paths import Argument
    from dockless.sandbox.enter import Entry
    from dockless.sched import Client, Job, JobSpec, LogLine


class Submitted(Enterable):
    """A job in the queue, by its id. Each call is a connection of its own, so a handle can be kept for days.

    While it runs, its owner can enter it: ``exec``, ``shell``, ``spawn`` and ``files`` are those of ``Sandbox``. What enters ends with the
    daemon that let it in.
    """

    def __init__(self, id: int) -> None:
        self.id = id

    def __repr__(self) -> str:
        return f"Submitted(id={self.id})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Submitted) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __int__(self) -> int:
        return self.id

    def status(self) -> Job:
        """The job as it stands, with the reason for which it waits and its attempts."""
        with _connect() as queue:
            return queue.job(self.id)

    def wait(self, timeout: float | None = None) -> Job:
        """Until it has ended. ``TimeoutError`` after ``timeout`` seconds."""
        with _connect() as queue:
            return queue.wait(self.id, timeout=timeout)

    def cancel(self, *, grace: float | None = None) -> Job:
        """End it: a waiting one at once, a running one by its stop signal and ``grace`` seconds later by force."""
        with _connect() as queue:
            return queue.cancel(self.id, grace=grace)

    def hold(self) -> Job:
        """Keep it from starting until it is released. ``Refused`` if it does not wait."""
        with _connect() as queue:
            return queue.hold(self.id)[0]

    def release(self) -> Job:
        """Let it start when its turn comes. ``Refused`` if it does not wait, ``NotPermitted`` if an administrator holds it."""
        with _connect() as queue:
            return queue.release(self.id)[0]

    def requeue(self, *, grace: float | None = None) -> Job:
        """End its running attempt, as ``cancel`` does; then it waits for another. One that has ended is submitted again: the job that
        comes back has another number. ``Refused`` if it waits already."""
        with _connect() as queue:
            return queue.requeue(self.id, grace=grace)[0]

    def logs(self, *, follow: bool = False) -> Iterator[LogLine]:
        """What it wrote; with ``follow`` until it has ended."""
        with _connect() as queue:
            yield from queue.logs(self.id, follow=follow)

    def attach(self) -> Attachment:
        """What it writes from now on, and its terminal or standard input, while it runs. ``SandboxGone``, ``NotPermitted``"""
        from dockless._attaching import to_job

        return to_job(self.id)

    def _about(self) -> tuple[str, str]:
        return f"job {self.id}", self.status().image

    def _enter(self, entry: Entry, stdio: tuple[int, int, int], **how: Any) -> Any:
        from dockless.sched.wire import entered

        return entered.enter(self.id, entry, stdio, **how)


def _connect() -> Client:
    from dockless.sched import connect

    return connect()


def make_job(
    image: str,
    args: Sequence[str],
    options: dict[str, Any],
    *,
    priority: int = 0,
    time_limit: str | float | None = None,
    name: str = "",
    group: str = "",
    on_reboot: Literal["requeue", "fail"] = "fail",
    hold: bool = False,
    begin: str | float | None = None,
    after: str | Sequence[str] = (),
    singleton: bool = False,
    retries: int = 0,
    retry_on: Sequence[int] = (),
    warn: str = "",
    notify: str | Sequence[str] = (),
    notify_to: str = "",
) -> JobSpec:
    """The job of these keywords; GPUs are asked for here and leased by the daemon."""
    from dockless.sched.jobs import JobSpec, parse_after, parse_events, parse_warning

    check("after", after, str | Sequence[str])
    check("retry_on", retry_on, Sequence[int])
    check("notify", notify, str | Sequence[str])
    options = given_options(options)
    if options.get("labels"):
        raise BadInput("a job of the queue has no labels", subject="labels", hint="give it a name, or a group")
    gpus = gpus_wanted(options)
    check("warn", warn, str)
    warn_signal, warn_before = parse_warning(warn)
    others, alone = parse_after(after if isinstance(after, str) else ",".join(after))
    return JobSpec(
        make_spec(image, args, **options),
        gpus="" if gpus is None else str(gpus),
        priority=priority,
        time_limit=0.0 if time_limit is None else parse_duration(time_limit, "time_limit"),
        name=name,
        group=group,
        on_reboot=on_reboot,
        hold=hold,
        begin=0.0 if begin is None else parse_time(begin, "begin"),
        after=others,
        singleton=singleton or alone,
        retries=retries,
        retry_on=tuple(retry_on),
        warn_signal=warn_signal,
        warn_before=warn_before,
        notify=parse_events(notify or ()),
        notify_to=notify_to,
    )


def submit(
    image: str | Sequence[Argument] | None = None,
    args: Sequence[Argument] | None = None,
    *,
    priority: int = 0,
    time_limit: str | float | None = None,
    name: str = "",
    group: str = "",
    on_reboot: Literal["requeue", "fail"] = "fail",
    hold: bool = False,
    begin: str | float | None = None,
    after: str | Sequence[str] = (),
    singleton: bool = False,
    retries: int = 0,
    retry_on: Sequence[int] = (),
    warn: str = "",
    notify: str | Sequence[str] = (),
    notify_to: str = "",
    **options: Unpack[Options],
) -> Submitted:
    """Queue a command; when this returns the job is on disk. It runs as the calling user as soon as the policy lets it.

    ``time_limit``: seconds or ``"2h"``; a job with one can be fitted in before a wide job that waits. ``hold``: it waits until it is
    released. ``begin``: not before that time, ``"2026-01-31T08:00:00Z"`` (without a zone UTC), ``"+2h"`` or seconds since 1970. ``after``:
    when other jobs have ended, ``"ok:12"``, ``"not-ok:12"`` or ``"any:12"``; it is cancelled where that cannot be any more. ``singleton``:
    when no older job of this user and name is left. ``retries``: how often it runs again when it failed, ``retry_on``: after these exit
    codes alone. ``warn``: ``"USR1@2m"``, a signal so long before its time limit. Every other keyword: ``Options``.
    ``notify``: what its owner is told of, ``"end,fail"`` (also start, preempt, idle), where the administrator has said how; ``notify_to``:
    at which address for mail, instead of her own.
    The image is pulled before that, where the daemon's store is the caller's.
    Errors: ``DaemonUnavailable``, ``Refused``, ``NotEnoughGpus``, ``UnknownImage``, ``LimitUnavailable``, ``NotPermitted``.
    """
    reference, arguments = image_and_args(image, args)
    policy = options.get("pull") or "missing"
    job = make_job(
        reference, arguments, dict(options), priority=priority, time_limit=time_limit, name=name, group=group, on_reboot=on_reboot,
        hold=hold, begin=begin, after=after, singleton=singleton, retries=retries, retry_on=retry_on, warn=warn,
        notify=notify, notify_to=notify_to,
    )  # fmt: skip
    with _connect() as queue:
        daemon = queue.ping()
    reference = present_for(daemon, reference, policy, platform=options.get("platform"))
    with _connect() as queue, told_whose_store(daemon, reference):
        return Submitted(queue.submit(replace(job, spec=replace(job.spec, image=reference))))
