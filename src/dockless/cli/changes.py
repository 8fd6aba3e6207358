"""What a sandbox changed of its image: ``diff``, ``commit``, ``snapshot``, ``fork``."""

from __future__ import annotations

from dockless.base.records import plain
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.cli.images import print_images, record
from dockless.cli.output import out, print_json
from dockless.cli.parser import Namespace, Parser, whole
from dockless.cli.template import format_option, show
from dockless.cli.transfer import change_options, edit_of

if TYPE_CHECKING:
    from dockless.images import Image


def diff_options(parser: Parser) -> None:
    parser.add_argument("sandbox", metavar="SANDBOX", help="a detached sandbox of `dockless ps -a`")
    parser.add_argument("--no-pause", action="store_true", help="let it go on while it is read")
    format_option(parser)
    parser.quiet("the paths alone")
    parser.json()


def diff(options: Namespace) -> int:
    from dockless.sandbox.commit import find

    with find(options.sandbox) as changes:
        found = changes.changes(pause=not options.no_pause)
    if options.json:
        print_json(found)
        return 0
    if options.format:
        show(options.format, [plain(change) for change in found])
        return 0
    out(*(change.path if options.quiet else f"{change.kind} {change.path}" for change in found))
    return 0


def commit_options(parser: Parser) -> None:
    parser.add_argument("sandbox", metavar="SANDBOX", help="a detached sandbox of `dockless ps -a`, running or ended")
    parser.add_argument("name", nargs="?", metavar="NAME[:TAG]", help="of the new image; left out: only its digest names it")
    change_options(parser)
    parser.add_argument("--compression", choices=("gzip", "zstd", "none"), default="gzip", help="of the new layer (default: gzip)")
    parser.add_argument("--level", type=whole(), metavar="N", help="of the compression")
    parser.add_argument("--no-pause", action="store_true", help="let it go on while it is read; files may be torn")
    parser.quiet("the name alone")
    parser.json()


def commit(options: Namespace) -> int:
    from dockless.sandbox.commit import find

    how: dict[str, Any] = {"compression": options.compression, "level": options.level, "pause": not options.no_pause}
    with find(options.sandbox) as changes:
        image = changes.commit(options.name, edit=edit_of(options), **how)
    _print_made(image, options)
    return 0


def snapshot_options(parser: Parser) -> None:
    parser.add_argument(
        "sandbox", metavar="SANDBOX", help="one of `dockless ps -a`; while it runs it is paused at the end of the copy alone"
    )
    parser.add_argument("name", nargs="?", metavar="NAME[:TAG]", help="of the new image; left out: only its digest names it")
    parser.quiet("the name alone")
    parser.json()


def snapshot(options: Namespace) -> int:
    from dockless._box import Sandbox

    image = Sandbox.open(options.sandbox).snapshot(options.name)
    _print_made(image, options)
    return 0


def _print_made(image: Image, options: Namespace) -> None:
    print_images([image], options)
    if options.json:
        print_json({**record(image), "paused": image.paused})
    elif image.paused and not options.quiet:
        out(f"it was paused for {image.paused * 1000:.1f} ms")


def fork_options(parser: Parser) -> None:
    parser.add_argument("sandbox", metavar="SANDBOX", help="one of `dockless ps -a`")
    parser.add_argument("-n", "--count", type=whole(1), default=1, metavar="N", help="so many (default: 1)")
    parser.quiet("say nothing")
    parser.json()


def fork(options: Namespace) -> int:
    from dockless._box import Sandbox

    made = [box.id for box in Sandbox.open(options.sandbox).fork(options.count)]
    if options.json:
        print_json(made)
    elif not options.quiet:
        out(*made)
    return 0
