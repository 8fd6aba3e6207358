"""argparse as we want it: errors are ``BadInput`` (exit code 125) with the option that was probably meant, and no abbreviations."""

from __future__ import annotations

import argparse
import os
import re
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from dockless.errors import BadInput

__all__ = ["Namespace", "Parser", "whole"]


class Parser(argparse.ArgumentParser):
    """``takes_command``: what stands after ``--`` belongs to this verb."""

    def __init__(self, prog: str, about: str) -> None:
        super().__init__(prog=prog, description=about[0].upper() + about[1:] + ".", allow_abbrev=False, formatter_class=_Help)
        self.takes_command = False

    def error(self, message: str, hint: str = "") -> NoReturn:
        verb = self.prog.removeprefix("dockless ")
        raise BadInput(
            f"{verb}: {message.removeprefix('argument ')}", subject=self.prog, hint=hint or f"`{self.prog} --help` lists the options"
        )

    def print_help(self, file: object = None) -> None:
        from dockless.cli.output import out

        out(*self.format_help().splitlines())

    def parse(self, words: Sequence[str]) -> Namespace:
        """The values of a line without its command. ``BadInput``; ``SystemExit`` for --help, after printing it."""
        if self.takes_command and "-h" in words[:-1]:  # Docker's host name: help would hide that it is another option here
            from dockless.cli.docker_words import HOST_NAME

            self.error("-h is followed by a word", HOST_NAME.hint)
        try:
            found, unknown = self.parse_known_args(words)
        except BadInput:
            for action in self._actions:
                action.required = False  # an unknown option says more than what is missing
            self._refuse_letters(words)
            unknown = self.parse_known_args(words)[1]
            if unknown:
                self._refuse(unknown[0])
            raise
        if not unknown:
            return found
        if not unknown[0].startswith("-"):
            self.error(f"{unknown[0]!r} is one argument too many")
        self._refuse(unknown[0])

    def _refuse(self, option: str) -> NoReturn:
        """An option that is not ours: what to use instead, where Docker has it, or what was probably meant."""
        import difflib

        from dockless.cli import docker_words

        name = option.partition("=")[0]
        word = docker_words.flag(self.prog.removeprefix("dockless "), name)
        if word is not None:
            self.error(f"there is no option {name}", word.hint)
        near = difflib.get_close_matches(name, self._option_string_actions, 1)
        self.error(f"there is no option {name}", f"did you mean {near[0]}? `{self.prog} --help` lists the options" if near else "")

    def _refuse_letters(self, words: Sequence[str]) -> None:
        """``-dit``: what stands in one word behind an option of ours that takes no value."""
        for word in words:
            if word[:1] != "-":
                continue
            for at, letter in enumerate(word[1:], 1):
                action = self._option_string_actions.get(f"-{letter}")
                if action is None and at > 1:
                    self._refuse(f"-{word[at:]}")
                if action is None or action.nargs != 0:
                    break

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        from dockless.cli import docker_words

        name = next(iter(action.option_strings), action.dest)
        word = next(filter(None, (docker_words.value(one, value) for one in action.option_strings)), None)
        self.error(f"{name} cannot be {value[:60]!r}", word.hint if word else f"write one of {', '.join(action.choices)}")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if "--" in arg_strings:  # argparse would drop it; the one before the command is not here any more
            self.error(f"'--' is no value of {action.option_strings[-1] if action.option_strings else action.dest}")
        return super()._get_values(action, arg_strings)

    def json(self) -> None:
        self.add_argument("--json", action="store_true", help="print JSON, errors too")

    def quiet(self, about: str) -> None:
        self.add_argument("-q", "--quiet", action="store_true", help=about)


def whole(low: int) -> Callable[[str], int]:
    """The type of an option that is a whole number, this or more."""

    def read(text: str) -> int:
        if not re.fullmatch("-?[0-9]{1,18}", text) or int(text) < low:
            raise argparse.ArgumentTypeError(f"{text[:60]!r} is not a whole number of {low} or more")
        return int(text)

    return read


class _Help(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=min(120, max(80, int(os.environ.get("COLUMNS", "110") or "110"))))
