"""All that the command line prints: lines, tables, ages and JSON, for people and scripts. No colours, no libraries.

What is printed is escaped here (``dockless.base.text.escaped``), whoever it came from: a name, a command or a registry's message is one
line and drives no terminal. Only what a program in a sandbox wrote, and bytes that were asked for as they are, go past this module.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from dockless.base import json
from dockless.base.text import escaped
from dockless.base.typing import Any, TextIO
from dockless.base.units import format_duration


def out(*lines: object) -> None:
    """Print lines on standard output. A newline inside a line is escaped."""
    _write(sys.stdout, lines)


def out_columns(cells: Iterable[object]) -> None:
    """Print one line whose cells, each escaped, have a tab between them."""
    _put(sys.stdout, "\t".join(escaped(str(cell)) for cell in cells) + "\n")


def over(lines: int) -> None:
    """What comes next is written over the last lines on standard output, where that is a terminal."""
    if lines and sys.stdout is not None and sys.stdout.isatty():
        _put(sys.stdout, f"\033[{lines}A\033[J")


def err(*lines: object) -> None:
    """The same on standard error."""
    _write(sys.stderr, lines)


def warn(text: str, *, hint: str = "") -> None:
    """One line on standard error, in the manner of errors, and what to do about it."""
    err(f"dockless: {text}", *([f"  hint: {hint}"] if hint else ()))


def raw(document: bytes) -> None:
    """A whole document on standard output: byte for byte into a pipe or a file, escaped line by line on a terminal."""
    if sys.stdout is None or sys.stdout.isatty():
        out(*document.decode(errors="backslashreplace").removesuffix("\n").split("\n"))
        return
    write_bytes(sys.stdout, document)


def write_bytes(stream: TextIO, data: bytes) -> None:
    """Bytes as they are on standard output or standard error, behind what was written before."""
    with _naming_errors(stream):
        stream.flush()
        stream.buffer.write(data)
        stream.buffer.flush()


def status(text: str) -> None:
    """Replace the line of the terminal on standard error; "" clears it."""
    sys.stderr.write("\r\033[K" + escaped(text))
    sys.stderr.flush()


def _write(stream: TextIO | None, lines: Sequence[object]) -> None:
    _put(stream, "".join(f"{escaped(str(line))}\n" for line in lines))


def _put(stream: TextIO | None, text: str) -> None:
    if stream is None:  # there is none
        return
    with _naming_errors(stream):
        try:
            stream.write(text)
        except UnicodeEncodeError:  # a terminal or a setting that knows fewer characters
            stream.write(text.encode(stream.encoding, "backslashreplace").decode(stream.encoding))
        stream.flush()


@contextlib.contextmanager
def _naming_errors(stream: TextIO) -> Iterator[None]:
    """An error of standard output becomes ``OutputLost``; of one of standard error nobody could be told. A reader that has gone is
    ``BrokenPipeError``."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if stream is sys.stderr:
            return
        from dockless.errors import OutputLost

        lost = OutputLost(
            f"cannot write standard output: {error.strerror}",
            subject="standard output",
            hint="what was to be done may be done all the same: look before you repeat it",
        )
        lost.errno = error.errno or 0
        raise lost from error


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]], *, indent: str = "") -> None:
    """Left-aligned columns, two blanks between them; the last one is as wide as it likes."""
    cells = [list(heads), *([escaped(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    out(*(indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells))


def print_csv(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """RFC 4180, a line for each row, with lines as this system has them; None is empty."""
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows([escaped(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    out(*text.getvalue().removesuffix("\n").split("\n"))


def cut(text: str, width: int) -> str:
    """At most so many characters, as they are shown."""
    text = escaped(text)
    return text if len(text) <= width else text[: width - 1] + "…"


def age(since: float) -> str:
    """``3m``, ``2h``: the two largest parts of the time since then."""
    return span(time.time() - since) if since else ""


def span(seconds: float) -> str:
    whole = max(0, round(seconds))
    if whole >= 86400:
        whole -= whole % 3600
    elif whole >= 3600:
        whole -= whole % 60
    return format_duration(whole)


def print_json(value: Any, *, indent: int | None = None) -> None:
    _write(sys.stdout, json_text(value, indent=indent).split("\n"))


def json_text(value: Any, *, indent: int | None = None) -> str:
    """ASCII alone, so that it drives no terminal either."""
    from dockless.base.records import plain

    if indent is None:
        text = json.dumps(plain(value), default=str)
    else:
        import json as indenting

        text = indenting.dumps(plain(value), indent=indent, default=str)
    return text.replace("\x7f", "\\u007f")


def each(items: Iterable[Any], do: Callable[[Any], None], *, as_json: bool = False) -> int:
    """Do it for every item: one that fails is reported and the others go on. The exit code of the first failure, 0 without one."""
    from dockless.cli import report
    from dockless.errors import DocklessError, OutputLost

    code = 0
    for item in items:
        try:
            do(item)
        except (BrokenPipeError, OutputLost):  # it is lost for all of them
            raise
        except (DocklessError, OSError) as error:
            failed = report(error, as_json=as_json)
            code = code or failed
    return code


def each_named(names: Iterable[str], do: Callable[[str], Any], *, as_json: bool = False, quiet: bool = False) -> int:
    """``each``, and then the names for which it was done: one a line, or a list in JSON."""
    code, done = done_for(names, do, as_json=as_json)
    names_done(done, as_json=as_json, quiet=quiet)
    return code


def done_for(names: Iterable[str], do: Callable[[str], Any], *, as_json: bool = False) -> tuple[int, list[str]]:
    """``each``, and the names for which it was done."""
    done: list[str] = []

    def one(name: str) -> None:
        do(name)
        done.append(name)

    return each(names, one, as_json=as_json), done


def names_done(done: list[str], *, as_json: bool = False, quiet: bool = False) -> None:
    """Names, one a line or a list in JSON."""
    if as_json:
        print_json(done)
    elif not quiet:
        out(*done)


def short(digest: str) -> str:
    """The beginning of a digest, as people copy it."""
    return digest.partition(":")[2][:12]


def ask(question: str) -> None:
    """A question on standard error, the answer's place behind it."""
    if sys.stderr is not None:
        sys.stderr.write(escaped(question))
        sys.stderr.flush()


def confirmed(question: str) -> bool:
    """Ask on the terminal. Where there is none, whoever wrote the script has decided."""
    if sys.stdin is None or not sys.stdin.isatty():
        return True
    ask(f"{question} [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
