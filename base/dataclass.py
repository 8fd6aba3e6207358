"""``dataclasses``, quick to make: the same classes for whoever uses them, without a function compiled.

The standard ``dataclass`` writes the source of some eight functions and compiles them, which is a millisecond for each class, and
importing it takes longer than a sandbox lives. Here these functions are closures over the names of the fields. What is left to the
standard one is made when somebody asks: ``__dataclass_fields__`` (for ``fields``, ``replace``, ``asdict``), the signature (for
``help``), the words of a ``TypeError``, and a compiled ``__init__`` for a class of which many instances are made.

All have slots, and none inherits the fields of another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from operator import attrgetter, call

TYPE_CHECKING = False  # importing typing takes as long as making all the classes of a start
if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import replace as replace
    from typing import Any, NoReturn, TypeVar

    T = TypeVar("T")

_MANY = 10_000
"""Instances after which a compiled ``__init__`` begins to pay for itself, and for the import of what compiles it."""


_HUNDREDS = 200
"""Instances made together after which a compiled way to make them begins to pay for itself."""


class _Missing:
    """There is no default."""


class _Field:
    __slots__ = ("compare", "default", "default_factory", "init", "repr")

    def __init__(self, default: Any, default_factory: Any, init: bool, repr: bool, compare: bool) -> None:
        self.default, self.default_factory, self.init, self.repr, self.compare = default, default_factory, init, repr, compare


class _Lazy:
    """An attribute of the class that is made of its standard twin when it is first read."""

    def __init__(self, name: str, of: Callable[[Any], Any]) -> None:
        self.name, self.of = name, of

    def __get__(self, instance: object, kind: type) -> Any:
        value = self.of(_standard(kind))
        setattr(kind, self.name, value)
        return value


def is_dataclass(kind: type) -> bool:
    return "__made_of__" in kind.__dict__


def fields_of(kind: type) -> list[tuple[str, Any, str]]:
    """Name, default and annotation of each field. What stands for a default that is missing, or made anew each time, is no value."""
    fields: Mapping[str, _Field] = kind.__dict__["__made_of__"][0]
    return [(name, found.default, str(kind.__annotations__[name])) for name, found in fields.items()]


def defaults_of(kind: type) -> dict[str, Any]:
    """The defaults of those fields that have one, made anew where each record has its own."""
    fields: Mapping[str, _Field] = kind.__dict__["__made_of__"][0]
    made = {name: found.default_factory() for name, found in fields.items() if found.default_factory is not _Missing}
    return {name: found.default for name, found in fields.items() if found.default is not _Missing} | made


def many(kind: type[T], count: int, columns: Mapping[str, Iterable[Any]]) -> list[T]:
    """So many instances, of one value for each in each column; of the fields without a column, their defaults. A fifth of the time of as
    many calls, and of hundreds a tenth: no ``__init__`` and no ``__post_init__`` is called."""
    whole: dict[str, Iterable[Any]] = {}
    fields: Mapping[str, _Field] = kind.__dict__["__made_of__"][0]
    for name, found in fields.items():
        values = columns.get(name)
        if values is None and found.default_factory is not _Missing:
            values = (make() for make in repeat(found.default_factory, count))
        elif values is None and found.default is _Missing:
            raise TypeError(f"no column {name!r} for {kind.__name__}")
        whole[name] = repeat(found.default) if values is None else values
    if count >= _HUNDREDS:
        alike = tuple(name for name, values in whole.items() if type(values) is repeat)
        hundreds: list[T] = _maker(kind, alike)(count, whole)  # type: ignore[arg-type]  # a class is hashable, whatever T is
        return hundreds
    made = [*map(kind.__new__, repeat(kind, count))]
    for name, values in whole.items():
        deque(map(kind.__dict__[name].__set__, made, values), 0)
    return made


@lru_cache(100)
def _maker(kind: Any, alike: tuple[str, ...]) -> Any:
    """What ``many`` does, compiled: to put a value into a slot is quick by an assignment alone, and only where no ``__setattr__`` stands in
    its way. So they are made of a class of the same slots. ``alike``: the fields that have one value for all."""
    names = [*kind.__dict__["__made_of__"][0]]
    each = [name for name in names if name not in alike]
    unpacked, columns = ", ".join(f"v_{name}" for name in each), ", ".join(f"columns[{name!r}]" for name in each)
    lines = [
        "def make(count, columns):",
        *(f"    v_{name} = next(columns[{name!r}])" for name in alike),
        "    made = [*map(new, repeat(twin, count))]",
        f"    for one, {unpacked} in zip(made, {columns}, strict=True):" if each else "    for one in made:",
        *(f"        one.{name} = v_{name}" for name in names),
        "        one.__class__ = kind",
        "    return made",
    ]
    given = {
        "twin": type(kind.__name__, kind.__bases__, {"__slots__": kind.__slots__}),
        "new": object.__new__,
        "repeat": repeat,
        "kind": kind,
    }
    exec("\n".join(lines), given)
    return given["make"]


def columns(instances: Sequence[Any], names: Sequence[str]) -> list[list[Any]]:
    """The values of these fields, a list for each field: what ``many`` takes, in two thirds of the time of asking each instance."""
    found: list[list[Any]] = _reader(tuple(names))(instances)
    return found


@lru_cache(100)
def _reader(names: tuple[str, ...]) -> Any:
    given: dict[str, Any] = {}
    exec(f"def read(instances): return [{', '.join(f'[one.{name} for one in instances]' for name in names)}]", given)
    return given["read"]


def copied(instance: T, **changes: Any) -> T:
    """As ``replace``, for values that are known to be sound: no ``__init__`` and no ``__post_init__`` is called."""
    kind: Any = type(instance)
    made, put = kind.__new__(kind), kind.__put__
    values = dict(zip(kind.__match_args__, kind.__values__(instance), strict=True)) | changes
    if len(values) != len(put):
        raise TypeError(f"{kind.__name__} has no field {', '.join(values.keys() - put.keys())}")
    deque(map(call, put.values(), repeat(made), values.values()), 0)
    return made  # type: ignore[no-any-return]


def _standard(kind: type) -> Any:
    """What the standard ``dataclass`` makes of the same fields."""
    import dataclasses

    fields, frozen, eq = kind.__dict__["__made_of__"]
    body: dict[str, Any] = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__ or kind.__name__}
    body["__annotations__"] = {name: kind.__annotations__[name] for name in fields}
    if hasattr(kind, "__post_init__"):
        body["__post_init__"] = kind.__post_init__
    for name, found in fields.items():
        given = {
            "default": found.default,
            "default_factory": found.default_factory,
            "init": found.init,
            "repr": found.repr,
            "compare": found.compare,
        }
        body[name] = dataclasses.field(**{key: value for key, value in given.items() if value is not _Missing})
    return dataclasses.dataclass(frozen=frozen, eq=eq, slots=True)(type(kind.__name__, (), body))


def _signature(standard: Any) -> Any:
    import inspect

    return inspect.signature(standard)


def _dataclass(*, slots: bool, frozen: bool = False, eq: bool = True) -> Callable[[type], type]:
    return lambda kind: _made(kind, frozen, eq)


def _field(*, default: Any = _Missing, default_factory: Any = _Missing, init: bool = True, repr: bool = True, compare: bool = True) -> Any:
    return _Field(default, default_factory, init, repr, compare)


def _replace(instance: Any, /, **changes: Any) -> Any:
    kind = type(instance)
    names = kind.__match_args__
    values = dict(zip(names, kind.__values__(instance), strict=True)) | changes
    return kind(*values.values()) if len(values) == len(names) else kind(**values)


def _made(kind: type, frozen: bool, eq: bool) -> type:
    body = {name: value for name, value in kind.__dict__.items() if name not in ("__dict__", "__weakref__")}
    fields: dict[str, _Field] = {}
    for name in kind.__annotations__:
        value = body.pop(name, _Missing)
        fields[name] = value if isinstance(value, _Field) else _Field(value, _Missing, True, True, True)
    put: dict[str, Callable[[Any, Any], None]] = {}
    body |= {
        "__slots__": tuple(fields),
        "__match_args__": tuple(name for name, found in fields.items() if found.init),
        "__made_of__": (fields, frozen, eq),
        "__put__": put,
        "__values__": staticmethod(_values_of([name for name, found in fields.items() if found.init])),
        "__dataclass_fields__": _Lazy("__dataclass_fields__", lambda standard: standard.__dataclass_fields__),
        "__signature__": _Lazy("__signature__", _signature),
        "__init__": _init(fields, put, "__post_init__" in body),
        "__repr__": body.get("__repr__") or _repr([name for name, found in fields.items() if found.repr]),
        **_pickled(put),
        **(_compared([name for name, found in fields.items() if found.compare], frozen) if eq else {}),
        **({"__setattr__": _refuse_set, "__delattr__": _refuse_delete} if frozen else {}),
    }
    made = type(kind)(kind.__name__, kind.__bases__, body)
    made.__qualname__ = kind.__qualname__
    put |= {name: made.__dict__[name].__set__ for name in fields}
    return made


def _init(fields: Mapping[str, _Field], put: Mapping[str, Callable[[Any, Any], None]], checked: bool) -> Callable[..., None]:
    names = tuple(name for name, found in fields.items() if found.init)
    others = fields.keys() - names
    nothing = {name: found.default for name, found in fields.items()}
    needed = {name for name, found in fields.items() if found.default is _Missing}
    factories = [(name, found.default_factory) for name, found in fields.items() if found.default_factory is not _Missing]
    puts: tuple[Callable[[Any, Any], None], ...] = ()
    left = _MANY

    def __init__(self: Any, /, *args: Any, **given: Any) -> None:
        nonlocal left, puts
        left -= 1
        puts = puts or tuple(put.values())
        if len(args) == len(nothing) == len(names) and not given and left >= 0:
            deque(map(call, puts, repeat(self), args), 0)
            if checked:
                self.__post_init__()
            return
        said = dict(zip(names, args, strict=False)) | given if args else given
        wrong = len(said) != len(args) + len(given) or not others.isdisjoint(given)
        for name, make in factories:
            if name not in said:
                said[name] = make()
        values = nothing | said
        if wrong or left < 0 or len(values) != len(nothing) or not needed <= said.keys():
            return _compiled(self, args, given)
        deque(map(call, puts, repeat(self), values.values()), 0)
        if checked:
            self.__post_init__()

    return __init__


def _compiled(self: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
    """By the standard ``__init__``, from now on that of the class: it is quicker, and says best what is wrong with the arguments."""
    kind = type(self)
    kind.__init__ = _standard(kind).__init__
    kind.__init__(self, *args, **given)


def _repr(names: list[str]) -> Callable[[Any], str]:
    def __repr__(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return __repr__


def _values_of(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _compared(names: Sequence[str], frozen: bool) -> dict[str, Any]:
    read = _values_of(names)

    def __eq__(self: Any, other: Any) -> Any:
        return read(self) == read(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(read(self))

    return {"__eq__": __eq__, "__hash__": __hash__ if frozen else None}


def _pickled(put: Mapping[str, Callable[[Any, Any], None]]) -> dict[str, Any]:
    def __getstate__(self: Any) -> list[Any]:
        return [getattr(self, name) for name in put]

    def __setstate__(self: Any, state: list[Any]) -> None:
        for name, value in zip(put, state, strict=True):
            put[name](self, value)

    return {"__getstate__": __getstate__, "__setstate__": __setstate__}


def _refuse_set(self: object, name: str, value: object) -> NoReturn:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: object, name: str) -> NoReturn:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot delete field {name!r}")


if not TYPE_CHECKING:
    dataclass, field, replace = _dataclass, _field, _replace
