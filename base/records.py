"""Records, which are dataclasses, as plain values that JSON has, and back: by their annotations, and strictly. A wrong type or an unknown
name is an error, never a guess.

::

    plain(record)                 all of its fields
    differences(record)           those that differ from their defaults
    read(Spec, values, "spec")    the record
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from types import UnionType

from dockless.base.checks import annotation, are_sound, check, pair_of
from dockless.base.dataclass import defaults_of, fields_of, is_dataclass
from dockless.base.text import shown
from dockless.base.typing import Any, TypeVar, parts
from dockless.errors import BadInput

T = TypeVar("T")
_VERSIONS = "it may be of another version of dockless"


def plain(value: Any) -> Any:
    """Records as dicts, all the way down; tuples and sets as lists."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if is_dataclass(type(value)):
        return {name: plain(getattr(value, name)) for name, _, _ in fields_of(type(value))}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return value


def differences(record: Any) -> dict[str, Any]:
    """The same, without what ``read`` fills in by itself."""
    kind: Any = type(record)
    items = [(name, getattr(record, name), default) for name, (default, _) in _known(kind).items()]
    return {name: _different(item) for name, item, default in items if item != default}


@lru_cache(maxsize=64)
def _known(kind: Any) -> dict[str, tuple[Any, str]]:
    """The default of each field, ``...`` for none, and its annotation."""
    defaults = defaults_of(kind)
    return {name: (defaults.get(name, ...), text) for name, _, text in fields_of(kind)}


def _different(value: Any) -> Any:
    if is_dataclass(type(value)):
        return differences(value)
    if isinstance(value, dict):
        return {key: _different(item) for key, item in value.items()}
    return [_different(item) for item in value] if isinstance(value, (list, tuple)) else value


def read(kind: type[T], values: Any, where: str = "", *, newer: bool = False) -> T:
    """The record of that kind. ``where``: what ``values`` are called in errors. ``newer``: of a newer version, maybe, whose further fields
    are passed over.

    ``BadInput`` that names the field, for what is unknown, missing or of another type, and for what the record itself refuses.
    """
    if not isinstance(values, dict):
        name = where or kind.__name__
        raise BadInput(f"{name} is {shown(values)}, not an object", subject=name, hint="give a JSON object")
    known = _known(kind)  # type: ignore[arg-type]  # a class is hashable, whatever T is
    given = {}
    for name, value in values.items():
        place = _below(where, name[:60])
        if name in known:
            default, text = known[name]
            if value == default and type(value) is type(default):
                given[name] = value
            elif value == [] and default == ():
                given[name] = ()
            else:
                given[name] = _read(value, annotation(text, kind.__module__), place, newer)
        elif not newer:
            raise BadInput(f"{place} is unknown", subject=place, hint=_VERSIONS)
    for name, (default, _) in known.items():
        if default is ... and name not in given:
            raise BadInput(f"{_below(where, name)} is missing", subject=_below(where, name), hint=_VERSIONS)
    return kind(**given)


def _below(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _read(value: Any, hint: Any, place: str, newer: bool) -> Any:
    if type(value) is hint:  # a text or a number
        check(place, value, hint)
        return value
    origin, inner = parts(hint)
    either = inner if origin is UnionType else (hint,)
    for one in either:
        origin, inner = parts(one)
        if isinstance(one, type) and is_dataclass(one) and (value is not None or one is hint):
            return read(one, value, place, newer=newer)
        if isinstance(value, dict) and origin is dict:
            return {key: _read(item, inner[1], f"{place}[{shown(key)}]", newer) for key, item in value.items()}
        if isinstance(value, list) and origin in (tuple, Sequence):
            of_all = inner[:1] if origin is not tuple or inner[-1] is Ellipsis else ()
            if of_all and are_sound(value, (of_all[0],) if of_all[0] in (str, int) else (), pair_of(of_all[0]), list):
                return tuple(map(tuple, value)) if pair_of(of_all[0]) else tuple(value)
            value = tuple(value)
            kinds = inner if origin is tuple and inner[-1] is not Ellipsis else inner[:1] * len(value)
            if len(kinds) == len(value):
                return tuple(_read(item, each, f"{place}[{at}]", newer) for at, (item, each) in enumerate(zip(value, kinds, strict=True)))
    check(place, value, hint)
    return float(value) if type(value) is int and float in either and int not in either else value
