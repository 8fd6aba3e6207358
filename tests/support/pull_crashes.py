"""Pulls that are killed with SIGKILL, or whose disk fills up, at random moments; after each the store is looked at, and the next pull.

What may never happen is counted: a store that ``check`` finds unsound, a next pull that fails or brings other bytes, a blob of which more
than one chunk comes again, an error that is none of ours, anything left behind. What a registry has sent is counted by the registry.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from support.bad_registry import BadRegistry, Exchange
from support.make_image import directory, file

from dockless.images.transfer.partial import CHUNK

PULL = """
import sys
from pathlib import Path
from dockless.errors import DocklessError
from dockless.images import Store
from dockless.images.transfer.pull import pull
from dockless.images.registry import Configuration, Credentials
store = Store(Path(sys.argv[2]), index=sys.argv[3] == "indexed")
try:
    print(pull(store, sys.argv[1], configuration=Configuration(), credentials=Credentials()).digest)
except DocklessError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""
LOOK = """
import hashlib, json, sys
from pathlib import Path
from dockless.images import Store
store = Store(Path(sys.argv[1]), index=sys.argv[2] == "indexed")
problems = [f"{problem.path}: {problem.why}" for problem in store.check().problems]
image = store.get(sys.argv[3]) if sys.argv[3] else None
contents = {name: hashlib.sha256(image.read_file(f"/{name}", 1 << 30) or b"").hexdigest() for name in sys.argv[4:]}
print(json.dumps([problems, contents]))
"""
"""In a process of its own, because one that has read an indexed layer holds its mount, and with it the disk, until it ends."""
NAME = "app:1"
PATIENCE = 60.0
BUFFERS = 64 << 10
"""Bytes that a socket of the registry may hold: what is in there when the reader dies counts as sent."""


@dataclass
class Crashes:
    """``killed``, ``full``: how often it happened. ``seen``: how pulls ended on the full disk. The worst ``again``: bytes of one blob that
    a registry sent once more, divided by the crashes that the blob saw. The rest must stay 0 or empty."""

    killed: int = 0
    full: int = 0
    completed: int = 0
    seen: dict[str, int] = field(default_factory=dict)
    again: int = 0
    again_total: int = 0
    chunk: int = CHUNK
    unsound: int = 0
    failed_afterwards: int = 0
    other_bytes: int = 0
    more_than_a_chunk: int = 0
    foreign_errors: int = 0
    left_behind: int = 0
    details: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not self.details


class Bench:
    """An image on a registry that sends ``rate`` bytes a second at most and counts them, and one store after the other to pull it into."""

    def __init__(self, registry: BadRegistry, sizes: tuple[int, ...], rate: float, seed: int) -> None:
        self.registry = registry
        self.rate = rate
        self.result = Crashes()
        self.dice = random.Random(seed)
        self.contents = {f"big{number}": self.dice.randbytes(size) for number, size in enumerate(sizes)}
        layers = []
        for number, (name, content) in enumerate(self.contents.items()):
            small = [file(f"d{number}/{n:03}", str(n)) for n in range(200)]
            layers.append([directory(f"d{number}"), *small, file(name, content)])
        self.digest = registry.image(NAME, [*layers, [file("last", "1")]], compression="gzip")
        self.size = sum(map(len, self.contents.values()))
        self.sent: Counter[str] = Counter()
        self._lock = threading.Lock()
        registry.script(self._paced, times=1 << 30)

    def _paced(self, exchange: Exchange) -> None:
        import socket

        code, headers, body = exchange.part()
        blob = exchange.path.rpartition("/")[2]
        exchange.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFERS)
        exchange.head(code, {**headers, "ETag": f'"{blob}"'}, length=len(body))
        view = memoryview(body)
        for begin in range(0, len(body), BUFFERS):
            piece = view[begin : begin + BUFFERS]
            exchange.wfile.write(piece)
            with self._lock:
                self.sent[blob] += len(piece)
            time.sleep(len(piece) / self.rate)

    # -- one pull --------------------------------------------------------------------------------------------------------------------

    def start(self, store: Path, form: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))}
        words = [sys.executable, "-c", PULL, self.registry.name(NAME), str(store), form]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    def lasts(self, store: Path, form: str) -> float:
        """Seconds that a pull takes when nothing happens to it."""
        began = time.monotonic()
        said, errors = self.start(store, form).communicate(timeout=PATIENCE)
        assert said.strip() == self.digest, errors
        self.sent.clear()
        return time.monotonic() - began

    def killed_after(self, seconds: float, store: Path, form: str) -> bool:
        """False where it was over before."""
        process = self.start(store, form)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        lived = process.poll() is None
        process.kill()
        said, errors = process.communicate()
        if not lived and said.strip() != self.digest:
            self.wrong("failed_afterwards", f"before {seconds:.3f} s were over: {errors.strip()[-300:]}")
        return lived

    # -- what must hold ----------------------------------------------------------------------------------------------------------------

    def wrong(self, what: str, why: str) -> None:
        setattr(self.result, what, getattr(self.result, what) + 1)
        self.result.details.append(f"{what}: {why}")

    def sound(self, store: Path, form: str, when: str, *names: str) -> dict[str, str]:
        """What ``check`` says; and digests of what ``names`` hold in the image."""
        words = [sys.executable, "-c", LOOK, str(store), form, self.registry.name(NAME) if names else "", *names]
        environment = {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))}
        done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=PATIENCE)
        if done.returncode:
            self.wrong("unsound", f"{when}: {done.stderr.strip()[-300:]}")
            return {}
        problems, contents = json.loads(done.stdout)
        if problems:
            self.wrong("unsound", f"{when}: {'; '.join(problems[:3])}")
        return contents

    def completes(self, store: Path, form: str, crashes: int, when: str) -> None:
        """The next pull brings the image, and of each blob less than a chunk for each crash again."""
        process = self.start(store, form)
        said, errors = process.communicate(timeout=PATIENCE)
        if said.strip() != self.digest:
            self.wrong("failed_afterwards", f"{when}: {errors.strip()[-300:]}")
            return
        self.result.completed += 1
        found = self.sound(store, form, f"{when}, completed", *self.contents)
        for name, content in self.contents.items():
            if found.get(name) != hashlib.sha256(content).hexdigest():
                self.wrong("other_bytes", f"{when}: {name}")
        for blob, sent in self.sent.items():
            again = sent - len(self.registry.blobs[blob])
            self.result.again_total += max(0, again)
            self.result.again = max(self.result.again, again // max(1, crashes))
            if again >= CHUNK * max(1, crashes):
                self.wrong("more_than_a_chunk", f"{when}: {again} bytes of {blob[:20]} again after {crashes} crashes")
        left = [path for folder in ("tmp", "partial") for path in (store / folder).rglob("*") if path.is_file()]
        if left:
            self.wrong("left_behind", f"{when}: {', '.join(str(path.relative_to(store)) for path in left[:3])}")
        self.sent.clear()


def forms(place: Path) -> tuple[str, ...]:
    """The forms that layers can take below ``place``."""
    from dockless.images.layers import erofs

    return ("written", "indexed") if erofs.supported(place) else ("written",)


@contextlib.contextmanager
def bench(seed: int, megabytes: tuple[int, ...] = (20, 12, 9), rate: float = 25e6) -> Iterator[Bench]:
    """``rate``: bytes a second of one connection."""
    with BadRegistry() as registry:
        yield Bench(registry, tuple(number << 20 for number in megabytes), rate, seed)


def killed(bench: Bench, place: Path, kills: int) -> None:
    """``kills`` times SIGKILL at a random moment of a pull, sometimes several times on the same store before one may complete."""
    lasts = {form: bench.lasts(place / f"clean-{form}", form) for form in forms(place)}
    number = 0
    while bench.result.killed < kills:
        number += 1
        form = bench.dice.choice(tuple(lasts))
        store = place / f"killed-{number}"
        crashes = 0
        for _ in range(min(bench.dice.choice((1, 1, 2, 4)), kills - bench.result.killed)):
            moment = bench.dice.uniform(0.0, lasts[form])
            if not bench.killed_after(moment, store, form):
                break
            crashes += 1
            bench.result.killed += 1
            bench.sound(store, form, f"killed {form} after {moment:.3f} of {lasts[form]:.3f} s")
        bench.completes(store, form, crashes, f"after {crashes} kills, {form}")
        shutil.rmtree(store)


def filled(bench: Bench, place: Path, times: int) -> None:
    """``times`` a file system that fills up while a pull is at work; some are too small from the beginning. Root: it mounts them."""
    lasts = {form: bench.lasts(place / f"unfilled-{form}", form) for form in forms(place)}
    for number in range(times):
        form = tuple(lasts)[number % len(lasts)]
        with _disk(place / f"disk-{number}", bench.size * 6) as disk:
            store, ballast = disk / "store", disk / "ballast"
            moment = 0.0 if bench.dice.random() < 0.2 else bench.dice.uniform(0.1, lasts[form])
            if not moment:
                _fill(ballast, bench.dice.randrange(bench.size))
            process = bench.start(store, form)
            if moment:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(moment)
                _fill(ballast, 0)
            when = f"disk full after {moment:.3f} of {lasts[form]:.3f} s, {form}"
            _, errors = process.communicate(timeout=PATIENCE)
            ended = "it was over before" if process.returncode == 0 else errors.strip().splitlines()[-1].partition(":")[0]
            bench.result.seen[ended] = bench.result.seen.get(ended, 0) + 1
            bench.result.full += 1
            if process.returncode and ("Traceback" in errors or ended not in ("NoRoom", "ImageError")):
                bench.wrong("foreign_errors", f"{when}: {errors.strip()[-400:]}")
            if store.exists():
                bench.sound(store, form, when)
            ballast.unlink()
            bench.completes(store, form, 1, when)


def _fill(path: Path, leave: int) -> None:
    """Take all room of the file system but ``leave`` bytes."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        size = 1 << 20
        while size:
            room = os.fstatvfs(fd)
            size = min(size, room.f_bavail * room.f_frsize - leave)
            try:
                if size <= 0 or os.write(fd, bytes(size)) == 0:
                    break
            except OSError:
                size //= 2
    finally:
        os.close(fd)


@contextlib.contextmanager
def _disk(place: Path, size: int) -> Iterator[Path]:
    """A small ext4 in a file."""
    place.mkdir()
    image = place.with_suffix(".img")
    with open(image, "wb") as file:
        file.truncate(size)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True, capture_output=True)
    subprocess.run(["mount", "-o", "loop", image, place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)
        image.unlink()
