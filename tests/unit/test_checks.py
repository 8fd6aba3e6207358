"""Types checked where values come in: what each annotation takes, and the whole of what is said of what it does not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pytest

from dockless.base.checks import check
from dockless.base.typing import IO, Any, Literal
from dockless.errors import BadInput
from dockless.sandbox.network.model import Endpoint

LARGE = 1 << 63
SURROGATE = "leave it out, or decode the bytes behind it with errors='surrogateescape'"
WIDE = "give a number from -2**63 to 2**63 - 1"
FINITE = "give a finite number, or leave it out"


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ([1, "a"], list), ([1, "a"], Sequence), ((), tuple[()]), ((1, "a"), tuple[int, str]), ((1, 2, 3), tuple[int, ...]),
        ({"a": 1}, Mapping), ({"a": 1}, Mapping[str, int]), ({1: None}, dict), ([object()], list[Any]), ({1, 2}, Iterable[int]),
        (None, str | None), (None, None), (5, float), (5, int | str), (object(), Any), (object(), object), (b"\0", bytes),
        (LARGE - 1, int), (-LARGE, int), (1e299, float), ("\udcff", str), ("b", Literal["a", "b"]), (iter([object()]), Iterable[int]),
    ],
)  # fmt: skip
def test_what_fits(value, hint):
    check("x", value, hint)


@pytest.mark.parametrize(
    ("value", "hint", "said", "give"),
    [
        (5, str, "x is 5, not a text", "a text"), (True, int, "x is True, not a whole number", "a whole number"),
        (True, float, "x is True, not a number", "a number"), (1.5, int, "x is 1.5, not a whole number", "a whole number"),
        (5, list, "x is 5, not a list", "a list"), (5, list[Any], "x is 5, not a list", "a list"),
        (5, list[str], "x is 5, not a list", "a list, each item a text"),
        (5, Endpoint, "x is 5, not an Endpoint", "an Endpoint"),
        ("ab", Sequence[str], "x is 'ab', not a list", "a list, each item a text"),
        ({"a": 1}, Iterable[str], "x is of type dict, not a list", "a list, each item a text"),
        ([1, "a"], list[int], "x[1] is 'a', not a whole number", "a list, each item a whole number"),
        ((1,), tuple[int, str], "x has 1 parts, not 2", "a list"), ((1, 2), tuple[int, str], "x[1] is 2, not a text", "a list"),
        ([1], tuple[int, ...], "x is of type list, not a list", "a list, each item a whole number"),
        (5, Mapping[str, int], "x is 5, not a mapping", "a mapping"), (5, dict[str, int], "x is 5, not a mapping", "a mapping"),
        ({1: 1}, Mapping[str, int], "a key of x is 1, not a text", "a mapping"),
        ({"a": "b"}, Mapping[str, int], "x['a'] is 'b', not a whole number", "a mapping"),
        (1.5, str | int | None, "x is 1.5, not a text or a whole number", "a text or a whole number"),
        ([5], str | list[str], "x[0] is 5, not a text", "a text or a list, each item a text"),
        ("c", Literal["a", "b"], "x 'c' is unknown", "one of a, b"), (True, Literal[1], "x is True, not 1", "1"),
        (5, IO, "x is 5, not a file", "a file"), (5, BadInput, "x is 5, not a BadInput", "a BadInput"),
        ("c", Literal[False], "x is 'c', not False", "False"),
        ("c", BadInput | Literal[False], "x is 'c', not False or a BadInput", "False or a BadInput"),
    ],
)  # fmt: skip
def test_what_does_not(value, hint, said, give):
    with pytest.raises(BadInput) as caught:
        check("x", value, hint)
    assert (str(caught.value), caught.value.subject, caught.value.hint) == (said, "x", f"give {give}")


@pytest.mark.parametrize(
    ("value", "hint", "said", "remedy"),
    [
        ("a\0", str, "x contains a NUL byte", "leave the NUL byte out: for the kernel a text ends there"),
        (["a\0"], list[str] | None, "x[0] contains a NUL byte", "leave the NUL byte out: for the kernel a text ends there"),
        ("\ud800", str, "x contains half a character (a lone surrogate)", SURROGATE), (LARGE, int, "x is larger than 64 bits", WIDE),
        (-LARGE - 1, int | str, "x is larger than 64 bits", WIDE), ({"a": LARGE}, Mapping[str, int], "x['a'] is larger than 64 bits", WIDE),
        (1e301, float, "x is 1e+301, out of range", FINITE), (float("nan"), float | None, "x is nan, out of range", FINITE),
        (-1e301, float, "x is -1e+301, out of range", FINITE), ((float("inf"),), tuple[float, ...], "x[0] is inf, out of range", FINITE),
    ],
)  # fmt: skip
def test_what_is_of_the_right_type_and_out_of_bounds(value, hint, said, remedy):
    with pytest.raises(BadInput) as caught:
        check("x", value, hint)
    assert (str(caught.value), caught.value.subject, caught.value.hint) == (said, "x", remedy)
