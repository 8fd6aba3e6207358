"""Memory of many sandboxes of one image: how much of what their programs read is there once for all of them.

    python benchmarks/shared_pages.py [--count 100] [--json FILE]

Each has an idle Python that has imported what programs usually import of its standard library. Beside them the same from a copy of the root
for each, on the same file system, and podman where it is installed. As root. The image is made of the Python that runs this, in two layers:
its libraries and its standard library.

RSS counts a page once for each process that has it, PSS in as many parts as there are processes that share it, so the sum of PSS is what
all of them take. proc_pid_smaps(5)
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))

from benchmarks.many import _children
from benchmarks.scene import make_image, scene

IMAGE = "dockless-bench-python"
MODULES = "argparse asyncio collections csv datetime decimal email.message hashlib http.client json logging os pathlib random re shutil"
MODULES += " socket sqlite3 ssl statistics subprocess tempfile threading typing urllib.request uuid xml.etree.ElementTree zipfile"
LEFT_OUT = {"test", "idlelib", "ensurepip", "site-packages", "lib2to3", "tkinter", "turtledemo"}
PYTHON = os.path.realpath(sys.executable)
_FIELDS = ("Rss", "Pss", "Pss_File", "Shared_Clean", "Private_Clean", "Private_Dirty")


@dataclass(frozen=True, slots=True)
class Found:
    """Sums over all processes, KiB. ``cache``: what the machine's page cache has more than before, whoever else filled it."""

    name: str
    count: int
    rss: int
    pss: int
    pss_file: int
    shared_clean: int
    private: int
    cache: int


def modules() -> list[str]:
    """Those that this Python has."""
    return [name for name in MODULES.split() if not subprocess.run([PYTHON, "-I", "-c", f"import {name}"], capture_output=True).returncode]


def layers() -> list[list[Any]]:
    """The shared libraries; Python and its standard library, compiled."""
    made = make_image()
    standard = Path(sysconfig.get_path("stdlib"))
    left_out = {*LEFT_OUT, *(path.name for path in standard.glob("config-*"))}
    files = [path for path in sorted(standard.rglob("*")) if path.is_file() and left_out.isdisjoint(path.relative_to(standard).parts)]
    python = [  # with their times, by which Python knows what it has compiled already
        made.file(str(path).lstrip("/"), path.read_bytes(), path.stat().st_mode & 0o755, mtime=int(path.stat().st_mtime))
        for path in (*files, Path(PYTHON))
    ]
    programs = [PYTHON, *(str(path) for path in files if path.suffix == ".so")]
    needed = sorted({library for program in programs for library in made._libraries(program)})
    libraries = [made.file(path.lstrip("/"), Path(os.path.realpath(path)).read_bytes(), 0o755) for path in needed]
    return [libraries, python]


def command(names: list[str]) -> list[str]:
    """An idle Python that says when it has imported all."""
    return [PYTHON, "-I", "-S", "-c", f"import {', '.join(names)}, sys; print('up', flush=True); import time; time.sleep(100000)"]


def smaps(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    values = {line.partition(":")[0]: int(line.split()[1]) for line in lines}
    return {name: values.get(name, 0) for name in _FIELDS}


def cached() -> int:
    """KiB of the page cache."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Cached:"))


def measured(name: str, start: Callable[[ExitStack], list[int]]) -> Found:
    """``start``: gives the pids of the programs, when all have imported."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")
    before = cached()
    with ExitStack() as running:
        pids = start(running)
        time.sleep(1)
        each = [smaps(pid) for pid in pids]
        total = {field: sum(one[field] for one in each) for field in _FIELDS}
        private = total["Private_Clean"] + total["Private_Dirty"]
        found = Found(
            name, len(pids), total["Rss"], total["Pss"], total["Pss_File"], total["Shared_Clean"], private, cached() - before
        )  # fmt: skip
        print(text(found), flush=True)
        return found


def in_sandboxes(count: int, program: list[str]) -> Callable[[ExitStack], list[int]]:
    import dockless

    def start(running: ExitStack) -> list[int]:
        pids = []
        for _ in range(count):
            null = {"stdin": dockless.DEVNULL, "stderr": dockless.DEVNULL, "stdout": dockless.PIPE}
            box = running.enter_context(dockless.Sandbox(IMAGE, program, text=True, network="none", **null))
            assert box.stdout is not None and box.stdout.readline() == "up\n"
            pids += _children(box.pid)
        return pids

    return start


def by_commands(count: int, program: list[str]) -> Callable[[ExitStack], list[int]]:
    """``dockless run -d``, each a process of its own, which has ended when the next one begins."""
    import dockless

    def start(running: ExitStack) -> list[int]:
        pids = []
        for _ in range(count):
            line = [sys.executable, "-P", "-m", "dockless", "run", "-d", "-q", "--pull", "never", IMAGE, "--", *program]
            id = subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()
            box = dockless.Sandbox.open(id)
            running.callback(box.rm, force=True)
            next(iter(box.logs(follow=True)))
            pids += _children(box.pid)
        return pids

    return start


def of_a_pool(count: int, program: list[str]) -> Callable[[ExitStack], list[int]]:
    """``dockless run --pool``: the pool's process has made them all."""
    import dockless

    def start(running: ExitStack) -> list[int]:
        command = [sys.executable, "-P", "-m", "dockless"]
        subprocess.run([*command, "pool", "create", "-q", "pages", "--pull", "never", IMAGE], check=True)
        running.callback(subprocess.run, [*command, "pool", "rm", "-q", "pages"], check=True)
        for _ in range(count):
            process = subprocess.Popen([*command, "run", "--pool", "pages", "--", *program], stdout=subprocess.PIPE, text=True)
            running.callback(_end, process)
            assert process.stdout is not None and process.stdout.readline() == "up\n"
        return [pid for box in dockless.list(state="running") for pid in _children(box.pid)]

    return start


def in_copies(count: int, program: list[str], root: Path, place: Path) -> Callable[[ExitStack], list[int]]:
    """A copy of the root for each, as a runtime that unpacks an image for each start has it."""

    def start(running: ExitStack) -> list[int]:
        pids = []
        running.callback(shutil.rmtree, place)
        chroot = shutil.which("chroot") or "chroot"
        for number in range(count):
            copy = place / str(number)
            shutil.copytree(root, copy, symlinks=True)
            process = subprocess.Popen([chroot, str(copy), *program], stdout=subprocess.PIPE, text=True, env={})
            running.callback(_end, process)
            assert process.stdout is not None and process.stdout.readline() == "up\n"
            pids.append(process.pid)
        return pids

    return start


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def in_podman(count: int, program: list[str], layout: Path) -> Callable[[ExitStack], list[int]]:
    def podman(*arguments: str) -> str:
        return subprocess.run(["podman", *arguments], check=True, capture_output=True, text=True).stdout.strip()

    def start(running: ExitStack) -> list[int]:
        image = podman("load", "-q", "-i", str(layout)).rpartition(" ")[2]
        running.callback(podman, "rmi", "-f", image)
        pids = []
        for _ in range(count):
            id = podman("run", "-d", "--network", "none", image, *program)
            running.callback(podman, "rm", "-f", "-t", "0", id)
            while "up" not in podman("logs", id):
                time.sleep(0.05)
            pids.append(int(podman("inspect", "--format", "{{.State.Pid}}", id)))
        return pids

    return start


@contextmanager
def loaded(home: Path, layout: Path, *, index: bool) -> Iterator[str]:
    """In a store of its own; how it has the layers."""
    from dockless.images import Store

    before, os.environ["DOCKLESS_HOME"] = os.environ["DOCKLESS_HOME"], str(home)
    try:
        image = Store(index=index).load(layout, name=IMAGE)[0]
        forms = {"an EROFS index" if layer.path.is_file() else "an unpacked tree" for layer in image.layers}
        yield f"dockless, each layer {' or '.join(sorted(forms))}"
    finally:
        os.environ["DOCKLESS_HOME"] = before


def main() -> int:
    words = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    words.add_argument("--count", type=int, default=100, help="sandboxes (default %(default)s)")
    words.add_argument("--json", metavar="FILE", help="write the figures there, too")
    given = words.parse_args()
    if os.geteuid():
        print("shared_pages.py: only root may read how much memory others share", file=sys.stderr)
        return 1
    program = command(modules())
    found: list[Found] = []
    with scene() as place:
        layout = make_image().make_oci_layout(place.directory / "python", layers(), ref=IMAGE)
        for index in (True, False):
            with loaded(place.directory / f"home-{index}", layout, index=index) as name:
                found.append(measured(f"{name}, started by one program", in_sandboxes(given.count, program)))
                found.append(measured(f"{name}, each by a dockless run -d", by_commands(given.count, program)))
                if index:
                    found.append(measured(f"{name}, each by a dockless run --pool", of_a_pool(given.count, program)))
                else:
                    from dockless.images import Store

                    root = place.directory / "root"
                    for layer in Store().get(IMAGE).layers:
                        shutil.copytree(layer.path, root, symlinks=True, dirs_exist_ok=True)
        found.append(measured("a copy of the root for each", in_copies(given.count, program, root, place.directory / "copies")))
        if shutil.which("podman"):
            found.append(measured("podman", in_podman(given.count, program, layout)))
    if not shutil.which("podman"):
        print("podman: not installed")
    if given.json:
        Path(given.json).write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    return 0


def text(found: Found) -> str:
    """One contender's lines, MiB in all and for each."""

    def both(kib: int) -> str:
        return f"{kib / 1024:8.1f} MiB, {kib / 1024 / found.count:6.2f} each"

    rows = {
        "RSS": found.rss, "PSS": found.pss, "of it files": found.pss_file, "shared, clean": found.shared_clean, "private": found.private,
        "page cache": found.cache,
    }  # fmt: skip
    return "\n".join([f"{found.name}: {found.count}", *(f"  {name:<14}{both(kib)}" for name, kib in rows.items())])


if __name__ == "__main__":
    sys.exit(main())
