"""Keywords as people write them → the fields of a record, by a table of ``Keyword``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dockless.base.dataclass import dataclass
from dockless.base.typing import Any


@dataclass(frozen=True, slots=True)
class Keyword:
    """``field``: of the record, empty for a keyword that fills none. ``read``: from the value and the keyword's name, which its errors
    say, to the field's value."""

    name: str
    field: str
    read: Callable[[Any, str], Any]


def as_it_is(value: Any, name: str) -> Any:
    return value


def filled(table: Iterable[Keyword], given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of what is given; None is as good as left out. Two keywords that fill one field give lists, which are joined."""
    found: dict[str, Any] = {}
    for keyword in table:
        value = given.get(keyword.name)
        if keyword.field and value is not None:
            new = keyword.read(value, keyword.name)
            found[keyword.field] = found[keyword.field] + new if keyword.field in found else new
    return found
