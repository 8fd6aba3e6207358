"""argparse as we want it: errors are ``BadInput`` (exit code 125) with the option that was probably meant, and no abbreviations."""

from __future__ import annotations

import argparse
import os
from argparse import Namespace
from collections.abc import Sequence
from typing import Any, NoReturn

from dockless.errors import BadInput

__all__ = ["Namespace", "Parser"]


class Parser(argparse.ArgumentParser):
    """``takes_command``: what stands after ``--`` belongs to this verb."""

    def __init__(self, prog: str, about: str) -> None:
        super().__init__(prog=prog, description=about[0].upper() + about[1:] + ".", allow_abbrev=False, formatter_class=_Help)
        self.takes_command = False

    def error(self, message: str, hint: str = "") -> NoReturn:
        verb = self.prog.removeprefix("dockless ")
        raise BadInput(f"{verb}: {message}", subject=self.prog, hint=hint or f"`{self.prog} --help` lists the options")

    def print_help(self, file: object = None) -> None:
        from dockless.cli.output import out

        out(*self.format_help().splitlines())

    def parse(self, words: Sequence[str]) -> Namespace:
        """The values of a line without its command. ``BadInput``; ``SystemExit`` for --help, after printing it."""
        try:
            found, unknown = self.parse_known_args(words)
        except BadInput:
            for action in self._actions:
                action.required = False  # an unknown option says more than what is missing
            unknown = self.parse_known_args(words)[1]
            if unknown and unknown[0].startswith("-"):
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

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if "--" in arg_strings:  # argparse would drop it; the one before the command is not here any more
            self.error(f"'--' is no value of {action.option_strings[-1] if action.option_strings else action.dest}")
        return super()._get_values(action, arg_strings)

    def json(self) -> None:
        self.add_argument("--json", action="store_true", help="print JSON, errors too")

    def quiet(self, about: str) -> None:
        self.add_argument("-q", "--quiet", action="store_true", help=about)


class _Help(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=min(120, max(80, int(os.environ.get("COLUMNS", "110") or "110"))))
