"""Our records beside the standard dataclasses: whatever one does with them gives the same."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import pickle
import subprocess
import sys
import typing
from typing import ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockless import records


def make(decorator, field):
    @decorator(frozen=True, slots=True)
    class Inner:
        """One."""

        n: int = 1

    @decorator(frozen=True, slots=True)
    class Point:
        """A point."""

        KIND: ClassVar[str] = "point"
        x: int
        y: int = 2
        names: tuple[str, ...] = ()
        more: dict[str, int] = field(default_factory=dict)
        inner: Inner = field(default_factory=Inner)

        def __post_init__(self):
            if self.x < 0:
                raise ValueError("x")

        @property
        def sum(self):
            return self.x + self.y

    for cls in (Inner, Point):
        cls.__qualname__ = cls.__name__
        cls.__module__ = __name__
    return Inner, Point


OurInner, OurPoint = make(records.dataclass, records.field)
TheirInner, TheirPoint = make(dataclasses.dataclass, dataclasses.field)
Inner, Point = OurInner, OurPoint  # for pickle and for get_type_hints

BOTH = pytest.mark.parametrize("cls", [OurPoint, TheirPoint], ids=["ours", "theirs"])


@records.dataclass(slots=True)
class Open:
    """Not frozen."""

    a: int
    b: list[int] = records.field(default_factory=list)


@records.dataclass(frozen=True, slots=True)
class Empty:
    """Nothing in it."""


@records.dataclass(frozen=True, slots=True)
class Many:
    """Made in a test only."""

    a: int
    b: int = 5


@BOTH
def test_construction_equality_hash_and_repr(cls):
    for _ in range(10):  # before and after the written-out __init__
        one = cls(1, names=("a",))
        assert (one.x, one.y, one.names, one.more, one.sum, one.KIND) == (1, 2, ("a",), {}, 3, "point")
        assert one == cls(1, 2, ("a",), {}) and one != cls(2) and one != 1
        assert one.more is not cls(1).more
        assert repr(one) == "Point(x=1, y=2, names=('a',), more={}, inner=Inner(n=1))"
    assert hash(OurInner(3)) == hash(TheirInner(3)) == hash((3,))
    with pytest.raises(TypeError):
        hash(cls(1))  # a dict inside


@BOTH
@pytest.mark.parametrize(
    ("args", "given"), [((), {}), ((1, 2, (), {}, 5, 6), {}), ((1,), {"x": 2}), ((1,), {"z": 2}), ((), {"y": 2}), ((1, 2), {"y": 1})]
)
def test_wrong_arguments_are_type_errors_with_the_standard_words(cls, args, given):
    fresh = make(records.dataclass, records.field)[1] if cls is OurPoint else cls
    with pytest.raises(TypeError) as ours:
        fresh(*args, **given)
    with pytest.raises(TypeError) as theirs:
        TheirPoint(*args, **given)
    assert str(ours.value).partition("__init__")[2] == str(theirs.value).partition("__init__")[2]


@BOTH
def test_frozen(cls):
    one = cls(1)
    for change in (lambda: setattr(one, "x", 2), lambda: delattr(one, "x")):
        with pytest.raises(AttributeError):
            change()
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.x = 5
    with pytest.raises(ValueError, match="x"):
        cls(-1)
    assert not hasattr(one, "__dict__")


@BOTH
def test_the_standard_tools(cls):
    one = cls(1, more={"k": 1})
    assert dataclasses.is_dataclass(cls) and dataclasses.is_dataclass(one)
    assert [f.name for f in dataclasses.fields(cls)] == ["x", "y", "names", "more", "inner"]
    assert dataclasses.fields(cls)[1].default == 2 and dataclasses.fields(cls)[3].default_factory is dict
    assert dataclasses.asdict(one) == {"x": 1, "y": 2, "names": (), "more": {"k": 1}, "inner": {"n": 1}}
    assert dataclasses.replace(one, x=3) == cls(3, more={"k": 1}) == records.replace(one, x=3)
    with pytest.raises(TypeError):
        records.replace(one, nothing=3)
    with pytest.raises(ValueError, match="x"):
        records.replace(one, x=-1)
    assert copy.copy(one) == copy.deepcopy(one) == one
    assert list(inspect.signature(cls).parameters) == ["x", "y", "names", "more", "inner"]
    assert inspect.signature(cls).parameters["y"].default == 2
    assert typing.get_type_hints(cls)["y"] is int
    match one:
        case cls(1, y):
            assert y == 2
        case _:
            pytest.fail("no match")


def test_pickle():
    one = OurPoint(1, more={"k": 1})
    assert pickle.loads(pickle.dumps(one)) == one


@BOTH
def test_msgspec(cls):
    one = cls(1, names=("a", "b"), more={"k": 1})
    text = msgspec.json.encode(one)
    assert json.loads(text) == {"x": 1, "y": 2, "names": ["a", "b"], "more": {"k": 1}, "inner": {"n": 1}}
    assert msgspec.json.decode(text, type=cls).names == ("a", "b")
    assert msgspec.json.decode(b'{"x": 4}', type=cls).y == 2
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"y": 4}', type=cls)
    assert msgspec.to_builtins(one)["inner"] == {"n": 1}


def test_open_records_can_change_and_have_no_hash():
    one = Open(1)
    one.b.append(2)
    one.a = 5
    assert one == Open(5, [2]) and Open(1).b == []
    with pytest.raises(TypeError):
        hash(one)
    with pytest.raises(AttributeError):
        one.c = 1


def test_nothing_in_it():
    assert Empty() == Empty() and repr(Empty()) == "Empty()" and hash(Empty()) == hash(())


@given(st.builds(Many, a=st.integers()), st.integers())
def test_hypothesis_builds_them(one, a):
    assert (records.replace(one, a=a) == one) == (a == one.a) and isinstance(one.b, int)


def test_what_it_does_not_know_is_the_standard_ones():
    @records.dataclass(frozen=True, slots=True)
    class Child(Many):
        """Inherits."""

        c: int = records.field(default=1, compare=False)

    assert Child(1, c=2) == Child(1, c=3) and Child(1).b == 5

    @records.dataclass
    class Plain:
        a: int = 1
        b: list[int] = records.field(default_factory=list)

    assert Plain() == Plain(1, []) and Plain().__dict__ == {"a": 1, "b": []}


def test_making_a_class_imports_nothing_heavy():
    code = """
import sys
from dockless.records import dataclass, field, replace
@dataclass(frozen=True, slots=True)
class A:
    x: int
    y: list = field(default_factory=list)
assert replace(A(1), x=2) == A(2) and repr(A(1)) and A(1) != A(2)
print("dataclasses" in sys.modules, "inspect" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout == "False False\n"
