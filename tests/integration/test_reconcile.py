"""``reconcile``: what a host that was killed left behind is removed, what lives is left alone."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from support.boxes import alive, load, until
from support.requires import requires

import dockless
from dockless.base import paths
from dockless.base.locks import mark_in_use
from dockless.cgroups import Cgroup, find_delegation
from dockless.sandbox.run import reconcile
from dockless.sandbox.run.foreground import ForegroundSandbox
from dockless.sandbox.run.start import new_id
from dockless.sandbox.spec import Spec

pytestmark = requires("userns")


@pytest.fixture
def settled(monkeypatch):
    """What is being looked at counts as long settled, but nothing that another run on this machine is just starting."""
    monkeypatch.setattr(reconcile, "_SETTLED", -1.0)
    names: set[str] = set()
    look = reconcile._abandoned
    monkeypatch.setattr(reconcile, "_abandoned", lambda path: os.path.basename(path) in names and look(path))
    return names


@requires("overlay")
def test_a_directory_of_the_dead_goes_and_one_of_the_living_stays(tmp_path, settled):
    ref = load(tmp_path)
    dead = paths.make(paths.state() / "running" / "dead")
    (dead / "upper").mkdir()
    (dead / "upper" / "file").write_text("x")
    with ForegroundSandbox(Spec(argv=("sleep", "1000"), image=ref)) as box:
        living = paths.state() / "running" / box.id
        assert living.is_dir()
        settled |= {"dead", living.name, f"run-{living.name}"}
        assert reconcile.reconcile() == ["dead"]
        assert not dead.exists() and living.is_dir() and alive(box.process.pid)
    assert not living.exists()


@requires("overlay")
def test_a_name_of_the_dead_is_free(tmp_path, settled):
    ref = load(tmp_path)
    (paths.make(paths.state() / "running" / "dead") / "upper").mkdir()
    settled |= {"dead", "run-dead"}
    if find_delegation(ask_systemd=False).path is not None:
        Cgroup.create("run-dead").close()
    with ForegroundSandbox(Spec(argv=("/bin/true",), image=ref), id="dead") as box:
        assert box.wait(60).code == 0
    assert not (paths.state() / "running" / "dead").exists()


def test_one_that_is_only_being_started_is_left_alone(settled, monkeypatch):
    settled.add("fresh")
    fresh = paths.make(paths.state() / "running" / "fresh")
    monkeypatch.setattr(reconcile, "_SETTLED", 10.0)
    assert reconcile.reconcile() == [] and fresh.is_dir()


def test_a_lock_in_whichever_process_keeps_a_directory(settled):
    """A shared lock is what the living hold; looking for the abandoned must ask for an exclusive one, and must not keep it."""
    settled.add("held")
    held = paths.make(paths.state() / "running" / "held")
    fd = os.open(held, os.O_RDONLY | os.O_DIRECTORY)
    mark_in_use(fd)
    assert reconcile.reconcile() == [] and held.is_dir()
    os.close(fd)
    assert reconcile.reconcile() == ["held"] and not held.exists()


@requires("cgroup2")
def test_a_cgroup_of_the_dead_goes_with_all_that_lives_in_it(settled):
    import subprocess

    if find_delegation(ask_systemd=False).path is None:
        pytest.skip("no place for cgroups here")
    group = Cgroup.create(f"run-{new_id()}")
    with subprocess.Popen(["sleep", "1000"]) as process:
        group.add(process.pid)
        settled.add(group.path.name)
        mark_in_use(group.fd)
        assert reconcile.reconcile() == [] and process.poll() is None
        group.close()
        assert reconcile.reconcile() == [group.path.name]
        until(lambda: process.poll() is not None, "its process is dead")
    assert not group.path.exists()


def test_a_link_is_not_followed(tmp_path, settled):
    settled.add("link")
    paths.make(paths.state() / "running")
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "kept").touch()
    (paths.state() / "running" / "link").symlink_to(tmp_path / "victim")
    assert reconcile.reconcile() == [] and (tmp_path / "victim" / "kept").exists()


@requires("cgroup2")
def test_a_cgroup_whose_directory_is_gone(settled, say):
    """Its keeper was killed when it had removed the one and not yet the other."""
    gone, other = (dockless.start(["sleep", "1000"], id=id) for id in ("gone", "other"))
    try:
        groups = [Path(box._found.document.cgroup) for box in (gone, other)]
        keeper, init = gone.inspect()["pid"], gone.pid
        os.kill(keeper, signal.SIGKILL)
        until(lambda: not (alive(init) or alive(keeper)), "it has ended")
        gone._found.collect(keeper)
        shutil.rmtree(gone._found.directory)
        assert groups[0].is_dir()
        code, out, _ = say("prune", "--sandboxes", "-y")
        assert code == 0 and out.split() == [groups[0].name]
        assert not groups[0].exists() and groups[1].is_dir() and other.state == "running"
    finally:
        other.rm(force=True)
