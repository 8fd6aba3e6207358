"""``volume``: the named directories that are kept between sandboxes."""

from __future__ import annotations

from dockless.base.typing import TYPE_CHECKING, Any
from dockless.cli.filters import filter_option, filters, labels
from dockless.cli.output import age, confirmed, each_named, out, print_json, table
from dockless.cli.parser import Namespace, Parser
from dockless.cli.template import format_option, inspected, show
from dockless.errors import BadInput

if TYPE_CHECKING:
    from dockless.sandbox.run.volumes import VolumeInfo

_KEYS = ("name", "label", "dangling")
_ACTIONS = ("create", "ls", "inspect", "rm", "prune")


def volume_options(parser: Parser) -> None:
    parser.usage = "dockless volume create|ls|inspect|rm|prune [NAME …]"
    parser.add_argument("action", choices=_ACTIONS, help="prune: those that no sandbox has")
    parser.add_argument("names", nargs="*", metavar="NAME", help="volumes")
    parser.add_argument("-f", "--force", "-y", "--yes", action="store_true", help="do not ask (prune)")
    parser.add_argument("-l", "--label", action="append", default=[], metavar="NAME=VALUE", help="a label for what is made (create)")
    filter_option(parser, "name=, label=NAME[=VALUE], dangling=true|false (ls, prune)")
    format_option(parser)
    parser.quiet("names alone; nothing where there is nothing to tell")
    parser.json()


def volume(options: Namespace) -> int:
    if bool(options.names) == (options.action in ("ls", "prune")):
        what = "takes no name" if options.names else "wants a name"
        raise BadInput(f"volume {options.action} {what}", subject=options.action, hint="dockless volume --help")
    for flag, given, actions in (("--label", options.label, ("create",)), ("--filter", options.filter, ("ls", "prune"))):
        if given and options.action not in actions:
            hint = f"{flag} is for volume {' and volume '.join(actions)}"
            raise BadInput(f"volume {options.action} takes no {flag}", subject=flag, hint=hint)
    return {"create": _create, "ls": _list, "inspect": _inspect, "rm": _remove, "prune": _prune}[options.action](options)


def _create(options: Namespace) -> int:
    from dockless.sandbox.run import volumes

    given = _labels(options.label)
    return each_named(options.names, lambda name: volumes.create(name, given), as_json=options.json, quiet=options.quiet)


def _labels(texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, _, _ in pairs:
        if not name:
            raise BadInput("a label has no name", subject="--label", hint="write NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _chosen(given: list[str]) -> list[dict[str, Any]]:
    """Volumes as --json has them. ``BadInput`` for a filter that cannot be read."""
    from dockless.sandbox.run.volumes import chosen

    wanted = filters(given, {key: key for key in _KEYS}, {"dangling": ("true", "false")})
    dangling = set(wanted.get("dangling", ()))
    found = chosen(
        names=wanted.get("name", ()),
        labels=labels(wanted.get("label", ())),
        dangling="true" in dangling if len(dangling) == 1 else None,
    )
    return [_row(volume) for volume in found]


def _row(volume: VolumeInfo) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(volume)


def _list(options: Namespace) -> int:
    rows = _chosen(options.filter)
    if options.quiet:
        for row in rows:
            out(row["name"])
        return 0
    if options.json:
        print_json(rows)
    elif options.format:
        show(options.format, rows)
    else:
        table(("VOLUME", "CHANGED", "SANDBOXES"), [(row["name"], f"{age(row['changed'])} ago", " ".join(row["sandboxes"])) for row in rows])
    return 0


def _inspect(options: Namespace) -> int:
    from dockless.sandbox.run.volumes import get

    return inspected(options, lambda name: _row(get(name)))


def _remove(options: Namespace) -> int:
    from dockless.sandbox.run.volumes import remove

    return each_named(options.names, remove, as_json=options.json, quiet=options.quiet)


def _prune(options: Namespace) -> int:
    from dockless.sandbox.run.volumes import remove

    unused = [row["name"] for row in _chosen(options.filter) if not row["sandboxes"]]
    if unused and not options.force and not confirmed(f"Remove {len(unused)} volumes and all that is in them: {', '.join(unused[:5])}?"):
        return 1
    return each_named(unused, remove, as_json=options.json, quiet=options.quiet)
