"""Errors and results travel: through pickle and copy, with all their fields."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

import dockless
from dockless._result import Result
from dockless.errors import BadInput, CommandNotFound, DocklessError, LaunchFailed
from dockless.sandbox.run.process import Exit

WAYS = [*(lambda error, n=n: pickle.loads(pickle.dumps(error, n)) for n in range(pickle.HIGHEST_PROTOCOL + 1)), copy.copy, copy.deepcopy]


def every_module() -> Iterator[Any]:
    for found in pkgutil.walk_packages(dockless.__path__, "dockless."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def tree(kind: type[DocklessError]) -> Iterator[type[DocklessError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from tree(below)


def made(kind: type[DocklessError]) -> DocklessError:
    """One with a value of its own in every field that its constructor or its class has."""
    fields = {"index": 3, "errno": 13, "step": "mount", "controller": "memory", "status": 503, "codes": ("A", "B"), "result": RESULT}
    taken = inspect.signature(kind).parameters
    error = kind("what failed", **{name: value for name, value in fields.items() if name in taken}, hint="what to do")
    unknown = [p.name for p in taken.values() if p.default is p.empty and p.name not in ("message", *fields)]
    assert not unknown, f"{kind.__name__} has fields that this test does not know: {unknown}"
    error.subject = "what it is about"
    for name in kind.__annotations__:
        if not str(kind.__annotations__[name]).startswith("ClassVar"):
            setattr(error, name, 7)
    error.add_note("a note")
    return error


RESULT = Result(("false",), "host", 1, b"out", "err", gpus=("GPU-1",))
list(every_module())  # so that the tree below is whole
TREE = list(dict.fromkeys(tree(DocklessError)))


@pytest.mark.parametrize("kind", TREE)
@pytest.mark.parametrize("way", WAYS)
def test_every_error_keeps_its_fields(kind, way):
    error = made(kind)
    error.__cause__ = OSError(2, "No such file", "/x")
    again = way(error)
    assert type(again) is kind and again is not error
    assert again.args == error.args and str(again) == str(error)
    assert again.__dict__ == error.__dict__ and again.as_dict() == error.as_dict()
    assert again.__notes__ == ["a note"]
    assert type(again.__cause__) is FileNotFoundError and again.__cause__.filename == "/x"
    assert again.__suppress_context__
    assert again.exit_code == error.exit_code


def test_a_cause_that_may_be_anything_is_left_out():
    error = BadInput("x")
    error.__cause__ = ValueError(lambda: None)
    again = pickle.loads(pickle.dumps(error))
    assert again.__cause__ is None and again.__suppress_context__


def test_a_chain_of_ours_stays_whole():
    first, second = LaunchFailed("a", index=1, step="mount", errno=5), CommandNotFound("b")
    second.__cause__ = first
    again = pickle.loads(pickle.dumps(second))
    assert (again.__cause__.index, again.__cause__.step, again.__cause__.errno) == (1, "mount", 5)


def test_every_public_record_can_be_pickled():
    """Whatever public record there is: made with the defaults of its fields, a text where there is none."""
    records = [
        kind
        for module in every_module()
        for name, kind in vars(module).items()
        if dataclasses.is_dataclass(kind) and isinstance(kind, type) and not name.startswith("_") and kind.__module__ == module.__name__
    ]
    assert Result in records and Exit in records
    for kind in records:
        record = kind.__new__(kind)
        for item in dataclasses.fields(kind):
            value = item.default
            if value is dataclasses.MISSING:
                value = item.default_factory() if item.default_factory is not dataclasses.MISSING else "x"
            if not callable(value) and type(value).__name__ != "lock":
                object.__setattr__(record, item.name, value)
            else:
                object.__setattr__(record, item.name, None)
        assert type(pickle.loads(pickle.dumps(record))) is kind, kind


def test_each_class_says_of_its_own_what_it_is():
    from dockless import errors

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, DocklessError)]
    assert not [kind.__name__ for kind in kinds if not kind.__dict__.get("__doc__")]
    assert len({kind.__doc__ for kind in kinds}) == len(kinds)
