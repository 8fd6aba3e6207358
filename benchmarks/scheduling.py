"""The daemon's policy on public traces, beside published figures: packing (``packing.py``) and waiting (``replay_traces.py``).

    python benchmarks/scheduling.py [packing] [waiting] [--traces DIR] [--seeds 10] [--json FILE]

The traces are not part of the project: ``--traces``, or ``$DOCKLESS_SHARED/data/traces``. What is missing there is named and left out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import packing
from benchmarks import replay_traces as replays
from dockless.sched.policy.replay import Replay, TraceJob

Row = dict[str, Any]
GROUPS = ("packing", "waiting")
ONE_HOST = {  # mean waits in seconds of an independent replay
    "tiresias_60": {"strict": 1378, "greedy": 537, "EASY": 676, "SJF": 516},
    "philly_2869ce": {"strict": 1294031, "EASY": 937393, "SJF": 268291},
}
LUBLIN = {"FCFS": 7273.77, "SJF": 277.35, "FCFS backfill": 235.82, "SJF backfill": 73.31}


class Progress:
    """How far it is: one line that is overwritten on a terminal, plain lines elsewhere, on standard error."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0

    def __call__(self, what: str) -> None:
        self.done += 1
        text = f"{self.done} of {self.total}: {what}"
        if sys.stderr.isatty():
            end = "\n" if self.done == self.total else ""
            print(f"\r\033[K{text}", end=end, file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)


def packed(place: Path, trace: str, seed: int, learnt: bool) -> tuple[float, float, float]:
    """Allocated at 100 % and 130 % of demand, in percent; seconds of processor time."""
    before = time.process_time()
    cluster = packing.read(place, trace)
    first, last = packing.allocated(cluster, packing.arrivals(cluster, seed), learnt)
    return 100 * first, 100 * last, time.process_time() - before


def waited(kind: str, place: Path) -> list[Row]:
    """One kind of replay: its rows of the table."""
    if kind in ONE_HOST:
        jobs = replays.read(place, f"{kind}.csv")
        return [_row(kind, name, [replays.replayed(jobs, 8, policy)]) for name, policy in (("strict", "fifo"), ("dockless", "backfill"))]
    windows = replays.lublin(place)
    if kind == "lublin_256":
        return [_row(kind, "dockless", [replays.replayed(window, replays.LUBLIN_GPUS) for window in windows])]
    if kind in replays.ORDERS:
        return [
            _row("lublin_256", f"EASY, {kind}", [replays.easy(window, replays.LUBLIN_GPUS, replays.ORDERS[kind]) for window in windows])
        ]
    name, _, backfill = kind.partition(" ")
    score: Callable[[TraceJob], float] = (lambda job: job.submitted) if name == "FCFS" else (lambda job: job.runs)
    return [_row("lublin_256", kind, [replays.simple(window, replays.LUBLIN_GPUS, score, bool(backfill)) for window in windows])]


def _row(trace: str, policy: str, found: list[Replay]) -> Row:
    every = sorted(wait for one in found for wait in one.waits)
    return {
        "trace": trace,
        "policy": policy,
        "mean_wait_s": round(mean(every)),
        "p95_wait_s": round(every[int(0.95 * len(every))]),
        "longest_wait_s": round(every[-1]),
        "utilisation": round(mean(one.utilisation for one in found), 4),
        "bounded_slowdown": round(mean(one.slowdown for one in found), 2),
    }


def missing(place: Path, names: Iterable[str]) -> list[str]:
    return [name for name in names if not (place / name).is_file()]


def run(place: Path, groups: Iterable[str], seeds: Iterable[int]) -> dict[str, Any]:
    """Everything that the traces at ``place`` allow, on all processors."""
    wanted: list[tuple[Any, ...]] = []
    left_out: list[str] = []
    if "packing" in groups:
        for trace in packing.TRACES:
            if gone := missing(place, ("openb_nodes.csv", f"openb_pods_{trace}.csv")):
                left_out += gone
                continue
            wanted += [(packed, place, trace, seed, learnt) for learnt in (False, True) for seed in seeds]
    if "waiting" in groups:
        for file, kinds in {"tiresias_60.csv": ["tiresias_60"], "philly_2869ce.csv": ["philly_2869ce"]}.items():
            if gone := missing(place, (file,)):
                left_out += gone
            else:
                wanted += [(waited, kind, place) for kind in kinds]
        if gone := missing(place, ("lublin_256.swf",)):
            left_out += gone
        else:
            wanted += [(waited, kind, place) for kind in (*LUBLIN, "lublin_256", *replays.ORDERS)]
    progress = Progress(len(wanted))
    found: dict[tuple[str, bool], list[tuple[float, float, float]]] = {}
    rows: list[Row] = []
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        tasks = {pool.submit(*job): job for job in wanted}
        for task in as_completed(tasks):
            work, *of = tasks[task]
            if work is packed:
                _, trace, seed, learnt = of
                found.setdefault((trace, learnt), []).append(task.result())
                progress(f"{trace}, seed {seed}, {'learnt' if learnt else 'declared'}")
            else:
                rows += task.result()
                progress(of[0])
    shares = [
        {"trace": trace, "mix": "learnt" if learnt else "declared", "seeds": len(runs)}
        | dict(zip(("at_100", "at_130", "seconds_a_run"), (round(mean(column), 2) for column in zip(*runs, strict=True)), strict=True))
        for (trace, learnt), runs in sorted(found.items())
    ]
    return {"packing": shares, "waiting": sorted(rows, key=lambda row: (row["trace"], row["policy"])), "missing": left_out}


def lines(result: dict[str, Any]) -> list[str]:
    """The tables as text."""
    out: list[str] = []
    if result["packing"]:
        out += ["GPUs allocated at 100 % and 130 % of demand, percent", ""]
        traces = [trace for trace in packing.TRACES if any(row["trace"] == trace for row in result["packing"])]
        out.append(f"{'':22}" + "".join(f"{trace:>16}" for trace in traces))
        for name, cells in packing.PUBLISHED.items():
            row = dict(zip(packing.TRACES, cells, strict=True))
            out.append(f"{name:22}" + "".join(f"{row[trace][0]:>9.2f}/{row[trace][1]:.2f} " for trace in traces))
        for mix in ("declared", "learnt"):
            ours = {row["trace"]: row for row in result["packing"] if row["mix"] == mix}
            out.append(f"{'dockless, mix ' + mix:22}" + "".join(f"{ours[t]['at_100']:>9.2f}/{ours[t]['at_130']:.2f} " for t in traces))
        out += [
            "",
            f"seeds: {result['packing'][0]['seeds']}; seconds a run: at most {max(r['seconds_a_run'] for r in result['packing'])}",
            "",
        ]
    if result["waiting"]:
        out.append(f"{'trace':15}{'policy':21}{'mean wait s':>12}{'p95':>10}{'longest':>10}{'utilisation':>13}{'slowdown':>10}  published")
        for row in result["waiting"]:
            published = ""
            if row["trace"] in ONE_HOST and row["policy"] == "dockless":
                published = "mean wait: " + ", ".join(f"{name} {value}" for name, value in ONE_HOST[row["trace"]].items())
            elif row["policy"] in LUBLIN:
                published = f"slowdown {LUBLIN[row['policy']]:.2f}"
            elif row["trace"] == "lublin_256" and row["policy"] == "dockless":
                published = "EASY: mean wait 24058, utilisation 0.870"
            out.append(
                f"{row['trace']:15}{row['policy']:21}{row['mean_wait_s']:>12}{row['p95_wait_s']:>10}{row['longest_wait_s']:>10}"
                f"{row['utilisation']:>13.4f}{row['bounded_slowdown']:>10.2f}  {published}".rstrip()
            )
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    shared = Path(os.environ.get("DOCKLESS_SHARED") or Path(__file__).resolve().parents[2] / "shared")
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []], help="packing, waiting; both without")
    parser.add_argument("--traces", type=Path, default=shared / "data" / "traces")
    parser.add_argument("--seeds", type=int, default=len(packing.SEEDS), help="how many of the seeds 42 to 51")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not 1 <= options.seeds <= len(packing.SEEDS):
        parser.error(f"--seeds: 1 to {len(packing.SEEDS)}")
    result = run(options.traces, options.groups or GROUPS, packing.SEEDS[: options.seeds])
    for line in lines(result):
        print(line)
    if result["missing"]:
        counted = Counter(result["missing"])
        print(f"left out: {options.traces} lacks {', '.join(counted)} (--traces, or DOCKLESS_SHARED)")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if any(result[group] for group in GROUPS) else 1


if __name__ == "__main__":
    sys.exit(main())
