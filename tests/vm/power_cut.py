"""The power of the guest is cut, again and again, while its daemon submits, starts and ends jobs; then every job is looked at.

    power_cut.py ROOT-DISK PAYLOAD-DISK DIRECTORY --cuts N --seed N -- QEMU…       called by run.sh

QEMU is killed with SIGKILL at a random moment, and the disk loses what it has not been asked to flush (support/volatile_disk.py). What the
guest has said until then is what was acknowledged: power_life.py. Ends with 1 if a count that has to be 0 is not.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.volatile_disk import VolatileDisk

COUNTS = ("lost", "double", "orphan", "wrong_exit", "ids_reused")
BOOT = 240.0
"""Seconds within which the daemon is up; the machine is emulated and shares its processors."""


@dataclass
class Story:
    """What the guest has said, over all cuts. ``acknowledged``: the exit code and the policy of each job; ``runs``: the attempts of each as
    its program said them; ``ends``: states and exit codes that were told, in that order."""

    acknowledged: dict[int, tuple[int, str]] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    runs: dict[int, list[int]] = field(default_factory=dict)
    ends: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    wrong: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in COUNTS})

    def read(self, text: str) -> None:
        """The last line may be torn by the cut."""
        for line in text.split("\n")[:-1]:
            verb, *words = line.strip().split(" ", 5)
            if verb == "cancel":
                self.cancelled.add(int(words[0]))
            elif verb == "ack":
                if int(words[0]) in self.acknowledged:
                    self.wrong["ids_reused"].append(line)
                self.acknowledged[int(words[0])] = int(words[1]), words[2]
            elif verb == "ran":
                if int(words[0]) in self.ends:
                    self.wrong["double"].append(f"{line}, after its end was told")
                self.runs.setdefault(int(words[0]), []).append(int(words[1]))
            elif verb == "end":
                self.ends.setdefault(int(words[0]), []).append((words[1], int(words[2])))
                self.reasons[int(words[0])] = " ".join(words[4:])
            elif verb == "over":
                self.wrong["orphan"] += words

    def judge(self) -> None:
        for number, (code, policy) in self.acknowledged.items():
            ends, runs = self.ends.get(number, []), self.runs.get(number, [])
            what = f"job {number} ({policy}, exit {code}): {ends} {self.reasons.get(number)!r}, ran in attempts {runs}"
            if not ends:
                self.wrong["lost"].append(what)
                continue
            state, found = ends[-1]
            if len(set(runs)) < len(runs):
                self.wrong["double"].append(what)
            if policy == "fail" and len(runs) > 1:
                self.wrong["double"].append(what)
            if len(set(ends)) > 1:
                self.wrong["wrong_exit"].append(f"{what}: not the same as was told before")
            rebooted = policy == "fail" and "rebooted" in self.reasons[number]
            if (state, found) != ("FAILED", code) and not rebooted and not (state == "CANCELLED" and number in self.cancelled):
                self.wrong["lost" if state == "LOST" else "wrong_exit"].append(what)


def boot(words: list[str], disk: VolatileDisk, place: Path, how: str) -> tuple[subprocess.Popen[bytes], Path]:
    """QEMU, and the file of the second serial port."""
    said = place / "said"
    said.unlink(missing_ok=True)
    disk.serve()
    command = [word.replace("POWER", how) for word in words]
    serial = ["-serial", "stdio", "-serial", f"file:{said}"]
    drive = f"driver=nbd,server.type=unix,server.path={disk.address},node-name=scratch"
    with open(place / "console", "ab") as console:
        process = subprocess.Popen(
            [*command, *serial, "-blockdev", drive, "-device", "virtio-blk-pci,drive=scratch,addr=0x1c"],
            stdin=subprocess.DEVNULL, stdout=console, stderr=console,
        )  # fmt: skip
    return process, said


def text_of(said: Path) -> str:
    return said.read_text(errors="replace") if said.exists() else ""


def until(words: str, process: subprocess.Popen[bytes], said: Path, place: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while words not in text_of(said):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            console = (place / "console").read_text(errors="replace")[-3000:]
            raise SystemExit(f"power-cut: {words!r} was not said:\n{text_of(said)[-2000:]}\n{console}")
        time.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("place", type=Path)
    parser.add_argument("--cuts", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("qemu", nargs="+")
    options = parser.parse_args()
    place, dice, story = options.place, random.Random(options.seed), Story()
    image = place / "scratch.img"
    with open(image, "wb") as file:
        file.truncate(256 << 20)
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", "-E", "root_owner=0:0,lazy_itable_init=0", image], check=True)
    disk = VolatileDisk(image, place / "nbd", dice)
    busy = 0.0  # seconds that a boot took: what is done afterwards takes longer on a slow machine, too
    for number in range(options.cuts):
        began = time.monotonic()
        process, said = boot(options.qemu, disk, place, "power")
        try:
            # Some cuts come while the daemon takes up what the one before left, most under load.
            if number % 4 != 3:
                until("up", process, said, place, BOOT)
                busy = busy or time.monotonic() - began
            time.sleep((0.5 + 1.5 * dice.random()) * busy)
        finally:
            process.kill()
            process.wait()
        disk.cut()
        story.read(text_of(said))
        print(
            f"power-cut: {number + 1} of {options.cuts}: {len(story.acknowledged)} jobs acknowledged, {len(story.ends)} ends told",
            flush=True,
        )
    process, said = boot(options.qemu, disk, place, "power dockless.last")
    try:
        until("over", process, said, place, 2 * BOOT)
        process.wait(BOOT)
    finally:
        process.kill()
        process.wait()
    disk.close()
    story.read(text_of(said))
    story.judge()
    attempts = sum(map(len, story.runs.values()))
    print(f"power-cut: {options.cuts} cuts, {disk.flushes} flushes, {disk.lost} sectors lost from the disk's cache")
    print(f"power-cut: {len(story.acknowledged)} jobs acknowledged, {len(story.cancelled)} cancelled, {attempts} attempts ran;", end=" ")
    print(*(f"{name.replace('_', ' ')} {len(found)}" for name, found in story.wrong.items()), sep=", ")
    print(*(f"  {name}: {line}\n" for name, found in story.wrong.items() for line in found[:20]), sep="", end="")
    return int(any(story.wrong.values()))


if __name__ == "__main__":
    sys.exit(main())
