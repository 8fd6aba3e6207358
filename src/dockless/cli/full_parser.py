"""argparse as we want it: errors are ``BadInput`` (exit code 125) with the option that was probably meant, and no abbreviations."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence

from dockless.base.typing import TYPE_CHECKING, Any, NoReturn
from dockless.errors import BadInput

if TYPE_CHECKING:
    from dockless.cli.parser import Namespace, Parser

vars(argparse)["_"] = str  # our words are not translated, and looking for a translation imports locale


class FullParser(argparse.ArgumentParser):
    """All that ``of`` declares."""

    def __init__(self, of: Parser) -> None:
        about = of.about or ""
        description = f"{about[0].upper()}{about[1:]}."
        super().__init__(prog=of.prog, usage=of.usage, description=description, allow_abbrev=False, formatter_class=_Help)
        self._of = of
        for group in of.groups:
            place = self if group is of else self.add_argument_group(group.title, group.about)
            for flags, more in group.declared:
                place.add_argument(*flags, **more)

    @property
    def actions(self) -> list[argparse.Action]:
        """What it knows, argument by argument."""
        return self._actions

    def error(self, message: str, hint: str = "") -> NoReturn:
        self._of.error(message, hint)

    def print_help(self, file: object = None) -> None:
        from dockless.cli.output import out

        out(*self.format_help().splitlines())

    def parse(self, words: Sequence[str]) -> Namespace:
        """See ``Parser.parse``."""
        if self._of.takes_command and "-h" in words[:-1]:  # Docker's host name: help would hide that it is another option here
            from dockless.cli.docker_words import HOST_NAME

            self.error("-h is followed by a word", HOST_NAME.hint)
        from dockless.cli.parser import Namespace

        try:
            found, unknown = self.parse_known_args(words, Namespace())
        except BadInput:
            for action in self._actions:
                action.required = False  # an unknown option says more than what is missing
            self._refuse_command(words)
            self._refuse_letters(words)
            for word in self._docker_has(words):
                self._refuse(word)
            unknown = self.parse_known_args(words)[1]
            if unknown:
                self._refuse(unknown[0])
            raise
        if unknown and not unknown[0].startswith("-") and not self._of.takes_command:  # options between names
            found, unknown = self.parse_known_intermixed_args(words, Namespace())
        if not unknown:
            return found
        self._refuse_command(words)
        if not unknown[0].startswith("-"):
            self.error(f"{unknown[0]!r} is one argument too many")
        self._refuse(unknown[0])

    def _refuse_command(self, words: Sequence[str]) -> None:
        """A command without ``--`` before it: its options are not ours."""
        if not self._of.takes_command:
            return
        for at in (*(at for at, word in enumerate(words) if word[:1] == "-"), len(words)):
            try:
                found, left = self.parse_known_args(words[:at])
            except BadInput:
                continue
            if any(word[:1] == "-" for word in left):
                return
            values = [getattr(found, action.dest) for action in self._actions if not action.option_strings]
            names = [name for value in values for name in (value if isinstance(value, list) else [value] if value else [])] + left
            if len(names) > 1:
                from shlex import join

                begins = words.index(names[1], words.index(names[0]) + 1)
                line = f"{self.prog} {join(words[:begins])} -- {join(words[begins:])}"
                self.error(f"{names[1][:60]!r} follows {names[0][:60]!r}", f"the command goes after '--': {line[:200]}")

    def _docker_has(self, words: Sequence[str]) -> Iterator[str]:
        """Options of Docker's that are not ours, wherever they stand."""
        from dockless.cli import docker_words

        verb = self.prog.removeprefix("dockless ")
        for word in words:
            name = word.partition("=")[0]
            if word[:1] == "-" and name not in self._option_string_actions and docker_words.flag(verb, name):
                yield word

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


class _Help(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=min(120, max(80, int(os.environ.get("COLUMNS", "110") or "110"))))
