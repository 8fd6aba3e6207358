"""What is wrong is told all at once; of what was wrong nothing else is kept."""

from __future__ import annotations

import weakref

import pytest

from dockless.base.findings import MOST, Findings
from dockless.errors import BadInput


class Part:
    """What came from a stranger, large."""


def test_an_error_holds_on_to_nothing_that_it_came_through():
    found, part = Findings(), Part()
    still = weakref.ref(part)

    def refuses(part: Part) -> None:
        try:
            raise KeyError(part)
        except KeyError:
            raise BadInput("it is wrong") from None

    try:
        refuses(part)
    except BadInput as error:
        found.add(error)
    del part
    assert still() is None and len(found.errors) == 1
    with pytest.raises(BadInput, match="it is wrong"):
        found.refuse()


def test_not_more_are_told_than_can_be_read():
    found = Findings()
    with pytest.raises(BadInput, match="number 0") as caught:
        for number in range(1000):
            found.add(BadInput(f"number {number}"))
    assert len(found.errors) == MOST and caught.value.__notes__[-1] == "there may be more: correct these first"
