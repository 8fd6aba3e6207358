"""The Multi-Process Service: directories that others can make, and users who mean harm."""

from __future__ import annotations

import os
import socket
import stat
import threading
import traceback
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.boxes import load
from support.desk import ANN, BEN, play
from support.requires import requires
from support.stand_in import until

from dockless.errors import GpuError
from dockless.sandbox.run.process import Exit
from dockless.sandbox.spec import Namespaces, Spec, Tmpfs
from dockless.sched import JobSpec, State
from dockless.sched.config import Config
from dockless.sched.engine import engine
from dockless.sched.engine.gpus import mps, mps_places, sharing
from dockless.sched.policy.supplies import MEMORY, Supply

QUEUE = "0123456789abcdef"
ROOM = 1 << 20
NOBODY = 65534


class Launcher:
    """Has a sandbox of every name, and starts none. ``said``: what it was asked."""

    def __init__(self, found: Any = None) -> None:
        self.said: list[str] = []
        self.found = found

    def list_all(self) -> list[Any]:
        return []

    def find(self, id: str) -> Any:
        self.said.append(f"find {id}")
        return self.found

    def start(self, spec: Spec, **how: Any) -> Any:
        self.said.append("start")
        raise GpuError("it does not start", subject="mps")


@pytest.fixture
def shared(home) -> Iterator[Path]:
    """Where the services of this test have their directories."""
    yield mps_places.above()
    for name in mps_places.names():
        mps_places.clear(name)


def test_whatever_others_have_made_in_dev_shm_the_directories_are_ours(shared):
    """Nobody else can make them first: what root makes lies below root's runtime directory, what a user does has a random name."""
    name = f"mps-g{'0' * 12}-1-01234567"
    taken = Path("/dev/shm") / f"dockless-mps-{os.geteuid()}"
    try:
        taken.symlink_to("/nowhere")
        for _ in range(2):
            place = mps_places.make(name, None, ROOM)
            assert place == mps_places.place(name) and taken not in place.parents
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()}
            assert modes == {"pipe": 0o700, "shm": 0o1777} and not any((place / "shm").iterdir())
            (place / "shm/left").touch()
            assert stat.S_IMODE(shared.stat().st_mode) == 0o711 and place.stat().st_mode & 0o077 == 0
        if os.geteuid() == 0:
            assert place.is_mount() and place.parent == shared and mps_places.make(name, 1001, ROOM).stat().st_uid == 1001
        mps_places.clear(name)
        assert not place.exists() and not shared.exists()
    finally:
        taken.unlink()


def test_a_directory_that_took_its_place_is_not_believed(shared):
    """A79: logind removes a user's from /dev/shm, where everybody may make one of that name."""
    name = f"mps-g{'0' * 12}-1-01234567"
    place = mps_places.make(name, None, ROOM)
    place.chmod(0o755)
    assert mps_places.place(name) is None
    place.chmod(0o700)
    assert mps_places.place(name) == place
    os.unlink(shared / f".{name}")
    assert mps_places.place(name) is None


@requires("root")
def test_a_user_who_is_no_root_believes_her_own_alone(tmp_path, passable, monkeypatch):
    """A79. Nor does she remove another's."""
    name = f"mps-g{'0' * 12}-1-01234567"
    home = tmp_path / "u"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    monkeypatch.setenv("DOCKLESS_HOME", str(home))
    pid = os.fork()
    if not pid:
        with os.fdopen(os.dup(2), "w") as said:
            try:
                os.setresuid(NOBODY, NOBODY, NOBODY)
                place = mps_places.make(name, None, ROOM)
                assert place.parent == Path("/dev/shm") and mps_places.place(name) == place
                for part in ("pipe", "shm"):
                    (place / part).rmdir()
                place.rmdir()
                assert mps_places.place(name) is None
                place.mkdir(0o700)
                os.symlink("elsewhere", place / "pipe")
                assert mps_places.place(name) is None
                os._exit(0)
            except BaseException:
                traceback.print_exc(file=said)
            finally:
                os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    above = mps_places.above()
    taken = Path(os.readlink(above / name))
    try:
        os.chown(taken, 0, 0)  # as another user's
        pid = os.fork()
        if not pid:
            try:
                os.setresuid(NOBODY, NOBODY, NOBODY)
                mps_places.clear(name)
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        assert not above.exists() and (taken / "pipe").is_symlink()
    finally:
        (taken / "pipe").unlink()
        taken.rmdir()


def test_a_service_without_its_directory_is_ended(shared):
    """Its jobs are told to be watched, once; the next one starts another."""

    class Running:
        def __init__(self) -> None:
            self.said: list[str] = []

        def state(self) -> str:
            return "exited" if "stop" in self.said else "running"

        def send_stop(self) -> None:
            self.said.append("stop")

        def remove(self) -> None:
            self.said.append("remove")

    name = f"mps-g{'0' * 12}-1-01234567"
    service = Running()
    launcher: Any = Launcher(service)
    daemons = mps.ControlDaemons(launcher, QUEUE)
    daemons.known.add(name)
    mps_places.make(name, None, ROOM)
    assert not daemons.lost(name) and not service.said
    os.unlink(shared / f".{name}")
    assert daemons.lost(name) and service.said == ["stop", "remove"]
    assert not daemons.lost(name) and not daemons.known and mps_places.names() == []


def test_a_daemon_that_comes_back_knows_what_an_earlier_one_left(shared):
    """And takes nothing else for that."""
    ours, others = f"mps-g{'0' * 12}-1-01234567", f"mps-g{'0' * 12}-1-76543210"
    for name in (ours, others):
        mps_places.make(name, None, ROOM)
    launcher: Any = Launcher()
    daemons = mps.ControlDaemons(launcher, QUEUE)
    daemons.take_up()
    assert daemons.known == {ours}
    daemons.end(ours)
    assert mps_places.names() == [others] and not daemons.known and launcher.said == [f"find {ours}"]


def test_a_user_for_whom_it_does_not_start_waits_for_it_once(shared):
    """Who waits for it has one of the few threads that start all users' jobs."""
    launcher: Any = Launcher()
    daemons = mps.ControlDaemons(launcher, QUEUE)
    spec = Spec(("true",))
    gpus = [f"GPU-{uuid.uuid4()}" for _ in range(2)]
    for gpu in (*gpus, gpus[0]):
        assert daemons.join(spec, 1001, gpu, 4096, 81920, ROOM, None, None) is spec
    assert launcher.said.count("start") == 1
    daemons.join(spec, 1002, gpus[0], 4096, 81920, ROOM, None, None)
    assert launcher.said.count("start") == 2


class Service:
    """A control daemon that listens."""

    def __init__(self, place: Path, now: str = "running") -> None:
        self.now = now
        self.document = SimpleNamespace(cgroup="g")
        self.socket = socket.socket(socket.AF_UNIX)
        pipe = os.open(place / "pipe", os.O_PATH)
        self.socket.bind(f"/proc/self/fd/{pipe}/control")  # its own name may be too long
        os.close(pipe)

    def state(self) -> str:
        return self.now

    def send_stop(self) -> None:
        self.now = "exited"

    def remove(self) -> None:
        self.socket.close()


class Starter(Launcher):
    """``how``: as what those that it starts are found, one after the other."""

    def __init__(self, *how: str) -> None:
        super().__init__()
        self.how = [*how]

    def start(self, spec: Spec, **how: Any) -> Any:
        self.found = Service(mps_places.place(how["id"]), self.how.pop(0))
        return self.found


def test_each_that_ends_before_its_jobs_is_told_once(shared):
    launcher: Any = Starter("running", "running")
    daemons = mps.ControlDaemons(launcher, QUEUE)
    gpu = f"GPU-{uuid.uuid4()}"
    name = daemons.name(1001, gpu)
    for _ in range(2):
        assert mps.has_limit(daemons.join(Spec(("true",)), 1001, gpu, 4096, 81920, ROOM, None, None))
        assert not daemons.lost(name)
        launcher.found.now = "exited"
        assert [daemons.lost(name) for _ in range(2)] == [True, False]
    daemons.end(name)


def test_one_that_has_ended_does_not_listen(shared, capfd):
    """Though its socket is there."""
    launcher: Any = Starter("exited")
    spec = Spec(("true",))
    daemons = mps.ControlDaemons(launcher, QUEUE)
    assert daemons.join(spec, 1001, f"GPU-{uuid.uuid4()}", 4096, 81920, ROOM, None, None) is spec
    assert "does not listen" in capfd.readouterr().err and not daemons.known


@pytest.mark.parametrize(
    "spec",
    [
        Spec(("true",), profile="untrusted"),
        Spec(("true",), profile="privileged"),
        Spec(("true",), namespaces=Namespaces(ipc="host")),
        Spec(("true",), user="1000:0"),
        Spec(("true",), mounts=(Tmpfs("/dev/shm/"),)),
    ],
)
def test_for_whom_it_is_not_none_is_started(shared, spec):
    """It is for programs that run as the user, in a user namespace and with a /dev/shm that she shares with it."""
    launcher: Any = Launcher()
    assert mps.ControlDaemons(launcher, QUEUE).join(spec, 1001, "GPU-0", 4096, 81920, ROOM, None, None) is spec
    assert launcher.said == []


def test_an_image_that_names_another_user_has_none(shared, tmp_path):
    launcher: Any = Launcher()
    spec = Spec(("true",), image=load(tmp_path, user="1000"))
    assert mps.ControlDaemons(launcher, QUEUE).join(spec, 1001, "GPU-0", 4096, 81920, ROOM, None, None) is spec
    assert launcher.said == []


SHARED = JobSpec(Spec(("true",)), gpus="memory=20G")
CONFIG = Config(share="user", mps="yes")


def test_one_that_hangs_keeps_its_own_jobs_alone(tmp_path, monkeypatch, own_host):
    """More of them than there are threads that start jobs; and one that does not end keeps nobody's."""
    own_host("2x256G")
    go, asked = threading.Event(), []

    def join(self, spec, uid, *how):
        asked.append(uid)
        assert uid != ANN or go.wait(30)
        return spec

    def end(self, name):
        assert f"-{ANN}-" not in name or go.wait(30)
        self.known.discard(name)

    monkeypatch.setattr(mps.ControlDaemons, "join", join)
    monkeypatch.setattr(mps.ControlDaemons, "end", end)

    async def story(desk):
        hung = await desk.submit(ANN, *[SHARED] * (engine.LAUNCHERS + 1))
        await until(lambda: ANN in asked)
        (other,) = await desk.submit(BEN, SHARED)
        await desk.runs(other)
        assert asked == [ANN, BEN] and not any(desk.engine.entries[number].handle for number in hung)
        devices = {uid: desk.engine.entries[number].job.devices[0] for uid, number in ((ANN, hung[0]), (BEN, other))}
        go.set()
        for number in hung:
            await desk.runs(number)
        go.clear()
        names = {uid: desk.engine.mps.name(uid, devices[uid]) for uid in devices}
        desk.engine.mps.known |= {*names.values()}
        for number in (*hung, other):
            desk.engine.launcher.boxes[desk.engine.name(number, 1)].end(Exit(0, None))
        await desk(BEN, lambda queue: queue.wait(other))
        await until(lambda: desk.engine.mps.known == {names[ANN]})
        await sharing.look_after_services(desk.engine)
        assert State.RUNNING in {job.state for job in await desk(ANN, lambda queue: queue.queue())}
        go.set()
        for number in hung:
            await desk(ANN, lambda queue, number=number: queue.wait(number))
        assert not desk.engine.mps.known

    play(tmp_path, story, CONFIG)


def test_one_that_cannot_be_ended_is_tried_again(tmp_path, monkeypatch, capfd):
    """What is in its directory is its user's, who can fill it while it is removed."""
    tried = []

    def end(self, name):
        tried.append(name)
        if len(tried) == 1:
            raise GpuError("it stays", subject="mps")
        self.known.discard(name)

    monkeypatch.setattr(mps.ControlDaemons, "end", end)

    async def story(desk):
        desk.engine.mps.known.add("mps-g1")
        await sharing.end_services(desk.engine, ["mps-g1"])
        assert desk.engine.mps.known == {"mps-g1"} and "MPS is not ended: " in capfd.readouterr().err
        await sharing.look_after_services(desk.engine)
        await until(lambda: not desk.engine.mps.known)

    play(tmp_path, story, CONFIG)


def test_the_services_of_all_gpus_have_half_of_the_memory_together():
    gpus = SimpleNamespace(whole=("GPU-a", "GPU-b"))
    assert sharing._room(SimpleNamespace(supplies={MEMORY: Supply(100 << 20)}, gpus=gpus)) == 25 << 20
    assert sharing._room(SimpleNamespace(supplies={MEMORY: Supply(3)}, gpus=gpus)) == 1 << 20
