"""How fast one user's job computes beside what another user's jobs waste: in the guest, as root. Two processors, one of them his.

His job counts in a loop, alone and beside each of her jobs, in turns. Two figures of each, medians of the rounds: what it has counted, and
the processor time that it got, which an emulated machine that shares its host's processors tells better. With them the processors in
use meanwhile, by him and by her with her keepers: what is left is idle, the daemon's, or that of the kernel's own threads. The last
rows are of a daemon whose settings give his whole core to him alone.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.scheduling import DaemonProcess, as_user

from dockless.cgroups import Limits, find_delegation
from dockless.sandbox.spec import Bind, Spec
from dockless.sched import JobSpec

ANNA, BEN = (pwd.getpwnam(name).pw_uid for name in ("daemon", "bin"))
PLACE, SMALL = Path("/scratch/users"), Path("/scratch/small")
WINDOW, ROUNDS = 4.0, 3
COUNTS = """\
import mmap, struct
with open("/go/count", "r+b") as file:
    count = mmap.mmap(file.fileno(), 8)
n = 0
while True:
    n += 1
    if n % 1000 == 0:
        count[:] = struct.pack("<Q", n)
"""
HOGS = {
    "memory hog": ("while :; do head -c 1000000000 /dev/zero | tail; done", {"memory_max": 32 << 20, "memory_swap_max": 0}),
    "fork bomb": ("f() { f | f & }; while :; do f; sleep 1; done", {"pids_max": 50, "memory_max": 64 << 20}),
    "log flood": ("while :; do echo a line of a flood of lines; done", {"memory_max": 64 << 20}),
    "disk filler": ("while :; do cat /dev/zero > /small/full; rm /small/full; done", {"memory_max": 64 << 20}),
}


def submitted(daemon: DaemonProcess, uid: int, argv: tuple[str, ...], limits: Limits) -> int:
    spec = Spec(argv=argv, mounts=(Bind(str(PLACE), "/go"), Bind(str(SMALL), "/small")), limits=limits)
    outcome, number, *text = as_user(uid, daemon.socket.parent, lambda queue: queue.submit(JobSpec(spec)))
    assert outcome == "ok", (number, text)
    found: int = number
    return found


class Counter:
    def __init__(self, number: int) -> None:
        deadline = time.monotonic() + 60
        while not self.count():
            assert time.monotonic() < deadline, "his job does not count"
            time.sleep(0.1)
        (self.group,) = find_delegation().home.glob(f"user-{BEN}/job-{number}-1-*")

    def count(self) -> int:
        return int.from_bytes((PLACE / "count").read_bytes(), "little")

    def window(self) -> tuple[float, ...]:
        """Counted per second, and processors used: by him, by her."""
        before = self.look()
        time.sleep(WINDOW)
        seconds, *grown = (now - then for now, then in zip(self.look(), before, strict=True))
        return tuple(growth / seconds for growth in grown)

    def look(self) -> tuple[float, ...]:
        return time.monotonic(), self.count(), used(self.group), used(self.group.parent.parent / f"user-{ANNA}")


def used(group: Path) -> float:
    """Processor time in seconds, 0 without a group: one that goes while it is read answers ENODEV."""
    try:
        return int((group / "cpu.stat").read_text().split()[1]) / 1e6
    except OSError:
        return 0.0


def main() -> None:
    PLACE.mkdir()
    PLACE.chmod(0o755)
    (PLACE / "count").write_bytes(bytes(8))
    os.chown(PLACE / "count", BEN, BEN)
    SMALL.mkdir()
    for words in (
        "truncate -s 64M /scratch/small.img",
        "mke2fs -q -F /scratch/small.img",
        "mount -o loop /scratch/small.img /scratch/small",
    ):
        subprocess.run(words.split(), check=True)
    SMALL.chmod(0o777)
    home = Path("/scratch/h")
    home.mkdir()
    home.chmod(0o755)
    daemon = DaemonProcess(home).start()
    his = Counter(submitted(daemon, BEN, ("python3", "-c", COUNTS), Limits(cpu_max=1.0, memory_max=64 << 20)))
    together = {"all four": HOGS}
    cases = {name: {name: hog} for name, hog in HOGS.items()} | together
    print(f"two users: his job, one core, beside hers; medians of {ROUNDS} pairs of {WINDOW:g} s")
    for own_cores, cores, hers_of in (("no", None, cases), ("no", 0.25, cases), ("yes", None, together), ("yes", 0.25, together)):
        (home / "dockless.toml").write_text(f'[host]\nown_cores = "{own_cores}"\n')
        with daemon.client() as queue:
            queue.reload()
        for name, hogs in hers_of.items():
            pairs = []
            for _ in range(ROUNDS):
                alone = his.window()
                hers = [submitted(daemon, ANNA, ("sh", "-c", script), Limits(cpu_max=cores, **limits)) for script, limits in hogs.values()]
                time.sleep(2.0)
                beside = his.window()
                with daemon.client() as queue:
                    queue.cancel_many(hers, grace=0)
                    queue.wait_many(hers, timeout=120)
                pairs.append((alone, beside))
            speed, share = (median(beside[at] / alone[at] for alone, beside in pairs) for at in (0, 1))
            named = "no cores named" if cores is None else f"{cores:g} of a core each"
            in_use = [median(beside[at] for _, beside in pairs) for at in (1, 2)]
            if own_cores == "yes":
                named += ", own_cores"
            print(f"two users: {name}, {named}: counted {speed:.0%}, processor time {share:.0%}", end="")
            print(f" (processors in use: {in_use[0]:.2f} his, {in_use[1]:.2f} hers)", flush=True)
    daemon.end()


if __name__ == "__main__":
    main()
