"""Records to plain values and back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as some

from dockless.base import checks, json, records
from dockless.base.dataclass import dataclass, field
from dockless.base.records import differences, plain, read
from dockless.base.typing import Literal
from dockless.errors import BadInput
from dockless.sandbox.run.documents import Document
from dockless.sandbox.spec import Spec


@dataclass(frozen=True, slots=True)
class Inner:
    x: int
    y: float = 0.5


@dataclass(frozen=True, slots=True)
class Outer:
    name: str
    word: Literal["a", "b"] = "a"
    flag: bool = False
    seconds: float = 1.0
    either: str | int = ""
    pair: tuple[str, int] = ("", 0)
    many: tuple[int, ...] = ()
    argv: Sequence[str] = ()
    inner: Inner = field(default_factory=lambda: Inner(1))
    maybe: Inner | None = None
    inners: tuple[Inner, ...] = ()
    named: dict[str, Inner] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name == "bad":
            raise BadInput("a bad name", subject="name")


FULL = Outer(
    "n", "b", True, 2.0, 5, ("p", 1), (1, 2), ("sh", "-c"), Inner(2, 3.0), Inner(4), (Inner(5), Inner(6, 7.5)), {"k": Inner(8)}
)  # fmt: skip


@pytest.mark.parametrize("record", [FULL, Outer("n"), Outer("n", argv=("\udcff",))])
def test_a_record_comes_back(record):
    for written in (plain(record), differences(record)):
        assert read(Outer, json.loads(json.dumps(written))) == record


def test_only_what_differs_is_written():
    assert differences(Outer("n")) == {"name": "n"}
    assert differences(Outer("n", inner=Inner(1, 2.0))) == {"name": "n", "inner": {"x": 1, "y": 2.0}}


def test_a_whole_number_is_a_number():
    values = read(Outer, {"name": "n", "seconds": 3, "either": 4, "inner": {"x": 1, "y": 2}})
    assert [type(value) for value in (values.seconds, values.either, values.inner.y)] == [float, int, float]


@pytest.mark.parametrize(
    ("values", "subject", "said"),
    [
        ([], "", "is of type list, not an object"),
        ({}, "name", "is missing"),
        ({"name": "n", "nmae": "n"}, "nmae", "is unknown"),
        ({"name": 1}, "name", "is 1, not a text"),
        ({"name": None}, "name", "is None, not a text"),
        ({"name": "a\0b"}, "name", "contains a NUL byte"),
        ({"name": "n", "word": "c"}, "word", "'c' is unknown"),
        ({"name": "n", "flag": 1}, "flag", "is 1, not True or False"),
        ({"name": "n", "flag": 0}, "flag", "is 0, not True or False"),
        ({"name": "n", "seconds": True}, "seconds", "is True, not a number"),
        ({"name": "n", "seconds": 10**400}, "seconds", "is larger than 64 bits"),
        ({"name": "n", "seconds": float("nan")}, "seconds", "is nan, out of range"),
        ({"name": "n", "either": []}, "either", "is of type list, not a text or a whole number"),
        ({"name": "n", "pair": ["p"]}, "pair", "has 1 parts, not 2"),
        ({"name": "n", "pair": ["p", "1"]}, "pair[1]", "is '1', not a whole number"),
        ({"name": "n", "many": {}}, "many", "is of type dict, not a list"),
        ({"name": "n", "many": [1, 2.5]}, "many[1]", "is 2.5, not a whole number"),
        ({"name": "n", "argv": "sh"}, "argv", "is 'sh', not a list"),
        ({"name": "n", "inner": 3}, "inner", "is 3, not an object"),
        ({"name": "n", "inner": None}, "inner", "is None, not an object"),
        ({"name": "n", "inner": {}}, "inner.x", "is missing"),
        ({"name": "n", "maybe": {"x": 1, "z": 2}}, "maybe.z", "is unknown"),
        ({"name": "n", "inners": [{"x": 1}, {"x": []}]}, "inners[1].x", "is of type list, not a whole number"),
        ({"name": "n", "named": {"k": {"x": ""}}}, "named['k'].x", "is '', not a whole number"),
    ],
)
def test_what_is_wrong_is_named(values, subject, said):
    with pytest.raises(BadInput) as caught:
        read(Outer, values, "job")
    name = f"job.{subject}" if subject else "job"
    assert (caught.value.subject, str(caught.value)) == (name, f"{name} {said}") and caught.value.hint
    with pytest.raises(BadInput) as caught:
        read(Outer, values)
    assert caught.value.subject == (subject or "Outer")


def test_what_the_record_refuses_is_refused():
    with pytest.raises(BadInput, match="a bad name"):
        read(Outer, {"name": "bad"})


def test_fields_of_a_newer_version_are_passed_over_where_that_is_wanted():
    values = {"name": "n", "more": 1, "inners": [{"x": 1, "more": 2}]}
    assert read(Outer, values, newer=True) == Outer("n", inners=(Inner(1),))
    with pytest.raises(BadInput, match="more is unknown"):
        read(Outer, values)


JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(), inner, max_size=3),
    max_leaves=8,
)


@given(some.sampled_from([("argv",), ("limits", "io_max"), ("mounts",), ("namespaces",), ("health",), ("env",), ("timeout",)]), JSON)
def test_any_value_is_read_or_refused(names, value):
    values = {"spec": {}, "boot_id": "", "created": 1.0, "owner": 0}
    place = values["spec"]
    for name in names[:-1]:
        place = place.setdefault(name, {})
    place[names[-1]] = value
    try:
        document = read(Document, values)
    except BadInput:
        return
    assert read(Document, json.loads(json.dumps(plain(document)))) == document


PAIRS = some.lists(some.tuples(some.text(), some.text() | some.integers()).map(list) | some.lists(some.text(), max_size=3) | some.none())
WORDS = some.lists(some.text() | some.just("a\0b") | some.just("\ud800") | some.integers() | some.booleans())


@pytest.mark.parametrize(
    ("name", "values"), [("env", PAIRS), ("argv", WORDS), ("cpus", some.lists(some.integers() | some.booleans() | some.text()))]
)
def test_long_lists_are_read_as_short_ones(name, values):
    """The quick look at a list of texts, numbers or pairs lets nothing through, and takes nothing away."""

    def outcome(given):
        try:
            return getattr(read(Spec, {name: given}, "spec"), name)
        except BadInput as error:
            return str(error), error.subject, error.hint

    @given(values)
    def same(given):
        quick = outcome(given)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(records, "are_sound", lambda *_: False)
            patch.setattr(checks, "are_sound", lambda *_: False)
            assert outcome(given) == quick

    same()
