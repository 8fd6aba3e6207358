"""The hunt: random hostile images with random options against canaries, until the time is over. ``make hunt``; docs/hunt.md.

``python -P tests/hunt/run.py [--seconds 60] [--seed WORD] [--first N] [--replay FILE …] [--keep DIRECTORY]``

As root it looks at the machine through a mount namespace of its own; ``HUNT_OWNER`` names an account for whom root starts sandboxes
(``nobody``). Exit status 1: something was found.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[1]
sys.path[:0] = [str(HERE.parent), str(TOP / "src")]

from hunt import canaries, cases, judge, minimise, own_mounts  # noqa: E402

PATIENCE = 90.0  # seconds that a case may take before it counts as hung
KEPT = 3  # findings of one name that are written down


@contextmanager
def prepared() -> Iterator[canaries.Canaries]:
    """The canaries with their neighbour. All of it is gone afterwards."""
    base = Path(tempfile.mkdtemp(prefix="dockless-hunt.", dir="/var/tmp"))
    base.chmod(0o755)
    root = os.geteuid() == 0
    try:
        if root:
            own_mounts.enter(base)
        os.environ |= {"DOCKLESS_HOME": str(base / "h"), "TMPDIR": str(base / "tmp"), "DOCKLESS_SIMULATED_GPUS": "2x8G"}
        tempfile.tempdir = None
        with socket.socket() as port, socket.socket(socket.AF_UNIX) as abstract:
            port.bind(("127.0.0.1", 0))
            name = f"hunt-{os.getpid()}"
            abstract.bind(f"\0{name}")
            port.listen(64), abstract.listen(64)
            made = canaries.make(base, with_own_mounts=root, port=port.getsockname()[1], abstract=name)
            os.environ["HUNT_ENVIRONMENT"] = canaries.token_of(made, "the hunt's environment")
            with neighbour(made):
                yield made
    finally:
        from dockless.sandbox.run.removal import remove_tree

        for place in base.glob("h/*"):
            remove_tree(place)
        shutil.rmtree(base, ignore_errors=True)


@contextmanager
def neighbour(made: canaries.Canaries) -> Iterator[None]:
    """Another sandbox of the same machine, with secrets in its image, its environment, its volume and its private root."""
    from support import make_image

    from dockless._options import make_spec
    from dockless.images import Store
    from dockless.sandbox.run import detached

    entries = [
        make_image.file("bin/probe", made.probe(), 0o755),
        make_image.file("secret", canaries.token_of(made, "neighbour's image"), 0o600),
        make_image.file(".hunt", "HUNT-\n", 0o666),
    ]
    layout = make_image.make_oci_layout(
        made.base / "work/neighbour", [entries], {"Env": [], "Cmd": ["/bin/probe", "sleep"]}, "hunt/neighbour:1", compression="none"
    )
    Store(index=False).load(layout)
    (Store().root / "tars/sha256").mkdir(mode=0o700, exist_ok=True)  # the first layer that a case commits would make it: no finding
    secret = canaries.token_of(made, "neighbour's environment")
    spec = make_spec("hunt/neighbour:1", mounts=[f"{canaries.NEIGHBOUR}:/v"], env={"SECRET": secret})
    box = detached.start(spec, id=canaries.NEIGHBOUR)
    try:
        (made.home / "state/events").mkdir(mode=0o700, exist_ok=True)  # the first case that listens would make it
        for place in (made.home / "state/volumes").rglob(canaries.NEIGHBOUR):
            (place / "secret").write_text(canaries.token_of(made, "neighbour's volume"))
        yield
        if box.state() != "running":
            raise SystemExit("hunt: the neighbour's sandbox has ended")
    finally:
        box.remove()


class Hunt:
    """Cases one after the other, and what they brought."""

    def __init__(self, made: canaries.Canaries, keep: Path, *, shorten: bool) -> None:
        from hunt import trial

        self._made, self._keep, self._shorten = made, keep, shorten
        self._attempt = trial.attempt
        self.count = 0
        self.kinds: Counter[str] = Counter()
        self.found: Counter[str] = Counter()
        self.began = time.monotonic()
        for warming in ({"form": "host"}, {"form": "written", "layers": [cases.base()], "config": {"Cmd": ["/bin/probe"]}}):
            trial.attempt({"kind": "run", "image": warming, "tries": [{"args": ["/bin/true"]}]}, made, "hunt-warm", PATIENCE)
        self._names = canaries.listing(made)

    def judged(self, case: cases.Case) -> list[judge.Finding]:
        self.count += 1
        id = f"hunt-{os.getpid()}-{self.count}"
        record = self._attempt(case, self._made, id, PATIENCE)
        for told in record["tries"] or [record]:
            self.kinds["refused" if told["error"] else "ran" if told["out"] else "silent"] += 1
        found = judge.findings(case, record, self._made)
        found += self._left(id)
        self._mend()
        return found

    def _left(self, id: str) -> list[judge.Finding]:
        """Processes that nobody ended, and names that nobody took away."""
        from support.boxes import own_children

        from dockless.images import Store
        from dockless.sandbox.run.removal import remove_tree

        found = []
        for pid in own_children():
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            command = command or Path(f"/proc/{pid}/stat").read_text()
            if f"dockless {canaries.NEIGHBOUR}" not in command:
                found.append(judge.Finding("left behind", "process", f"{pid} {command}"))
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        store = Store()
        for image in store.list():
            if image.name and "neighbour" not in image.name:
                store.remove(image.name, force=True)
        store.prune()
        for name in sorted(canaries.listing(self._made) - self._names):
            if (self._made.base / name).exists() and not name.startswith(("h/store/", "h/state/volumes/", "h/run")):
                found.append(judge.Finding("left behind", judge._general(name).replace(id, "ID"), name))
                remove_tree(self._made.base / name)
        return found

    def _mend(self) -> None:
        """Put back what a finding has changed, so that the next case meets what it expects."""
        for name, mode in (
            ("home/secret", 0o600),
            ("home/notes", 0o644),
            ("home/bin/tool", 0o755),
            ("home/bin/script", 0o755),
            ("home/bin/static", 0o755),
        ):
            path = self._made.base / name
            content = path.read_bytes()
            if b"HUNT-WROTE\n" in content:
                path.write_bytes(content.replace(b"HUNT-WROTE\n", b""))
            if path.stat().st_mode & 0o7777 != mode or path.stat().st_uid != os.geteuid():
                os.chown(path, os.geteuid(), os.getegid())
                path.chmod(mode)
        if self._made.with_own_mounts and os.geteuid() == 0:
            for name in ("null", "zero", "full", "random", "urandom", "tty"):
                os.chown(f"/dev/{name}", 0, 0)
                os.chmod(f"/dev/{name}", 0o666)

    def summary(self) -> str:
        who = "root" if os.geteuid() == 0 else "user"
        words = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items()))
        return f"{who}: {self.count} cases (starts: {words}) in {time.monotonic() - self.began:.0f} s"

    def report(self, case: cases.Case, found: list[judge.Finding]) -> None:
        for finding in found:
            self.found[finding.key] += 1
            if self.found[finding.key] > KEPT:
                continue
            elapsed = time.monotonic() - self.began
            print(f"FOUND {finding.key}\n  after {elapsed:.1f} s, case {case.get('seed')}\n  {finding.evidence[:400]}", flush=True)
            small = minimise.smallest(case, finding.key, self.judged) if self._shorten and self.found[finding.key] == 1 else case
            self._keep.mkdir(parents=True, exist_ok=True)
            name = "".join(c if c.isalnum() else "-" for c in f"{finding.key[:60]}-{self.found[finding.key]}")
            document = {
                "finding": finding.key,
                "evidence": finding.evidence,
                "seconds": round(elapsed, 1),
                "root": os.geteuid() == 0,
                "case": small,
            }
            (self._keep / f"{name}.json").write_text(json.dumps(document, indent=1))


def hunt(options: argparse.Namespace) -> int:
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: whoever loses its parent becomes ours
    with prepared() as made:
        work = Hunt(made, options.keep, shorten=not options.replay and not options.whole)
        if options.replay:
            for path in options.replay:
                kept = json.loads(path.read_text())
                if os.geteuid() == 0 or not kept["root"]:
                    work.report(kept["case"], work.judged(kept["case"]))
        number, said = options.first, time.monotonic()
        while not options.replay and time.monotonic() - work.began < options.seconds and (options.count == 0 or work.count < options.count):
            case = cases.draw(options.seed, number, root=os.geteuid() == 0)
            number += 1
            found = work.judged(case)
            work.report(case, found)
            if found and options.until and any(re.search(options.until, finding.key) for finding in found):
                break
            if time.monotonic() - said >= 60:
                said = time.monotonic()
                print(f"hunt: so far {work.summary()}: {len(work.found)} findings", flush=True)
        print(f"hunt: {work.summary()}, seed {options.seed}: {len(work.found)} findings", flush=True)
        return 1 if work.found else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="of the clock")
    parser.add_argument("--seed", default=time.strftime("%Y%m%d-%H%M%S"))
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--count", type=int, default=0, help="so many cases at most")
    parser.add_argument("--until", default="", help="stop at a finding whose name this regular expression finds")
    parser.add_argument("--whole", action="store_true", help="do not look for the smallest case that shows a finding")
    parser.add_argument("--keep", type=Path, default=TOP / "build/hunt/findings")
    parser.add_argument("--replay", type=Path, nargs="*", help="files of findings instead of new cases")
    options = parser.parse_args()
    options.keep = options.keep.resolve()
    options.replay = [path.resolve() for path in options.replay or ()]
    os.chdir("/")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the neighbour and the canaries go, whoever ends this
    print(f"hunt: seed {options.seed}", flush=True)
    return hunt(options)


if __name__ == "__main__":
    sys.exit(main())
