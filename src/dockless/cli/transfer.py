"""Images and files: ``load``, ``save``, ``import``, ``export``. A file named ``-`` is standard input or output."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, contextmanager

from dockless.base.typing import TYPE_CHECKING, Any, BinaryIO
from dockless.cli.images import print_images, record
from dockless.cli.output import each, out, print_json, warn
from dockless.cli.parser import Namespace, Parser, whole
from dockless.cli.progress import ProgressLine
from dockless.errors import BadInput, DocklessError, ImageError, UnknownImage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dockless.images import Image, Store

_FORMATS = {"oci": "oci-tar", "oci-dir": "oci-dir", "docker": "docker-archive"}
_COMPRESSIONS = ("none", "gzip", "zstd")


# -- in


def load_options(parser: Parser) -> None:
    parser.add_argument(
        "sources", nargs="*", metavar="FILE", help="an OCI layout (directory or tar) or a docker save archive, compressed or not; - or "
        "none: standard input"
    )  # fmt: skip
    parser.add_argument("-i", "--input", action="append", default=[], metavar="FILE", help="the same, as docker writes it")
    parser.add_argument("--name", metavar="NAME[:TAG]", help="instead of the name in the file (one image only)")
    parser.quiet("the references alone, no progress")
    parser.json()


def load(options: Namespace) -> int:
    from dockless.images import Store

    sources = [*options.sources, *options.input] or ["-"]
    if options.name and len(sources) > 1:
        raise BadInput("--name with several files", subject="--name", hint="load them one by one")
    if "" in sources:
        raise BadInput("the name of a file is empty", subject="", hint="dockless load FILE")
    if "-" in sources:
        standard_input("dockless load FILE")
    store = Store()
    loaded: list[Image] = []
    kept = ExitStack()  # what this command has loaded makes no room for what it loads next

    def one(source: str) -> None:
        with ProgressLine(options.quiet or options.json) as progress:
            if source == "-":
                with _spooled(store) as path:
                    found = store.load(path, name=options.name, progress=progress)
            else:
                found = store.load(source, name=options.name, progress=progress)
        loaded.extend(found)
        for image in found if len(sources) > 1 else ():  # an archive may have more images than we may have descriptors
            kept.callback(os.close, store.pin(image))
        print_images(found, options)

    with kept:
        code = each(sources, one, as_json=options.json)
    if options.json:
        print_json([record(image) for image in loaded])
    return code


@contextmanager
def _spooled(store: Store) -> Iterator[Path]:
    """Standard input as a file of the store: what is in an archive stands anywhere in it."""
    import shutil

    from dockless.images.files import explained, temporary_directory

    with explained("cannot load standard input", "-", f"check that the image store {store.root} is on a writable file system with room"):
        store.prepare()
        with temporary_directory(store.root / "tmp") as scratch:
            path = scratch / "stdin"
            with open(path, "xb") as out:
                shutil.copyfileobj(standard_input(""), out)
            try:
                yield path
            except DocklessError as error:
                error.args = (str(error).replace(str(path), "standard input"),)
                error.subject = error.subject.replace(str(path), "-")
                raise


def standard_input(instead: str) -> BinaryIO:
    """``BadInput`` where it is a terminal, or closed: nobody types an archive."""
    if sys.stdin is None or sys.stdin.isatty():
        raise BadInput("no file is given, and standard input is a terminal", subject="-", hint=f"{instead}, or pipe one in")
    return sys.stdin.buffer


def import_root_options(parser: Parser) -> None:
    parser.add_argument("source", metavar="FILE", help="the tar of a root file system, compressed or not; -: standard input")
    parser.add_argument("name", nargs="?", metavar="NAME[:TAG]", help="of the new image")
    change_options(parser)
    parser.add_argument("--platform", metavar="OS/ARCH[/VARIANT]", help="that the files are for (default: this host's)")
    parser.add_argument("--compression", choices=_COMPRESSIONS, help="of the layer (default: as the file comes, else gzip)")
    parser.add_argument("--level", type=whole(), metavar="N", help="of the compression")
    parser.quiet("the name alone")
    parser.json()


def import_root(options: Namespace) -> int:
    from dockless.images import Store
    from dockless.images.archive.importing import import_root as bring
    from dockless.images.model import platforms

    if not options.source:
        raise BadInput("the name of the file is empty", subject="", hint="dockless import FILE")
    source: Any = standard_input("dockless import FILE") if options.source == "-" else options.source
    image = bring(
        Store(),
        source,
        reference=options.name,
        edit=edit_of(options),
        platform=platforms.parse(options.platform) if options.platform else None,
        compression=options.compression,
        level=options.level,
    )
    print_images([image], options)
    if options.json:
        print_json(record(image))
    return 0


def change_options(parser: Parser) -> None:
    """What import and commit can change in an image's configuration."""
    parser.add_argument("-c", "--change", action="append", default=[], metavar="INSTRUCTION", help="CMD, ENTRYPOINT, ENV, LABEL, USER, "
                        "WORKDIR, VOLUME, EXPOSE or STOPSIGNAL, as in a Dockerfile: 'ENV A=1'")  # fmt: skip
    parser.add_argument("-m", "--message", default="", metavar="TEXT", help="for the history")
    parser.add_argument("-a", "--author", default="", metavar="NAME", help="for the history")


def edit_of(options: Namespace) -> Any:
    from dockless.images.archive.assemble import Edit

    return Edit.parse(options.change, author=options.author, comment=options.message)


# -- out


def save_options(parser: Parser) -> None:
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="images of the store; together they share what they share")
    parser.add_argument("-o", "--output", metavar="FILE", help="a new file, or a directory for oci-dir; - or left out: standard output")
    parser.add_argument(
        "--format", choices=tuple(_FORMATS), default="oci", help="oci: one tar that docker load takes, too (default); docker: the old form"
    )
    _packing_options(parser)


def _packing_options(parser: Parser) -> None:
    parser.add_argument("--compression", choices=_COMPRESSIONS, default="none", help="of the archive (default: none)")
    parser.add_argument("--level", type=whole(), metavar="N", help="of the compression")
    parser.quiet("say nothing")
    parser.json()


def save(options: Namespace) -> int:
    from dockless.images import Store
    from dockless.images.archive.save import save as write

    if options.format == "oci-dir" and options.output in (None, "-"):
        raise BadInput("an oci-dir is a directory, not a stream", subject="--output", hint="name it: -o DIRECTORY; or use --format oci")
    store = Store()
    found = [store.get(name) for name in options.images]
    form: Any = _FORMATS[options.format]
    with (
        _destination(options, "dockless save -o FILE") as destination,
        ProgressLine(options.quiet or options.json, verb="written") as progress,
    ):
        write(store, found, destination, format=form, compression=options.compression, level=options.level, progress=progress)
    _written(options, found)
    return 0


def export_options(parser: Parser) -> None:
    parser.add_argument("source", metavar="SANDBOX|IMAGE", help="a detached sandbox of `dockless ps -a`, else an image: its whole root")
    parser.add_argument("-o", "--output", metavar="FILE", help="a new file; - or left out: standard output")
    parser.add_argument("--no-pause", action="store_true", help="let a running sandbox go on while it is read")
    _packing_options(parser)


def export(options: Namespace) -> int:
    from dockless.images import Store
    from dockless.images.archive.export import export as write
    from dockless.sandbox.names import is_job
    from dockless.sandbox.run import detached

    how: dict[str, Any] = {"compression": options.compression, "level": options.level}
    with _destination(options, "dockless export -o FILE") as destination:
        box = detached.find(options.source) if _could_be_a_sandbox(options.source) else None
        if box is not None:
            from dockless.sandbox.commit import find

            with find(box) as changes:
                written = changes.export(destination, pause=not options.no_pause, **how)
        else:
            try:
                image = Store().get(options.source)
            except UnknownImage:
                if is_job(options.source):
                    detached.get(options.source)  # says what such a number means
                if not _could_be_a_sandbox(options.source):
                    raise
                from dockless.cli.inspecting import neither

                raise neither(options.source) from None
            written = write(image, destination, **how)
    for warning in () if options.quiet else written.warnings:
        warn(warning)
    if options.json and options.output not in (None, "-"):
        print_json({"output": options.output, "members": written.members, "size": written.size, "warnings": written.warnings})
    return 0


def _could_be_a_sandbox(name: str) -> bool:
    return "/" not in name and ":" not in name and "@" not in name


@contextmanager
def _destination(options: Namespace, instead: str) -> Iterator[Any]:
    """A path, or standard output; a reader that goes away is no error to talk about."""
    if options.output not in (None, "-"):
        yield options.output
        return
    if sys.stdout is None or sys.stdout.isatty():
        raise BadInput("an archive does not belong on a terminal", subject="--output", hint=f"{instead}, or pipe it on")
    try:
        yield sys.stdout.buffer
    except ImageError as error:
        if isinstance(error.__cause__, BrokenPipeError):
            raise error.__cause__ from None
        raise


def _written(options: Namespace, images: list[Image]) -> None:
    if options.output in (None, "-"):
        return
    if options.json:
        print_json({"output": options.output, "images": [image.name for image in images]})
    elif not options.quiet:
        out(f"{', '.join(image.name for image in images)}: saved to {options.output}")
