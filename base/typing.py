"""What programs need of ``typing`` while they run, quick to import.

Importing the standard module takes as long as a sandbox lives, and nearly all that it has is for type checkers: those see it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import GenericAlias, UnionType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO as IO
    from typing import Any as Any
    from typing import BinaryIO as BinaryIO
    from typing import ClassVar as ClassVar
    from typing import Generic as Generic
    from typing import Literal as Literal
    from typing import NoReturn as NoReturn
    from typing import Protocol as Protocol
    from typing import Required as Required
    from typing import TextIO as TextIO
    from typing import TypeVar as TypeVar
    from typing import cast as cast
    from typing import get_args as get_args
    from typing import overload as overload


class _Generic:
    def __class_getitem__(cls, of: object) -> GenericAlias:
        return GenericAlias(cls, of)


class _Protocol(_Generic):
    """Nobody asks for an instance at run time."""


class _TypeVar:
    def __init__(self, name: str, *either: object, bound: object = None) -> None:
        self.__name__ = name

    def __repr__(self) -> str:
        return f"~{self.__name__}"


class _Choice:
    """``typing.Literal[…]`` for whoever reads its origin."""

    def __init__(self, *args: object) -> None:
        self.__args__ = args

    @property
    def __origin__(self) -> object:
        import typing

        return typing.Literal

    def __or__(self, other: object) -> object:
        import typing

        return typing.Union[self, other]  # noqa: UP007 - that is this method

    __ror__ = __or__

    def __call__(self) -> None:
        """``typing`` takes what can be called for a type."""
        raise TypeError(f"{self!r} is not called")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Choice) and other.__args__ == self.__args__

    def __hash__(self) -> int:
        return hash(self.__args__)

    def __repr__(self) -> str:
        return f"Literal[{', '.join(map(repr, self.__args__))}]"


class _Literal:
    def __class_getitem__(cls, values: object) -> _Choice:
        return _Choice(*values) if isinstance(values, tuple) else _Choice(values)


class _IO(_Generic):
    """A file."""


@lru_cache(maxsize=512)
def parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """The origin of an annotation, ``UnionType`` for what is one of several, and what it was made with."""
    if isinstance(hint, _Choice):
        return Literal, hint.__args__
    if isinstance(hint, UnionType):
        return UnionType, hint.__args__
    origin = getattr(hint, "__origin__", None)
    known: dict[str, Any] = {"Union": UnionType, "Literal": Literal}  # of the standard module
    return known.get(getattr(origin, "__name__", ""), origin), getattr(hint, "__args__", ())


def _get_args(hint: Any) -> tuple[Any, ...]:
    return parts(hint)[1]


def _overload(function: Callable[..., object]) -> Callable[..., object]:
    return function


def _cast(kind: object, value: object) -> object:
    return value


if not TYPE_CHECKING:
    Any = object
    IO = BinaryIO = TextIO = _IO
    ClassVar, Generic, Literal, NoReturn, Protocol, Required, TypeVar = _Generic, _Generic, _Literal, None, _Protocol, _Generic, _TypeVar
    cast, get_args, overload = _cast, _get_args, _overload
