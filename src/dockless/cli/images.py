"""The store: ``load`` and ``images``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dockless.cli.output import print_json, table
from dockless.cli.parser import Namespace, Parser
from dockless.units import format_size

if TYPE_CHECKING:
    from dockless.images import Image
    from dockless.images.progress import Progress


def load_options(parser: Parser) -> None:
    parser.add_argument(
        "sources", nargs="+", metavar="FILE", help="an OCI layout (directory or tar) or a docker save archive, compressed or not"
    )
    parser.add_argument("--name", metavar="NAME[:TAG]", help="instead of the name in the file (one image only)")
    parser.quiet("the references alone, no progress")
    parser.json()


def load(options: Namespace) -> int:
    from dockless.errors import BadInput
    from dockless.images import Store

    if options.name and len(options.sources) > 1:
        raise BadInput("--name with several files", subject="--name", hint="load them one by one")
    store = Store()
    loaded: list[Image] = []
    for source in options.sources:
        with _Shown(options.quiet or options.json) as progress:
            found = store.load(source, name=options.name, progress=progress)
        loaded += found
        for image in found:
            for warning in () if options.quiet else image.warnings:
                print(f"dockless: {image.name}: {warning}", file=sys.stderr)
            if not options.json:
                print(
                    image.name if options.quiet else f"{image.name}  {_short(image)}  {format_size(image.size)}, {len(image.layers)} layers"
                )
    if options.json:
        print_json([_record(image) for image in loaded])
    return 0


def images_options(parser: Parser) -> None:
    parser.quiet("references alone")
    parser.json()


def images(options: Namespace) -> int:
    from dockless.images import Store

    found = Store().list()
    if options.quiet:
        for image in found:
            print(image.name)
    elif options.json:
        print_json([_record(image) for image in found])
    else:
        rows = [
            (image.reference or "<none>", _short(image), f"{image.os}/{image.architecture}", format_size(image.size), image.created[:10])
            for image in found
        ]
        table(("IMAGE", "ID", "PLATFORM", "SIZE", "CREATED"), rows)
    return 0


def _short(image: Image) -> str:
    return image.digest.partition(":")[2][:12]


def _record(image: Image) -> dict[str, Any]:
    return {
        "reference": image.reference,
        "digest": image.digest,
        "config_digest": image.config_digest,
        "os": image.os,
        "architecture": image.architecture,
        "variant": image.variant,
        "size": image.size,
        "created": image.created,
        "layers": len(image.layers),
        "warnings": image.warnings,
        "config": image.config,
    }


class _Shown:
    """Progress on standard error: a bar on a terminal, a line per layer elsewhere, nothing when quiet."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: Any = None
        self._tasks: dict[tuple[str, int], Any] = {}
        self._said: set[tuple[str, int]] = set()

    def __enter__(self) -> Callable[[Progress], None] | None:
        if self._quiet:
            return None
        if not sys.stderr.isatty():
            return self._line
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
        self._bar = Bars(*columns, console=Console(stderr=True), transient=True)
        self._bar.start()
        return self._move

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _line(self, step: Progress) -> None:
        key = (step.image, step.layer)
        if step.state in ("done", "shared") and key not in self._said:
            self._said.add(key)
            what = "already there" if step.state == "shared" else f"unpacked, {format_size(step.done)} read"
            print(f"{step.image}: layer {step.layer}/{step.layers} {step.digest.partition(':')[2][:12]} {what}", file=sys.stderr)

    def _move(self, step: Progress) -> None:
        key = (step.image, step.layer)
        if key not in self._tasks:
            self._tasks[key] = self._bar.add_task(f"layer {step.layer}/{step.layers}", total=step.total)
        over = step.state in ("done", "shared")
        total = step.total if step.total is not None else step.done if over else None
        done = total if over and total is not None else step.done
        self._bar.update(self._tasks[key], completed=done, total=total, description=f"layer {step.layer}/{step.layers} {step.state}")
