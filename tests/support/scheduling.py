"""A real daemon in a process of its own, for tests and for benchmarks/crash_matrix.py: started, killed, started again."""

from __future__ import annotations

import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dockless.errors
from dockless.errors import DaemonUnavailable, DocklessError
from dockless.sandbox.spec import Bind, Spec
from dockless.sched import Client, JobSpec, State

SOURCE = Path(dockless.errors.__file__).parent.parent


class DaemonProcess:
    """``dockless daemon`` below ``home``. ``gpus``: a simulation such as ``4x80G``, or none. ``user``: whose it is, by default ours; needs
    root, and a ``python`` that she may run."""

    def __init__(
        self,
        home: Path,
        *,
        gpus: str = "",
        settings: str = "",
        program: tuple[str, ...] = ("-m", "dockless.sched.daemon"),
        python: str = sys.executable,
        user: int | None = None,
    ) -> None:
        self.home = home
        self.program = program
        self.python, self.user = python, user
        places = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
        self.environment = {**os.environ, "DOCKLESS_HOME": str(home), "PYTHONPATH": places, "PYTHONSAFEPATH": "1"}
        self.environment.pop("DOCKLESS_SIMULATED_GPUS", None)
        if gpus:
            self.environment["DOCKLESS_SIMULATED_GPUS"] = gpus
        if settings:
            (home / "dockless.toml").write_text(settings)
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    @property
    def socket(self) -> Path:
        return self.home / "run" / "daemon.sock"

    def start(self, *, wait: bool = True) -> DaemonProcess:
        """Returns when it serves: it says so on the socket that service managers use."""
        self.starts += 1
        name = f"\0dockless-test-{os.getpid()}-{id(self)}-{self.starts}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told, open(self.home / "daemon.err", "ab") as errors:
            told.bind(name)
            told.settimeout(0.2)
            environment = {**self.environment, "NOTIFY_SOCKET": "@" + name[1:]}
            groups = None if self.user is None else list[int]()
            self.process = subprocess.Popen(
                [self.python, *self.program],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                cwd="/",
                user=self.user,
                group=self.user,
                extra_groups=groups,
            )
            deadline = time.monotonic() + 30
            while wait:
                try:
                    if told.recv(100) == b"READY=1":
                        return self
                except TimeoutError:
                    assert self.process.poll() is None, f"the daemon ended: {self.errors()}"
                    assert time.monotonic() < deadline, f"the daemon is not ready: {self.errors()}"
        return self

    def errors(self) -> str:
        return (self.home / "daemon.err").read_text()

    def kill9(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
        assert self.process.wait(30) == 0, self.errors()

    def end(self) -> None:
        """``stop``, and nothing of its jobs goes on."""
        if self.user is None:
            with self.client() as queue:
                _cancel_all(queue)
        else:
            as_user(self.user, self.socket.parent, _cancel_all)
        self.stop()

    def client(self) -> Client:
        return Client(self.socket)


def _cancel_all(queue: Client) -> None:
    jobs = queue.queue()
    for job in jobs:
        queue.cancel(job.id, grace=0)
    queue.wait_many([job.id for job in jobs], timeout=30)


def as_user(uid: int, directory: Path, work: Callable[[Client], Any], *, groups: tuple[int, ...] = ()) -> Any:
    """What ``work`` gives (or the DocklessError it raises) when called with a client in a process of another user. Needs root."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            # By a relative path: the directories above belong to root alone in tests.
            os.chdir(directory)
            os.setgroups(groups)
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            try:
                outcome: Any = work(Client("daemon.sock"))
            except DocklessError as error:
                outcome = error
            with os.fdopen(writer, "wb") as stream:
                pickle.dump(
                    ("error", type(outcome).__name__, str(outcome)) if isinstance(outcome, DocklessError) else ("ok", outcome), stream
                )
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        raw = stream.read()
    os.waitpid(child, 0)
    return pickle.loads(raw)


@dataclass
class Matrix:
    """What ``crash_matrix`` counts; all but ``kills``, ``jobs`` and ``attempts`` have to be 0."""

    kills: int = 0
    jobs: int = 0
    attempts: int = 0
    void: int = 0
    lost: int = 0
    not_ended: int = 0
    run_twice: int = 0
    never_run: int = 0
    exit_codes_lost: int = 0
    ids_reused: int = 0
    sandboxes_left: int = 0
    details: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        faults = (self.lost, self.not_ended, self.run_twice, self.never_run, self.exit_codes_lost, self.ids_reused, self.sandboxes_left)
        return not any(faults)


def crash_matrix(
    home: Path, kills: int, *, seed: int = 1, busy: int = 24, program: tuple[str, ...] = ("-m", "dockless.sched.daemon")
) -> Matrix:
    """Kill the daemon with SIGKILL at ``kills`` random moments while jobs are submitted, started and ended; then look at every job.

    Each job appends a line to a file of its own that is bound into its sandbox, and exits with a code of its own. The seed decides the
    moments as far as a seed can.
    """
    marks = home / "marks"
    marks.mkdir()
    marks.chmod(0o777)
    chance = random.Random(seed)
    daemon = DaemonProcess(home, gpus="4x80G", settings="[host]\ncpu_jobs = 6\n", program=program).start()
    expected: dict[int, int] = {}
    result = Matrix()
    over = threading.Event()

    def submit() -> None:
        dice = random.Random(seed + 1)
        number = 0
        while not over.is_set():
            try:
                with daemon.client() as queue:
                    while not over.is_set():
                        if len(queue.queue()) >= busy:
                            over.wait(0.01)
                            continue
                        codes = [(number + i) % 120 + 1 for i in range(dice.choice((1, 1, 4)))]
                        number += len(codes)
                        jobs = [_marking(marks, code, dice) for code in codes]
                        for job, code in zip(queue.submit_many(jobs), codes, strict=True):
                            result.ids_reused += job in expected
                            expected[job] = code
            except DaemonUnavailable:
                over.wait(0.005)

    submitter = threading.Thread(target=submit)
    submitter.start()
    try:
        while not expected and submitter.is_alive():
            over.wait(0.01)  # until there is a load to be killed under, however slow the machine
        for _ in range(kills):
            # From the first request to a busy second; also while it takes up what the one before left (not waiting for READY).
            over.wait(chance.choice((0.0, 0.02, 0.1, 0.3)) * chance.random())
            daemon.kill9()
            result.kills += 1
            daemon.start(wait=chance.random() < 0.8)
            if chance.random() < 0.2:
                over.wait(0.3 * chance.random())
    finally:
        over.set()
        submitter.join()
    daemon.kill9()
    daemon.start()
    _judge(daemon, marks, expected, result)
    daemon.stop()
    sandboxes = home / "state" / "sandboxes"
    left = sorted(path.name for path in sandboxes.iterdir()) if sandboxes.is_dir() else []
    result.sandboxes_left = len(left)
    result.details += [f"left: {name}" for name in left]
    return result


def _marking(marks: Path, code: int, dice: random.Random) -> JobSpec:
    script = f"echo $DOCKLESS_ATTEMPT >> /marks/$DOCKLESS_JOB_ID; sleep {dice.choice((0, 0, 0.02, 0.2))}; exit {code}"
    gpus = dice.choice(("", "", "1", "2", "4"))
    return JobSpec(Spec(argv=("sh", "-c", script), mounts=(Bind(str(marks), "/marks"),)), gpus=gpus, time_limit=60.0)


def _judge(daemon: DaemonProcess, marks: Path, expected: dict[int, int], result: Matrix) -> None:
    """Wait for every acked job, then compare the queue with what really ran."""
    with daemon.client() as queue:
        for number, code in sorted(expected.items()):
            try:
                job = queue.wait(number, timeout=60)
            except (TimeoutError, DocklessError) as error:
                result.not_ended += 1
                result.details.append(f"job {number}: {error}")
                continue
            detail = queue.job(number)
            result.attempts += len(detail.attempts)
            result.void += sum(1 for attempt in detail.attempts if attempt.state == "VOID")
            mark = marks / str(number)
            runs = mark.read_text().splitlines() if mark.exists() else []
            wrong = job.state is State.LOST, len(runs) > 1, not runs, job.exit_code != code
            result.lost += wrong[0]
            result.run_twice += wrong[1]
            result.never_run += wrong[2]
            result.exit_codes_lost += wrong[3]
            if any(wrong):
                result.details.append(f"job {number}: {job.state} {job.reason!r} exit {job.exit_code} of {code}, ran in attempts {runs}")
        # Jobs whose ack was lost with the daemon are none of the promise, but they too may run only once.
        for mark in marks.iterdir():
            result.run_twice += int(mark.name) not in expected and len(mark.read_text().splitlines()) > 1
        while queue.queue():
            queue.wait_many([job.id for job in queue.queue()], timeout=60)
    result.jobs = len(expected)
