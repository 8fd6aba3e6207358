"""A walk over the public API: hypothesis draws what is done next, with which sandbox, from which thread or loop, and what is killed.

What a call has to give is known as long as nothing upset its sandbox; else it may be refused, by an error of ours, but what it gives is
right.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from support.apart import marked_by
from support.boxes import until
from walk import keyed, verbs
from walk.lanes import Cancelled, Lane, lanes
from walk.verbs import CALM, ENDED, REFUSED, UPSETTING, Known, Try
from walk.wholes import WHOLES

import dockless
from dockless import DEVNULL, PIPE, Sandbox
from dockless.cli import main
from dockless.errors import DocklessError, SandboxGone

HERE = Path(__file__).resolve().parent
PATIENCE = 180.0
"""Seconds for one call."""
LANES = ("here", "thread", "loop 1", "loop 2", "trio")
MOST = 6
"""Sandboxes at a time."""
ASKED = (
    ("ps", "-a"), ("prune",), ("prune", "--sandboxes", "-y"), ("volume", "ls"), ("volume", "prune", "-y"), ("df",), ("images",),
    ("stats", "--json", "--no-stream"), ("info",),
)  # fmt: skip
KINDS = ("detached", "detached", "foreground", "removed", "created", "policy", "policy")
lane = st.sampled_from(LANES)
number = st.integers(0, 1 << 16)


@dataclass
class Walked:
    """All that the machines of one run have done."""

    image: str = ""
    daemon: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)
    failure: BaseException | None = None
    hangs: bool = False
    tell: bool = False

    def note(self, what: str, *with_: object) -> None:
        watch()
        self.operations[what] += 1
        self.trace.append(" ".join(map(str, (what, *with_))))
        if self.tell:
            print(f"{sum(self.operations.values()):6} {self.trace[-1]}", file=sys.stderr, flush=True)

    @property
    def steps(self) -> int:
        return sum(self.operations.values())


walked = Walked()


def watch() -> None:
    """From now on the main thread has some time for its next step. Where it takes longer, it fails there; what cannot be interrupted ends
    the walk."""
    signal.signal(signal.SIGALRM, _late)
    signal.setitimer(signal.ITIMER_REAL, 3 * PATIENCE)  # some steps wait for two ends
    faulthandler.dump_traceback_later(4 * PATIENCE, exit=True)


def watch_no_more() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    faulthandler.cancel_dump_traceback_later()


def _late(number: int, frame: object) -> None:
    walked.hangs = True
    faulthandler.dump_traceback()
    raise AssertionError(f"{walked.trace[-1].split()[0]} hangs")


@dataclass(eq=False)
class Open:
    """A command that stays open from step to step: it says lines without end, or gives back what it is told."""

    command: Any
    known: Known
    kind: str
    reader: keyed.Reader
    told: int = 0


@dataclass(eq=False)
class Client:
    """Another program that uses the API."""

    process: subprocess.Popen[bytes]
    said: Any


def kept(deed: Callable[..., None]) -> Callable[..., None]:
    """The first failure as it was: hypothesis would try it again, and what it then says is about that."""

    @functools.wraps(deed)
    def call(self: Walk, **drawn: Any) -> None:
        if walked.failure is None:
            try:
                deed(self, **drawn)
            except BaseException as error:
                walked.failure = error
                raise

    return call


def step(**drawn: Any) -> Callable[[Callable[..., None]], Any]:
    """A rule. None has a precondition: what is there depends on who was killed when, and hypothesis wants to draw the same again."""
    return lambda deed: rule(**drawn)(kept(deed))


class Walk(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.lanes: dict[str, Lane] = lanes()
        self.boxes: list[Known] = []
        self.open: list[Open] = []
        self.clients: list[Client] = []

    # -- how a call is made and judged

    def _start(self, what: str, known: Known, at: str, n: int, calm: bool, cancel: float | None) -> Future[Any]:
        walked.note(what, known.key, at, n, "" if calm else "upset", "" if cancel is None else f"cancel {cancel}")
        verb = CALM.get(what) or UPSETTING.get(what) or ENDED[what]
        one = Try(known, self.lanes[at], calm, n)
        return self.lanes[at].start(lambda _: verb(one), cancel)

    def _judge(self, what: str, calm: bool, done: Future[Any]) -> None:
        if not wait([done], PATIENCE).done:
            walked.hangs = True
            faulthandler.dump_traceback()
            raise AssertionError(f"{what} hangs")
        try:
            done.result()
        except Cancelled:
            walked.refused["cancelled"] += 1
        except REFUSED as error:
            if calm:
                raise
            walked.refused[f"{what}: {type(error).__name__}"] += 1

    def _calm(self, known: Known) -> bool:
        return known.alive is True

    def _upset(self, known: Known, what: str) -> None:
        known.alive = None
        self._close_all(known)
        if what == "remove":
            self._forget(known)

    def _forget(self, known: Known) -> None:
        self.boxes.remove(known)
        self._close_all(known)
        for box in (known.found, known.box):
            if box is not None:
                box.__exit__(None, None, None)

    def _close_all(self, known: Known) -> None:
        for one in [one for one in self.open if one.known is known]:
            self._close(one)

    def _may(self, known: Known, what: str) -> bool:
        return known.image != verbs.HOST or what not in verbs.ON_IMAGES

    def _pick(self, at: int) -> Known:
        return self.boxes[at % len(self.boxes)]

    # -- sandboxes come

    @initialize()
    @kept
    def first(self) -> None:
        self._begin("here", 0, False, "detached")

    @step(at=lane, n=number, host=st.booleans(), kind=st.sampled_from(KINDS))
    def begin(self, at: str, n: int, host: bool, kind: str) -> None:
        if len(self.boxes) < MOST:
            self._begin(at, n, host, kind)

    def _begin(self, at: str, n: int, host: bool, kind: str) -> None:
        key, image = verbs.fresh("b"), verbs.HOST if host else walked.image
        options: dict[str, Any] = {"labels": {"walk": key}, "id": key, "root": "tmpfs" if n % 5 == 0 else "disk" if n % 5 == 1 else None}
        options = {name: value for name, value in options.items() if value is not None}
        if host:
            options.pop("root", None)
        if n % 3 == 0:
            options["mounts"] = [f"walk{n % 2}:/volume"]
        if n % 4 < 2:
            options["health"] = dockless.HealthCheck(["printf", "%s", key], interval=0.2)
        policy = ("always", "unless-stopped", "on-failure:1000")[n % 3] if kind == "policy" else ""
        walked.note("begin", key, at, image, kind, policy, options)
        reader = None
        box: Sandbox[Any]
        if kind == "foreground":
            box = Sandbox(image, verbs.command(key), stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, **options)
            self.lanes["thread"].start(lambda one: one.blocking(box.__enter__)).result(PATIENCE)
            reader = keyed.Reader(key, verbs.LOGGED)
        elif kind == "created":
            box = self.lanes[at].start(lambda one: one.make(image, verbs.command(key), **options)).result(PATIENCE)
        else:
            how = {"restart": policy} if policy else {"remove": kind == "removed"}
            box = self.lanes[at].start(lambda one: one.begin(image, verbs.command(key), **how, **options)).result(PATIENCE)
        known = Known(box, key, verbs.HOST if options.get("root") == "tmpfs" else image, kind == "foreground", kind == "removed", reader)
        known.alive, known.policy, known.healthy = kind != "created", policy, "health" in options
        self.boxes.append(known)

    @step(at=lane, what=st.sampled_from(sorted(WHOLES)), n=number, cancel=st.sampled_from([None, None, 0.01, 0.05, 0.2]))
    def whole(self, at: str, what: str, n: int, cancel: float | None) -> None:
        """Who cancels it has nothing left of it."""
        key = verbs.fresh("r")
        walked.note(what, key, at, n, cancel)
        self._judge(what, True, self.lanes[at].start(lambda one: WHOLES[what](one, walked.image, key, n), cancel))
        assert key not in {box.id for box in dockless.list()}, f"{key} is left"

    # -- what is done with them

    @step(which=number, what=st.sampled_from(sorted(CALM)), at=lane, n=number)
    def calm(self, which: int, what: str, at: str, n: int) -> None:
        if not self.boxes:
            return
        known = self._pick(which)
        if self._may(known, what):
            calm = self._calm(known)
            self._judge(what, calm, self._start(what, known, at, n, calm, None))

    @step(which=number, what=st.sampled_from(sorted(UPSETTING)), at=lane, n=number)
    def change(self, which: int, what: str, at: str, n: int) -> None:
        """And afterwards it is known what became of it."""
        if not self.boxes:
            return
        known = self._pick(which)
        calm, starts, keeper = self._calm(known), known.starts, _keeper(known)
        self._judge(what, calm, self._start(what, known, at, n, calm, None))
        self._close_all(known)
        if what == "remove":
            self._forget(known)
        elif what in ("kill_init", "kill_keeper") and known.policy and (calm or known.alive is None):
            if calm:
                # A start that is killed itself is tried again, and its restart is counted once.
                until(
                    lambda: _keeper(known) not in (0, keeper) and _state(known) == "running",
                    f"{known.key} is started anew after {what}",
                    PATIENCE,
                )
            known.alive = True if calm else None
        elif what in ("stop", "kill", "kill_init", "kill_keeper"):
            if _state(known) == "created":
                return
            until(lambda: _state(known) not in ("running", "starting", "paused"), f"{known.key} has ended after {what}", PATIENCE)
            known.alive = False
            self._ended(known, gone=known.removed and calm and what != "kill_keeper")
        elif known.starts > starts:
            known.alive = True
            until(lambda: _state(known) == "running", f"{known.key} runs again", PATIENCE)

    @step(which=number, what=st.sampled_from(sorted(ENDED)), at=lane, n=number)
    def of_ended(self, which: int, what: str, at: str, n: int) -> None:
        """What can be done with one that does not run."""
        ended = [known for known in self.boxes if known.alive is False and not known.removed and not known.foreground]
        if ended and not self.clients:
            known = ended[which % len(ended)]
            self._judge(what, True, self._start(what, known, at, n, True, None))

    def _ended(self, known: Known, gone: bool) -> None:
        """What has ended is refused, and says so."""
        try:
            known.box.exec("true")
            raise AssertionError(f"{known.key} has ended, and was entered")
        except SandboxGone:
            pass
        if gone:
            until(lambda: known.box.id not in {one.id for one in dockless.list()}, f"{known.key} is gone")
            self._forget(known)

    @step(
        calls=st.lists(
            st.tuples(
                number, st.sampled_from([*sorted(CALM) * 3, *sorted(UPSETTING)]), lane, number, st.sampled_from([None, None, 0.005, 0.05])
            ),
            min_size=2, max_size=6,
        )
    )  # fmt: skip
    def together(self, calls: list[tuple[int, str, str, int, float | None]]) -> None:
        """Several calls at the same time, some of them on the same sandbox."""
        if not self.boxes:
            return
        chosen = [(self._pick(which), what, at, n, cancel) for which, what, at, n, cancel in calls]
        chosen = [one for one in chosen if self._may(one[0], one[1])]
        upset = {id(known) for known, what, *_ in chosen if what in UPSETTING}
        begun = []
        for known, what, at, n, cancel in sorted(chosen, key=lambda one: one[2] == "here"):
            calm = self._calm(known) and id(known) not in upset
            begun.append((what, calm, self._start(what, known, at, n, calm, cancel if what in CALM else None)))
        failed: list[BaseException] = []
        for what, calm, done in begun:
            try:
                self._judge(what, calm, done)
            except BaseException as error:
                failed.append(error)
        for known, what, *_ in chosen:
            if what in UPSETTING and known in self.boxes:
                self._upset(known, what)
        for known in self.boxes:
            self._go_on(known)
        if failed:
            raise failed[0]

    def _go_on(self, known: Known) -> None:
        """What somebody left paused who was cancelled or killed."""
        with contextlib.suppress(DocklessError):
            if _state(known) == "paused":
                known.box.resume()

    # -- streams that stay open

    @step(which=number, kind=st.sampled_from(["lines", "cat", "terminal"]))
    def open_command(self, which: int, kind: str) -> None:
        if not (self.boxes and len(self.open) < 6):
            return
        known, reader = self._pick(which), keyed.Reader(verbs.fresh("k"), 10**9)
        walked.note("open", kind, known.key)
        script = {"lines": keyed.script(reader.key, reader.lines), "cat": "cat", "terminal": "stty -echo -opost -icanon; echo on; cat"}[
            kind
        ]
        tty: dict[str, Any] = {"tty": True} if kind == "terminal" else {"stdin": PIPE, "stdout": PIPE, "stderr": DEVNULL}
        calm = self._calm(known)
        try:
            command = known.box.spawn("sh", "-c", script, **tty)
            if kind == "terminal" and command.stdout.readline().strip() != b"on":
                assert not calm
                command.close()
                return
        except REFUSED:
            if calm:
                raise
            return
        self.open.append(Open(command, known, kind, reader))

    @step(which=number, n=number)
    def go_on(self, which: int, n: int) -> None:
        if not self.open:
            return
        one = self.open[which % len(self.open)]
        walked.note("read", one.kind, one.known.key, n)
        calm = self._calm(one.known)
        count = 1 + n % 200
        try:
            if one.kind != "lines":
                sent = keyed.text(one.reader.key, count, one.told + 1)
                one.command.stdin.write(sent)
                one.command.stdin.flush()
                one.told += count
                data = one.command.stdout.read(len(sent))
            else:
                data = one.command.stdout.read(n)
        except OSError as error:
            assert not calm, error
            data = b""
        one.reader.feed(data)
        assert data or not n or not calm
        if one.kind == "terminal" and calm:
            one.command.resize(1 + n % 100, 1 + n % 7)

    @step(which=number)
    def close_command(self, which: int) -> None:
        if not self.open:
            return
        walked.note("close")
        self._close(self.open[which % len(self.open)])

    def _close(self, one: Open) -> None:
        self.open.remove(one)
        one.command.close()

    @step(n=number)
    def read_output(self, n: int) -> None:
        """Of a foreground one, by who holds it."""
        if not (any(known.output for known in self.boxes)):
            return
        known = next(known for known in self.boxes if known.output)
        walked.note("output", known.key)
        assert known.output is not None
        whole = len(keyed.text(known.key, verbs.LOGGED))
        data = known.box.stdout.read(min(n, whole - known.output.read))
        known.output.feed(data)

    # -- other programs

    @step(n=number)
    def client(self, n: int) -> None:
        if len(self.clients) >= 2:
            return
        walked.note("client", n)
        said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the client
        words = [str(n), walked.image, *(known.box.id for known in self.boxes if known.alive)]
        process = subprocess.Popen(
            [sys.executable, "-P", str(HERE / "client.py"), *words], stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE.parent), os.environ.get("PYTHONPATH"))))},
        )  # fmt: skip
        self.clients.append(Client(process, said))

    @step(killed=st.booleans(), after=st.floats(0, 1.5))
    def client_ends(self, killed: bool, after: float) -> None:
        if not self.clients:
            return
        walked.note("client ends", killed, after)
        self._end_client(self.clients.pop(0), after if killed else PATIENCE)

    def _end_client(self, one: Client, patience: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.process.wait(patience)
        one.process.kill()
        code = one.process.wait()
        one.said.seek(0)
        said = one.said.read().decode(errors="replace")
        one.said.close()
        walked.operations["by clients"] += said.count("did ")
        assert code in (0, -signal.SIGKILL), said
        for place in Path(tempfile.gettempdir()).glob(f"walk-{one.process.pid}-*"):  # what it was copying when it was killed
            shutil.rmtree(place)
        for known in self.boxes:
            self._go_on(known)

    # -- what is there

    @step(at=lane, words=st.sampled_from(ASKED))
    def ask(self, at: str, words: tuple[str, ...]) -> None:
        """On the command line; and each that must be there is listed, whoever asks."""
        walked.note("ask", *words, at)
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            code = main([*words])
        assert code == 0 or self.clients, (words, out.getvalue(), err.getvalue())
        for known in list(self.boxes):
            if not known.foreground and _state(known) == "gone":
                assert not self._calm(known), known.key
                self._forget(known)
        names = {one.id for one in self.lanes[at].start(lambda one: one.list()).result(PATIENCE)}
        missing = [known.key for known in self.boxes if self._calm(known) and known.box.id not in names]
        assert not missing, missing

    # -- the end

    def teardown(self) -> None:
        if walked.hangs:  # so would this
            return
        try:
            self._end_all()
        finally:
            for each in self.lanes.values():
                each.close()

    @kept
    def _end_all(self) -> None:
        for client in self.clients:
            self._end_client(client, 0)
        self.clients.clear()
        for one in list(self.open):
            self._close(one)
        for known in list(self.boxes):
            walked.note("end", known.key)
            if not known.foreground:
                with contextlib.suppress(SandboxGone):
                    known.box.rm(force=True)
            self._forget(known)
        walked.note("end jobs")
        with dockless.sched.connect() as queue:
            jobs = [job.id for job in queue.queue()]
            queue.cancel_many(jobs, grace=0)
            queue.wait_many(jobs, timeout=PATIENCE)
        for box in dockless.list():
            with contextlib.suppress(SandboxGone):  # of a client: it is just being removed
                if not box._found.foreground and not _of_job(box):
                    box.rm(force=True)
        try:
            until(lambda: not _others(), "no process is left", 30)
        except AssertionError as error:
            error.add_note("\n".join(processes()))
            raise


def _of_job(box: Sandbox[Any]) -> bool:
    try:
        return "job" in box.labels
    except SandboxGone:  # its client was killed before it had written what it is
        return False


def _keeper(known: Known) -> int:
    """0 where it has none."""
    try:
        return int(known.box.inspect()["pid"] or 0) if known.policy else 0
    except SandboxGone:
        return 0


def _state(known: Known) -> str:
    try:
        if not known.foreground and not known.box._found.directory.is_dir():
            return "gone"
        return known.box.state
    except SandboxGone:
        return "gone"


def _others() -> list[int]:
    """Processes of this run that live, but ourselves; zombies among them."""
    return [pid for pid in marked_by(os.getpid()) if pid not in (os.getpid(), walked.daemon)]


def processes() -> list[str]:
    found = []
    for pid in _others():
        with contextlib.suppress(OSError):
            found.append(f"{Path(f'/proc/{pid}/stat').read_text()[:60]} {Path(f'/proc/{pid}/cmdline').read_bytes()[:200]!r}")
    return found
