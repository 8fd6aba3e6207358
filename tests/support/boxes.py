"""Sandboxes for tests: run one to its end with its output, make images for it, wait on conditions.

::

    ran = sh("id -u", user="1000")            the image `host`, /bin/sh -c
    ran.exit.code, ran.out, ran.err
    ref = load(tmp_path, [file("etc/x", "y")], user="app")
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from support import apart, make_image

from dockless.images import Store
from dockless.sandbox.run.box import Box
from dockless.sandbox.run.foreground import ForegroundSandbox
from dockless.sandbox.run.process import Exit
from dockless.sandbox.spec import Spec

DEADLINE = 20.0 * apart.slowness()  # seconds


def log_paths(box: Box) -> tuple[Path, ...]:
    """The older part of the log and the newer, those that exist."""
    return tuple(path for path in (box.directory / "log.1", box.directory / "log") if path.exists())


@dataclass(frozen=True)
class Ran:
    exit: Exit
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@contextmanager
def files(stdin: bytes = b"") -> Iterator[tuple[IO[bytes], IO[bytes], IO[bytes]]]:
    """Files for a program's 0-2: never full, never blocking, owned by nobody in particular."""
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        source.write(stdin)
        source.seek(0)
        yield source, out, err


def run(spec: Spec, stdin: bytes = b"", timeout: float = DEADLINE, **options: Any) -> Ran:
    """Start, wait, collect. What is still alive after ``timeout`` seconds is killed and the test fails with ``TimeoutError``."""
    with files(stdin) as (source, out, err):
        with ForegroundSandbox(spec, stdin=source.fileno(), stdout=out.fileno(), stderr=err.fileno(), **options) as box:
            ended = box.wait(timeout)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
        return Ran(ended, *texts)


def sh(script: str, stdin: bytes = b"", **fields: Any) -> Ran:
    """A shell script in a sandbox of the image `host` unless ``image`` says another."""
    return run(Spec(argv=("/bin/sh", "-c", script), **fields), stdin)


def ok(script: str, **fields: Any) -> str:
    """The output of a script that must end with 0."""
    ran = sh(script, **fields)
    assert ran.exit.code == 0, ran
    return ran.out


@contextmanager
def running(spec: Spec, **options: Any) -> Iterator[tuple[ForegroundSandbox, Callable[[], str]]]:
    """A sandbox that is left running, and a function that gives its output so far."""
    with (
        files() as (source, out, err),
        ForegroundSandbox(spec, stdin=source.fileno(), stdout=out.fileno(), stderr=err.fileno(), **options) as box,
    ):
        yield box, lambda: os.pread(out.fileno(), 1 << 20, 0).decode(errors="replace")


def until(condition: Callable[[], Any], what: str, deadline: float = DEADLINE) -> Any:
    """The first true answer of ``condition``; a failure that says ``what`` did not come about within ``deadline`` seconds."""
    end = time.monotonic() + deadline
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < end, f"not within {deadline} s: {what}"
        time.sleep(0.005)


def load(
    where: Path,
    entries: Iterable[make_image.Entry] = (),
    *,
    without: Iterable[str] = (),
    name: str = "test:latest",
    index: bool | None = None,
    **config: Any,
) -> str:
    """An image with a shell, these entries in a second layer, and this configuration, in the store of this test. ``index``: as ``Store``
    has it."""
    gone = set(without)
    base = [entry for entry in make_image.rootfs_entries() if entry.name not in gone]
    layers: list[make_image.Layer] = [base]
    extra = list(entries)
    if extra:
        layers.append(extra)
    layout = make_image.make_oci_layout(
        where / f"layout-{name.replace(':', '-').replace('/', '-')}", layers, make_image.config(**config), name, compression="none"
    )
    Store(index=index).load(layout)
    return name


def own_children() -> set[int]:
    """Of this process, zombies too."""
    return {int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def children_of(pid: int) -> set[int]:
    """Every descendant of a process that is alive, zombies left out."""
    parents: dict[int, int] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(entry)] = int(fields[1])
    found: set[int] = set()
    fresh = {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pss(pid: int) -> int:
    """Bytes. As an ordinary user init is closed to us (it is not dumpable): then its share is what the keeper's is, twice over."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except PermissionError:
        return (
            2
            * int(next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")).split()[1])
            * 1024
        )
    return int(next(line for line in text.splitlines() if line.startswith("Pss:")).split()[1]) * 1024
