"""The table of keywords, in the places that have a part of it: what type checkers read, ``Spec`` and ``Limits``, the command line."""

from __future__ import annotations

import dataclasses
import inspect
from collections import Counter

import pytest

from dockless import _keywords as keywords
from dockless._options import KEYWORDS
from dockless._submitting import make_job
from dockless.base.checks import annotation
from dockless.base.fields import Keyword, as_it_is, filled
from dockless.base.typing import get_args
from dockless.cgroups import Limits, limits
from dockless.cli import parser_of
from dockless.cli.sandbox_options import GROUPS, PLATFORM, PULL, Option
from dockless.sandbox.spec import Namespaces, Share, Spec
from dockless.sched.jobs import JobSpec

KNOWN = keywords.Options.__annotations__
OPTIONS = [option for _, _, rows in GROUPS for option in rows if option.keyword]


def fields(record: type) -> list[str]:
    return [field.name for field in dataclasses.fields(record)]


def test_the_table_has_the_keywords_that_type_checkers_know_in_their_order():
    names = [row.name for row in (*KEYWORDS, *limits.KEYWORDS)]
    assert list(dict.fromkeys(names)) == list(KNOWN)


def test_every_field_of_a_spec_has_its_keyword():
    """But its two arguments, the GPUs that are leased, and the groups that the daemon chooses; mounts have two. The rules for what leaves
    it are made of four."""
    none = [row.name for row in KEYWORDS if not row.field]
    assert none == ["allow_out", "allow_host", "net_rate", "log_denied", "gpus", "gpu_memory", "gpu_class", "pull", "platform", "labels"]
    others = {"argv", "image", "gpus", "host_groups"}
    assert Counter(row.field for row in KEYWORDS) == Counter([*set(fields(Spec)) - others, "mounts", *[""] * len(none)])


def test_every_field_of_limits_has_its_keyword_and_parse_takes_it():
    assert [row.field for row in limits.KEYWORDS] == fields(Limits)
    assert [row.name for row in limits.KEYWORDS] == list(inspect.signature(Limits.parse).parameters)


_OF_ROLES = ("role", "min_failed", "min_succeeded", "ports", "reserve_cpus")


def test_every_field_of_a_job_has_its_keyword():
    """But its sandbox, whose keyword is gpus, and the limit of an array, what is said of a role, and secrets, which Python does not queue;
    a warning fills two."""
    named = set(keywords.QueueOptions.__annotations__) - {"warn"} | {"warn_signal", "warn_before"}
    assert set(fields(JobSpec)) - named == {"spec", "gpus", "array_limit", "secrets", *_OF_ROLES} and named <= set(fields(JobSpec))
    assert not keywords.Options.__annotations__.keys() & keywords.QueueOptions.__annotations__.keys()


def test_an_unknown_keyword_of_the_queue_is_told():
    with pytest.raises(TypeError, match=r"unknown keyword .prioritty.: did you mean priority\?"):
        make_job("host", ["true"], {}, prioritty=1)
    with pytest.raises(TypeError, match=r"unknown keyword .zzz.; known are after, "):
        make_job("host", ["true"], {}, zzz=1)


def test_the_command_line_has_every_keyword_but_these():
    """labels, tty and interactive are not in the table of options."""
    assert {option.keyword for option in (*OPTIONS, PULL, PLATFORM)} == set(KNOWN) - {
        "limits",
        "egress",
        "oom_group",
        "dmem",
        "labels",
        "tty",
        "interactive",
    }


def test_options_of_one_keyword_have_one_value():
    values: dict[str, set[object]] = {}
    for option in OPTIONS:
        values.setdefault(option.keyword, set()).add(option.value)
    assert [keyword for keyword, found in values.items() if len(found) > 1] == []
    several = [keyword for keyword, count in Counter(option.keyword for option in OPTIONS).items() if count > 1]
    assert several == ["env", "log_size", "mounts", "root", "io", "namespaces", "network", "allow_out", "allow_host", "health"] and all(
        values[keyword] != {None} for keyword in several
    )


@pytest.mark.parametrize(
    "option", [option for option in (*OPTIONS, PULL) if option.choices and option.keyword != "keep_log"], ids=lambda option: option.flags
)
def test_choices_are_those_of_the_type(option: Option):
    kind = Share if option.keyword == "namespaces" else annotation(KNOWN[option.keyword], keywords.__name__)
    assert set(option.choices) == set(get_args(kind))


def test_every_namespace_that_can_be_shared_has_its_option():
    said = [option.help.split()[0] for option in OPTIONS if option.keyword == "namespaces"]
    assert sorted(said) == sorted(field.name for field in dataclasses.fields(Namespaces) if field.type == "Share")


@pytest.mark.parametrize("verb", ["run", "submit"])
def test_no_two_options_share_the_place_of_their_value(verb):
    assert [place for place, count in Counter(action.dest for action in parser_of(verb).full()._actions).items() if count > 1] == []


def test_a_field_is_filled_by_what_is_given():
    table = (Keyword("a", "x", as_it_is), Keyword("b", "y", lambda value, name: (name, value)), Keyword("c", "", as_it_is))
    assert filled(table, {"a": 0, "b": 5, "c": 6, "d": 7}) == {"x": 0, "y": ("b", 5)}
    assert filled(table, {"a": None, "b": None}) == filled(table, {}) == {}


def test_two_keywords_of_one_field_are_joined_in_the_order_of_the_table():
    table = (Keyword("a", "x", as_it_is), Keyword("b", "x", as_it_is))
    assert filled(table, {"b": (3,), "a": (1, 2)}) == {"x": (1, 2, 3)} and filled(table, {"b": (3,)}) == {"x": (3,)}
