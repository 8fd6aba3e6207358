"""``dockless.base.typing``: annotations made with it mean to others what those of the standard module mean."""

from __future__ import annotations

import typing

import pytest

from dockless.base import typing as ours
from dockless.base.checks import check
from dockless.base.dataclass import dataclass
from dockless.errors import BadInput

Word = ours.Literal["a", "b"]
T = ours.TypeVar("T", str, bytes)


@dataclass(frozen=True, slots=True)
class Record:
    one: Word
    maybe: Word | None = None
    many: tuple[Word, ...] = ()
    any: dict[str, ours.Any] | None = None


def test_the_standard_module_reads_a_record():
    hints = typing.get_type_hints(Record)
    assert hints["one"] == Word and typing.get_args(hints["maybe"]) == (Word, type(None))


@pytest.mark.parametrize("hint", [Word, typing.Literal["a", "b"]])
def test_our_checks_read_a_choice(hint):
    check("x", "a", hint)
    with pytest.raises(BadInput, match="x 'c' is unknown"):
        check("x", "c", hint)


def test_a_generic_class_is_still_one():
    class Box(ours.Generic[T]):
        pass

    class Mine(Box[str]):
        pass

    assert issubclass(Mine, Box) and isinstance(Box[str](), Box) and ours.get_args(Box[str]) == (str,)
