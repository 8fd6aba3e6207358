"""``dockless.submit``, ``dockless.submit_file``: jobs for the daemon's queue, and the handles that come back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from dockless._executing import Enterable
from dockless._options import given_items, given_options, gpus_wanted, image_and_args, make_spec, unknown_keyword
from dockless._pulling import present_for, told_whose_store
from dockless.base.checks import check
from dockless.base.dataclass import dataclass, field, replace
from dockless.base.text import shown
from dockless.base.typing import TYPE_CHECKING, Any, overload
from dockless.base.units import parse_duration, parse_time
from dockless.errors import BadInput

if TYPE_CHECKING:
    from typing import Unpack

    from dockless._attaching import Attachment
    from dockless._keywords import QueueOptions, SubmitOptions
    from dockless.base.paths import Argument, StrPath
    from dockless.sandbox.enter import Entry
    from dockless.sched import Client, Job, JobSpec, LogLine
    from dockless.sched.parsing import ArrayCount
    from dockless.sched.wire.protocol import DaemonInfo


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


def make_job(image: str, args: Sequence[str], options: dict[str, Any], **queue: Unpack[QueueOptions]) -> JobSpec:
    """The job of these keywords; GPUs are asked for here and leased by the daemon. ``options``: of its sandbox."""
    from dockless._keywords import QueueOptions
    from dockless.sched.jobs import JobSpec
    from dockless.sched.parsing import parse_after, parse_events, parse_warning

    fields: dict[str, Any] = dict(queue)
    for name in fields:
        if name not in QueueOptions.__annotations__:
            raise unknown_keyword(name, QueueOptions.__annotations__)
    after, warn = fields.pop("after", ()), fields.pop("warn", "")
    check("after", after, str | Sequence[str])
    check("warn", warn, str)
    options = given_options(options)
    if options.get("labels"):
        raise BadInput("a job of the queue has no labels", subject="labels", hint="give it a name, or a group")
    gpus = gpus_wanted(options)
    for name, read in (("time_limit", parse_duration), ("begin", parse_time)):
        if name in fields:
            fields[name] = 0.0 if fields[name] is None else read(fields[name], name)
    if "retry_on" in fields:
        check("retry_on", fields["retry_on"], Sequence[int])
        fields["retry_on"] = tuple(fields["retry_on"])
    if "notify" in fields:
        check("notify", fields["notify"], str | Sequence[str])
        fields["notify"] = parse_events(fields["notify"] or ())
    fields["warn_signal"], fields["warn_before"] = parse_warning(warn)
    fields["after"], alone = parse_after(after if isinstance(after, str) else ",".join(after))
    if alone:
        fields["singleton"] = True
    return JobSpec(make_spec(image, args, **options), gpus="" if gpus is None else str(gpus), **fields)


@dataclass(frozen=True, slots=True)
class Order:
    """What is queued at once, all or nothing. ``array``: of the one job so many; ``together``: they start together. ``pulls``: what is said
    of how each image is pulled, ``pull`` and ``platform``. ``mail_if_possible``: a host that sends no notices takes them all the same."""

    jobs: tuple[JobSpec, ...]
    array: ArrayCount | None = None
    together: bool = False
    pulls: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    mail_if_possible: bool = False


def queued(
    order: Order,
    bring: Callable[[DaemonInfo, str, Mapping[str, Any]], str],
    tell: Callable[[str], object],
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[int], DaemonInfo]:
    """Pull what is missing, queue it; the jobs' ids, of those that start together the first stands for all. ``bring``: an image, by what is
    said of it; gives the name that it has then. ``tell``: told what is left out. ``progress``: as in ``Client.submit_many``."""
    with _connect() as queue:
        daemon = queue.ping()
    jobs = list(order.jobs)
    if order.mail_if_possible and not daemon.notices and any(job.notify for job in jobs):
        jobs = [replace(job, notify=(), notify_to="") for job in jobs]
        tell("no mail is sent: the settings of this host do not say how")
    names = dict.fromkeys(job.spec.image for job in jobs)
    images = {name: bring(daemon, name, order.pulls.get(name, {})) for name in names}
    jobs = [replace(job, spec=replace(job.spec, image=images[job.spec.image])) for job in jobs]
    with _connect() as queue, told_whose_store(daemon, " ".join(images.values())):
        if order.array is not None:
            return queue.submit_array(replace(jobs[0], array_limit=order.array.limit), int(order.array)), daemon
        return queue.submit_gang(jobs) if order.together else queue.submit_many(jobs, progress=progress), daemon


def submitted(order: Order) -> list[Submitted]:
    """The same from Python."""
    import warnings

    def bring(daemon: DaemonInfo, image: str, said: Mapping[str, Any]) -> str:
        return present_for(daemon, image, said.get("pull") or "missing", platform=said.get("platform"))

    ids, _ = queued(order, bring, lambda text: warnings.warn(text, stacklevel=5))
    return [Submitted(number) for number in ids]


@overload
def submit(
    image: str | Sequence[Argument] | None = None, args: Sequence[Argument] | None = None, **options: Unpack[SubmitOptions]
) -> Submitted: ...
@overload
def submit(
    image: str | Sequence[Argument] | None = None,
    args: Sequence[Argument] | None = None,
    *,
    array: str | int,
    **options: Unpack[SubmitOptions],
) -> list[Submitted]: ...
@overload
def submit(
    image: str | Sequence[Argument] | None = None,
    args: Sequence[Argument] | None = None,
    *,
    array: str | int | None,
    **options: Unpack[SubmitOptions],
) -> Submitted | list[Submitted]: ...
def submit(
    image: str | Sequence[Argument] | None = None,
    args: Sequence[Argument] | None = None,
    *,
    array: str | int | None = None,
    **options: Unpack[SubmitOptions],
) -> Submitted | list[Submitted]:
    """Queue a command; when this returns the job is on disk. It runs as the calling user as soon as the policy lets it.

    ``array``: so many jobs of it, ``100`` or ``"0-99%4"`` for at most four at once, each with its DOCKLESS_ARRAY_INDEX; their handles come
    back. ``options``: those of the queue, ``dockless.QueueOptions``, and of its sandbox, ``dockless.Options``. The image is pulled before
    that, where the daemon's store is the caller's.
    Errors: ``DaemonUnavailable``, ``Refused``, ``NotEnoughGpus``, ``UnknownImage``, ``LimitUnavailable``, ``NotPermitted``, ``BadInput``.
    """
    from dockless._keywords import Options, QueueOptions
    from dockless.sched.parsing import parse_array

    reference, arguments = image_and_args(image, args)
    sandbox: dict[str, Any] = dict(options)
    known = {**Options.__annotations__, **QueueOptions.__annotations__}
    if unknown := sorted(sandbox.keys() - known.keys()):
        raise unknown_keyword(unknown[0], known)
    queue_options: Any = {name: sandbox.pop(name) for name in QueueOptions.__annotations__ if name in sandbox}
    job = make_job(reference, arguments, sandbox, **queue_options)
    pulls = {reference: {name: sandbox.get(name) for name in ("pull", "platform")}}
    jobs = submitted(Order((job,), None if array is None else parse_array(array), pulls=pulls))
    return jobs[0] if array is None else jobs


def submit_file(
    path: StrPath | None = None,
    *,
    text: str | None = None,
    format: str = "",
    arguments: Sequence[str] = (),
    array: str | int | None = None,
    **queue: Unpack[QueueOptions],
) -> list[Submitted]:
    """Queue what a job file describes, all of it or nothing; when this returns the jobs are on disk. The handles of all jobs: of those that
    start together the first stands for all.

    ``path``, or its ``text``, in one of the formats of docs/queue.md; ``format``: one of them, by default as it looks. ``arguments``: of a
    batch script. ``array``: as in ``dockless.submit``. ``queue``: instead of what the file says. What of the file has no effect is a
    ``UserWarning``. ``BadInput`` with a note for each further mistake; errors as those of ``dockless.submit``.
    """
    import warnings

    order, notes = order_of_file(path, text=text, format=format, arguments=arguments, array=array, **queue)
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return submitted(order)


def order_of_file(
    path: StrPath | None = None,
    *,
    text: str | None = None,
    format: str = "",
    arguments: Sequence[str] = (),
    array: str | int | None = None,
    **queue: Unpack[QueueOptions],
) -> tuple[Order, tuple[str, ...]]:
    """What ``submit_file`` queues, and what of the file has no effect. ``BadInput``"""
    from dockless._jobfiles import order_of, read_job_file, read_text
    from dockless._keywords import QueueOptions
    from dockless.sched.parsing import parse_array

    if (path is None) == (text is None):
        raise BadInput("a job file is a path or a text", subject="path", hint="dockless.submit_file(PATH), or text=…")
    for name in queue:
        if name not in QueueOptions.__annotations__:
            raise unknown_keyword(name, QueueOptions.__annotations__)
    check("text", text, str | None)
    check("format", format, str)
    arguments = given_items(arguments)
    if isinstance(arguments, str):
        raise BadInput(f"arguments is one text, {shown(arguments)}, not a list", subject="arguments", hint="give a list of texts")
    check("arguments", arguments, Sequence[str])
    what = "text" if path is None else os.fspath(path)
    if text is None:
        file = read_job_file(os.path.join(".", what) if what == "-" else what, format=format, arguments=arguments)
    else:
        file = read_text(text, what, os.getcwd(), format, arguments)
    return order_of(file, what, array=None if array is None else parse_array(array), **queue), file.notes


def cancel_all(jobs: Sequence[Submitted]) -> None:
    """At once, those that have not ended."""
    with _connect() as queue:
        queue.cancel_many([job.id for job in jobs], grace=0)
