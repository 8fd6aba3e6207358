"""Many starts from eight threads, some killed at random moments: afterwards nothing is left and the host is what it was.

``DOCKLESS_STRESS_STARTS`` says how many (200 in the suite; the figure of the must-show list is 5,000).
"""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections import Counter

import pytest
from support import requires as machine
from support import residue
from support.boxes import load
from support.requires import requires

from dockless.errors import CommandNotFound, LaunchFailed, SandboxGone
from dockless.sandbox.run import detached
from dockless.sandbox.run.foreground import ForegroundSandbox
from dockless.sandbox.run.process import Exit
from dockless.sandbox.spec import Spec, Tmpfs

pytestmark = requires("userns")

STARTS = int(os.environ.get("DOCKLESS_STRESS_STARTS", "200"))
THREADS = 8


class Stress:
    """Counts what happened; ``problems`` are what may never happen."""

    def __init__(self, image: str | None) -> None:
        self.left = STARTS
        self.image = image
        self.seen: Counter[str] = Counter()
        self.problems: list[str] = []
        self.lock = threading.Lock()

    def take(self) -> int:
        with self.lock:
            self.left -= 1
            return self.left + 1

    def count(self, what: str) -> None:
        with self.lock:
            self.seen[what] += 1

    def worker(self, seed: int) -> None:
        rng = random.Random(seed)
        with open(os.devnull, "r+b") as null:
            while self.take() > 0:
                try:
                    self.one(rng, null.fileno())
                except Exception as error:
                    with self.lock:
                        self.problems.append(f"{type(error).__name__}: {error}")

    def one(self, rng: random.Random, null: int) -> None:
        code = rng.randrange(256)
        image = self.image if self.image and rng.random() < 0.5 else "host"
        what = rng.choice(("exit", "exit", "kill", "keeper", "signal", "timeout", "missing", "detached"))
        fields = {"image": image, "mounts": (Tmpfs("/tmp/t"),) if rng.random() < 0.3 else ()}
        if what == "missing":
            try:
                with ForegroundSandbox(Spec(argv=("no-such-program",), **fields), stdin=null, stdout=null, stderr=null) as box:
                    self.problems.append(
                        f"a missing program was started: {box.wait(10)} {box.process.record()} {box.plan and box.plan.command}"
                    )
            except CommandNotFound:
                self.count("missing")
            return
        script = f"exit {code}" if what == "exit" else "sleep 1000 & (setsid sleep 1000 &) ; while :; do sleep 1000; done"
        spec = Spec(argv=("/bin/sh", "-c", script), timeout=0.3 if what == "timeout" else 0.0, **fields)
        if what == "detached":
            self.detached(rng, spec)
            return
        try:
            ended = self.foreground(rng, spec, what, null)
        except LaunchFailed as error:
            if what != "timeout" or "the timeout" not in str(error):
                raise
            self.count("timeout-at-once")
            return
        expected = {"exit": (code, None), "kill": (None, 9), "keeper": (None, 9), "signal": (None, 15), "timeout": (None, 9)}[what]
        if (ended.code, ended.signal) != expected:
            self.problems.append(f"{what}: {ended.code} {ended.signal}, expected {expected}")
        self.count(what)

    def foreground(self, rng: random.Random, spec: Spec, what: str, null: int) -> Exit:
        with ForegroundSandbox(spec, stdin=null, stdout=null, stderr=null) as box:
            if what in ("kill", "keeper", "signal"):
                time.sleep(rng.random() * 0.02)
            if what == "kill":
                box.kill()
            elif what == "keeper":
                os.kill(box.process.keeper_pid, signal.SIGKILL)
            elif what == "signal":
                box.send_signal(signal.SIGTERM)
            return box.wait(60)

    def detached(self, rng: random.Random, spec: Spec) -> None:
        box = detached.start(spec)
        try:
            time.sleep(rng.random() * 0.02)
            if rng.random() < 0.5:
                os.kill(box.pid, signal.SIGKILL)
            else:
                box.kill()
            try:
                box.wait(60)
                self.count("detached-recorded")
            except SandboxGone:
                self.count("detached-vanished")
        finally:
            box.remove()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_many_starts_leave_nothing(tmp_path):
    image = None if machine.missing("overlay") else load(tmp_path)
    stress = Stress(image)
    with open(os.devnull, "r+b") as null, ForegroundSandbox(Spec(argv=("true",)), stdin=null.fileno(), stdout=null.fileno()) as first:
        first.wait()  # what a process keeps once exists before the picture is taken
    gc.collect()
    before = residue.snapshot()
    memory = _resident()
    threads = [threading.Thread(target=stress.worker, args=(seed,)) for seed in range(THREADS)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - started
    print(f"\n{STARTS} starts from {THREADS} threads in {took:.1f} s: {dict(sorted(stress.seen.items()))}")
    assert stress.problems == []
    assert sum(stress.seen.values()) == STARTS
    assert residue.leftovers(before) == []
    from dockless.base import paths

    for place in (paths.state() / "running", paths.state() / "sandboxes"):
        assert not place.exists() or os.listdir(place) == []
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    assert _resident() - memory < 64 << 20


def _resident() -> int:
    """Bytes. proc_pid_statm(5)"""
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
