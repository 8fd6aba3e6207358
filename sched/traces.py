"""Traces: jobs of the past, or made up, as files. What ``dockless simulate`` reads.

Three forms, told apart by what is in the file:

* **CSV** with a first line of names, in any order: ``submitted`` (seconds, or a date and time as ISO 8601 has it), ``run`` (seconds),
  ``gpus``, ``user``, ``group``, ``priority``, ``time_limit`` (seconds), ``cores``, ``memory`` (bytes, or ``64G``), ``class`` (of its GPUs:
  ``H100``, ``1g.10gb``, ``"H100,memory=60G"``, or of other devices: ``amd.com/gpu``), ``together`` (a word: a user's jobs that have the
  same one start together). Only the first two must be there; ``started`` and ``ended`` do for ``run``. The names that public traces use
  are understood too. Other columns are ignored.
* **JSON** as ``dockless queue --all --json`` prints it.
* **SWF**, the Standard Workload Format of the Parallel Workloads Archive: processors count as GPUs.

A trace without a column of time limits has them all: each is what its job runs. So the published figures have it. An empty cell is none.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from dockless.base.dataclass import dataclass, field, replace
from dockless.base.settings import nearest
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.base.units import parse_size
from dockless.errors import BadInput
from dockless.sched.jobs import MAX_MEMBERS
from dockless.sched.policy.classes import named
from dockless.sched.policy.replay import SHORTEST, TraceJob

if TYPE_CHECKING:
    from typing import TypeVar

    Row = TypeVar("Row")

NAMES = {
    "submitted": ("submitted", "submit", "submit_time", "submit_s"),
    "run": ("run", "run_s", "run_time", "duration"),
    "gpus": ("gpu_count", "gpus", "num_gpu", "num_gpus"),
    "user": ("user", "user_id"),
    "group": ("group",),
    "priority": ("priority",),
    "time_limit": ("time_limit",),
    "started": ("started",),
    "ended": ("ended",),
    "cores": ("cores", "cpus"),
    "cpu_milli": ("cpu_milli",),
    "memory": ("memory",),
    "memory_mib": ("memory_mib",),
    "class": ("class", "gpu_class"),
    "together": ("together",),
}
"""What each column may be called; where a file has several of them, the first counts."""

_HINT = f"the first line names the columns: {','.join(NAMES)} (seconds; submitted and run, or started and ended, must be there)"
_SLIP = 0.8
"""From what likeness on a column that is not read is taken for a slip of one that is."""
_MOST = 1e12
_JOBS = 10_000_000


@dataclass(frozen=True, slots=True)
class Trace:
    """``left_out``: rows of jobs that have not ended, or never ran: nobody knows how long they would."""

    jobs: tuple[TraceJob, ...]
    left_out: int = 0


class _Unknown(Exception):
    """How long the job runs is not known."""


def parse(text: str, name: str) -> Trace:
    """The jobs in a file. ``name``: of the file, for errors. ``BadInput`` names the line or the job."""
    begin = text.lstrip("\ufeff \t\r\n")[:1]
    if begin in ("[", "{"):
        return _of_json(text, name)
    if begin == ";" or name.endswith(".swf"):
        return _gathered(_swf_rows(text, name), _swf_job, name, lambda _: ())
    return _of_csv(text.removeprefix("\ufeff"), name)


def _gathered(
    rows: Iterable[tuple[str, Row]], read: Callable[[Row], TraceJob], name: str, together: Callable[[Row], tuple[str, ...]]
) -> Trace:
    """``together``: what those have in common that start together, () for one alone."""
    jobs: list[TraceJob | _Gang] = []
    gangs: dict[tuple[str, ...], _Gang] = {}
    left_out = count = 0
    for where, row in rows:
        key = together(row)
        if key and key not in gangs:
            gangs[key] = _Gang(key[-1])
            jobs.append(gangs[key])
        try:
            job = read(row)
        except _Unknown:
            left_out += 1
            if key:
                gangs[key].whole = False
            continue
        except (ValueError, OverflowError) as error:
            raise BadInput(f"{name}: {where}: {error}", subject=name, hint=_HINT) from None
        (gangs[key].members if key else jobs).append(job)
        count += 1
        if count > _JOBS:
            raise BadInput(f"{name} has more than {_JOBS} jobs", subject=name, hint="cut it into parts")
    left_out += sum(len(gang.members) for gang in gangs.values() if not gang.whole)
    found = tuple(one.job(name) if isinstance(one, _Gang) else one for one in jobs if not isinstance(one, _Gang) or one.whole)
    if not found:
        raise BadInput(f"{name} has no jobs that have run", subject=name, hint=_HINT)
    return Trace(found, left_out)


@dataclass(slots=True)
class _Gang:
    """Jobs that start together. ``whole``: it is known of each how long it runs, else all are left out."""

    name: str
    members: list[TraceJob] = field(default_factory=list)
    whole: bool = True

    def job(self, name: str) -> TraceJob:
        """As the queue sees them: one job, with the GPUs of all until the last has ended. ``BadInput`` where the queue refuses them."""
        limits = [job.time_limit for job in self.members]
        if len(self.members) > MAX_MEMBERS:
            what = f"{len(self.members)} jobs start together as {self.name[:40]!r}, and at most {MAX_MEMBERS} can"
            raise BadInput(f"{name}: {what}", subject=name, hint="give jobs that do not start together no word, or different ones")
        return replace(
            self.members[0],
            submitted=max(job.submitted for job in self.members),
            runs=max(job.length for job in self.members),
            gpus=sum(job.gpus for job in self.members),
            time_limit=max(limits) if all(limits) else 0.0,
            cores=sum(job.cores for job in self.members),
            memory=sum(job.memory for job in self.members),
            gpu_class=next((job.gpu_class for job in self.members if job.gpus), ""),
            members=tuple(self.members),
        )


def _of_csv(text: str, name: str) -> Trace:
    lines = csv.reader(text.splitlines())
    try:
        head = [cell.strip().lower() for cell in next(lines, [])]
        columns = _columns(head, name)
        rows = ((f"line {lines.line_num}", _cells(row, columns)) for row in lines if any(row))
        return _gathered(rows, _job, name, _together)
    except csv.Error as error:
        raise BadInput(f"{name}: line {lines.line_num}: {error}", subject=name, hint=_HINT) from None


def _columns(head: Sequence[str], name: str) -> dict[str, int]:
    """Where each column is."""
    found = {column: head.index(called[0]) for column, names in NAMES.items() if (called := [one for one in names if one in head])}
    free = {one for column, names in NAMES.items() if column not in found for one in names}
    for cell in head:
        if near := "" if cell in free else nearest(cell, free, _SLIP):
            hint = f"did you mean {near}? Other columns that are not read have names of their own"
            raise BadInput(f"{name} has a column {cell[:40]!r}, which is not read", subject=name, hint=hint)
    if "run" not in found and not {"started", "ended"} <= found.keys():
        raise BadInput(f"{name} has no column 'run'", subject=name, hint=_HINT)
    if "submitted" not in found:
        raise BadInput(f"{name} has no column 'submitted'", subject=name, hint=_HINT)
    return found


def _cells(row: Sequence[str], columns: Mapping[str, int]) -> dict[str, str]:
    return {column: row[at].strip() if at < len(row) else "" for column, at in columns.items()}


def _of_json(text: str, name: str) -> Trace:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{name} is not JSON: {error}", subject=name, hint="give what `dockless queue --all --json` prints") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadInput(f"{name} is not a list of jobs", subject=name, hint="give what `dockless queue --all --json` prints")
    return _gathered(((f"job {row.get('id', place)}", _values(row)) for place, row in enumerate(rows, 1)), _job, name, _together)


def _values(row: Mapping[str, Any]) -> dict[str, str]:
    found = {column: [row[one] for one in names if row.get(one) is not None] for column, names in NAMES.items()}
    options = row.get("options")
    asked = (
        {"cpu_milli": options.get("millicores"), "memory": options.get("memory"), "class": options.get("gpu_class")}
        if isinstance(options, dict)
        else {}
    )
    found |= {column: [value] for column, value in asked.items() if value}
    if isinstance(options, dict) and options.get("role") and row.get("array"):
        found["together"] = [row["array"]]
    if isinstance(row.get("gpus"), str) and not found["class"]:
        found["class"] = [_class_of(row["gpus"])]
    return {column: str(values[0]) for column, values in found.items() if values}


def _together(cells: Mapping[str, str]) -> tuple[str, ...]:
    return (cells.get("user", ""), cells["together"]) if cells.get("together") else ()


def _class_of(gpus: str) -> str:
    """What a job's ``gpus`` say of it where nothing else does: the kind of devices that it names; what those share that start together."""
    from dockless.sandbox.gpus.request import parse_request

    try:
        request = parse_request(gpus) if gpus else None
    except BadInput:
        return ""
    if request is None:
        return ""
    if request.of_devices and request.devices:
        return request.devices[0].partition("=")[0]
    return named(request.gpu_class, request.memory) if request.memory else ""


def _swf_rows(text: str, name: str) -> Iterable[tuple[str, list[str]]]:
    for number, line in enumerate(text.splitlines(), 1):
        cells = line.split()
        if cells and not cells[0].startswith(";"):
            if len(cells) < 9:
                raise BadInput(f"{name}: line {number}: {len(cells)} fields, a line of SWF has 18", subject=name, hint=_HINT)
            yield f"line {number}", cells


def _swf_job(cells: Sequence[str]) -> TraceJob:
    """Fields 2, 4, 5, 8, 9, 12, 13: submission, run time, processors had and asked for, time asked for, user, group; -1 for not known."""
    row = {"submitted": cells[1], "run": cells[3], "gpus": cells[4] if float(cells[4]) > 0 else cells[7]}
    limits = {"time_limit": cells[8]} if float(cells[8]) > 0 else {}
    people = {what: cells[at] for what, at in (("user", 11), ("group", 12)) if at < len(cells) and cells[at] != "-1"}
    return _job({**row, **limits, **people})


def _job(cells: Mapping[str, str]) -> TraceJob:
    """``ValueError`` for a cell that cannot be read, ``_Unknown`` for a job that has not run."""
    run = _run(cells)
    return TraceJob(
        _moment("submitted", cells.get("submitted", "")),
        run,
        _whole("gpus", cells.get("gpus") or "0"),
        cells.get("user", ""),
        (cells["group"],) if cells.get("group") else (),
        _whole("priority", cells.get("priority") or "0", -_MOST),
        _number("time_limit", cells["time_limit"] or "0") if "time_limit" in cells else max(run, SHORTEST),
        math.ceil(round(1000 * _number("cores", cells["cores"]), 6))
        if cells.get("cores")
        else _whole("cpu_milli", cells.get("cpu_milli") or "0"),
        _size(cells["memory"]) if cells.get("memory") else math.ceil(_number("memory_mib", cells.get("memory_mib") or "0")) << 20,
        cells.get("class", "") if cells.get("gpus", "0") not in ("", "0") else "",
    )


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except BadInput as error:
        raise ValueError(f"memory is {text[:40]!r}, not a size") from error


def _run(cells: Mapping[str, str]) -> float:
    if "run" in cells:
        text = cells["run"]
        if not text or text.startswith("-"):
            raise _Unknown
        return _number("run", text)
    started, ended = (_moment(column, cells.get(column) or "0") for column in ("started", "ended"))
    if not started or not ended:
        raise _Unknown
    return max(0.0, ended - started)


def _moment(column: str, text: str) -> float:
    if ":" in text:
        from datetime import datetime

        return datetime.fromisoformat(text).timestamp()
    return _number(column, text, -_MOST)


def _whole(column: str, text: str, least: float = 0.0) -> int:
    number = _number(column, text, least)
    if number != int(number):
        raise ValueError(f"{column} is {text[:40]!r}, not a whole number")
    return int(number)


def _number(column: str, text: str, least: float = 0.0) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number <= _MOST:
        raise ValueError(f"{column} is {text[:40]!r}, not a number{' of 0 or more' if not least else ''}")
    return number
