"""Durable submits: one client's latency, eight clients' rate, an array of 1,000; then the same beside a full queue.

    python benchmarks/submit_rate.py [--dir DIR] [--jobs 500] [--queued 0] [--json FILE]

The daemon starts nothing meanwhile (no GPUs free for these jobs), so that submitting alone is measured. ``--dir``: where the queue
lies; its disk's fsync decides. Every answer counted here came after its commit.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.scheduling import DaemonProcess

from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec
from dockless.sched.policy.policy import decide
from dockless.sched.policy.quotas import ClassQuota, Quota, Quotas
from dockless.sched.policy.state import QueueState, RunningJob
from dockless.sched.policy.waiting import WaitingJob, WaitingList

SETTINGS = "[host]\ncpu_jobs = 4\n[queue]\nper_user = 1000000\n"


def quantile(values: list[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


def latencies(daemon: DaemonProcess, job: JobSpec, count: int) -> list[float]:
    times = []
    with daemon.client() as queue:
        queue.ping()
        for _ in range(count):
            before = time.perf_counter()
            queue.submit(job)
            times.append((time.perf_counter() - before) * 1e3)
    return times


def rate(daemon: DaemonProcess, job: JobSpec, clients: int, each: int) -> float:
    ready = threading.Barrier(clients + 1)

    def one() -> None:
        with daemon.client() as queue:
            queue.ping()
            ready.wait()
            for _ in range(each):
                queue.submit(job)

    threads = [threading.Thread(target=one) for _ in range(clients)]
    for thread in threads:
        thread.start()
    ready.wait()
    before = time.perf_counter()
    for thread in threads:
        thread.join()
    return clients * each / (time.perf_counter() - before)


CLASSES = {"A": ("g0", "g1", "g2", "g3"), "B": ("g4", "g5", "g6", "g7")}
USERS = [f"u{number}" for number in range(10)]
GUARANTEES = Quotas({user: Quota(guarantee=2, weight=2) for user in USERS})
OF_CLASSES = Quotas(
    {user: Quota(guarantee=2, weight=2, classes={name: ClassQuota(guarantee=1, weight=3) for name in CLASSES}) for user in USERS}
)


def pass_time(
    waiting: int, *, own_limits: bool = False, quotas: Quotas | None = None, classes: Mapping[str, tuple[str, ...]] = {}
) -> float:
    """Milliseconds of processor time, median of nine, of one pass of the policy beside so many waiting jobs of ten users who ask for one to
    eight GPUs, two of eight being free. ``own_limits``: each job has a time limit of its own. ``quotas``: with these, and in a fair order,
    the other six GPUs being borrowed; ``classes``: each job asks for GPUs of one of them."""
    dice = random.Random(1)
    gpus = tuple(f"g{number}" for number in range(8))
    jobs = [
        WaitingJob(
            *(number, f"u{dice.randrange(10)}", dice.randint(1, 8)),
            time_limit=dice.uniform(4e3, 9e4) if own_limits else 3600.0,
            gpu_class=dice.choice(list(classes) or [""]),
        )
        for number in range(1, waiting + 1)
    ]
    running = [RunningJob(waiting + 1, "x", frozenset(gpus[:6]), ends=3600.0, since=-1000.0)]
    had = None if quotas is None else {f"user {user}": 100.0 * number for number, user in enumerate(USERS)}
    state = QueueState(gpus, WaitingList(jobs), running, quotas or Quotas(), usage=had, classes=classes)
    times = []
    for _ in range(9):
        before = time.process_time()
        decide(state, 0.0)
        times.append((time.process_time() - before) * 1e3)
    return quantile(times, 0.5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--queued", type=int, default=0, help="jobs that wait already")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    row: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="dk-", dir=options.dir) as place:
        daemon = DaemonProcess(Path(place), gpus="4x80G", settings=SETTINGS).start()
        try:
            with daemon.client() as queue:
                # Holds all GPUs, so that what follows waits.
                queue.submit(JobSpec(Spec(argv=("sleep", "1000")), gpus="all"))
                job = JobSpec(Spec(argv=("python", "train.py", "--epochs", "90"), env=(("SEED", "1"),)), gpus="2", time_limit=3600.0)
                for _ in range(options.queued // 10_000):
                    queue.submit_array(job, 10_000)
                arrays = []
                for _ in range(7):
                    before = time.perf_counter()
                    queue.submit_array(job, 1000)
                    arrays.append((time.perf_counter() - before) * 1e3)
                one = latencies(daemon, job, options.jobs)
                row = {
                    "queued_before": options.queued,
                    "one_client_p50_ms": round(quantile(one, 0.5), 2),
                    "one_client_p99_ms": round(quantile(one, 0.99), 2),
                    "eight_clients_per_s": round(rate(daemon, job, 8, max(1, options.jobs // 2))),
                    "array_1000_median_ms": round(quantile(arrays, 0.5), 1),
                    "array_1000_worst_ms": round(max(arrays), 1),
                }
                before = time.perf_counter()
                shown = len(queue.queue())
                row |= {"listing_jobs": shown, "listing_ms": round((time.perf_counter() - before) * 1e3, 1)}
                queue.cancel(1, grace=0)
                queue.wait(1, timeout=30)
        finally:
            assert daemon.process is not None
            daemon.stop()
    row["pass_100k_ms"] = round(pass_time(100_000), 2)
    row["pass_100k_own_limits_ms"] = round(pass_time(100_000, own_limits=True), 2)
    row["pass_100k_guarantees_ms"] = round(pass_time(100_000, quotas=GUARANTEES), 2)
    row["pass_100k_class_guarantees_ms"] = round(pass_time(100_000, quotas=OF_CLASSES, classes=CLASSES), 2)
    for name, value in row.items():
        print(f"{name:22} {value}")
    if options.json:
        options.json.write_text(json.dumps(row, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
