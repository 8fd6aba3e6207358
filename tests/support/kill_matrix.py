"""kill -9 of the daemon, or of a keeper, at each of its writes, fsyncs, renames, clones and answers: what becomes of the jobs.

Each run is one life: jobs of all kinds are submitted to a daemon that dies at one chosen call (``faults``), the next daemon takes up
what it left, and then every job whose submission was acknowledged is looked at: ``Cell`` says what must be 0.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from support.faults import DEADLINE, Fault, Faulty

from dockless.errors import DaemonUnavailable, DocklessError, Refused
from dockless.sandbox.spec import Bind, Spec
from dockless.sched import Client, Job, JobSpec, State

WHOM = ("daemon", "keeper")
ORDERS = "orders"
"""The daemon again, in a life with what is asked of jobs: ``OrderedLife``."""
FULL = ("full", "enospc")
COUNTS = ("lost", "double", "orphan", "wrong_exit", "unclear")


@dataclass
class Cell:
    """Runs in which ``whom`` died, or the disk was full, at one kind of call. ``points``: such calls of an undisturbed run. ``killed``:
    runs that got there. ``refused``: runs in which a request or a start of the daemon was refused, with the next step. ``lost``: jobs
    that were acknowledged and are unknown, have not ended, or are LOST without their keeper having been killed; ``double``: that ran in
    two attempts, or though they were refused; ``orphan``: sandboxes, GPUs, groups or processes that were left; ``wrong_exit``: another
    end than the program's; ``unclear``: errors that nobody expected, or without a next step."""

    whom: str
    call: str
    points: int = 0
    killed: int = 0
    refused: int = 0
    lost: int = 0
    double: int = 0
    orphan: int = 0
    wrong_exit: int = 0
    unclear: int = 0
    details: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not any(getattr(self, name) for name in COUNTS)


@dataclass
class Wanted:
    """A job whose submission was acknowledged, and how it has to end: state and exit code."""

    kind: str
    end: tuple[State, int | None]


def matrix(place: Path, whom: str, most: int = 0, said: Callable[[str], None] = lambda line: None) -> list[Cell]:
    """A row for each kind of call: all calls of an undisturbed run, or ``most`` of them spread over all."""
    life = FullLife if whom in FULL else OrderedLife if whom == ORDERS else Life
    points = life(place, whom, 0).run()
    cells = {name: Cell(whom, name) for name in sorted({point.split()[0] for point in points})}
    for point in points:
        cells[point.split()[0]].points += 1
    numbers = range(1, len(points) + 1)
    if most and most < len(points):
        numbers = sorted({1 + (len(points) - 1) * i // (most - 1) for i in range(most)})
    for at in numbers:
        one = life(place, whom, at)
        one.run()
        if one.failed:  # threads take turns in another order each time: the call is of the kind that it was this time
            cell = cells.setdefault(one.failed.split()[0], Cell(whom, one.failed.split()[0]))
            cell.killed += 1
            cell.refused += one.refused > 0
            for name in COUNTS:
                setattr(cell, name, getattr(cell, name) + len(one.wrong[name]))
                cell.details += [f"{whom} at {at} ({one.failed}): {name}: {what}" for what in one.wrong[name]]
            said(f"{whom} {at} of {len(points)} {one.failed}: {sum(map(len, one.wrong.values()))} wrong")
    return list(cells.values())


class Life:
    """One run below ``place``, which it makes anew."""

    def __init__(self, place: Path, whom: str, at: int) -> None:
        self.home, self.marks = place / "h", place / "marks"
        self.whom, self.at = whom, at
        self.failed = ""
        self.refused = 0
        self.wanted: dict[int, Wanted] = {}
        self.cancelled = False
        self.wrong: dict[str, list[str]] = {name: [] for name in COUNTS}
        for directory in (self.home, self.marks):
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            directory.chmod(0o777)
        (self.marks / "gate").mkdir(mode=0o755)
        (self.home / "daemon.err").touch()

    def run(self) -> list[str]:
        """The calls that were counted."""
        faulty = Faulty(self.home, Fault("kill", self.at, "daemon" if self.whom == ORDERS else self.whom))
        faulty.start(self._serve)
        story = threading.Thread(target=self._story, args=(faulty.pidfd,))
        story.start()
        try:
            story.join(DEADLINE)
            assert not story.is_alive(), f"the story does not end: {self._errors()}"
            (self.marks / "gate" / "go").touch()
            with contextlib.suppress(DaemonUnavailable):  # the one that is to die may do so now
                if not select.select([faulty.pidfd], [], [], 0)[0]:
                    self._wait_for_all()
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(faulty.pidfd, signal.SIGTERM)
            assert select.select([faulty.pidfd], [], [], DEADLINE)[0], "the daemon does not end"
            second = os.fork()
            if second == 0:
                self._serve_and_exit()
            pidfd = os.pidfd_open(second)
            try:
                self._judge(pidfd)
            finally:
                signal.pidfd_send_signal(pidfd, signal.SIGTERM)
                _, status = os.waitpid(second, 0)
                os.close(pidfd)
            assert os.waitstatus_to_exitcode(status) == 0, self._errors()
        finally:
            outcome = faulty.finish(patience=0.1)  # whatever runs on now is found below
        self.failed = outcome.failed
        self._look_for_orphans()
        return list(outcome.points)

    def _look_for_orphans(self) -> None:
        left = sorted(path.name for path in (self.home / "state" / "sandboxes").glob("*"))
        self.wrong["orphan"] += [f"sandbox {name}" for name in left]
        self.wrong["orphan"] += [f"group {name}" for name in _groups(self.home)] + [f"process {words}" for words in _keepers(self.home)]

    # -- the daemon

    def _serve(self) -> int:
        import sys

        from dockless.sched import daemon

        os.environ |= {"DOCKLESS_HOME": str(self.home), "DOCKLESS_SIMULATED_GPUS": "1x80G"}
        sys.stderr = (self.home / "daemon.err").open("a", buffering=1)
        return daemon.main()

    def _serve_and_exit(self) -> NoReturn:
        code = 70
        try:
            code = self._serve()
        finally:
            os._exit(code)

    def _errors(self) -> str:
        return (self.home / "daemon.err").read_text()

    @contextlib.contextmanager
    def _client(self, daemon: int) -> Iterator[Client]:
        """As soon as it answers. ``daemon``: its pidfd. ``DaemonUnavailable`` where it has died."""
        until = time.monotonic() + DEADLINE / 2
        while True:
            client = Client(self.home / "run" / "daemon.sock", patience=0.0)
            try:
                client.ping()
                break
            except DaemonUnavailable:
                client.close()
                if select.select([daemon], [], [], 0.01)[0]:
                    raise
                assert time.monotonic() < until, self._errors()
        with client:
            yield client

    # -- the jobs

    def _job(self, kind: str, script: str, **more: Any) -> JobSpec:
        """It marks when it begins, and when it has done its work."""
        script = f"echo $DOCKLESS_ATTEMPT >> /marks/{kind}-$DOCKLESS_JOB_ID; {script}"
        return JobSpec(Spec(argv=("sh", "-c", script), mounts=(Bind(str(self.marks), "/marks"),)), name=kind, **more)

    def _story(self, daemon: int) -> None:
        """Submissions and a cancel, as long as a daemon answers."""
        waits = "until [ -e /marks/gate/go ]; do sleep 0.02; done"
        ended = State.FAILED
        with contextlib.suppress(DaemonUnavailable), self._client(daemon) as queue:
            array = self._ask(lambda: queue.submit_array(self._job("array", "exit 7"), 2))
            self.wanted |= {number: Wanted("array", (ended, 7)) for number in array}
            job = self._job("gpu", "echo done > /marks/done-$DOCKLESS_JOB_ID; exit 0", gpus="1")
            self.wanted[self._submit(queue, job)] = Wanted("gpu", (State.COMPLETED, 0))
            job = self._job("across", f"{waits}; exit 9", on_reboot="fail")
            self.wanted[self._submit(queue, job)] = Wanted("across", (ended, 9))
            number = self._submit(queue, self._job("cancelled", "sleep 1000", on_reboot="requeue"))
            self.wanted[number] = Wanted("cancelled", (State.CANCELLED, None))
            while queue.job(number).state is State.PENDING:
                time.sleep(0.01)
            self._ask(lambda: queue.cancel(number, grace=0))
            self.cancelled = True
            queue.wait_many([one for one, wanted in self.wanted.items() if wanted.kind != "across"], timeout=DEADLINE)

    def _submit(self, queue: Client, job: JobSpec) -> int:
        number: int = self._ask(lambda: queue.submit(job))
        return number

    def _ask(self, request: Callable[[], Any]) -> Any:
        return request()

    def _wait_for_all(self) -> None:
        with Client(self.home / "run" / "daemon.sock", patience=0.0) as queue:
            queue.wait_many(list(self.wanted), timeout=DEADLINE)

    def _judge(self, daemon: int) -> None:
        """By the daemon that came after."""
        wrong = self.wrong
        with self._client(daemon) as queue:
            for number, wanted in self.wanted.items():
                if wanted.kind == "cancelled" and not self.cancelled:
                    queue.cancel(number, grace=0)
                self._ask_again(queue, number, wanted)
            for number, wanted in self.wanted.items():
                try:
                    job = queue.wait(number, timeout=DEADLINE / 2)
                except (TimeoutError, DocklessError) as error:
                    wrong["lost"].append(f"{wanted.kind} {number}: {error}")
                    continue
                self._judge_end(job, wanted)
            while queue.queue():  # those whose acknowledgement was lost
                for job in queue.queue():
                    if job.name in ("cancelled", "held", "again"):  # they do not end by themselves
                        queue.cancel(job.id, grace=0)
                queue.wait_many([job.id for job in queue.queue()], timeout=DEADLINE / 2)
            if holder := queue.info().gpus[0].job:
                wrong["orphan"].append(f"the GPU is held by job {holder}")
            again = queue.submit(JobSpec(Spec(argv=("true",)), gpus="1"))
            if again in self.wanted:
                wrong["double"].append(f"number {again} was given again")
            if queue.wait(again, timeout=DEADLINE / 2).state is not State.COMPLETED:
                wrong["lost"].append("the next job with a GPU")
        for mark in self.marks.glob("*-*"):
            if len(mark.read_text().split()) > (2 if mark.name.startswith(("again-", "together-")) else 1):
                wrong["double"].append(f"{mark.name} ran in attempts {mark.read_text().split()}")

    def _ask_again(self, queue: Client, number: int, wanted: Wanted) -> None:
        """Of the daemon that came after, what the one before has not acknowledged."""

    def _judge_end(self, job: Job, wanted: Wanted) -> None:
        what = f"{wanted.kind} {job.id}: {job.state} {job.reason!r} exit {job.exit_code}"
        if self.whom == "keeper" and job.state is State.LOST and job.reason:
            return  # nobody can know, and it says so
        if self.whom == "keeper" and job.reason.startswith("not started: "):
            ran = (self.marks / f"{wanted.kind}-{job.id}").exists()
            if ran or job.state not in (State.FAILED, State.CANCELLED):
                self.wrong["wrong_exit"].append(f"{what}, {'and it ran' if ran else 'and it did not run'}")
            return
        if job.state is State.LOST:
            self.wrong["lost"].append(what)
        elif wanted.kind == "cancelled":
            if job.state is not State.CANCELLED:
                self.wrong["wrong_exit"].append(what)
        elif (job.state, job.exit_code) != wanted.end:
            self.wrong["wrong_exit"].append(what)
        elif wanted.kind == "gpu" and not (self.marks / f"done-{job.id}").exists():
            self.wrong["wrong_exit"].append(f"{what}, which did not run to its end")


class OrderedLife(Life):
    """A job that is held and released, one that is requeued while it runs, one that reaches its time limit, one that waits for the end of
    another, and two that start together and end together: also for the second time, where only one of them had started when the daemon
    died."""

    def _story(self, daemon: int) -> None:
        self.released = self.requeued = False
        with contextlib.suppress(DaemonUnavailable), self._client(daemon) as queue:
            held = self._submit(queue, self._job("held", "exit 3", hold=True))
            self.wanted[held] = Wanted("held", (State.FAILED, 3))
            script = "[ -e /marks/tried ] && exit 6; echo > /marks/tried; exec sleep 1000"
            again = self._submit(queue, self._job("again", script))
            self.wanted[again] = Wanted("again", (State.FAILED, 6))
            limited = self._submit(queue, self._job("limited", "exec sleep 1000", time_limit=1.0))
            self.wanted[limited] = Wanted("limited", (State.TIMEOUT, 124))
            first = self._submit(queue, self._job("first", "sleep 0.1; echo > /marks/ended; exit 0"))
            self.wanted[first] = Wanted("first", (State.COMPLETED, 0))
            after = self._submit(queue, self._job("after", "[ -e /marks/ended ] && exit 4; exit 5", after=(f"ok:{first}",)))
            self.wanted[after] = Wanted("after", (State.FAILED, 4))
            gang = [self._job("together", "exit 0", role="one", gpus="1"), self._job("together", "exit 0", role="other")]
            together = self._ask(lambda: queue.submit_gang(gang))
            self.wanted |= {number: Wanted("together", (State.COMPLETED, 0)) for number in together}
            queue.release(held)
            self.released = True
            while not (self.marks / "tried").exists():
                queue.ping()
                time.sleep(0.01)
            queue.requeue(again, grace=0)
            self.requeued = True
            queue.wait_many(list(self.wanted), timeout=DEADLINE)

    def _ask_again(self, queue: Client, number: int, wanted: Wanted) -> None:
        """What the daemon that died has not acknowledged; it may have come to it all the same."""
        job = queue.job(number)
        if wanted.kind == "held" and not self.released and job.options.held:
            queue.release(number)
        if wanted.kind == "again" and not self.requeued:
            while not (self.marks / "tried").exists():
                time.sleep(0.01)
            job, ran = queue.job(number), (self.marks / f"again-{number}").read_text().split()
            if job.state in (State.STARTING, State.RUNNING) and not job.options.requeue and ran == [str(job.attempt)]:
                with contextlib.suppress(Refused):  # it is just being requeued
                    queue.requeue(number, grace=0)

    def _wait_for_all(self) -> None:
        """Those of whom all is asked: of the others ``_judge`` asks."""
        with Client(self.home / "run" / "daemon.sock", patience=0.0) as queue:
            asked = [n for n, one in self.wanted.items() if {"held": self.released, "again": self.requeued}.get(one.kind, True)]
            queue.wait_many(asked, timeout=DEADLINE)


def _groups(home: Path) -> list[str]:
    """Control groups of the sandboxes below ``home``."""
    from dockless.cgroups import find_delegation

    place = find_delegation(ask_systemd=False)
    if place.path is None:
        return []
    return [path.name for where in ("job-*", "user-*/job-*") for path in place.home.glob(where) if _is_ours(path.name, home)]


def _keepers(home: Path) -> list[str]:
    """The command lines of their keepers."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace").split()
            if words[:1] == ["dockless"] and len(words) > 1 and _is_ours(words[1], home):
                found.append(" ".join(words))
    return found


def _is_ours(group: str, home: Path) -> bool:
    from dockless.sandbox.run.host_names import directory_of

    return bool(directory_of(group, home / "state" / "sandboxes"))


class FullLife(Life):
    """One run on a disk that is full from one call on (``full``) until shortly after it was noticed, or at that call alone (``enospc``).
    The same daemon goes on; what it refused is asked for again."""

    def run(self) -> list[str]:
        faulty = Faulty(self.home, Fault(self.whom, self.at))
        faulty.start(self._serve)
        over = threading.Event()
        healer = threading.Thread(target=self._heal, args=(faulty, over))
        healer.start()
        try:
            served = self._lived(faulty.pidfd)
        finally:
            over.set()
            healer.join()
            outcome = faulty.finish(patience=0.1)
        self.failed = outcome.failed
        if outcome.error is not None:
            self._refuse(outcome.error.text, outcome.error.ours and outcome.error.hint)
        elif not served:
            self.wrong["unclear"].append(f"the daemon ended: {self._errors()}")
        second = Faulty(Path("/nowhere"))
        second.start(self._serve)
        try:
            if not self.wanted:
                self._story(second.pidfd)
            (self.marks / "gate" / "go").touch()
            self._judge(second.pidfd)
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(second.pidfd, signal.SIGTERM)
            ended = second.finish(patience=0.1)
        if ended.trace:
            self.wrong["unclear"].append(ended.trace)
        if "unexpected" in self._errors() or "Traceback" in self._errors():
            self.wrong["unclear"].append(self._errors())
        for mark in self.marks.glob("*-*"):
            if int(mark.name.rpartition("-")[2]) not in self.wanted:
                self.wrong["double"].append(f"{mark.name} ran, though it was refused")
        self._look_for_orphans()
        return list(outcome.points)

    def _heal(self, faulty: Faulty, over: threading.Event) -> None:
        while not faulty.outcome.failed:
            if over.wait(0.01):
                return
        over.wait(0.3)
        faulty.heal()

    def _lived(self, daemon: int) -> bool:
        """The whole story with the daemon whose disk fails. False: it ended by itself."""
        try:
            self._story(daemon)
            (self.marks / "gate" / "go").touch()
            if self.wanted:
                self._wait_for_all()
            ended = bool(select.select([daemon], [], [], 0)[0])
        except DaemonUnavailable:
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(daemon, signal.SIGTERM)
        assert select.select([daemon], [], [], DEADLINE)[0], "the daemon does not end"
        return not ended

    def _ask(self, request: Callable[[], Any]) -> Any:
        until = time.monotonic() + DEADLINE / 2
        while True:
            try:
                return request()
            except DaemonUnavailable:
                raise
            except DocklessError as error:
                self._refuse(str(error), error.hint)
                if time.monotonic() > until:
                    raise
            time.sleep(0.05)

    def _refuse(self, text: str, hint: object) -> None:
        self.refused += 1
        if not hint:
            self.wrong["unclear"].append(f"no next step: {text}")
