"""What a verb's line may say, and reading it.

A ``Parser`` keeps what a verb declares, in the words of ``argparse.add_argument``. A plain line is read from that table. Any other (an
unknown option, letters in one word, a value that begins with a dash, a missing argument, ``--help``) goes to ``full``, the argparse of the
same declarations. That one has the errors and the help, and takes longer to import and fill than a sandbox to start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace as Namespace

from dockless.base.typing import TYPE_CHECKING, Any, NoReturn
from dockless.errors import BadInput

if TYPE_CHECKING:
    from dockless.cli.full_parser import FullParser

__all__ = ["Namespace", "Parser", "whole"]

_SEVERAL = ("*", "+")


class Group:
    """Declarations under one title of the help."""

    def __init__(self, title: str | None, about: str | None) -> None:
        self.title, self.about = title, about
        self.declared: list[tuple[tuple[str, ...], dict[str, Any]]] = []

    def add_argument(self, *flags: str, **more: Any) -> None:
        self.declared.append((flags, more))


class Parser(Group):
    """``takes_command``: what stands after ``--`` belongs to this verb."""

    def __init__(self, prog: str, about: str) -> None:
        super().__init__(None, about)
        self.prog = prog
        self.usage: str | None = None
        self.takes_command = False
        self.groups: list[Group] = [self]

    def add_argument_group(self, title: str, about: str | None = None) -> Group:
        self.groups.append(Group(title, about))
        return self.groups[-1]

    def json(self) -> None:
        self.add_argument("--json", action="store_true", help="print JSON, errors too")

    def quiet(self, about: str) -> None:
        self.add_argument("-q", "--quiet", action="store_true", help=about)

    def full(self) -> FullParser:
        from dockless.cli.full_parser import FullParser

        return FullParser(self)

    def error(self, message: str, hint: str = "") -> NoReturn:
        verb = self.prog.removeprefix("dockless ")
        raise BadInput(
            f"{verb}: {message.removeprefix('argument ')}", subject=self.prog, hint=hint or f"`{self.prog} --help` lists the options"
        )

    def print_help(self) -> None:
        self.full().print_help()

    def parse(self, words: Sequence[str]) -> Namespace:
        """The values of a line without its command. ``BadInput``; ``SystemExit`` for --help, after printing it."""
        found = self.quick(words)
        return self.full().parse(words) if found is None else found

    def quick(self, words: Sequence[str]) -> Namespace | None:
        """The same for a plain line, and None for any other."""
        options: dict[str, tuple[str, dict[str, Any]]] = {}
        arguments: list[tuple[str, dict[str, Any]]] = []
        values: dict[str, Any] = {}
        for group in self.groups:
            for flags, more in group.declared:
                name = _name(flags, more)
                values.setdefault(name, False if more.get("action") == "store_true" else more.get("default"))
                if flags[0][0] != "-":
                    arguments.append((name, more))
                for flag in flags:
                    options[flag] = name, more
        try:
            _place(arguments, _read_options(words, options, values), values)
        except _NotPlain:
            return None
        return Namespace(**values)


class _NotPlain(Exception):
    """A line for ``full``."""


def _name(flags: Sequence[str], more: dict[str, Any]) -> str:
    """By which a value is found: argparse's rule."""
    if "dest" in more:
        return str(more["dest"])
    return next((flag for flag in flags if flag[:2] == "--"), flags[0]).lstrip("-").replace("-", "_")


def _read_options(words: Sequence[str], options: dict[str, tuple[str, dict[str, Any]]], values: dict[str, Any]) -> list[str]:
    """Take the options out of a line; what is left. ``_NotPlain``"""
    left: list[str] = []
    ended = False  # an option stood behind the first words that are left
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word[:1] != "-" or word == "-":
            if ended:
                raise _NotPlain
            left.append(word)
            continue
        ended = bool(left)
        flag, equals, value = word.partition("=")
        if flag not in options:
            raise _NotPlain
        name, more = options[flag]
        action = more.get("action")
        if action == "store_true":
            if equals:
                raise _NotPlain
            values[name] = True
            continue
        if not equals:
            if at == len(words) or words[at][:1] == "-":
                raise _NotPlain
            value = words[at]
            at += 1
        elif flag[1] != "-" or value in ("", "--"):
            raise _NotPlain
        values[name] = [*(values[name] or ()), _value(value, more)] if action == "append" else _value(value, more)
    return left


def _place(arguments: Sequence[tuple[str, dict[str, Any]]], words: list[str], values: dict[str, Any]) -> None:
    """Give the words to the arguments in turn, as many to each as leaves enough for those that follow. ``_NotPlain``"""
    at = 0
    for number, (name, more) in enumerate(arguments):
        count = more.get("nargs")
        free = len(words) - at - sum(one.get("nargs") in (None, "+") for _, one in arguments[number + 1 :])
        taken = words[at : at + (max(free, 0) if count in _SEVERAL else min(max(free, 0), 1))]
        at += len(taken)
        if not taken and count in (None, "+"):
            raise _NotPlain
        if taken or (count == "*" and values[name] is None):
            read = [_value(word, more) for word in taken]
            values[name] = read if count in _SEVERAL else read[0]
    if at < len(words):
        raise _NotPlain


def _value(word: str, more: dict[str, Any]) -> Any:
    kind, choices = more.get("type"), more.get("choices")
    try:
        value = word if kind is None else kind(word)
    except Exception:
        raise _NotPlain from None
    if choices is not None and value not in choices:
        raise _NotPlain
    return value


def whole(low: int | None = None) -> Callable[[str], int]:
    """The type of an option that is a whole number, this or more; any where None."""

    def read(text: str) -> int:
        from dockless.base.later import re

        if not re.fullmatch("-?[0-9]{1,18}", text) or (low is not None and int(text) < low):
            from argparse import ArgumentTypeError

            raise ArgumentTypeError(f"{text[:60]!r} is not a whole number" + ("" if low is None else f" of {low} or more"))
        return int(text)

    return read
