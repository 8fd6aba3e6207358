"""The daemon and Debian's Slurm beside each other, on this machine, in turns: submits, passes, starts, restarts, and kill -9; and what
the daemon alone is to reach: eight clients of the library, and submits beside a full queue.

    python benchmarks/beside_slurm.py [--rounds 5] [--queued 1000] [--kills 20] [--only speed|kills] [--json FILE]

Root; some minutes, and a root of Slurm's that is made the first time (``slurm.py``). Both queues lie on one disk. Processor time is that
of the program that submits. Slurm's jobs are plain processes; ours have sandboxes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import resource  # noqa: F401  os.wait4 wants it, also in a root without it
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from slurm import CACHE, Slurm
from submit_rate import SETTINGS, latencies, measured, pass_time, quantile
from support.scheduling import DaemonProcess, crash_matrix

from dockless.sandbox.spec import Bind, Spec
from dockless.sched import JobSpec

RESULTS = Path(__file__).resolve().parent / "results"
SBATCH = ("sbatch", "--parsable", "--output=/dev/null")
BLOCKED = ("--gres=gpu:8",)
DOCKLESS = (str(Path(sys.executable).with_name("dockless")), "submit")
FILES = "fsync", "link", "unlink", "rename", "write"


def timed(words: Iterable[str], count: int, clients: int = 1) -> list[tuple[float, float]]:
    """Milliseconds on the clock and of processor time of a program, each time it runs."""

    def once(_: int) -> tuple[float, float]:
        before = time.perf_counter()
        process = subprocess.Popen(list(words), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        _, status, used = os.wait4(process.pid, 0)
        took = (time.perf_counter() - before) * 1e3
        assert process.stderr is not None
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, process.stderr.read()
        process.stderr.close()
        return took, (used.ru_utime + used.ru_stime) * 1e3

    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(once, range(count)))


def rate(words: Iterable[str], count: int) -> float:
    """Per second, from eight at once."""
    before = time.perf_counter()
    timed(words, count, 8)
    return count / (time.perf_counter() - before)


class Ours:
    def __init__(self, place: Path) -> None:
        self.marks = place / "marks"
        self.marks.mkdir()
        self.marks.chmod(0o777)
        self.daemon = DaemonProcess(place, gpus="8x80G", settings=SETTINGS.replace("cpu_jobs = 4", "cpu_jobs = 64"))
        os.environ["DOCKLESS_HOME"] = str(place)
        self.daemon.start()

    def job(self, script: str, **more: Any) -> JobSpec:
        return JobSpec(Spec(argv=("sh", "-c", script), mounts=(Bind(str(self.marks), "/marks"),)), **more)

    def drained(self) -> None:
        with self.daemon.client() as queue:
            numbers = [job.id for job in queue.queue()]
            for number in reversed(numbers):
                queue.cancel(number, grace=0)
            queue.wait_many(numbers, timeout=300)

    def all_of(self, jobs: list[JobSpec]) -> float:
        """Seconds until all have ended."""
        with self.daemon.client() as queue:
            before = time.perf_counter()
            queue.wait_many(queue.submit_many(jobs), timeout=600)
            return time.perf_counter() - before

    def restarted(self, waiting: int) -> float:
        self.daemon.stop()
        before = time.perf_counter()
        self.daemon.start()
        with self.daemon.client() as queue:
            assert len(queue.queue()) >= waiting
        return time.perf_counter() - before


class Theirs:
    def __init__(self, slurm: Slurm) -> None:
        self.slurm = slurm
        self.marks = slurm.run / "marks"

    def submit(self, script: str, *words: str) -> int:
        return int(self.slurm.said(*SBATCH, *words, f"--wrap={script}"))

    def drained(self) -> None:
        self.slurm.said("scancel", "--user=root")
        self.empty()

    def empty(self, seconds: float = 300.0) -> None:
        deadline = time.monotonic() + seconds
        while self.slurm.said("squeue", "-h") and time.monotonic() < deadline:
            time.sleep(0.02)

    def restarted(self, waiting: int) -> float:
        process = self.slurm.processes["slurmctld"]
        process.terminate()
        process.wait()
        before = time.perf_counter()
        self.slurm.start("slurmctld", "-D")
        self.slurm.answers()
        assert len(self.slurm.said("squeue", "-h", "-r").splitlines()) >= waiting
        return time.perf_counter() - before


def speed(ours: Ours, theirs: Theirs, rounds: int, waiting: int) -> dict[str, dict[str, float]]:
    """Medians of rounds in which each has its turn; milliseconds, or per second."""
    rows: dict[str, dict[str, list[float]]] = {}
    slurm, inside = theirs.slurm, theirs.slurm.inside

    def note(name: str, whose: str, values: Iterable[float]) -> None:
        rows.setdefault(name, {}).setdefault(whose, []).extend(values)

    # All GPUs are taken, so what is submitted waits.
    holder = (*BLOCKED, "--wrap=sleep 100000")
    inside(lambda: timed((*SBATCH, *holder), 1))
    with ours.daemon.client() as queue:
        queue.submit(ours.job("sleep 100000", gpus="all"))
    sbatch, cli = (*SBATCH, *BLOCKED, "--wrap=true"), (*DOCKLESS, "--gpus", "8", "--", "true")
    for number in range(rounds):
        say(f"submits, round {number + 1} of {rounds}")
        for whose, found in (("slurm", inside(lambda: timed(sbatch, 20))), ("dockless", timed(cli, 20))):
            note("submit by command line, ms", whose, (took for took, _ in found))
            note("its processor time, ms", whose, (used for _, used in found))
        note("submits from 8 command lines, per s", "slurm", [inside(lambda: rate(sbatch, 40))])
        note("submits from 8 command lines, per s", "dockless", [rate(cli, 40)])
        note("submit by library, ms", "dockless", latencies(ours.daemon, ours.job("true", gpus="8"), 100))
        array = timed((*DOCKLESS, "--array", "0-999", "--gpus", "8", "--", "true"), 1)
        note("array of 1,000, ms", "dockless", (took for took, _ in array))
        array = inside(lambda: timed((*SBATCH, "--array=0-999", *BLOCKED, "--wrap=true"), 1))
        note("array of 1,000, ms", "slurm", (took for took, _ in array))
    for side in (ours, theirs):
        side.drained()

    for number in range(rounds):
        say(f"starts, round {number + 1} of {rounds}")
        note("free GPUs to process start, ms", "dockless", chain(ours.marks, lambda script: ours_chain(ours, script)))
        note("free GPUs to process start, ms", "slurm", chain(theirs.marks, lambda script: theirs_chain(theirs, script)))
        note("jobs of `true`, per s", "dockless", [200 / ours.all_of([ours.job("true")] * 200)])
        before = time.perf_counter()
        theirs.submit("true", "--array=0-199")
        theirs.empty()
        note("jobs of `true`, per s", "slurm", [200 / (time.perf_counter() - before)])

    say(f"{waiting} waiting")
    inside(lambda: timed((*SBATCH, *holder), 1))
    inside(lambda: timed(sbatch, waiting, 4))
    with ours.daemon.client() as queue:
        queue.submit(ours.job("sleep 100000", gpus="all"))
        queue.submit_many([ours.job("true", gpus="8")] * waiting)
    for _ in range(3):
        note("restart with them, ms", "dockless", [ours.restarted(waiting) * 1e3])
        note("restart with them, ms", "slurm", [theirs.restarted(waiting) * 1e3])
    note("a pass beside them, ms", "dockless", [pass_time(waiting)])
    note("a pass beside them, ms", "slurm", passes(slurm))
    note("a pass beside 100,000, ms", "dockless", [pass_time(100_000)])
    for side in (ours, theirs):
        side.drained()
    answer = {}
    for name, both in rows.items():
        row = {whose: round(quantile(values, 0.5), 2) for whose, values in both.items()}
        if max(map(len, both.values())) >= 100:
            row |= {f"{whose} p99": round(quantile(values, 0.99), 2) for whose, values in both.items()}
        if len(both) == 2:
            row["slurm / dockless"] = round(row["slurm"] / row["dockless"], 2)
        answer[name] = row
    return answer


def by_library(rounds: int, full: int = 100_000, submits: int = 500) -> dict[str, dict[str, float]]:
    """Medians of rounds, each of one daemon whose queue is empty and one in whose queue so many wait."""
    rows: dict[str, list[float]] = {}
    for number in range(rounds):
        say(f"submits by library, round {number + 1} of {rounds}")
        found = []
        for queued in (0, full):
            with tempfile.TemporaryDirectory(prefix="dk-", dir=CACHE) as place:
                found.append(measured(Path(place), submits, queued))
        alone, beside = found
        for name, value in (
            ("submits by library from 8 clients, per s", alone["eight_clients_per_s"]),
            ("array of 1,000 by library, ms", alone["array_1000_median_ms"]),
            ("99 of 100 submits by library, ms", alone["one_client_p99_ms"]),
            (f"99 of 100 beside {full:,}, ms", beside["one_client_p99_ms"]),
            (f"99 of 100, beside {full:,} / alone", beside["one_client_p99_ms"] / alone["one_client_p99_ms"]),
        ):
            rows.setdefault(name, []).append(value)
    return {name: {"dockless": round(quantile(values, 0.5), 2)} for name, values in rows.items()}


def ours_chain(ours: Ours, script: str) -> None:
    ours.all_of([ours.job(script.replace("MARKS", "/marks"), gpus="8")] * 6)


def theirs_chain(theirs: Theirs, script: str) -> None:
    for _ in range(6):
        theirs.submit(script.replace("MARKS", "/run/marks"), *BLOCKED)
    theirs.empty()


def chain(marks: Path, run: Callable[[str], None]) -> list[float]:
    """Milliseconds between the end of a job that has all GPUs and the start of the next."""
    run("date +%s%N >> MARKS/chain; sleep 0.3; date +%s%N >> MARKS/chain")
    moments = [int(line) for line in (marks / "chain").read_text().split()]
    (marks / "chain").unlink()
    assert len(moments) == 12, moments
    return [(moments[at + 1] - moments[at]) / 1e6 for at in range(1, 11, 2)]


def passes(slurm: Slurm) -> list[float]:
    """The last main and backfill pass together, each once it has seen all that wait; sdiag(1) has microseconds."""
    slurm.said("scontrol", "reconfigure")
    slurm.said("sdiag", "--reset")
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        found = [int(number) for number in re.findall(r"Last cycle:\s+(\d+)", slurm.said("sdiag"))]
        if len(found) == 2 and all(found):
            return [sum(found) / 1e3]
        time.sleep(1)
    return []


# ---- kill -9 ----------------------------------------------------------------------------------------------------------------------------


def slurm_kills(theirs: Theirs, kills: int, seed: int = 1) -> dict[str, Any]:
    """slurmctld at random moments, and, by strace(1), instead of calls of five kinds, while jobs are submitted, started and ended.
    ``forgotten``: jobs that ran and that it does not know, or of whose number it knows another."""
    slurm, dice = theirs.slurm, random.Random(seed)
    acknowledged: list[tuple[int, int]] = []  # by their order: the number that each got, and its exit code
    row: dict[str, Any] = dict.fromkeys(("kills", "jobs", "lost", "double", "wrong_exit", "forgotten", "ids_reused", "not_ended"), 0)
    over = threading.Event()

    def submit() -> None:
        code = 0
        while not over.is_set():
            code = code % 100 + 1
            script = (
                f"echo $SLURM_RESTART_COUNT. >> /run/marks/{len(acknowledged)}-{code}; sleep {dice.choice(('0', '0.2', '1'))}; exit {code}"
            )
            try:
                acknowledged.append((theirs.submit(script), code))
            except subprocess.CalledProcessError:
                over.wait(0.05)
                continue
            over.wait(0.1)

    submitter = threading.Thread(target=submit)
    submitter.start()
    for number in range(kills):
        name = FILES[number % len(FILES)] if number % 2 else ""
        process = slurm.processes["slurmctld"]
        if name:
            process.kill()
            process.wait()
            inject = f"inject={name}:signal=KILL:when={dice.choice((1, 2, 3, 5, 8))}"
            slurm.start("slurmctld", "-D", before=("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={name}", "-e", inject))
            process = slurm.processes["slurmctld"]
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                    os.kill(int(child), 9)
                process.kill()
        else:
            over.wait(8 * dice.random())
            process.kill()
        process.wait()
        row["kills"] += 1
        say(f"Slurm's controller killed {row['kills']} of {kills}, {len(acknowledged)} jobs")
        slurm.start("slurmctld", "-D")
        slurm.answers()
    over.set()
    submitter.join()
    with contextlib.suppress(subprocess.CalledProcessError):  # it may have been taken for down
        slurm.said("scontrol", "update", f"nodename={slurm.host}", "state=resume")
    theirs.empty(120)
    ended = {}
    for line in slurm.said("scontrol", "-o", "show", "jobs").splitlines():
        words = dict(word.partition("=")[::2] for word in line.split())
        ended[int(words["JobId"])] = words["JobState"], int(words["ExitCode"].partition(":")[0])
    newest = {number: at for at, (number, _) in enumerate(acknowledged)}
    row["ids_reused"] = len(acknowledged) - len(newest)
    for at, (number, code) in enumerate(acknowledged):
        mark = theirs.marks / f"{at}-{code}"
        runs = len(mark.read_text().split()) if mark.exists() else 0
        state, found = ended.get(number, ("", -1)) if newest[number] == at else ("", -1)
        row["lost"] += not state and not runs
        row["double"] += runs > 1
        row["not_ended"] += state in ("PENDING", "RUNNING", "COMPLETING")
        row["wrong_exit"] += state in ("COMPLETED", "FAILED", "NODE_FAIL", "CANCELLED") and found != code
        row["forgotten"] += not state and runs > 0
    row["jobs"] = len(acknowledged)
    return row


def our_kills(kills: int) -> dict[str, Any]:
    """The same of our daemon; its calls, one by one, are ``make crash-matrix``."""
    with tempfile.TemporaryDirectory(prefix="dk-") as place:
        found = crash_matrix(Path(place), kills)
    return {
        **{"kills": found.kills, "jobs": found.jobs, "lost": found.lost + found.never_run, "double": found.run_twice},
        **{"wrong_exit": found.exit_codes_lost, "ids_reused": found.ids_reused, "not_ended": found.not_ended},
    }


def say(text: str) -> None:
    print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--queued", type=int, default=1000, help="jobs that wait, for the pass and the restart")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--only", choices=("speed", "kills"))
    parser.add_argument("--json", type=Path, default=RESULTS / "beside-slurm.json")
    options = parser.parse_args()
    document: dict[str, Any] = {"queued": options.queued}
    with Slurm(depth=options.queued + 100) as slurm:
        theirs = Theirs(slurm)
        document["slurm"] = slurm.said("slurmctld", "-V").strip()
        if options.only != "kills":
            with tempfile.TemporaryDirectory(prefix="dk-", dir=CACHE) as place:
                ours = Ours(Path(place))
                try:
                    document["speed"] = speed(ours, theirs, options.rounds, options.queued)
                finally:
                    ours.daemon.end()
            document["speed"] |= by_library(options.rounds)
        if options.only != "speed":
            document["kills"] = {"slurm": slurm_kills(theirs, options.kills)}
    if options.only != "speed":
        document["kills"]["dockless"] = our_kills(5 * options.kills)
    print(file=sys.stderr)
    for name, row in document.get("speed", {}).items():
        print(f"{name:38}", *(f"{key} {value}" for key, value in row.items()), sep="  ")
    for whose, row in document.get("kills", {}).items():
        print(f"kill -9, {whose:28}", *(f"{key} {value}" for key, value in row.items()), sep="  ")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
