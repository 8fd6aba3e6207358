"""Sandboxes in the cgroup of a user: real groups, and keepers in one of their own."""

from __future__ import annotations

import os
import threading

import pytest
from support.boxes import until
from support.requires import requires

from dockless.cgroups import Cgroup, find_delegation, users
from dockless.sandbox.run import detached, reconcile, removal
from dockless.sandbox.spec import Spec

pytestmark = requires("root", "cgroup2", "userns")
UID = 100_000 + os.getpid()


@pytest.fixture
def above():
    """The path of a group that nobody else uses, gone at the end."""
    above = find_delegation().home / users.group_of(UID)
    yield above
    until(lambda: not above.exists(), "a user's group goes with the last sandbox in it")


def test_who_starts_and_who_removes_do_not_hinder_each_other(above):
    """The group goes whenever its last sandbox has ended, also while another is being started in it."""
    errors: list[BaseException] = []

    def starts() -> None:
        try:
            for _ in range(8):
                box = detached.start(Spec(argv=("true",)), user=UID)
                assert box.wait(60).code == 0
                box.remove()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=starts) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_groups_that_come_and_go(above):
    """The same without programs, which leaves more of them in the moment in between."""
    errors: list[BaseException] = []

    def makes(number: int) -> None:
        try:
            for turn in range(200):
                group = Cgroup.create(f"{number}-{turn}", user=UID)
                users.launch_keeper(str(above), os.fstat)
                removal.remove_cgroup(group)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=makes, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_what_its_keeper_could_not_name_is_found(above):
    """A start that was killed before its document named the cgroup."""
    box = detached.start(Spec(argv=("sleep", "1000")), user=UID)
    try:
        found = removal.unnamed_cgroup(box.directory)
        assert found is not None and str(found.path) == box.document.cgroup and found.path.parent == above
        found.close()
    finally:
        box.remove()


def test_its_keeper_lies_beside_it(above):
    """What a keeper does is done for its user."""
    box = detached.start(Spec(argv=("sleep", "1000")), user=UID)
    try:
        assert (above / users.KEEPERS / "cgroup.procs").read_text().split() == [str(box.pid)]
    finally:
        box.remove()


def test_reconciling_leaves_a_group_that_was_just_made(above):
    """Whoever made it is about to make another one in it."""
    above.mkdir(parents=True)
    try:
        assert above.name not in reconcile.reconcile() and above.is_dir()
    finally:
        above.rmdir()


def test_reconciling_removes_what_is_left(above, monkeypatch):
    (above / "_keepers").mkdir(parents=True)
    monkeypatch.setattr(reconcile, "_settled", lambda path: os.fspath(path) == os.fspath(above))
    assert above.name in reconcile.reconcile()
