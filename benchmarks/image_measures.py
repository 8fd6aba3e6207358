"""The measurements of ``images.py``. Each returns one table; each says in its first line what is asked of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import image_limits, image_peers
from benchmarks.bench_image import NEXT, TAG, BenchImage
from benchmarks.contender import HERE, ContenderFailed
from benchmarks.image_peers import CONTAINERD, DECOMPRESS, PODMAN, SKOPEO, UMOCI
from benchmarks.image_runs import Job, Whole, free, plain
from benchmarks.image_worker import LIST
from benchmarks.race import Result, paired, race
from benchmarks.registry import NoRegistry, registries_conf, registry
from benchmarks.report import Comparison, Table

WRITTEN, INDEXED, FLOOR = "dockless, written", "dockless, indexed", "floor: gunzip + sha256"
MEMORY_MOST = 150_000_000
RUN_TAKES = 1500 << 20
"""Bytes of disk that one run of one contender fills, at most."""


@dataclass(frozen=True, slots=True)
class Scene:
    """``directory``: where everything is put. ``peers``: parts of the names of those that take part, all if empty."""

    directory: Path
    image: BenchImage
    rounds: int
    peers: tuple[str, ...]

    def layout(self, tag: str = TAG) -> Path:
        """By a path without dots, which podman takes for a part of an image's name."""
        link = self.directory / tag
        if not link.is_symlink():
            link.symlink_to(self.image.layout(tag))
        return link


def local(scene: Scene) -> Table:
    """Wanted: written at least 3 times as fast as umoci, skopeo, podman; indexed at least 10 times, beyond the floor."""
    table = Table("local", "A gzip OCI layout, in the page cache, to a root that can be run")
    layout = str(scene.layout())
    ours = _ours(scene, "load", layout)
    least = Whole(FLOOR, scene.directory, plain(lambda fresh: _words("floor", *scene.image.blobs()), _ENV), "isal, two threads a layer")
    peers, table.notes = image_peers.find(image_peers.LOCAL, scene.directory, f"{layout}:{TAG}", scene.peers)
    contenders = [*ours, least, *peers]
    table.results = _race(scene, table, contenders)
    _compare(table, WRITTEN, dict.fromkeys((UMOCI, SKOPEO, PODMAN), 1 / 3), (UMOCI, SKOPEO, PODMAN, INDEXED))
    _compare(table, INDEXED, {}, (UMOCI, SKOPEO, PODMAN))
    beyond = _beyond(table.results, FLOOR, (WRITTEN, INDEXED, UMOCI, SKOPEO, PODMAN))
    table.results += beyond.values()
    for name in (UMOCI, SKOPEO, PODMAN):
        _compare_results(table, beyond.get(INDEXED), beyond.get(name), 1 / 10)
    theirs = _beyond(table.results, DECOMPRESS, (UMOCI, SKOPEO, PODMAN), "its own")
    table.results += theirs.values()
    for result in theirs.values():
        _compare_results(table, beyond.get(INDEXED), result, None)
    return table


def vfs(scene: Scene) -> Table:
    """Nothing is wanted: the driver that copies, once each."""
    table = Table("vfs", "The same into containers-storage's vfs driver")
    peers, table.notes = image_peers.find(image_peers.VFS, scene.directory, f"{scene.layout()}:{TAG}", scene.peers)
    table.results = race(table.key, peers, 1, burst=1)  # type: ignore[arg-type]
    return table


def second(scene: Scene) -> Table:
    """Wanted: only what is new is read, unpacked and kept."""
    table = Table("second", "A second image that shares all layers but a small one, into the same store")
    contenders = []
    for form in _forms(scene):
        contenders.append(Whole(form, scene.directory, _second(scene, form)))
    for peer in image_peers.LOCAL[1:3]:
        found, absent = image_peers.find([peer], scene.directory, f"{scene.layout()}:{TAG}", scene.peers)
        table.notes += absent
        for whole in found:
            contenders.append(Whole(whole.name, scene.directory, _after(whole, peer, scene), peer.note))
    table.results = _race(scene, table, contenders, rounds=min(3, scene.rounds))
    new = scene.image.layers(NEXT)[-1]
    for whole in contenders:
        if grown := GROWN.get(whole.name):
            table.rows.append(
                f"{whole.name}: the store grew by {grown / 1e6:.1f} MB; new are {new['size'] / 1e6:.1f} MB of gzip, "
                f"{new['unpacked'] / 1e6:.1f} MB of tar"
            )
            table.extra[f"grown_bytes: {whole.name}"] = grown
    return table


def pull(scene: Scene) -> Table:
    """Wanted: at least twice as fast as podman, skopeo → storage, and containerd."""
    table = Table("pull", "A pull over loopback from docker-registry")
    try:
        with registry(scene.directory) as served:
            image = served.push(scene.image.layout(), "bench", TAG)
            conf = registries_conf(scene.directory, served.host)
            ours = _ours(scene, "pull", image, {"CONTAINERS_REGISTRIES_CONF": str(conf)})
            peers, table.notes = image_peers.find(image_peers.PULL, scene.directory, image, scene.peers)
            table.results = _race(scene, table, [*ours, *peers])
    except NoRegistry as error:
        table.notes.append(f"not measured: {error}")
        return table
    names = (SKOPEO, PODMAN, CONTAINERD)
    _compare(table, WRITTEN, dict.fromkeys(names, 1 / 2), names)
    _compare(table, INDEXED, dict.fromkeys(names, 1 / 2), names)
    return table


def proof(scene: Scene) -> Table:
    """Wanted: what came into place runs, and is file for file what umoci unpacks: kind, mode, owner, size, time, link, content."""
    table = Table("proof", "What came into place: run, and compared file for file")
    seen: dict[str, dict[str, str]] = {}
    for name, form in _forms(scene).items():
        home = scene.directory / f"proof-{form}"
        for what, words in (("load", [scene.layout()]), ("run", ["bench"])):
            done = subprocess.run(_words(what, *words, home, form), env={**os.environ, **_ENV}, capture_output=True, text=True)
            if done.returncode:
                raise ContenderFailed(f"{name}: {what}: {done.stderr.strip()[-300:]}")
        table.rows.append(f"{name}: {done.stdout.strip()}")
        done = subprocess.run(_words("list", "bench", home, form), env={**os.environ, **_ENV}, capture_output=True, check=True)
        seen[name] = _listed(done.stdout)
    if shutil.which("umoci") and os.geteuid() == 0:
        bundle = scene.directory / "proof-bundle"
        subprocess.run(["umoci", "unpack", "--image", f"{scene.layout()}:{TAG}", bundle], check=True, capture_output=True)
        done = subprocess.run(["chroot", bundle / "rootfs", "/usr/bin/python3", "-c", LIST], check=True, capture_output=True)
        seen[UMOCI] = _listed(done.stdout)
    else:
        table.notes.append("umoci is not installed, or we are not root: nothing to compare with")
    for name in list(seen)[:-1]:
        other = list(seen)[-1]
        differ = sorted(path for path in seen[name].keys() | seen[other].keys() if seen[name].get(path) != seen[other].get(path))
        table.rows.append(
            f"{name}, {other}: {len(seen[other])} entries, {len(differ)} differ{': ' + ', '.join(differ[:5]) if differ else ''}"
        )
        table.extra[f"{name} differs from {other}"] = differ[:100]
    return table


def _listed(raw: bytes) -> dict[str, str]:
    found = {}
    for line in raw.decode(errors="surrogateescape").splitlines():
        path, _, about = line.rpartition("|")
        found[path] = about
    return found


def memory(scene: Scene) -> Table:
    """Wanted: less than 150 MB, whatever the layer's size."""
    from benchmarks.odd_layers import ODD, odd_layout

    table = Table("memory", "The most memory that all processes of a run hold at once")
    for title, layout in [("the image", scene.layout()), *((o.title, odd_layout(o)) for o in ODD)]:
        for whole in _ours(scene, "load", str(layout)):
            used = whole.once(watched=True)
            wanted = f"   wanted less than {MEMORY_MOST / 1e6:.0f}: {'met' if used.memory < MEMORY_MOST else 'MISSED'}"
            table.rows.append(f"{whole.name:18} {title:42} {used.memory / 1e6:7.0f} MB  {used.seconds:6.2f} s{wanted}")
            table.extra[f"{whole.name}, {title}"] = {"bytes": used.memory, "seconds": round(used.seconds, 3)}
    peers, _ = image_peers.find(image_peers.LOCAL, scene.directory, f"{scene.layout()}:{TAG}", scene.peers)
    for whole in peers:
        used = whole.once(watched=True)
        table.rows.append(f"{whole.name:18} {'the image':42} {used.memory / 1e6:7.0f} MB  {used.seconds:6.2f} s")
        table.extra[whole.name] = {"bytes": used.memory, "seconds": round(used.seconds, 3)}
    return table


def stages(scene: Scene) -> Table:
    """Nothing is wanted: where the time goes, beside what this machine can do."""
    return image_limits.stages(scene.directory, scene.image)


# -- contenders --------------------------------------------------------------------------------------------------------------------------

_ENV = {"PYTHONSAFEPATH": "1"}


def _words(*words: str | Path) -> list[str | Path]:
    return [sys.executable, HERE / "image_worker.py", *words]


def _ours(scene: Scene, what: str, image: str, env: dict[str, str] | None = None) -> list[Whole]:
    """Both forms. As after an installation: compiled once, whatever this shell says."""
    found = []
    env = _ENV | {"PYTHONPYCACHEPREFIX": str(scene.directory / "pycache"), "PYTHONDONTWRITEBYTECODE": ""} | (env or {})
    for name, form in _forms(scene).items():
        found.append(Whole(name, scene.directory, plain(lambda fresh, form=form: _words(what, image, fresh, form), env)))
    return found


def _forms(scene: Scene) -> dict[str, str]:
    from dockless.images.layers import erofs

    return {WRITTEN: "written"} | ({INDEXED: "indexed"} if erofs.supported(scene.directory) else {})


GROWN: dict[str, int] = {}


def _second(scene: Scene, form: str) -> Callable[[Path], AbstractContextManager[Job]]:
    word = {WRITTEN: "written", INDEXED: "indexed"}[form]

    @contextmanager
    def job(fresh: Path) -> Iterator[Job]:
        subprocess.run(_words("load", scene.layout(), fresh, word), env={**os.environ, **_ENV}, check=True, capture_output=True)
        before = _size(fresh)
        yield Job(_words("load", scene.layout(NEXT), fresh, word), _ENV)
        GROWN[form] = _size(fresh) - before

    return job


def _after(whole: Whole, peer: image_peers.Peer, scene: Scene) -> Callable[[Path], AbstractContextManager[Job]]:
    """The peer's same job with the next image, after that with the first."""
    first = peer.how(scene.directory, f"{scene.layout()}:{TAG}")
    then = peer.how(scene.directory, f"{scene.layout(NEXT)}:{NEXT}")

    @contextmanager
    def job(fresh: Path) -> Iterator[Job]:
        with first(fresh) as made:
            subprocess.run([os.fspath(word) for word in made.argv], env={**os.environ, **made.env}, check=True, capture_output=True)
        with then(fresh) as made:
            yield made

    return job


def _size(tree: Path) -> int:
    """Bytes of disk, a file with several names once."""
    seen: dict[tuple[int, int], int] = {}
    for folder, folders, files in os.walk(tree):
        for name in (*folders, *files):
            found = os.lstat(os.path.join(folder, name))
            seen[found.st_dev, found.st_ino] = found.st_blocks * 512
    return sum(seen.values())


# -- rounds and ratios -------------------------------------------------------------------------------------------------------------------


def _race(scene: Scene, table: Table, contenders: Sequence[Whole], rounds: int = 0) -> list[Result]:
    rounds = rounds or scene.rounds
    fit = max(1, int(free(scene.directory) * 0.8) // (RUN_TAKES * len(contenders)))
    if fit < rounds:
        table.notes.append(f"{fit} rounds instead of {rounds}: the disk has no room for more")
    results = race(table.key, contenders, min(rounds, fit), burst=1, limit=900, patience=20.0)  # type: ignore[arg-type]
    table.extra["processor_seconds"] = {c.name: [round(u.processor, 2) for u in c.uses] for c in contenders}
    for result, whole in zip(results, contenders, strict=True):
        if whole.uses:
            result.note = f"processor {sorted(u.processor for u in whole.uses)[len(whole.uses) // 2]:5.2f} s  {result.note}".rstrip()
    return results


def _beyond(results: Sequence[Result], floor: str, names: Sequence[str], which: str = "the floor") -> dict[str, Result]:
    """What each takes longer than ``floor``, round by round; a millisecond at least."""
    by_name = {result.name: result for result in results if result.seconds}
    if floor not in by_name:
        return {}
    found = {}
    for name in names:
        if name in by_name:
            pairs = zip(by_name[name].rounds, by_name[floor].rounds, strict=False)
            rounds = [[max(0.001, a - b) for a, b in zip(mine, least, strict=True)] for mine, least in pairs]
            what = "its own decompression" if which == "its own" else which
            found[name] = Result(f"{name} beyond {what}", rounds=rounds)
    return found


def _compare(table: Table, name: str, wanted: dict[str, float], others: Sequence[str]) -> None:
    by_name = {result.name: result for result in table.results}
    for other in others:
        _compare_results(table, by_name.get(name), by_name.get(other), wanted.get(other))


def _compare_results(table: Table, mine: Result | None, other: Result | None, wanted: float | None) -> None:
    if mine is None or other is None or not mine.seconds or not other.seconds:
        return
    table.comparisons.append(Comparison(mine.name, other.name, paired(mine, other), paired(mine, other, min), wanted))


MEASURES: dict[str, Callable[[Scene], Table]] = {
    "stages": stages,
    "local": local,
    "vfs": vfs,
    "proof": proof,
    "second": second,
    "pull": pull,
    "memory": memory,
}
