"""A plan for people: a row for each operation, in words, with the shell command that does the same and, if it was measured, what it took.
How each operation is said: ``operations.py``."""

from __future__ import annotations

from dockless.base.dataclass import dataclass
from dockless.sandbox.plan.operations import shell, words
from dockless.sandbox.plan.plan import Op, Plan
from dockless.sandbox.plan.wording import variable


@dataclass(frozen=True, slots=True)
class ExplainedStep:
    """One operation. ``actor``: keeper, init or program; ``seconds`` None where nothing was measured."""

    index: int
    actor: str
    operation: str
    words: str
    shell: str
    seconds: float | None = None


def rows(plan: Plan, times: tuple[int, ...] = (), started: int = 0) -> list[ExplainedStep]:
    """Every operation in order. ``times``: from the flight recorder, with the CLOCK_MONOTONIC nanoseconds of the start."""
    result = []
    actor, before = "keeper", started
    for index, op in enumerate((*plan.ops, *((Op("EXEC"),) if plan.command else ()))):
        seconds = None
        if index < len(times) and times[index]:
            seconds = (times[index] - before) / 1e9
            before = times[index]
        result.append(ExplainedStep(index, actor, op.name, words(op, plan), shell(op, plan, actor), seconds))
        actor = {"CLONE": "init", "SPAWN": "program"}.get(op.name, actor)
    return result


def environment(plan: Plan) -> str:
    """The beginning of the last command: a root of its own, and no environment, for a program of the host runs here. Its middle is said by
    the operations before EXEC."""
    root = next((variable(plan, op.slot_in) for op in plan.ops if op.name == "PIVOT"), "/")
    return f'env -i "$capsh" --chroot={root}'


def text(table: list[ExplainedStep]) -> str:
    """The rows as the CLI prints them."""
    lines = []
    actor = ""
    for row in table:
        if row.actor != actor:
            actor = row.actor
            lines.append(f"\n{actor}:")
        took = f"{row.seconds * 1e6:8.0f} µs  " if row.seconds is not None else ""
        prompt = "" if row.shell.startswith("#") else "$ "
        lines.append(f"{row.index:4}  {took}{row.words}\n        {prompt}{row.shell}")
    return "\n".join(lines).lstrip("\n")
