"""``dockless.base.dataclass`` beside the standard ``dataclasses``: whoever uses the classes sees no difference."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from itertools import repeat
from typing import Any

import pytest

from dockless.base import dataclass as ours


def classes(of: Any) -> tuple[Any, Any]:
    @of.dataclass(frozen=True, slots=True)
    class Point:
        """A place."""

        x: int
        name: str = "p"
        secret: str = of.field(default="s", repr=False)
        tags: tuple[str, ...] = ()
        more: dict[str, int] = of.field(default_factory=dict)

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError(f"x is {self.x}")

    @of.dataclass(slots=True)
    class Counter:
        label: str
        seen: list[int] = of.field(default_factory=list)
        count: int = of.field(default=0, init=False)
        later: int = of.field(init=False)

    return Point, Counter


Point, Counter = classes(ours)
Point.__qualname__, Counter.__qualname__ = "Point", "Counter"  # for pickle
StandardPoint, StandardCounter = classes(dataclasses)
StandardPoint.__qualname__, StandardCounter.__qualname__ = "Point", "Counter"
PAIRS = [(Point, StandardPoint), (Counter, StandardCounter)]


def outcome(of: Any, *args: Any, **given: Any) -> str:
    """The words of what a call gives."""
    try:
        return str(of(*args, **given))
    except Exception as error:
        return f"{type(error).__name__}: {error}".replace("classes.<locals>.", "")


@pytest.mark.parametrize("of", [ours, dataclasses])
def test_what_is_not_compared(of):
    @of.dataclass(frozen=True, slots=True)
    class Told:
        x: int
        where: str = of.field(default="", compare=False)

    assert Told(1, "a") == Told(1, "b") != Told(2, "a") and hash(Told(1, "a")) == hash(Told(1, "b"))


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}), ((1,), {}), ((), {"x": 1}), ((1, "a", "b", ("c",), {"d": 1}), {}), ((1, "a", "b", (), {}, 6), {}), ((1,), {"x": 2}),
    ((1,), {"unknown": 2}), ((), {"name": "n"}), ((), {"x": 1, "more": {"k": 2}}), ((-1,), {}), (("l", [1]), {}), (("l",), {"count": 3}),
    (("l",), {"later": 3}), ((), {"label": "l"}), (("l", [1], 2), {}),
]  # fmt: skip


@pytest.mark.parametrize(("args", "given"), CALLS)
@pytest.mark.parametrize(("mine", "standard"), PAIRS)
def test_a_call_gives_the_same(mine, standard, args, given):
    expected = outcome(standard, *args, **given)
    assert outcome(mine, *args, **given) == expected
    new = classes(ours)[mine is Counter]
    new.__qualname__ = mine.__qualname__
    assert outcome(new, *args, **given) == expected, "of a class just made"


@pytest.mark.parametrize(("mine", "standard"), PAIRS)
def test_what_is_asked_of_the_class_is_the_same(mine, standard):
    assert str(inspect.signature(mine)) == str(inspect.signature(standard))
    assert mine.__match_args__ == standard.__match_args__ and mine.__slots__ == standard.__slots__
    for one, other in zip(dataclasses.fields(mine), dataclasses.fields(standard), strict=True):
        assert (one.name, one.type, one.default, one.init, one.repr) == (other.name, other.type, other.default, other.init, other.repr)
    assert (dataclasses.is_dataclass(mine) and mine.__hash__ is None) or standard.__hash__ is not None
    assert [name for name, _, _ in ours.fields_of(mine)] == [item.name for item in dataclasses.fields(standard)]
    assert not hasattr(mine("l") if mine is Counter else mine(1), "__dict__")


def test_a_default_made_anew_is_nobody_elses():
    assert Point(1).more is not Point(1).more
    assert Counter("a").seen is not Counter("b").seen


def test_equal_are_equal_fields_of_one_class():
    assert Point(1) == Point(1) != Point(2)
    assert Point(1) != StandardPoint(1) and Point(1) != 1
    frozen = classes(ours)[0]
    assert hash(frozen(1, more=())) == hash(frozen(1, more=()))
    with pytest.raises(TypeError, match="unhashable"):
        hash(Counter("a"))


def test_frozen_is_frozen():
    place = Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        place.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del place.x
    counter = Counter("a")
    counter.count = 3
    assert counter.count == 3


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_is_equal(way):
    place = Point(1, "n", more={"a": 1})
    assert way(place) == place
    counter = Counter("a", [1])
    counter.later = 4
    assert way(counter) == counter


@pytest.mark.parametrize("replace", [ours.replace, dataclasses.replace])
def test_replace(replace):
    assert replace(Point(1, "n"), x=2) == Point(2, "n")
    with pytest.raises(ValueError, match="x is -1"):
        replace(Point(1), x=-1)
    with pytest.raises(TypeError, match="unknown"):
        replace(Point(1), unknown=1)


def test_the_many_are_like_the_first():
    """A class of which many are made gets another ``__init__``."""
    many, counted = classes(ours)
    first = many(0, "n"), counted("a")
    initial = many.__init__, counted.__init__
    for number in range(ours._MANY + 1):
        assert many(number, name="n").x == number
        counted("a")
    assert (many.__init__, counted.__init__) != initial
    assert (many(0, "n"), counted("a").seen, counted("a").count) == (first[0], first[1].seen, first[1].count)
    with pytest.raises(ValueError, match="x is -1"):
        many(-1)


def test_many_are_as_made_one_by_one():
    assert ours.many(Point, 2, {"x": [1, 2], "tags": [("a",), ()]}) == [Point(1, tags=("a",)), Point(2)]
    one, two = ours.many(Counter, 2, {"label": "ab", "later": [5, 6]})
    one.seen.append(1)
    assert (one.label, one.count, two.label, two.seen, two.later) == ("a", 0, "b", [], 6)
    with pytest.raises(TypeError, match="no column 'x' for Point"):
        ours.many(Point, 1, {"name": ["p"]})


def test_a_copy_of_sound_values_is_not_checked_again():
    point = classes(ours)[0](1, tags=("t",))
    changed = ours.copied(point, x=-1, name="q")
    assert (changed.x, changed.name, changed.tags, changed.more) == (-1, "q", ("t",), {}) and point.x == 1
    with pytest.raises(TypeError, match="colour"):
        ours.copied(point, colour="red")


@pytest.mark.parametrize("count", [0, 1, 199, 200, 201, 1000])
def test_hundreds_are_as_made_one_by_one(count):
    """Instances of their class in every way, with defaults of their own where those are made anew."""
    numbers, names = [*range(count)], [str(number) for number in range(count)]
    for made, plain in (
        (ours.many(Point, count, {"x": numbers}), [Point(number) for number in numbers]),
        (ours.many(Point, count, {"x": numbers, "tags": repeat(("a",))}), [Point(number, tags=("a",)) for number in numbers]),
        (ours.many(Point, count, {"x": repeat(7), "name": map(str, numbers)}), [Point(7, name) for name in names]),
        (ours.many(Point, count, {"x": repeat(7)}), [Point(7) for _ in numbers]),
    ):
        assert made == plain and {type(one) for one in made} <= {Point}
        assert ours.columns(made, ["name", "x"]) == [[one.name for one in made], [one.x for one in made]]
        for one in made[-1:]:
            assert pickle.loads(pickle.dumps(one)) == one and ours.replace(one, x=1).x == 1
            with pytest.raises(AttributeError):
                one.x = 3
    counters = ours.many(Counter, count, {"label": repeat("a"), "later": repeat(1)})
    assert len({id(one.seen) for one in counters}) == count
    with pytest.raises(ValueError):
        ours.many(Point, 200, {"x": range(199)})
