"""What takes how much of the disk: ``df`` and ``prune``."""

from __future__ import annotations

import sys

from dockless.base.typing import Any
from dockless.base.units import format_size, parse_duration
from dockless.cli.boxes import FILTERS, chosen
from dockless.cli.filters import filter_option
from dockless.cli.images import say_freed
from dockless.cli.output import age, confirmed, err, out, print_json, short, table, warn
from dockless.cli.parser import Namespace, Parser, whole
from dockless.errors import BadInput


def df_options(parser: Parser) -> None:
    parser.quiet("the bytes that the store takes, as a number")
    parser.json()


def df(options: Namespace) -> int:
    from dockless.images import Store

    store = Store()
    usage = store.disk_usage()
    if options.quiet:
        out(usage.used)
        return 0
    if options.json:
        from dockless.base.records import plain

        print_json({"store": str(store.root), "used": usage.used} | plain(usage))
        return 0
    rows: list[tuple[Any, ...]] = [
        (
            ", ".join(image.tags) or "<none>",
            short(image.digest),
            format_size(image.size),
            format_size(image.own),
            "in use" if image.in_use else f"{age(image.last_used)} ago" if image.last_used else "",
        )
        for image in usage.images
    ]
    if rows:
        table(("IMAGE", "ID", "SIZE", "UNIQUE SIZE", "USED"), rows)
        out("")
    out(f"layers       {format_size(usage.layers)}")
    out(f"blobs        {format_size(usage.blobs)}, as they came: for push and save (dockless prune --blobs)")
    if usage.partial:
        out(f"downloads    {format_size(usage.partial)}, cut off; the next pull goes on with them")
    if usage.unneeded:
        out(f"unneeded     {format_size(usage.unneeded)} of it (dockless prune)")
    bound = "" if usage.bound is None else f" of {format_size(usage.bound)} that it may have"
    out(f"store        {format_size(usage.used)}{bound} in {store.root}, {format_size(usage.free)} free")
    return 0


def prune_options(parser: Parser) -> None:
    parser.add_argument("-a", "--all", action="store_true", help="images with names, too, and cut-off downloads")
    parser.add_argument("--older-than", metavar="TIME", help="images that were not used for so long: 12h, 7d")
    parser.add_argument("--keep-last", type=whole(0), metavar="N", help="of each repository all but the N used last")
    parser.add_argument("--blobs", action="store_true", help="layers as they came, too: only push and save need them")
    parser.add_argument("--sandboxes", action="store_true", help="sandboxes that have ended, what killed ones left, and no images")
    filter_option(parser, FILTERS)
    parser.add_argument("--dry-run", action="store_true", help="say what would go")
    parser.add_argument("-y", "--yes", "-f", "--force", action="store_true", help="do not ask")
    parser.quiet("say nothing")
    parser.json()


def prune(options: Namespace) -> int:
    """Without options only what nobody could name goes: images without a name, left-overs."""
    if options.sandboxes:
        return _sandboxes(options)
    if options.filter:
        hint = "dockless prune --sandboxes --filter …; for images: --older-than, --keep-last"
        raise BadInput("--filter without --sandboxes", subject="--filter", hint=hint)
    from dockless.images import Store

    store = Store()
    wanted: dict[str, Any] = {
        "all_images": options.all,
        "unused_for": None if options.older_than is None else parse_duration(options.older_than, "age"),
        "keep_last": options.keep_last,
        "blobs": options.blobs,
    }
    chosen = options.all or options.older_than is not None or options.keep_last is not None
    if options.dry_run or (chosen and not options.yes and sys.stdin is not None and sys.stdin.isatty()):
        would = store.prune(**wanted, dry_run=True)
        if options.dry_run and options.json:
            print_json({"removed": would.images, "freed": would.size, "busy": would.busy, "dry_run": True})
            return 0
        if not options.quiet or not options.dry_run:
            for name in would.images:
                (out if options.dry_run else err)(name)
            say_freed(would.size, would.busy, "would be freed")
        if options.dry_run:
            return 0
        if not would.images and not would.size:
            return 0
        if not confirmed("Remove these?"):
            warn("nothing was removed")
            return 1
    freed = store.prune(**wanted)
    if options.json:
        print_json({"removed": freed.images, "freed": freed.size, "busy": freed.busy, "dry_run": False})
    elif not options.quiet:
        for name in freed.images:
            out(name)
        say_freed(freed.size, freed.busy)
    return 0


def _sandboxes(options: Namespace) -> int:
    from dockless.cli.output import done_for
    from dockless.sandbox.run.box import get
    from dockless.sandbox.run.reconcile import reconcile
    from dockless.sandbox.state import ALIVE

    ended = [row for row in chosen(options.filter, alive_alone=False) if row["state"] not in ALIVE and "queue" not in row["labels"]]
    names = [row["id"] for row in ended]
    if options.dry_run or (names and not options.yes and sys.stdin is not None and sys.stdin.isatty()):
        for name in () if options.quiet or options.json else names:
            (out if options.dry_run else err)(name)
        if options.dry_run:
            if options.json:
                print_json({"removed": names, "dry_run": True})
            return 0
        if not confirmed("Remove these, with their output?"):
            warn("nothing was removed")
            return 1
    code, done = done_for(names, lambda name: get(name).remove(), as_json=options.json)
    done += reconcile()
    if options.json:
        print_json({"removed": done, "dry_run": False})
    elif not options.quiet:
        for name in done:
            out(name)
    return code
