"""Fuzz everything that reads strangers' bytes: ``python tests/fuzz/run.py [--seconds 60] [--rounds 1] [target …]``; ``make fuzz`` does.

Parsers written in Python run under atheris (``pip install dockless[fuzz]``), those in C under libFuzzer with the address and undefined
behaviour sanitizers (clang and its compiler-rt). What is not installed is said and left out. All state is below ``build/fuzz``: the growing
corpus (seeds.py and what the repository keeps, to begin with), the findings, and ``ledger.json`` with the processor time of each target.
Exit status 1: something was found.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[1]
NATIVE = TOP / "native" / "layer"
sys.path[:0] = [str(HERE.parent), str(TOP / "src")]

from fuzz import seeds  # noqa: E402
from fuzz.targets import TARGETS  # noqa: E402

_TAR = ("tar.c", "tar_member.c", "pax.c", "fault.c")
_LAYER = ("layer.c", "layer_dirs.c", "layer_whiteouts.c", "layer_members.c", "layer_meta.c", "lower.c", "pathset.c")
C_TARGETS: dict[str, tuple[str, ...]] = {
    "tar": ("tar_fuzz.c", *_TAR, "lister.c"),
    "writer": ("writer_fuzz.c", *_TAR, *_LAYER, "../launcher/remove.c"),
    "index": ("index_fuzz.c", *_TAR, "erofs.c", "erofs_below.c", "erofs_layout.c", "erofs_merge.c", "erofs_xattr.c", "lower.c"),
}
"""Name to its harness in this directory and the sources, from native/layer."""
C_FLAGS = "-g -O1 -std=gnu11 -Wall -fno-omit-frame-pointer -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined".split()
LENGTHS = {"reference": 1024, "digest": 256, "platform": 64} | dict.fromkeys(("archive", "rewrite", "tar", "writer", "index"), 16 << 10)
LENGTH = 8192
_building = threading.Lock()


def build(name: str, work: Path) -> Path | None:
    """The harness's program, compiled again where a source is newer; None where it cannot be."""
    harness, *sources = C_TARGETS[name]
    files = [HERE / harness, *(NATIVE / source for source in sources)]
    if not all(path.exists() for path in files) or shutil.which("clang") is None:
        return None
    program = work / "bin" / name
    inputs = [*files, *HERE.glob("*.[ch]"), *NATIVE.glob("*.h")]
    if not program.exists() or program.stat().st_mtime < max(path.stat().st_mtime for path in inputs):
        program.parent.mkdir(parents=True, exist_ok=True)
        command = ["clang", *C_FLAGS, "-I", str(NATIVE), "-I", str(HERE), *map(str, files), "-o", f"{program}.new"]
        if subprocess.run(command).returncode != 0:
            return None
        os.replace(f"{program}.new", program)
    return program


def command(name: str, work: Path) -> list[str] | None:
    if name in TARGETS:
        return [sys.executable, "-P", str(HERE / "atheris_main.py"), name] if find_spec("atheris") else None
    with _building:
        program = build(name, work)
    return [str(program)] if program else None


class Running:
    """The processes at work, written to a file for who wants to pause them."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._pids: set[int] = set()

    def change(self, *, add: int = 0, remove: int = 0) -> None:
        with self._lock:
            self._pids = (self._pids | {add}) - {0, remove}
            if self._path is not None:
                self._path.write_text("".join(f"{pid}\n" for pid in [os.getpid(), *sorted(self._pids)]))


def fuzz(name: str, seconds: int, timeout: int, work: Path, log: Path, running: Running) -> tuple[float, int]:
    """One run: the processor time it took, and its exit status."""
    base = command(name, work)
    if base is None:
        print(f"fuzz: {name}: left out: {'atheris' if name in TARGETS else 'clang, or a source,'} is missing", flush=True)
        return 0.0, 0
    place = work / "corpus" / name
    place.mkdir(parents=True, exist_ok=True)
    findings = work / "findings" / name
    findings.mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={LENGTHS.get(name, LENGTH)}",
        f"-timeout={timeout}",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
    ]
    with open(log, "wb") as stream:
        child = subprocess.Popen(
            [*base, *options, f"-artifact_prefix={findings}/", str(place)],
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=work,
            env=os.environ | {"FUZZ_FINDINGS": str(work / "findings"), "PYTHONSAFEPATH": "1"},
        )
        running.change(add=child.pid)
        _, status, usage = os.wait4(child.pid, 0)
        running.change(remove=child.pid)
    child.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime, child.returncode


def summary(log: Path) -> str:
    words = {}
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("stat::"):
            key, _, value = line[6:].partition(":")
            words[key] = value.strip()
        elif " cov: " in line:
            words["cov"] = line.split(" cov: ")[1].split()[0]
    return f"{words.get('number_of_executed_units', '?')} inputs, coverage {words.get('cov', '?')}, {words.get('peak_rss_mb', '?')} MB"


def main() -> int:
    names = [*TARGETS, *C_TARGETS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help=f"{' '.join(names)} (default: all)")
    parser.add_argument("--seconds", type=int, default=60, help="for each target in each round")
    parser.add_argument("--timeout", type=int, default=20, help="seconds on the clock that one input may take")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--work", type=Path, default=TOP / "build" / "fuzz")
    parser.add_argument("--shared", action="store_true", help="begin with the shared folder's images as well")
    parser.add_argument("--jobs", type=int, default=1, help="so many targets at once")
    parser.add_argument("--pids", type=Path, help="keep the ids of the running processes in this file")
    options = parser.parse_args()
    unknown = set(options.targets) - set(names)
    if unknown:
        parser.error(f"unknown target: {' '.join(sorted(unknown))}")
    work: Path = options.work.resolve()
    if not (work / "corpus").exists():
        seeds.write(work / "corpus", with_shared=options.shared)
    running, lock = Running(options.pids), threading.Lock()
    ledger_path = work / "ledger.json"

    def one(job: tuple[int, str]) -> None:
        number, name = job
        log = work / f"{name}-{number % 10}.log"
        spent, status = fuzz(name, options.seconds, options.timeout, work, log, running)
        with lock:
            ledger = json.loads(ledger_path.read_text()) if ledger_path.exists() else {}
            ledger[name] = round(ledger.get(name, 0) + spent, 1)
            ledger_path.write_text(json.dumps(ledger, indent=1))
        if spent:
            words = f"{summary(log)}{f', STATUS {status}' if status else ''}"
            print(f"{time.strftime('%H:%M:%S')} {name:12} {spent:6.1f} s (in all {ledger[name]:.0f} s)  {words}", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(one, enumerate((options.targets or names) * options.rounds)))
    found = sorted(path for path in (work / "findings").rglob("*") if path.is_file() and path.suffix != ".txt")
    for path in found:
        print(f"finding: {path}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
