"""``cp``: files into a sandbox and out of it."""

from __future__ import annotations

import contextlib
import errno
import io
import sys
import time

from dockless.base.typing import IO, TYPE_CHECKING, Any, TextIO, cast
from dockless.base.units import format_size
from dockless.cli.output import err, json_text, out, status, warn, write_bytes
from dockless.cli.parser import Namespace, Parser, whole
from dockless.errors import BadInput, SandboxError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dockless.sandbox.files.files import Files
    from dockless.sandbox.files.tree import Copied

TAR = ("", "-")
"""In place of a path of the host: a tar, on standard input or output. A file of that name is ./-"""
_EVERY = 0.1
_TOLD = 10


def cp_options(parser: Parser) -> None:
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="SANDBOX:PATH or JOB:PATH, or a path of the host; DIR/. means what is in it; "
        "/proc, /sys and the like below it are left out; -: a tar on standard input",
    )
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="the other of the two; a directory that is there gets the source by its own name; -: a tar on standard output",
    )
    parser.add_argument("-u", "--user", metavar="USER", help="whose rights inside, name or number (default: the sandbox's own user)")
    parser.add_argument(
        "--max-size", default="16G", metavar="SIZE", help="copy no more than this out of the sandbox, or from a tar (default: 16G)"
    )
    parser.add_argument("--max-files", type=whole(1), default=1_000_000, metavar="N", help="nor more than so many (default: 1000000)")
    parser.quiet("say nothing but errors and what was left out")
    parser.json()


def cp(options: Namespace) -> int:
    from dockless.base.units import parse_size
    from dockless.cli.executing import opened

    source, target = _place(options.source), _place(options.target)
    name = source[0] or target[0]
    if bool(source[0]) == bool(target[0]):
        hint = "dockless cp NAME:/there here, or: dockless cp here NAME:/there"
        raise BadInput("one of source and target is in a sandbox, the other on the host", subject=options.source, hint=hint)
    limit = parse_size(options.max_size, "--max-size")
    shown = _Shown(options.quiet or options.json)
    with opened(name).files as own, _named(name, options.source, options.target):
        bounds: dict[str, Any] = {"max_size": limit, "max_files": options.max_files, "progress": shown.step}
        copied = _copy(own.as_user(options.user) if options.user else own, source, target, bounds)
    shown.end(copied)
    for path, why in copied.skipped[:_TOLD]:
        warn(f"left out: {path}: {why}")
    if copied.skipped_count > _TOLD:
        warn(f"{copied.skipped_count - _TOLD} more were left out", hint="--json lists them")
    if options.json:
        (err if target == TAR else out)(json_text(copied))
    return 0


def _copy(files: Files, source: tuple[str, str], target: tuple[str, str], bounds: dict[str, Any]) -> Copied:
    if source == TAR:
        return files.tar_in(_standard(sys.stdin, "read from").buffer, target[1], **bounds)
    if target == TAR:
        return files.tar_out(source[1], cast(IO[bytes], _Output(_standard(sys.stdout, "written to"))), **bounds)
    if source[0]:
        return files.copy_out(source[1], target[1], **bounds)
    return files.copy_in(source[1], target[1], progress=bounds["progress"])


def _standard(stream: TextIO | None, done: str) -> TextIO:
    if stream is None or stream.isatty():
        raise BadInput(
            f"a tar cannot be {done} a terminal", subject="-", hint="dockless cp NAME:/there - > FILE, or with a pipe: … | tar t"
        )
    return stream


class _Output(io.RawIOBase):
    """Whose errors are those of standard output."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, data: Any) -> int:
        write_bytes(self._stream, data)
        return len(data)


@contextlib.contextmanager
def _named(name: str, source: str, target: str) -> Iterator[None]:
    """An error of a path says whose path it is."""
    from dockless.sandbox.files.calls import INSIDE, READ_ONLY
    from dockless.sandbox.files.tree import Beyond

    try:
        yield
    except Beyond as error:
        what = str(error.strerror)
        hint = f"raise --{error.bound.replace('_', '-')}; what was copied until then is there"
        raise SandboxError(f"{source} holds {what[0].lower()}{what[1:]}", subject=source, hint=hint) from error
    except OSError as error:
        if INSIDE not in getattr(error, "__notes__", ()):
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
            if target == f"{name}:{error.filename}":
                hint = f"make the directory first: dockless exec {name} -- mkdir -p {error.filename}"
                raise SandboxError(f"the target {target}: {error.strerror}", subject=target, hint=hint) from error
            side = "target" if source.startswith(f"{name}:") else "source"
            path = source if side == "source" else target
            hint = "check the path on the host" if side == "source" else "make its directory on the host first: mkdir -p"
            raise SandboxError(f"the {side} {path} on the host: {error.strerror}", subject=path, hint=hint) from error
        subject = f"{name}:{error.filename}"
        refused = isinstance(error, PermissionError)
        hint = "copy with the rights of another user: --user USER" if refused else f"paths begin at the sandbox's root: {name}:/…"
        if error.errno == errno.EROFS:
            hint = READ_ONLY
        raise SandboxError(f"{subject}: {error.strerror}", subject=subject, hint=hint) from error


def _place(text: str) -> tuple[str, str]:
    """Sandbox, empty for the host, and path. As docker has it: what begins with ``/`` or ``.`` is the host's, whatever it contains."""
    name, colon, path = text.partition(":")
    if not colon or not name or text[0] in "/." or "/" in name:
        if not text:
            raise BadInput("a path is empty", subject="cp", hint="dockless cp NAME:/there here")
        return "", text
    return name, path or "/"


class _Shown:
    """Files and bytes so far, where somebody looks at a terminal."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._last = time.monotonic()
        self._written = False
        self._terminal = sys.stderr is not None and sys.stderr.isatty()

    def step(self, files: int, size: int) -> None:
        now = time.monotonic()
        if self._terminal and not self._quiet and now - self._last >= _EVERY:
            self._last, self._written = now, True
            status(_words(files, size))

    def end(self, copied: Copied) -> None:
        if self._written:
            status("")
        if not self._quiet:
            err(f"{_words(copied.files, copied.size)} copied")


def _words(files: int, size: int) -> str:
    return f"{files} file{'' if files == 1 else 's'}, {format_size(size)}"
