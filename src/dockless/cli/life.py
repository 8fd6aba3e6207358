"""The life of sandboxes that are there: ``start``, ``restart``, ``pause``, ``unpause``, ``rename``, ``update``."""

from __future__ import annotations

from collections.abc import Iterator

from dockless import _life
from dockless.base.typing import TYPE_CHECKING
from dockless.base.units import parse_duration
from dockless.cli.boxes import RUNNING, each_box, several
from dockless.cli.output import out
from dockless.cli.parser import Namespace, Parser
from dockless.cli.sandbox_options import LIMITS, keywords
from dockless.errors import BadInput

if TYPE_CHECKING:
    from dockless.sandbox.run.box import Box

_LIMITS = (("limits", "as those of run; what is not named stays", tuple(row for row in LIMITS if row.keyword != "best_effort")),)


def pause_options(parser: Parser) -> None:
    several(parser, RUNNING)


def pause(options: Namespace) -> int:
    return each_box(options, lambda box: box.pause())


def unpause_options(parser: Parser) -> None:
    several(parser, RUNNING)


def unpause(options: Namespace) -> int:
    return each_box(options, lambda box: box.resume())


def restart_options(parser: Parser) -> None:
    several(parser)
    parser.add_argument(
        "-t", "--time", "--timeout", "--grace", dest="grace", metavar="TIME", help="until force is used (default: its own, or 10s)"
    )


def restart(options: Namespace) -> int:
    grace = None if options.grace is None else parse_duration(options.grace, "grace")
    return each_box(options, lambda box: _restart(box, grace))


def _restart(box: Box, grace: float | None) -> Iterator[None]:
    with box.held() as held:
        yield from _life.restarting(held, grace)


def start_options(parser: Parser) -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", help="sandboxes that were created, or have ended")
    parser.add_argument(
        "--all", action="store_true", help="after a boot: those with --restart always, and with unless-stopped that nobody stopped"
    )
    parser.quiet("say nothing")
    parser.json()


def start(options: Namespace) -> int:
    if options.all:
        if options.ids:
            raise BadInput("--all and names", subject="--all", hint="give one of them")
        options.ids = [box.id for box in _life.wanted_after_boot()]
    elif not options.ids:
        raise BadInput("no sandbox is named", subject="start", hint="dockless start ID; dockless ps --all lists them")
    return each_box(options, _life.start)


def rename_options(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", help="a detached sandbox of `dockless ps --all`")
    parser.add_argument("name", metavar="NAME", help="what it is to be called")
    parser.quiet("say nothing")
    parser.json()


def rename(options: Namespace) -> int:
    from dockless.sandbox.run.box import get

    box = get(options.id)
    _life.refuse_job(box)
    renamed = box.rename(options.name)
    if options.json:
        from dockless.cli.output import print_json

        print_json({"id": renamed.id})
    elif not options.quiet:
        out(renamed.id)
    return 0


def update_options(parser: Parser) -> None:
    several(parser)
    parser.add_argument("--ttl", metavar="TIME", help="they end in that time from now, later or earlier than before")
    parser.add_argument("--restart", metavar="POLICY", help="no, on-failure[:N], unless-stopped or always; also of one that has ended")
    for title, about, rows in _LIMITS:
        group = parser.add_argument_group(title, about)
        for row in rows:
            row.add_to(group)


def update(options: Namespace) -> int:
    from dockless.cgroups import Limits

    limits = Limits.parse(**{name: value for name, value in keywords(options, _LIMITS).items() if value})
    asked = None if limits == Limits() else limits
    ttl = None if options.ttl is None else parse_duration(options.ttl, "--ttl")
    if (asked, ttl, options.restart) == (None, None, None):
        raise BadInput("nothing is named that is to change", subject="update", hint="dockless update --memory 2G ID")

    def change(box: Box) -> None:
        _life.update(box, asked, options.restart)
        if ttl is not None:
            from dockless.sandbox.run.ttl import extend

            extend(box, ttl)

    return each_box(options, change)
