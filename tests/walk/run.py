"""``make walk``: random operations of the public API, and nothing left of them. See docs/walk.md.

run.py --steps 10000 --seed WORD
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from support import apart, residue
from support.boxes import load, until
from support.make_image import symlink
from support.scheduling import DaemonProcess
from walk import machine

import dockless
from dockless.base import paths
from dockless.sandbox.run import reconcile
from dockless.sandbox.run.reconcile import _SETTLED

STEPS = 50
"""Rules in one example."""


def walk(steps: int, word: str, place: Path, daemon: int, *, tell: bool = False) -> machine.Walked:
    """So many operations from that seed on, in a ``DOCKLESS_HOME`` of their own; then nothing may be left. ``AssertionError``"""
    walked = machine.walked = machine.Walked(daemon=daemon, image=load(place, [symlink("bin/stty", "busybox")]), tell=tell)
    dockless.run(walked.image, ["true"])  # what the first start leaves open for the others
    before, threads, at = residue.snapshot(), threading.active_count(), 0
    while walked.steps < steps:
        limits = settings(
            max_examples=1 + (steps - walked.steps) // STEPS, stateful_step_count=STEPS, phases=[Phase.generate], deadline=None,
            database=None, suppress_health_check=list(HealthCheck), print_blob=False,
        )  # fmt: skip
        case = seed(f"{word}/{at}")(type("Walk", (machine.Walk,), {}))
        at += 1
        try:
            run_state_machine_as_test(case, settings=limits)
        except Exception as error:
            failure = walked.failure or error
            failure.add_note("\n".join(["what was done before:", *walked.trace[-40:]]))
            raise failure from None
    walked.note("end")
    until(lambda: threading.active_count() <= threads, f"threads end: {threading.enumerate()}")  # those of trio after ten seconds
    until(lambda: not left(), f"nothing is left: {left()}", _SETTLED + 30)
    assert not (found := residue.leftovers(before, 20)), found
    machine.watch_no_more()
    return walked


def left() -> list[str]:
    """What prune and the next start do not remove of what was killed."""
    reconcile.reconcile()
    dockless.Store().prune()
    return [
        *machine.processes(),
        *(box.id for box in dockless.list()),
        *(str(path) for kind in ("running", "sandboxes") for path in paths.state().joinpath(kind).glob("*")),
        *(str(path) for path in Path(tempfile.gettempdir()).iterdir() if path.name.startswith(("walk", "dockless"))),
    ]


@contextlib.contextmanager
def own_surroundings() -> Iterator[Path]:
    apart.mark()
    place = apart.own_temporary_directory()
    home = place / "h"
    home.mkdir(0o700)
    os.environ["DOCKLESS_HOME"] = str(home)
    try:
        yield place
    finally:
        for box in dockless.list():  # of a walk that failed
            with contextlib.suppress(dockless.DocklessError):
                box.rm(force=True)
        residue.unmount_below(place)
        residue.remove_tree(place)


@contextlib.contextmanager
def queue(home: Path) -> Iterator[int]:
    """The pid of a daemon for jobs."""
    daemon = DaemonProcess(home).start()
    assert daemon.process is not None
    os.environ["DOCKLESS_SOCKET"] = str(daemon.socket)
    try:
        yield daemon.process.pid
    finally:
        daemon.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", default=time.strftime("%Y%m%d-%H%M%S"))
    parser.add_argument("--tell", action="store_true", help="each operation on stderr")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background is deaf to it, and so are its children
    print(f"walk: seed {options.seed}", flush=True)
    began = time.monotonic()
    walked: machine.Walked | None
    with own_surroundings() as place, queue(place / "h") as daemon:
        try:
            walked = walk(options.steps, options.seed, place, daemon, tell=options.tell)
        except (Exception, KeyboardInterrupt):
            walked = None
            traceback.print_exc()
    if walked is None:
        sys.stdout.flush()
        os._exit(1)  # a thread whose call hangs is not waited for
    print(f"walk: {walked.steps} operations in {time.monotonic() - began:.0f} s, nothing left")
    for name, count in sorted((walked.operations + walked.refused).items()):
        print(f"  {count:6} {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
