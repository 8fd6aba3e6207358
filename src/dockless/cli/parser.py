"""A small option parser: the part of argparse that we use, with its method names, in a tenth of its time.

It exists for speed alone: importing argparse and filling it with the options of ``run`` takes longer than starting the sandbox.
Conventions are getopt_long(3)'s: ``--name value``, ``--name=value``, ``-n value``, ``-nvalue``; flags may be joined (``-aq``); an option
that wants a value takes the next word whatever it looks like. No abbreviations: a new option must not change what an old script means.
"""

from __future__ import annotations

from typing import Any, NoReturn

from dockless.errors import BadInput

_COLUMN = 34


class Namespace:
    """The parsed values, as attributes."""

    command: list[str] | None

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class Option:
    """One option or positional argument. ``action``: store, store_true or append; ``nargs``: of a positional, "" for exactly one."""

    __slots__ = ("action", "choices", "default", "dest", "help", "metavar", "names", "nargs", "type")

    def __init__(
        self,
        names: tuple[str, ...],
        action: str = "store",
        default: Any = None,
        dest: str = "",
        metavar: str = "",
        help: str = "",
        choices: tuple[str, ...] = (),
        type: type[int] | None = None,
        nargs: str = "",
    ) -> None:
        self.names = names
        self.action = action
        self.default = False if action == "store_true" else default
        self.dest = dest or (next((n for n in names if n.startswith("--")), names[0])).lstrip("-").replace("-", "_")
        self.metavar = metavar or ("{" + ",".join(choices) + "}" if choices else self.dest.upper().replace("_", "-"))
        self.help = help
        self.choices = choices
        self.type = type
        self.nargs = nargs

    @property
    def takes_value(self) -> bool:
        return self.action != "store_true"

    @property
    def label(self) -> str:
        """As --help shows it: ``-m, --memory SIZE``."""
        if not self.names[0].startswith("-"):
            return self.metavar
        return ", ".join(self.names) + (f" {self.metavar}" if self.takes_value else "")


class Group:
    """Options under one title of --help."""

    def __init__(self, parser: Parser, title: str, about: str = "") -> None:
        self.title = title
        self.about = about
        self.options: list[Option] = []
        self._parser = parser

    def add_argument(self, *names: str, **settings: Any) -> None:
        option = Option(names, **settings)
        self.options.append(option)
        if names[0].startswith("-"):
            for name in names:
                self._parser.named[name] = option
        else:
            self._parser.positionals.append(option)


class Parser(Group):
    """``takes_command``: what stands after ``--`` belongs to this verb. ``usage``: instead of a line made from the options."""

    def __init__(self, prog: str, about: str) -> None:
        self.prog = prog
        self.usage = ""
        self.takes_command = False
        self.named: dict[str, Option] = {}
        self.positionals: list[Option] = []
        super().__init__(self, "options", about)
        self.groups: list[Group] = [self]
        self.add_argument("-h", "--help", action="store_true", help="show this")

    def add_argument_group(self, title: str, about: str = "") -> Group:
        group = Group(self, title, about)
        self.groups.append(group)
        return group

    def error(self, message: str, hint: str = "") -> NoReturn:
        verb = self.prog.removeprefix("dockless ")
        raise BadInput(f"{verb}: {message}", subject=self.prog, hint=hint or f"`{self.prog} --help` lists the options")

    def json(self) -> None:
        self.add_argument("--json", action="store_true", help="print JSON, errors too")

    def quiet(self, about: str) -> None:
        self.add_argument("-q", "--quiet", action="store_true", help=about)

    # -- parsing

    def parse_args(self, words: list[str]) -> Namespace:
        """The values of a line without its command. ``BadInput``; ``SystemExit`` for --help, after printing it."""
        found = Namespace()
        for option in self.named.values():
            setattr(found, option.dest, [] if option.action == "append" else option.default)
        loose: list[str] = []
        rest = list(reversed(words))
        while rest:
            word = rest.pop()
            if word.startswith("--"):
                self._long(found, word, rest)
            elif word.startswith("-") and len(word) > 1:
                self._short(found, word, rest)
            else:
                loose.append(word)
            if found.help:
                self.print_help()
                raise SystemExit(0)
        self._positional(found, loose)
        return found

    def _long(self, found: Namespace, word: str, rest: list[str]) -> None:
        name, equals, value = word.partition("=")
        option = self.named.get(name)
        if option is None:
            self._unknown(name)
        if not option.takes_value:
            if equals:
                self.error(f"{name} takes no value")
            setattr(found, option.dest, True)
        else:
            self._put(found, option, name, value if equals else self._next(name, rest))

    def _short(self, found: Namespace, word: str, rest: list[str]) -> None:
        for at in range(1, len(word)):
            name = f"-{word[at]}"
            option = self.named.get(name)
            if option is None:
                self._unknown(name if at > 1 else word)
            if option.takes_value:
                self._put(found, option, name, word[at + 1 :].removeprefix("=") or self._next(name, rest))
                return
            setattr(found, option.dest, True)

    def _next(self, name: str, rest: list[str]) -> str:
        if not rest:
            self.error(f"{name} wants a value")
        return rest.pop()

    def _put(self, found: Namespace, option: Option, name: str, text: str) -> None:
        value: Any = self._converted(option, name, text)
        if option.action == "append":
            getattr(found, option.dest).append(value)
        else:
            setattr(found, option.dest, value)

    def _converted(self, option: Option, name: str, text: str) -> Any:
        if option.choices and text not in option.choices:
            self.error(f"{name} is one of {', '.join(option.choices)}, not {text[:60]!r}")
        if option.type is not None:
            try:
                return option.type(text)
            except ValueError:
                self.error(f"{name} is a whole number, not {text[:60]!r}")
        return text

    def _positional(self, found: Namespace, loose: list[str]) -> None:
        for option in self.positionals:
            if option.nargs in ("*", "+"):
                taken, loose = loose, []
                if option.nargs == "+" and not taken:
                    self.error(f"{option.metavar} is missing")
                setattr(found, option.dest, [self._converted(option, option.metavar, word) for word in taken])
            elif not loose:
                self.error(f"{option.metavar} is missing")
            else:
                setattr(found, option.dest, self._converted(option, option.metavar, loose.pop(0)))
        if loose:
            self.error(f"{loose[0]!r} is one argument too many")

    def _unknown(self, name: str) -> NoReturn:
        import difflib

        near = difflib.get_close_matches(name, self.named, 1)
        self.error(f"there is no option {name}", f"did you mean {near[0]}? `{self.prog} --help` lists the options" if near else "")

    # -- help

    def print_help(self) -> None:
        print(self.format_help())

    def format_help(self) -> str:
        """All of it, in the width of the terminal."""
        import shutil

        width = min(120, max(80, shutil.get_terminal_size((110, 24)).columns))
        usage = self.usage or " ".join([self.prog, "[options]", *(_usage(option) for option in self.positionals)])
        lines = [f"usage: {usage}", "", self.about[0].upper() + self.about[1:] + "."]
        for group in self.groups:
            if group.options:
                lines += ["", f"{group.title}:"]
                lines += _wrapped(group.about, width, "  ", "  ") if group is not self and group.about else []
                for option in group.options:
                    lines += _row(option, width)
        return "\n".join(lines)


def _usage(option: Option) -> str:
    return {"*": f"[{option.metavar} …]", "+": f"{option.metavar} …"}.get(option.nargs, option.metavar)


def _row(option: Option, width: int) -> list[str]:
    label = f"  {option.label}"
    margin = " " * _COLUMN
    if len(label) > _COLUMN - 2:
        return [label, *_wrapped(option.help, width, margin, margin)]
    return _wrapped(option.help, width, label.ljust(_COLUMN), margin)


def _wrapped(text: str, width: int, first: str, other: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=other, break_on_hyphens=False) or [first.rstrip()]
