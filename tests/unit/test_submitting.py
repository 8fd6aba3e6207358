"""``submit``: every keyword arrives in the job."""

from __future__ import annotations

import dataclasses

import pytest

from dockless._options import make_spec
from dockless._submitting import make_job
from dockless.sched import JobSpec

ASKED = {
    "priority": (-7, -7),
    "time_limit": ("1m30s", 90.0),
    "name": ("night", "night"),
    "group": ("vision", "vision"),
    "on_reboot": ("requeue", "requeue"),
    "hold": (True, True),
    "begin": (1e9, 1e9),
    "after": ("ok:12,any:13", ("ok:12", "any:13")),
    "singleton": (True, True),
    "retries": (3, 3),
    "retry_on": ([1, 75], (1, 75)),
    "warn": ("USR1@1m", (10, 60.0)),
    "notify": ("fail,end", ("end", "fail")),
    "notify_to": ("ann@lab.example", "ann@lab.example"),
}


@pytest.mark.parametrize("name", ASKED)
def test_each_keyword_changes_its_own_field_alone(name):
    given, kept = ASKED[name]
    alone = {"singleton": {"name": "night"}, "warn": {"time_limit": 600.0}}.get(name, {})  # of that name, before that limit
    job = make_job("host", ("true",), {}, **alone, **{name: given})
    assert job == dataclasses.replace(JobSpec(make_spec("host", ("true",))), **alone, **fields({name: kept}))


def fields(asked):
    """One of them is two fields."""
    if "warn" not in asked:
        return asked
    others = {name: kept for name, kept in asked.items() if name != "warn"}
    return {**others, "warn_signal": asked["warn"][0], "warn_before": asked["warn"][1]}


def test_all_of_them_and_gpus():
    job = make_job("img", ("a", "b"), {"gpus": 2, "env": {"A": "1"}}, **{name: given for name, (given, _) in ASKED.items()})
    assert job == JobSpec(
        make_spec("img", ("a", "b"), env={"A": "1"}), gpus="2", **fields({name: kept for name, (_, kept) in ASKED.items()})
    )


def test_every_field_of_a_job_can_be_asked_for():
    """The limit of an array is asked for with the array; roles of jobs that start together, cores and secrets are of a file."""
    elsewhere = {"spec", "gpus", "array_limit", "role", "min_failed", "min_succeeded", "ports", "reserve_cpus", "secrets"}
    assert {field.name for field in dataclasses.fields(JobSpec)} == elsewhere | set(fields(dict(ASKED)))
