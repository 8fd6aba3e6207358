"""The groups of users over a made-up hierarchy. Real ones: test_user_groups, test_two_users."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dockless.cgroups import Cgroup, Delegation, Limits, users
from dockless.cgroups import group as module
from dockless.errors import CgroupError
from dockless.sched.engine.host.weights import weight


def test_which_group_lies_above(tmp_path: Path):
    home = f"{tmp_path}/dockless"
    assert users.above(f"{home}/{users.group_of(1001)}/job-7") == f"{home}/user-1001"
    assert users.above(f"{home}/job-7") == users.above(f"{home}/user-box.1/health") == users.above(f"{home}/user-7.1/health") == ""
    assert users.all_of(home) == []
    for name in ("user-0", "user-1001", "user-box.12.9", "user-7.12.9", "job-7"):
        os.makedirs(f"{home}/{name}")
    assert sorted(users.all_of(home)) == [f"{home}/user-0", f"{home}/user-1001"]


def test_a_group_in_a_users_group(tmp_path: Path, monkeypatch):
    """Made with the one above, as often as somebody else removes that, but not for ever."""
    place = Delegation(tmp_path, frozenset(), frozenset(), "subtree", "a test")
    Cgroup.create("job", delegation=place, user=1001).close()
    assert os.listdir(place.home) == ["user-1001"] and os.listdir(place.home / "user-1001") == ["job"]
    with pytest.raises(CgroupError, match="user-1001/job: File exists"):
        Cgroup.create("job", delegation=place, user=1001)

    make, calls = users.make, []

    def made_and_removed(path: str, controllers: frozenset[str]) -> frozenset[str]:
        calls.append(path)
        found = make(path, controllers)
        if len(calls) <= removed:
            os.rmdir(path)
        return found

    monkeypatch.setattr(module.users, "make", made_and_removed)
    removed = 3
    Cgroup.create("job", Limits(), delegation=place, user=7).close()
    assert len(calls) == 4 and (place.home / "user-7" / "job").is_dir()
    removed = 1000
    with pytest.raises(CgroupError, match=r"cannot make the group .*/user-8/job: No such file or directory"):
        Cgroup.create("job", delegation=place, user=8)


def test_controllers_are_passed_on(tmp_path: Path):
    path = tmp_path / "user-1001"
    path.mkdir()
    switch = path / "cgroup.subtree_control"
    switch.write_text("io memory cpu")
    assert users.make(str(path), frozenset({"cpu", "pids"})) == {"cpu"}  # a file keeps what was written to its beginning
    assert switch.read_text().startswith("+pids")
    switch.write_text("cpu io pids")
    assert users.make(str(path), frozenset({"cpu", "pids"})) == {"cpu", "pids"} and switch.read_text() == "cpu io pids"


def test_a_keeper_is_launched_into_its_group(tmp_path: Path):
    """Also where that is removed in between; another error is not for us to try again."""
    path = tmp_path / "user-1001"
    path.mkdir()
    seen = []

    def launch(fd: int) -> str:
        seen.append(os.readlink(f"/proc/self/fd/{fd}"))
        if len(seen) < 3:
            os.rmdir(path / "_keepers")
            raise OSError(errno.ENODEV, "removed")
        return "launched"

    assert users.launch_keeper(str(path), launch) == "launched" and seen == [str(path / "_keepers")] * 3

    def refused(fd: int) -> str:
        seen.append("refused")
        raise OSError(errno.EAGAIN, "refused")

    with pytest.raises(OSError, match="refused"):
        users.launch_keeper(str(path), refused)
    assert seen.count("refused") == 1
    with pytest.raises(FileNotFoundError):
        users.launch_keeper(str(tmp_path / "user-2"), launch)


def test_a_users_group_goes_when_nothing_is_left_in_it(tmp_path: Path):
    path = tmp_path / "user-1001"
    (path / "_keepers").mkdir(parents=True)
    (path / "job").mkdir()
    assert not users.remove_empty(str(path)) and path.is_dir()
    (path / "job").rmdir()
    assert users.remove_empty(str(path)) and not path.exists() and not users.remove_empty(str(path))


def test_the_weight_of_a_user(tmp_path: Path, monkeypatch):
    """The cores that her jobs have, and little for all that have none; what the kernel takes."""
    for cores, wanted in (((), 10), ((0,), 10), ((0, 0, 0), 10), ((250,), 25), ((8000, 500), 850), ((8000, 0, 0), 810), ((1,), 1)):
        assert weight(cores) == wanted, cores
    assert weight([1_000_000]) == 10_000
    monkeypatch.setattr(users, "find_delegation", lambda **_: Delegation(tmp_path, frozenset(), frozenset(), "root", ""))
    users.weigh(1001, 850)  # she has none
    (tmp_path / "dockless" / "user-1001").mkdir(parents=True)
    users.weigh(1001, 850)
    assert (tmp_path / "dockless" / "user-1001" / "cpu.weight").read_text() == "850"
    monkeypatch.setattr(users, "find_delegation", lambda **_: Delegation(None, frozenset(), frozenset(), "none", ""))
    users.weigh(1001, 850)
