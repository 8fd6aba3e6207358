"""Types checked where values come in: of records by their fields, of functions by their parameters, of keywords by a table of annotations.

One rule each, for all of them: a text has no NUL and can be given to the kernel, a whole number fits into 64 bits and is no ``True``, a
number is finite, a list is no text and no mapping. What does not fit is ``BadInput`` with the name of the argument. Values that are the
default cost a comparison, so that records of many fields stay cheap to make.
"""

from __future__ import annotations

import builtins
import collections.abc
import os
import types
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, wraps

from dockless.base import typing
from dockless.base.dataclass import fields_of
from dockless.base.text import shown
from dockless.base.typing import Any, TypeVar
from dockless.errors import BadInput

F = TypeVar("F", bound=Callable[..., Any])
_LARGEST = 2**63
_WORDS: Mapping[Any, str] = {
    str: "a text", bool: "True or False", int: "a whole number", float: "a number", bytes: "bytes", type(None): "None",
    os.PathLike: "a path", Mapping: "a mapping", dict: "a mapping", collections.abc.Callable: "a function", typing.IO: "a file",
}  # fmt: skip
_LISTS = (collections.abc.Iterable, collections.abc.Sequence, list, tuple)


def check(name: str, value: object, hint: Any) -> None:
    """``BadInput`` that begins with ``name`` unless ``value`` is what the annotation says."""
    problem = _problem(name, value, hint)
    if problem:
        raise BadInput(problem, subject=name, hint=problem.remedy if isinstance(problem, _OutOfBounds) else f"give {_words(hint)}")


def check_record(record: Any) -> None:
    """The fields of a dataclass against their annotations; for its ``__post_init__``."""
    kind: Any = type(record)
    for name, default, text in _fields(kind):
        value = getattr(record, name)
        if value is not default:
            hint, at_once = _meant(text, kind.__module__)
            if type(value) not in at_once or _bounds_problem(name, value):
                check(name, value, hint)


_fields = lru_cache(maxsize=64)(fields_of)


@lru_cache(maxsize=512)
def _meant(text: str, module: str) -> tuple[Any, tuple[type, ...]]:
    """An annotation, and the types of which a value needs no more than a look at its bounds."""
    hint = annotation(text, module)
    return hint, _types_of(hint)


@lru_cache(maxsize=512)
def _types_of(hint: Any) -> tuple[type, ...]:
    origin, inner = typing.parts(hint)
    either = inner if origin is types.UnionType else (origin if origin is type else hint,)
    return tuple(one for one in either if isinstance(one, type))


def checked(function: F) -> F:
    """A function that checks its arguments against its annotations before anything happens. What an annotation names must be imported for
    programs, not for type checkers alone. Iterators are not looked into: their items are whoever's that consumes them."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    module = function.__module__
    wanted = {name: text for name, text in function.__annotations__.items() if name in known}
    meant: dict[str, tuple[Any, tuple[type, ...]]] = {}

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            if name in wanted:
                if name not in meant:
                    meant[name] = _meant(str(wanted[name]), module)
                hint, at_once = meant[name]
                if type(value) not in at_once or (value is not None and _bounds_problem(name, value)):
                    check(name, value, hint)
        return function(*args, **kwargs)

    return typing.cast(F, call)


class _Names(dict[str, Any]):
    """What an annotation's names mean: those of the module it is in, and Python's own. ``NameError`` for what only type checkers import."""

    def __missing__(self, name: str) -> Any:
        places = (vars(builtins), vars(typing), vars(collections.abc))
        for place in places:
            if name in place:
                return place[name]
        raise KeyError(name)


@lru_cache(maxsize=512)
def annotation(text: str, module: str) -> Any:
    """The annotation that a module's source has as ``text``."""
    import sys

    return eval(text, {"__builtins__": {}}, _Names(vars(sys.modules[module])))  # our own annotations, never a caller's


class _OutOfBounds(str):
    """What is wrong with a value of the right type, and what to do about it."""

    remedy: str

    def __new__(cls, problem: str, remedy: str) -> _OutOfBounds:
        made = super().__new__(cls, problem)
        made.remedy = remedy
        return made


def _problem(name: str, value: object, hint: Any) -> str | None:
    if type(value) is hint:
        return _bounds_problem(name, value)
    origin, inner = typing.parts(hint)
    if hint is Any or isinstance(hint, TypeVar):
        return None
    if hint is None:
        hint = type(None)
    if origin is types.UnionType:
        if type(value) in inner:
            return _bounds_problem(name, value)
        problems = [_problem(name, value, one) for one in inner]
        if None in problems:
            return None
        deeper = [text for text in problems if text and not text.startswith(f"{name} is ")]
        return deeper[0] if deeper else f"{name} is {shown(value)}, not {_words(hint)}"
    if origin is typing.Literal:
        known = [one for one in inner if type(one) is type(value)]
        if value in known:
            return None
        return f"{name} {shown(value)} is unknown" if known else f"{name} is {shown(value)}, not {_words(hint)}"
    if (origin or hint) in _LISTS:
        return _list_problem(name, value, origin, inner)
    if origin is not None:
        hint = origin
    if isinstance(value, bool) and hint in (int, float):
        return f"{name} is {value}, not {_words(hint)}"
    if hint is float and isinstance(value, int):
        hint = int
    if hint is typing.IO:
        return None if hasattr(value, "fileno") else f"{name} is {shown(value)}, not a file"
    if isinstance(hint, type) and not isinstance(value, hint):
        return f"{name} is {shown(value)}, not {_words(hint)}"
    if isinstance(value, Mapping):
        return _items_problem(name, value, inner)
    return _bounds_problem(name, value)


def _list_problem(name: str, value: object, origin: Any, inner: tuple[Any, ...]) -> str | None:
    if type(value) is not tuple:
        kind = tuple if origin is tuple else collections.abc.Iterable
        if not isinstance(value, kind) or isinstance(value, (str, bytes, bytearray, memoryview, Mapping)):
            return f"{name} is {shown(value)}, not a list"
        if not isinstance(value, collections.abc.Collection):
            return None
    if origin is tuple and inner and inner[-1] is not Ellipsis:
        if len(value) != len(inner):
            return f"{name} has {len(value)} parts, not {len(inner)}"
        kinds: Iterable[Any] = inner
    else:
        one = inner[0] if inner else Any
        if are_sound(value, _types_of(one), pair_of(one)):
            return None
        kinds = [one] * len(value)
    for at, (item, one) in enumerate(zip(value, kinds, strict=True)):
        if type(item) in _types_of(one) and not _bounds_problem(name, item):
            continue
        problem = _problem(f"{name}[{at}]", item, one)
        if problem:
            return problem
    return None


def pair_of(hint: Any) -> tuple[Any, ...]:
    """The types of the parts of a ``tuple[str, str]``; empty for what is no tuple of so many texts or numbers."""
    origin, inner = typing.parts(hint)
    return inner if origin is tuple and all(one in (str, int) for one in inner) else ()


def are_sound(items: Iterable[Any], types_: tuple[type, ...], pair: tuple[Any, ...], kind: Any = tuple) -> bool:
    """Whether all are of these types, or all are such a ``pair``, and within their bounds. The quick answer for long lists: where it is no,
    somebody has to look which is not. ``kind``: of a pair itself."""
    if pair:
        return all(type(item) is kind and tuple(map(type, item)) == pair and not any(map(_is_out_of_bounds, item)) for item in items)
    return bool(types_) and all(type(item) in types_ and not _is_out_of_bounds(item) for item in items)


def _is_out_of_bounds(value: object) -> bool:
    if type(value) is str and value.isascii() and "\0" not in value:
        return False
    return _bounds_problem("", value) is not None


def _items_problem(name: str, value: Mapping[Any, Any], inner: tuple[Any, ...]) -> str | None:
    of_key, of_value = inner or (Any, Any)
    for key, item in value.items():
        problem = _problem(f"a key of {name}", key, of_key) or _problem(f"{name}[{shown(key)}]", item, of_value)
        if problem:
            return problem
    return None


def _bounds_problem(name: str, value: object) -> str | None:
    if isinstance(value, str):
        if "\0" in value:
            return _OutOfBounds(f"{name} contains a NUL byte", "leave the NUL byte out: for the kernel a text ends there")
        if not value.isascii():
            try:
                value.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError:
                what = f"{name} contains half a character (a lone surrogate)"
                return _OutOfBounds(what, "leave it out, or decode the bytes behind it with errors='surrogateescape'")
    elif isinstance(value, int):
        if not -_LARGEST <= value < _LARGEST:
            return _OutOfBounds(f"{name} is larger than 64 bits", "give a number from -2**63 to 2**63 - 1")
    elif isinstance(value, float) and not -1e300 < value < 1e300:
        return _OutOfBounds(f"{name} is {value}, out of range", "give a finite number, or leave it out")
    return None


def _place(hint: Any) -> int:
    """Where an alternative is named: ``int | str`` and ``str | int`` are one for a cache of annotations, so they must read alike."""
    kind = typing.parts(hint)[0] or hint
    return list(_WORDS).index(kind) if kind in _WORDS else len(_WORDS)


def _words(hint: Any) -> str:
    origin, inner = typing.parts(hint)
    if origin is types.UnionType:
        words = {_words(one): None for one in sorted(inner, key=_place) if one is not type(None)}
        return " or ".join(words)
    if origin is typing.Literal:
        return ("one of " if len(inner) > 1 else "") + ", ".join(map(str, inner))
    if (origin or hint) in _LISTS:
        items = [one for one in inner if one is not Ellipsis]
        return f"a list, each item {_words(items[0])}" if len(items) == 1 and items[0] is not Any else "a list"
    name = getattr(hint, "__name__", "value")
    return _WORDS.get(origin or hint) or f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
