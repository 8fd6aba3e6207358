"""How fast a daemon gets through jobs that do nothing, and what each costs in processor time.

    python benchmarks/drain_rate.py [--dir DIR] [--jobs 300] [--queued 0] [--running 4] [--json FILE]

An array of ``true`` on the host's own system. ``--queued``: jobs that wait besides, for GPUs that nobody has. The daemon's own time and
that of its keepers are told apart; neither depends on what else the machine does, as the rate does.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.scheduling import DaemonProcess

from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec

MOST = 10_000
"""Jobs of an array."""


def spent(pid: int) -> tuple[float, float]:
    """Seconds of processor time of a process, and of those of its children that it has reaped. proc(5)"""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own, children = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    return own / os.sysconf("SC_CLK_TCK"), children / os.sysconf("SC_CLK_TCK")


def measured(home: Path, jobs: int, queued: int, running: int) -> dict[str, float]:
    daemon = DaemonProcess(home, gpus="1x80G" if queued else "", settings=f"[host]\ncpu_jobs = {running}\n[queue]\nper_user = 1000000\n")
    daemon.start()
    assert daemon.process is not None
    try:
        with daemon.client() as queue:
            blocker = None
            if queued:
                blocker = queue.submit(JobSpec(Spec(argv=("sleep", "1000000")), gpus="1"))
                for left in range(queued, 0, -MOST):
                    queue.submit_array(JobSpec(Spec(argv=("true",)), gpus="1"), min(left, MOST))
            queue.wait(queue.submit(JobSpec(Spec(argv=("true",)))), timeout=60)
            before, began = spent(daemon.process.pid), time.perf_counter()
            ids = queue.submit_array(JobSpec(Spec(argv=("true",))), jobs)
            queue.wait_many(ids, timeout=600)
            wall = time.perf_counter() - began
            after = spent(daemon.process.pid)
            if blocker is not None:
                queue.cancel(blocker, grace=0)
                queue.wait(blocker, timeout=60)
    finally:
        daemon.process.kill()
        daemon.process.wait()
    return {
        "jobs": jobs,
        "queued": queued,
        "jobs_per_s": round(jobs / wall, 1),
        "daemon_ms": round((after[0] - before[0]) / jobs * 1e3, 2),
        "keepers_ms": round((after[1] - before[1]) / jobs * 1e3, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--queued", type=int, default=0)
    parser.add_argument("--running", type=int, default=4, help="how many run at once")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as home:
        found = measured(Path(home), options.jobs, options.queued, options.running)
    for name, value in found.items():
        print(f"{name:12} {value:10g}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
