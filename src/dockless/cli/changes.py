"""What a sandbox changed of its image: ``diff`` and ``commit``. Detached sandboxes, and the daemon's jobs, by their ids."""

from __future__ import annotations

from dockless.cli.images import print_images, record
from dockless.cli.output import out, print_json
from dockless.cli.parser import Namespace, Parser
from dockless.cli.transfer import change_options, edit_of


def diff_options(parser: Parser) -> None:
    parser.add_argument("sandbox", metavar="SANDBOX", help="a detached sandbox of `dockless ps -a`")
    parser.add_argument("--no-pause", action="store_true", help="let it go on while it is read")
    parser.quiet("the paths alone")
    parser.json()


def diff(options: Namespace) -> int:
    from dockless.sandbox.commit import find

    found = find(options.sandbox).changes(pause=not options.no_pause)
    if options.json:
        print_json(found)
        return 0
    out(*(change.path if options.quiet else f"{change.kind} {change.path}" for change in found))
    return 0


def commit_options(parser: Parser) -> None:
    parser.add_argument("sandbox", metavar="SANDBOX", help="a detached sandbox of `dockless ps -a`, running or ended")
    parser.add_argument("name", nargs="?", metavar="NAME[:TAG]", help="of the new image; left out: only its digest names it")
    change_options(parser)
    parser.add_argument("--compression", choices=("gzip", "zstd", "none"), default="gzip", help="of the new layer (default: gzip)")
    parser.add_argument("--level", type=int, metavar="N", help="of the compression")
    parser.add_argument("--no-pause", action="store_true", help="let it go on while it is read; files may be torn")
    parser.quiet("the name alone")
    parser.json()


def commit(options: Namespace) -> int:
    from dockless.sandbox.commit import find

    image = find(options.sandbox).commit(
        options.name, edit=edit_of(options), compression=options.compression, level=options.level, pause=not options.no_pause
    )
    print_images([image], options)
    if options.json:
        print_json(record(image))
    return 0
