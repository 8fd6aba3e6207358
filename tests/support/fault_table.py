"""Operations that write, and what must hold when their disk fails at any one call: for tests/integration/test_fault_points.py, and for
tests/faults/run.py, which writes docs/faults.md.

After each fault: the operation succeeded, or its error is a ``DocklessError`` with a hint; what was there before is there and sound;
listings go on; the same operation succeeds on the disk that is well again, and leaves just what it leaves where nothing ever failed.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support import make_image as make
from support.bad_registry import BadRegistry
from support.fault_daemon import life
from support.faults import KINDS, Fault, Faulty, Outcome

if TYPE_CHECKING:
    import sqlite3

    from dockless.sched.jobs import Job

_GROUP = "faulty-group"
_CHANGES = {r"logs/job-[-0-9a-f]*": "logs/job", r"jobs\.db-(wal|shm)": "jobs.db"}
_NOTES = "run/layers"
"""Who had a layer mounted: what is noted of processes that have ended is removed by who looks next, or not yet. 159"""
OLD = [make.directory("etc"), make.file("etc/old", "old" * 400)]
NEW = [
    [make.directory("opt"), *(make.file(f"opt/{n}", str(n) * 3000) for n in range(3))],
    [make.file("etc/new", "new"), make.whiteout("opt/1")],
]


@dataclass
class Scene:
    """``disk``: what fails; DOCKLESS_HOME is in it. ``beside``: what does not."""

    disk: Path
    beside: Path
    registry: BadRegistry

    @property
    def home(self) -> Path:
        return self.disk / "h"


def _disk(scene: Scene) -> Path:
    return scene.disk


def _groups(scene: Scene) -> Path:
    from dockless.cgroups import find_delegation

    return find_delegation(ask_systemd=False).home


@dataclass(frozen=True)
class Operation:
    """``before``: makes the state that ``work`` starts from, once. ``fails``: below which directory the calls fail."""

    name: str
    work: Callable[[Scene], Any]
    before: Callable[[Scene], Any] = lambda scene: None
    after: Callable[[Scene], None] = lambda scene: None
    needs: str = ""
    fails: Callable[[Scene], Path] = _disk


@dataclass
class Row:
    """What became of one operation under one kind of fault. ``points``: calls that change something. ``refused``: errors of ours;
    ``done``: it succeeded all the same. ``wrong`` has to be empty."""

    operation: str
    kind: str
    points: int = 0
    tried: int = 0
    refused: int = 0
    done: int = 0
    not_hit: int = 0
    wrong: list[str] = field(default_factory=list)


# ---- the operations ---------------------------------------------------------------------------------------------------------------------


def _load(scene: Scene, **how: Any) -> None:
    from dockless.images import Store

    Store(**how).load(scene.beside / "new")


def _import(scene: Scene) -> None:
    from dockless.images import Store
    from dockless.images.archive.importing import import_root

    import_root(Store(), scene.beside / "root.tar", reference="imported:1", created=0)


def _tag(scene: Scene) -> None:
    from dockless.images import Store

    Store().tag("old:1", "tagged:1")


def _remove_image(scene: Scene) -> None:
    from dockless.errors import UnknownImage
    from dockless.images import Store

    try:
        Store().remove("new:1")
    except UnknownImage:
        Store().prune()  # it was unlisted, and its parts stayed


def _prune(scene: Scene) -> None:
    from dockless.images import Store

    Store().prune()


def _save(scene: Scene) -> None:
    from dockless.images import Store
    from dockless.images.archive.save import save

    save(Store(), ["old:1"], scene.disk / "saved.tar")


def _save_directory(scene: Scene) -> None:
    from dockless.images import Store
    from dockless.images.archive.save import save

    save(Store(), ["old:1"], scene.disk / "layout", format="oci-dir")


def _export(scene: Scene) -> None:
    from dockless.images import Store
    from dockless.images.archive.export import export

    export(Store().get("old:1"), scene.disk / "exported.tar", compression="gzip", store=Store())


def _commit(scene: Scene) -> None:
    import dockless

    dockless.commit("made", "made:1", created=0)


def _pull(scene: Scene) -> None:
    from dockless.images import Store
    from dockless.images.registry import Configuration, Credentials
    from dockless.images.transfer.pull import pull

    pull(Store(), scene.registry.name("app:1"), configuration=Configuration(), credentials=Credentials())


def _push(scene: Scene) -> None:
    from dockless.images import Store
    from dockless.images.registry import Configuration, Credentials
    from dockless.images.transfer.push import push
    from dockless.images.transfer.upload import UploadPace

    scene.registry.blobs.clear()
    pace = UploadPace(chunk=1000, remembered_from=1000, tries=2, wait=0.001, wait_max=0.01)
    push(Store(), "old:1", f"{scene.registry.host}/pushed:1", pace=pace, configuration=Configuration(), credentials=Credentials())


def _login(scene: Scene) -> None:
    from dockless.images.registry import Configuration
    from dockless.images.registry.logins import login

    login(scene.registry.host, "me", "secret", configuration=Configuration(), file=scene.disk / "auth" / "auth.json")


def _repair(scene: Scene) -> None:
    from dockless.images import Store

    report = Store().check(repair=True)
    assert report.sound, report


def _damage(scene: Scene) -> None:
    from dockless.images import Store

    store = Store(index=False)
    store.load(scene.beside / "new")
    (store.get("new:1").layers[0].path / "opt" / "0").write_text("damaged")


def _run(scene: Scene) -> None:
    import dockless

    done = dockless.run("shell:1", ["sh", "-c", "echo said; exit 3"], stdout=dockless.PIPE, timeout=30)
    assert (done.returncode, done.stdout) == (3, b"said\n"), done


def _volume(scene: Scene) -> None:
    """A volume is made by the first run and there for the second."""
    import dockless

    for script in ("echo kept > /data/file", "cat /data/file"):
        done = dockless.run("shell:1", ["sh", "-c", script], mounts=["faulty:/data"], stdout=dockless.PIPE, timeout=30)
        assert done.returncode == 0, done
    assert done.stdout == b"kept\n", done


def _new_group() -> str:
    """A name of its own for each: what one could not remove is swept, and only then free again."""
    return f"{_GROUP}-{os.urandom(4).hex()}"


def _limited(scene: Scene) -> None:
    """A group is made, limited as far as this host can, and removed."""
    import dockless

    how: Any = {"memory": "256M", "pids": 100, "best_effort": True, "timeout": 30}
    done = dockless.run("shell:1", ["sh", "-c", "exit 3"], id=_new_group(), **how)
    assert done.returncode == 3, done


def _killed(scene: Scene) -> None:
    """A detached sandbox that is killed by its group."""
    from dockless.sandbox.run import detached
    from dockless.sandbox.spec import Spec

    for left in detached.list_all():
        if left.id.startswith(_GROUP):
            left.remove()
    box = detached.start(Spec(image="shell:1", argv=("sleep", "1000")), id=_new_group())
    try:
        box.kill()
        assert box.wait(30).signal == 9
    finally:
        box.remove()


def _detached(scene: Scene) -> None:
    """Start, wait, read, remove; a record that could not be written is an error with a reason."""
    from dockless.sandbox.run import detached
    from dockless.sandbox.spec import Spec

    left = detached.find("box")
    if left is not None:
        left.remove()
    box = detached.start(Spec(image="shell:1", argv=("sh", "-c", "echo said; exit 3")), id="box")
    try:
        assert box.wait(30).code == 3
    finally:
        box.remove()


def _remove_detached(scene: Scene) -> None:
    from dockless.sandbox.run import detached

    box = detached.find("ended")
    if box is not None:
        box.remove()


def _ended(scene: Scene) -> None:
    _started(scene, "ended")


def _made(scene: Scene) -> None:
    _started(scene, "made")


def _started(scene: Scene, name: str) -> None:
    from dockless.sandbox.run import detached
    from dockless.sandbox.spec import Spec

    _shell(scene)
    box = detached.start(Spec(image="shell:1", argv=("sh", "-c", "mkdir -p /a/b; echo x > /a/b/c")), id=name)
    assert box.wait(30).code == 0


def _shell(scene: Scene) -> None:
    from dockless.images import Store

    Store(index=False).load(make.make_oci_layout(scene.beside / "shell", [make.rootfs_entries()], {}, "shell:1", compression="none"))


def _abandon(job: Job, db: sqlite3.Connection) -> None:
    from dockless.sched.jobs import State
    from dockless.sched.store import queue

    queue.finish(db, job.id, job.attempt, State.LOST if job.attempt else State.CANCELLED, 3.0, "", None)


def _queue(scene: Scene) -> None:
    """A queue's life without a daemon: made, a job submitted, run and ended, each change acknowledged only when it is durable."""
    from dockless.base import paths
    from dockless.sched.jobs import Filter, State
    from dockless.sched.store import queries, queue, schema
    from dockless.sched.store.lease import Lease
    from dockless.sched.store.writer import QueueWriter

    place = scene.home / "state" / "jobs.db"
    paths.make(place.parent)
    writer = QueueWriter(schema.open_queue(place))
    try:
        for live in queries.live(schema.connect(place)):  # of the try before: as the daemon ends them
            writer.write(partial(_abandon, live.job)).result(30)
        job = queue.NewJob(0, "root", "", "", "host", "true", "1", 1, (), (), 0, 0.0, "fail", "{}" * 3000)
        (number,) = writer.write(lambda db: queue.insert(db, [job], False, 1.0)).result(30)
        writer.write(lambda db: queue.begin_attempt(db, Lease(number, 1, ("GPU-1",), 1.0), f"j-{number}", "boot", 1.0)).result(30)
        writer.write(lambda db: queue.set_running(db, number, 1, 2.0)).result(30)
        writer.write(lambda db: queue.finish(db, number, 1, State.COMPLETED, 3.0, "", {"code": 0}, 0)).result(30)
        ended, live = writer.write(lambda db: (queries.ended(db, Filter(), 1), queries.live(db))).result(30)
        assert [job.state for job in ended] == [State.COMPLETED] and not live
    finally:
        writer.close()


def _daemon(scene: Scene) -> None:
    life(scene.beside)


def _probe(scene: Scene) -> None:
    """What a process asks once: whether layers can be mounted as they are. A disk that fails means no, for now."""
    from dockless.images.layers import erofs

    erofs._why_not.cache_clear()
    erofs.supported(scene.home / "store")


OPERATIONS = (
    Operation("the first look at layers", _probe, needs="erofs"),
    Operation("load, unpacked", lambda scene: _load(scene, index=False)),
    Operation("load, indexed", lambda scene: _load(scene, index=True), needs="erofs"),
    Operation("import", _import),
    Operation("tag", _tag),
    Operation("rmi", _remove_image, before=_load),
    Operation("check --repair", _repair, before=_damage),
    Operation("save", _save),
    Operation("save, a directory", _save_directory),
    Operation("export", _export),
    Operation("commit", _commit, before=_made),
    Operation("pull", _pull),
    Operation("push", _push),
    Operation("login", _login),
    Operation("run", _run, before=_shell),
    Operation("run, a volume", _volume, before=_shell),
    Operation("run --detach, wait, rm", _detached, before=_shell),
    Operation("run, its cgroup", _limited, before=_shell, needs="cgroup2", fails=_groups),
    Operation("run --detach, kill, rm, its cgroup", _killed, before=_shell, needs="cgroup2", fails=_groups),
    Operation("rm", _remove_detached, before=_ended),
    Operation("the queue", _queue),
    Operation("the daemon", _daemon, before=_shell),
)


# Once here instead of in every child.
_IMPORTED = (
    "_call", "_committing", "images.archive.commit", "images.archive.export", "images.archive.importing", "images.archive.save",
    "images.catalog.pruning", "images.catalog.reserving",
    "images.check", "images.layers.erofs", "images.registry.logins", "images.registry.transport",
    "images.transfer.pull", "images.transfer.push", "sandbox.commit", "sandbox.plan.failure", "sandbox.run.detached", "sched.daemon",
    "sched.store.queue", "sched.store.writer",
)  # fmt: skip

# ---- one fault after the other ----------------------------------------------------------------------------------------------------------


@contextmanager
def scenes(place: Path) -> Iterator[Callable[[Operation], Bench]]:
    """``place``: a directory of the caller's own; DOCKLESS_HOME must be ``place``/disk/h."""
    for module in _IMPORTED:
        importlib.import_module(f"dockless.{module}")
    from dockless.sandbox.run import detached

    with ExitStack() as stack:
        registry = stack.enter_context(BadRegistry())
        registry.image("app:1", NEW, compression="gzip")
        beside = place / "beside"
        beside.mkdir()
        make.make_oci_layout(beside / "old", [OLD], {}, "old:1", compression="gzip")
        make.make_oci_layout(beside / "new", NEW, {}, "new:1", compression="gzip")
        (beside / "root.tar").write_bytes(make.layer_tar(NEW[0]))
        try:
            yield lambda operation: Bench(Scene(place / "disk", beside, registry), operation, place)
        finally:
            for box in detached.list_all():
                box.remove()


class Bench:
    """One operation, its prepared disk, and how that looks when nothing failed."""

    def __init__(self, scene: Scene, operation: Operation, place: Path) -> None:
        from dockless.images.layers import erofs

        self.scene = scene
        self.operation = operation
        self.prepared = place / "prepared"
        shutil.rmtree(scene.disk, ignore_errors=True)
        shutil.rmtree(self.prepared, ignore_errors=True)
        scene.home.mkdir(parents=True)
        _sure(self._inside(self._prepare))
        erofs.supported(scene.home / "store")  # kept for all children, so that one fault does not decide what form layers take
        subprocess.run(["cp", "-a", scene.disk, self.prepared], check=True)
        outcome = self._work(Fault())
        _sure(outcome)
        self.points = outcome.points
        self.reference = self.tree()

    def _prepare(self) -> None:
        from dockless.images import Store

        Store(index=False).load(self.scene.beside / "old")
        self.operation.before(self.scene)

    def _inside(self, work: Callable[[], Any]) -> Outcome:
        return Faulty(Path("/nowhere")).run(work)

    def _work(self, fault: Fault) -> Outcome:
        return Faulty(self.operation.fails(self.scene), fault).run(lambda: self._quietly())

    def _quietly(self) -> None:
        self.operation.work(self.scene)

    def tree(self) -> frozenset[str]:
        """Every path of the disk, with what changes from run to run left out."""
        found = set()
        for folder, directories, files in os.walk(self.scene.disk):
            for name in (*directories, *files):
                path = os.path.relpath(os.path.join(folder, name), self.scene.disk)
                for changes, same in _CHANGES.items():
                    path = re.sub(changes, same, path)
                if _NOTES not in path:
                    found.add(path)
        if self.operation.fails is _groups:
            found |= {f"cgroup {path.name}" for path in _groups(self.scene).glob(f"*{_GROUP}*")}
        return frozenset(found)

    def look(self) -> list[str]:
        """What is wrong with what was there before. In a child, because who has read an indexed layer holds its mount."""
        from dockless.images import Store
        from dockless.sandbox.run import detached

        wrong = []
        store = Store()
        if self.operation.before is not _damage:
            wrong += [f"unsound: {problem.path}: {problem.why}" for problem in store.check().problems]
        if store.get("old:1").read_file("/etc/old", 1 << 20) != b"old" * 400:
            wrong.append("old:1 has another content")
        store.list()
        for box in detached.list_all():
            box.state()
            box.exit()
        return wrong

    def fail(self, fault: Fault, row: Row) -> None:
        """One fault, and everything that must hold after it."""
        scene = self.scene
        shutil.rmtree(scene.disk)
        subprocess.run(["cp", "-a", self.prepared, scene.disk], check=True)
        outcome = self._work(fault)
        row.tried += 1
        where = f"{self.operation.name}, {fault.kind} at {fault.at} ({outcome.failed or 'no call'})"

        def wrong(what: str) -> None:
            row.wrong.append(f"{where}: {what}")

        if outcome.trace and outcome.error is None:
            wrong(outcome.trace)
        elif outcome.error is None:
            row.done += 1
        elif not outcome.error.ours:
            wrong(outcome.trace.strip())
        elif not outcome.error.hint:
            wrong(f"no hint: {outcome.error.name}: {outcome.error.text}")
        else:
            row.refused += 1
        if not outcome.failed:
            row.not_hit += 1
        seen = self._inside(self.look)
        for line in [seen.trace.strip()] if seen.trace else seen.value:
            wrong(f"afterwards: {line}")
        again = self._work(Fault())
        if again.trace:
            wrong(f"the next try: {again.trace.strip()[-600:]}")
            return
        _sure(self._inside(_tidy))
        more, less = sorted(self.tree() - self.reference), sorted(self.reference - self.tree())
        if fault.kind in ("readonly", "eio"):
            # Where a removal was refused too: a temporary file beside what the caller named. In the store the next change takes it along.
            more = [path for path in more if not re.search(r"^(?!h/).*/\.[^/]+\.[0-9a-f]{12}$|^\.[^/]+\.[0-9a-f]{12}$", path)]
        if more or less:
            wrong(f"left behind: {more[:4]}, lacking: {less[:4]}")
        seen = self._inside(self.look)
        for line in [seen.trace.strip()] if seen.trace else seen.value:
            wrong(f"after the next try: {line}")

    def row(self, kind: str, most: int = 0) -> Row:
        """Every point, or ``most`` of them spread over all."""
        row = Row(self.operation.name, kind, len(self.points))
        numbers = range(1, len(self.points) + 1)
        for at in (
            numbers if not most or most >= len(numbers) else sorted({1 + (len(numbers) - 1) * i // max(1, most - 1) for i in range(most)})
        ):
            self.fail(Fault(kind, at), row)
        return row


def _tidy() -> None:
    """What `dockless doctor` does, without waiting for starts that are under way."""
    from dockless.sandbox.run import reconcile

    reconcile._SETTLED = 0.0
    reconcile.reconcile()


def _sure(outcome: Outcome) -> None:
    assert not outcome.trace, outcome.trace


__all__ = ["KINDS", "OPERATIONS", "Bench", "Operation", "Row", "scenes"]
