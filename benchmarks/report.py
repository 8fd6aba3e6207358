"""Tables for people, JSON for later."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.race import Ratio, Result
from benchmarks.scene import REPOSITORY


@dataclass(frozen=True, slots=True)
class Comparison:
    """``over`` / ``under`` in pairs: of the medians of each round, and of its quickest starts. ``wanted``: the ratio that the project asks
    for at most, None for information only."""

    over: str
    under: str
    ratio: Ratio
    quickest: Ratio
    wanted: float | None = None

    @property
    def met(self) -> bool | None:
        return None if self.wanted is None else self.ratio.median <= self.wanted


@dataclass(slots=True)
class Table:
    """One measurement. ``extra``: figures that are no race, by name; ``rows``: lines of a plain table."""

    key: str
    title: str
    results: list[Result] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    rows: list[str] = field(default_factory=list)
    noise: dict[str, float] = field(default_factory=dict)


def text(table: Table) -> str:
    """The table as lines."""
    lines = ["", f"{table.title}", "-" * len(table.title)]
    done = [r for r in table.results if r.seconds]
    if done:
        width = max(len(r.name) for r in done)
        lines.append(f"  {'':{width}}  {'p50':>9}  {'p90':>9}  {'least':>9}   n")
        for r in sorted(done, key=lambda r: r.median):
            lines.append(f"  {r.name:{width}}  {_ms(r.median)}  {_ms(r.p90)}  {_ms(r.least)}  {len(r.seconds):>4}   {r.note}".rstrip())
    if table.comparisons:
        width = max(33, *(len(f"{c.over} / {c.under}") for c in table.comparisons))
        lines += ["", f"  {'paired ratios, with 95 % interval':{width}}  of medians                of the quickest"]
        for c in table.comparisons:
            wanted = "" if c.wanted is None else f"   wanted at most {c.wanted:.3g}: {'met' if c.met else 'MISSED'}"
            lines.append(f"  {c.over + ' / ' + c.under:{width}}  {_ratio(c.ratio)}  {_ratio(c.quickest)}{wanted}".rstrip())
    lines += [f"  {row}" for row in table.rows]
    lines += [f"  - {note}" for note in table.notes]
    lines += [f"  - {r.name}: out in {r.failed}" for r in table.results if r.failed]
    if table.noise:
        n = table.noise
        lines.append(
            f"  - {n['seconds']:.0f} s; load {n['load_before']:.1f} before, {n['load_after']:.1f} after; processors busy {n['busy']:.0%}, "
            f"waiting for disk {n['waiting_for_disk']:.0%}, stolen {n['stolen']:.1%}"
        )
    return "\n".join(lines)


def _ratio(ratio: Ratio) -> str:
    return f"{ratio.median:6.3f}  {f'[{ratio.low:.3f}, {ratio.high:.3f}]':16}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:6.2f} ms"


def document(tables: Sequence[Table], machine: dict[str, Any], options: dict[str, Any], when: str) -> str:
    """Everything, with every sample in microseconds."""
    return json.dumps(
        {
            "when": when,
            "commit": _commit(),
            "machine": machine,
            "options": options,
            "measurements": {table.key: _json(table) for table in tables},
        },
        indent=1,
    )


def _json(table: Table) -> dict[str, Any]:
    contenders = []
    for r in table.results:
        entry: dict[str, Any] = {"name": r.name, "note": r.note, "starts": len(r.seconds), "rounds": len(r.rounds), "failed": r.failed}
        if r.seconds:
            entry |= {"median_ms": _round(r.median), "p90_ms": _round(r.p90), "least_ms": _round(r.least)}
            entry["samples_us"] = [[round(s * 1e6) for s in burst] for burst in r.rounds]
        contenders.append(entry)
    ratios = [
        {
            "over": c.over,
            "under": c.under,
            "of_medians": _interval(c.ratio),
            "of_quickest": _interval(c.quickest),
            "wanted": c.wanted,
            "met": c.met,
        }
        for c in table.comparisons
    ]
    return {"title": table.title, "contenders": contenders, "ratios": ratios, "notes": table.notes, "noise": table.noise, **table.extra}


def _interval(ratio: Ratio) -> dict[str, float]:
    return {"median": round(ratio.median, 4), "low": round(ratio.low, 4), "high": round(ratio.high, 4)}


def _round(seconds: float) -> float:
    return round(seconds * 1e3, 4)


def _commit() -> str:
    try:
        done = subprocess.run(["git", "-C", REPOSITORY, "describe", "--always", "--dirty"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def save(folder: Path, name: str, content: str, latest: str = "latest") -> Path:
    """``folder/name.json``, and the same as ``folder/latest.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(content + "\n")
    (folder / f"{latest}.json").write_text(content + "\n")
    return path
