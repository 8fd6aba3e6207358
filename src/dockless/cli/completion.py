"""``completion``: scripts for bash, zsh and fish, made from the parsers themselves, so that they cannot know less or more than these."""

from __future__ import annotations

from typing import NamedTuple

from dockless.cli.output import out
from dockless.cli.parser import Namespace, Parser

SHELLS = ("bash", "zsh", "fish")
# What completes a verb's own arguments: a command that prints candidates, or files.
_IMAGES, _BOXES, _JOBS = "dockless images -q", "dockless ps -aq", "dockless queue -q"
_ARGUMENTS = {
    "run": (_IMAGES,), "create": (_IMAGES,), "submit": (_IMAGES,), "stop": (_BOXES,), "kill": (_BOXES,), "rm": (_BOXES,),
    "start": (_BOXES,), "restart": (_BOXES,), "logs": (_JOBS, _BOXES),
    "wait": (_JOBS, _BOXES), "cancel": (_JOBS,), "hold": (_JOBS,), "release": (_JOBS,), "requeue": (_JOBS,), "queue": (_JOBS,),
    "clone": (_JOBS,),
    "pull": (_IMAGES,), "push": (_IMAGES,), "tag": (_IMAGES,),
    "rmi": (_IMAGES,), "history": (_IMAGES,), "save": (_IMAGES,), "inspect": (_IMAGES, _BOXES), "export": (_BOXES, _IMAGES),
    "commit": (_BOXES,), "cp": (_BOXES,), "diff": (_BOXES,),
    "snapshot": (_BOXES,), "fork": (_BOXES,), "attach": (_JOBS, _BOXES), "exec": (_JOBS, _BOXES), "debug": (_BOXES,),
    "images": ("echo check", _IMAGES), "port": (_BOXES,),
    "network": ("printf '%s\\n' create ls inspect rm connect disconnect prune", "dockless network ls -q", _BOXES),
}  # fmt: skip
_FILES = ("load", "import", "simulate", "convert")


class Flag(NamedTuple):
    names: tuple[str, ...]
    choices: tuple[str, ...]
    takes_value: bool
    about: str


def completion_options(parser: Parser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="bash: source <(dockless completion bash)")


def completion(options: Namespace) -> int:
    out(*{"bash": bash, "zsh": zsh, "fish": fish}[options.shell]().splitlines())
    return 0


def flags(verb: str) -> list[Flag]:
    """The options of a verb, as its parser has them."""
    from dockless.cli import parser_of

    return [
        Flag(tuple(action.option_strings), tuple(map(str, action.choices or ())), action.nargs != 0, (action.help or "").replace("%%", "%"))
        for action in parser_of(verb).full().actions
        if action.option_strings
    ]


def bash() -> str:
    """Also read by zsh, through bashcompinit."""
    from dockless.cli import VERBS

    cases, choices = [], []
    for verb in VERBS:
        words = " ".join(name for flag in flags(verb) for name in flag.names)
        dynamic = "; ".join(f"{command} 2>/dev/null" for command in _ARGUMENTS.get(verb, ()))
        if verb in _FILES:
            arguments = '{ COMPREPLY=( $(compgen -f -- "$cur") ); return; }'
        elif dynamic:
            # compgen -W expands its words as the shell does: nothing gets there that could be a command.
            arguments = f"options=\"$({{ {dynamic}; }} | tr -cd 'A-Za-z0-9\\n._/:@-')\""
        else:
            arguments = f'options="{" ".join(SHELLS) if verb == "completion" else ""}"'
        cases.append(f'    {verb}) options="{words}"; [[ $cur == -* ]] || {arguments} ;;')
        choices += [
            f'    {verb}:{name}) words="{" ".join(flag.choices)}" ;;' for flag in flags(verb) if flag.choices for name in flag.names
        ]
        choices += [
            f'    {verb}:{name}) COMPREPLY=( $(compgen -f -- "$cur") ); return ;;'
            for flag in flags(verb)
            if flag.takes_value and not flag.choices
            for name in flag.names
        ]
    return _BASH.format(verbs=" ".join(VERBS), cases="\n".join(cases), choices="\n".join(choices))


_BASH = """# dockless completion for bash: source <(dockless completion bash)
_dockless() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} verb=${{COMP_WORDS[1]}} options="" words="" word
  COMPREPLY=()
  if (( COMP_CWORD == 1 )); then
    COMPREPLY=( $(compgen -W "{verbs}" -- "$cur") )
    return
  fi
  for word in "${{COMP_WORDS[@]:2:COMP_CWORD-2}}"; do
    [[ $word == -- ]] && {{ COMPREPLY=( $(compgen -c -f -- "$cur") ); return; }}
  done
  case $verb:$prev in
{choices}
  esac
  if [[ -n $words ]]; then
    COMPREPLY=( $(compgen -W "$words" -- "$cur") )
    return
  fi
  case $verb in
{cases}
  esac
  COMPREPLY=( $(compgen -W "$options" -- "$cur") )
}}
complete -F _dockless dockless
"""


def zsh() -> str:
    return (
        "#compdef dockless\n# dockless completion for zsh: source <(dockless completion zsh)\nautoload -U +X bashcompinit && bashcompinit\n"
        + bash()
    )


def fish() -> str:
    from dockless.cli import VERBS

    lines = ["# dockless completion for fish: dockless completion fish | source", "complete -c dockless -f"]
    for verb, about in VERBS.items():
        lines.append(f"complete -c dockless -n __fish_use_subcommand -a {verb} -d {_quoted(about.about)}")
        here = f"complete -c dockless -n '__fish_seen_subcommand_from {verb}'"
        for flag in flags(verb):
            names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names)
            value = f" -x -a {_quoted(' '.join(flag.choices))}" if flag.choices else " -r" if flag.takes_value else ""
            lines.append(f"{here} {names}{value} -d {_quoted(flag.about)}")
        for command in _ARGUMENTS.get(verb, ()):
            lines.append(f"{here} -a '({command} 2>/dev/null)'")
        if verb in _FILES:
            lines.append(f"{here} -F")
    lines.append(f"complete -c dockless -n '__fish_seen_subcommand_from completion' -a '{' '.join(SHELLS)}'")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
