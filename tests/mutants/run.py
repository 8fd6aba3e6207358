"""Change the program a little, and see whether a test notices: ``make mutants ARGS="--package sched --count 20"``; docs/mutants.md.

Without files or a package: the files that differ from ``--base``. Exit status 1: some survived.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[1]
sys.path[:0] = [str(HERE.parent)]

from mutants import copy, known, leftovers, nearest, of_c, of_python  # noqa: E402
from mutants.mutation import Mutant  # noqa: E402
from support import own_devices  # noqa: E402

_PACKAGES = {
    **{package: (f"{package}/**/*.py", f"{package}/**/*.c") for package in ("native", "sandbox", "cgroups", "images", "sched")},
    nearest.DOOR: ("src/dockless/*.py", "src/dockless/cli/*.py", "base/*.py"),
}
_NOT_THE_PROGRAM = ("native/build.py", "src/dockless/demo.py", "src/dockless/demo_image.py")


@dataclass(slots=True)
class Verdict:
    mutant: str
    diff: str
    state: str = "survived"  # or noticed; or neither: undecided (no time left), not built
    by: str = ""
    seconds: float = 0.0
    asked: list[str] = field(default_factory=list)


def main() -> int:
    chosen = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of all that tidies up
    tests = known.read() if chosen.known else {}
    files = sorted({mutant.path for mutant in tests} or _files(chosen))
    found = list(tests) or [mutant for file in files for mutant in _mutants(file) if chosen.line in (0, mutant.line)]
    if not chosen.known:
        random.Random(chosen.seed).shuffle(found)
    equivalent = _equivalent()
    count = chosen.count or len(found)
    print(f"{len(found)} mutants in {len(files)} files; trying {min(count, len(found))}, seed {chosen.seed}", flush=True)
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="mutants-", dir=chosen.where) as where:
        if os.geteuid() == 0:
            own_devices.enter(Path(where) / "dev")
        place = Path(where) / "tree"
        python = copy.make(TOP, place)
        judge = _Judge(place, python, chosen)
        for mutant in found:
            source = (place / mutant.path).read_bytes()
            if sum(one.state in ("noticed", "survived") for one in verdicts) >= count:
                break
            if (mutant.path, *mutant.change(source)) in equivalent:
                continue
            verdict = judge.of(mutant, source, tests.get(mutant) or chosen.tests)
            verdicts.append(verdict)
            print(f"{verdict.state:9} {verdict.seconds:5.0f} s  {verdict.mutant}{'  by ' + verdict.by if verdict.by else ''}", flush=True)
            if verdict.state == "survived":
                print(verdict.diff, flush=True)
    return _report(verdicts, chosen)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description="Change the program a little, and see whether a test notices.")
    parser.add_argument("files", nargs="*", help="files, relative to the repository")
    parser.add_argument("--package", choices=sorted(_PACKAGES), help="all files of a package")
    parser.add_argument("--known", action="store_true", help="those that once survived, each with the tests that notice it now")
    parser.add_argument("--base", default="HEAD", help="without files: those that differ from this commit (default: %(default)s)")
    parser.add_argument("--count", type=int, default=0, help="a random choice of so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--line", type=int, default=0, help="only mutants of this line")
    parser.add_argument("--time", type=float, default=300, metavar="SECONDS", help="for all the tests of one mutant (default: %(default)s)")
    parser.add_argument("--near", action="store_true", help="only the nearest tests, not the package's wider ones")
    parser.add_argument("--tests", nargs="+", default=[], help="these tests instead, relative to tests/")
    parser.add_argument("--json", type=Path, help="write the verdicts here")
    parser.add_argument("--where", help="where the copy of the tree is made (default: the temporary directory)")
    return parser.parse_args()


def _files(chosen: argparse.Namespace) -> list[str]:
    if chosen.files:
        return list(chosen.files)
    if chosen.package:
        found = {str(path.relative_to(TOP)) for pattern in _PACKAGES[chosen.package] for path in TOP.glob(pattern)}
    else:
        command = ["git", "-C", str(TOP), "diff", "--name-only", "--diff-filter=d", chosen.base]
        changed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        every = {str(path.relative_to(TOP)) for patterns in _PACKAGES.values() for pattern in patterns for path in TOP.glob(pattern)}
        found = every & set(changed)
    return sorted(found - set(_NOT_THE_PROGRAM) - {"native/_native.c"})


def _mutants(path: str) -> list[Mutant]:
    source = (TOP / path).read_bytes()
    return (of_python if path.endswith(".py") else of_c).mutants(path, source)


def _equivalent() -> set[tuple[str, str, str]]:
    rows = (known.fields(line) for line in (HERE / "equivalent.txt").read_text().splitlines() if line and not line.startswith("#"))
    return {(path, before, after) for path, before, after, _ in rows}


class _Judge:
    def __init__(self, place: Path, python: Path, chosen: argparse.Namespace) -> None:
        self.place, self.python, self.chosen = place, python, chosen
        self.failing_anyway: set[str] = set()
        self.sound: set[str] = set()

    def of(self, mutant: Mutant, source: bytes, tests: list[str]) -> Verdict:
        verdict = Verdict(mutant.name, mutant.diff(source))
        start = time.monotonic()
        near, wide = nearest.tests_for(self.place / "tests", mutant.path)
        suites = [tests] if tests else [near or wide] if self.chosen.near else [near, wide]
        target = self.place / mutant.path
        try:
            target.write_bytes(mutant.applied(source))
            if self._compiles(mutant, verdict):
                for suite in filter(None, suites):
                    self._ask(suite, verdict, start)
                    if verdict.state != "survived":
                        break
            again = verdict.state == "noticed" and self._fails(verdict.by)
        finally:
            target.write_bytes(source)
            if mutant.path.endswith(".c"):
                copy.unbuild(self.place)
        if verdict.state == "noticed" and not (again and self._is_sound(verdict.by)):
            self.failing_anyway |= {verdict.by} | (self._failing(verdict.by) if again else set())
            return self.of(mutant, source, tests)
        verdict.seconds = time.monotonic() - start
        return verdict

    def _compiles(self, mutant: Mutant, verdict: Verdict) -> bool:
        if mutant.path.endswith(".c"):
            problem = copy.build(self.python, self.place)
        else:
            try:
                compile((self.place / mutant.path).read_bytes(), mutant.path, "exec")
                problem = ""
            except SyntaxError as error:
                problem = str(error)
        if problem:
            verdict.state, verdict.by = "not built", problem.strip().splitlines()[-1][:100]
        return not problem

    def _ask(self, suite: list[str], verdict: Verdict, start: float) -> None:
        verdict.asked += suite
        left = self.chosen.time - (time.monotonic() - start)
        status, said = self._pytest(suite, max(left, 10))
        if status is None:
            verdict.state, verdict.by = "undecided", f"{self.chosen.time:g} s are over"
        elif status:
            failed = _failed(said)
            verdict.state, verdict.by = "noticed", failed[0] if failed else said.strip()[-200:].replace("\n", " ")

    def _fails(self, test: str) -> bool:
        """Whether a test that failed does so again. A run that ended otherwise is not asked again."""
        return "::" not in test or self._pytest([test.removeprefix("tests/")], 300)[0] != 0

    def _is_sound(self, test: str) -> bool:
        """Whether a test that failed passes without the mutant."""
        if "::" not in test or test in self.sound or not self._fails(test):
            self.sound.add(test)
        return test in self.sound

    def _failing(self, test: str) -> set[str]:
        """All tests of this one's file that fail without the mutant, so that they are not found out one by one."""
        return set(_failed(self._pytest([test.removeprefix("tests/").split("::")[0]], 300, "--maxfail=0")[1]))

    def _pytest(self, tests: list[str], seconds: float, *options: str) -> tuple[int | None, str]:
        command = ["-m", "pytest", "-x", *options, "-q", "--tb=no", "-p", "no:cacheprovider", "--no-header"]
        command += [f"--basetemp={self.place.parent / 'pytest'}", *(f"--deselect={name}" for name in sorted(self.failing_anyway))]
        env = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1", "DOCKLESS_TEST_TIME_LIMIT": "20"}
        with tempfile.TemporaryFile() as out:  # not a pipe: whatever a mutant leaves running would keep that open
            process = subprocess.Popen(
                ["nice", str(self.python), "-P", *command, *(f"tests/{name}" for name in tests)],
                cwd=self.place, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                status: int | None = process.wait(seconds)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                process.kill()
                process.wait()
                leftovers.end(process.pid)
            out.seek(0)
            return (0 if status == 5 else status), out.read().decode(errors="replace")  # 5: nothing was collected


def _failed(said: str) -> list[str]:
    return [line.split(" ", 1)[1].split(" - ")[0] for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))]


def _report(verdicts: list[Verdict], chosen: argparse.Namespace) -> int:
    states = Counter(verdict.state for verdict in verdicts)
    noticed = states["noticed"]
    judged = noticed + states["survived"]
    print(f"\n{noticed} of {judged} noticed ({100 * noticed / max(judged, 1):.0f} %): {dict(states)}")
    if chosen.json:
        rows = [{name: getattr(verdict, name) for name in Verdict.__slots__} for verdict in verdicts]
        chosen.json.write_text(json.dumps({"arguments": sys.argv[1:], "states": states, "mutants": rows}, indent=1) + "\n")
    return 1 if states["survived"] else 0


if __name__ == "__main__":
    sys.exit(main())
