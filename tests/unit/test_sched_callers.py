"""Whom the daemon serves, and as what: from the ids of the kernel and the system's list of users."""

from __future__ import annotations

import os
import socket
import struct
from types import SimpleNamespace

import pytest
from support.quotas import limits

from dockless.base import idmaps
from dockless.errors import NotPermitted
from dockless.sched import callers as module
from dockless.sched.callers import Caller, Callers, default_group
from dockless.sched.config import Config

NOBODY = 65534
USERS = {0: "root", 1001: "ann", 1002: "ben", NOBODY: "nobody"}
GROUPS = {50: "vision", 51: "students"}


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    """A host with a few users. Which ids were looked up."""
    ids = []

    def getpwuid(uid):
        ids.append(uid)
        return SimpleNamespace(pw_name=USERS[uid], pw_gid=50 if uid == 1001 else 99)

    def getgrgid(gid):
        return SimpleNamespace(gr_name=GROUPS[gid])

    monkeypatch.setattr(module.pwd, "getpwuid", getpwuid)
    monkeypatch.setattr(module.grp, "getgrgid", getgrgid)
    monkeypatch.setattr(module.os, "getgrouplist", lambda user, gid: [gid, 51])
    return ids


def served_by(uid: int, config: Config | None = None) -> Callers:
    made = Callers(config or Config())
    made._owner = uid
    return made


def test_roots_daemon_serves_all_who_have_an_account():
    daemon = served_by(0, Config(admins=("ben", "uid-1003")))
    assert daemon.caller(0) == Caller(0, "root", frozenset({"gid-99", "students"}), True) and daemon.caller(0).root
    assert daemon.caller(1001) == Caller(1001, "ann", frozenset({"vision", "students"}), False) and not daemon.caller(1001).root
    assert daemon.caller(1002).admin
    with pytest.raises(NotPermitted, match="has no account"):
        daemon.caller(1003)


def test_the_members_of_a_group_are_administrators():
    """A group of the system, or one of the settings, which stands for the system's."""
    assert served_by(0, Config(admin_groups=("vision",))).caller(1001).admin
    assert not served_by(0, Config(admin_groups=("vision",))).caller(1002).admin
    listed = served_by(0, Config(admin_groups=("vision",), groups={"vision": ("ben",)}))
    assert listed.caller(1002).admin and not listed.caller(1001).admin


def test_the_numbers_of_groups_are_remembered_with_their_names(asked):
    """A start asks nothing more. A group without a name has none that a job could be in."""
    daemon = served_by(0)
    ann = daemon.caller(1001)
    assert daemon.groups(1001) == {"vision": 50, "students": 51} and daemon.groups(1001).keys() == ann.groups and asked == [1001]
    assert daemon.groups(1002) == {"gid-99": 0, "students": 51}
    with pytest.raises(NotPermitted, match="has no account"):
        daemon.groups(1003)


def test_a_users_daemon_serves_her_and_root():
    """Also where the system has no name for her: then she has no account, and it is hers all the same."""
    assert served_by(1001).caller(1001) == Caller(1001, "ann", frozenset({"vision", "students"}), True)
    assert served_by(1001).caller(0).admin
    assert served_by(1003).caller(1003) == Caller(1003, "uid-1003", frozenset(), True, False)
    for uid in (1002, NOBODY):
        with pytest.raises(NotPermitted, match="serves one user"):
            served_by(1001).caller(uid)


def test_root_is_root_without_a_name_too(monkeypatch):
    monkeypatch.delitem(USERS, 0)
    assert served_by(1001).caller(0) == Caller(0, "uid-0", frozenset(), True, False)


def test_the_id_of_those_that_have_none_here():
    with pytest.raises(NotPermitted, match="not mapped"):
        served_by(0).caller(NOBODY)
    assert served_by(NOBODY).caller(NOBODY).admin


def test_groups_of_the_settings_come_before_those_of_the_system():
    config = Config(limits(groups={"vision": 3, "students": 2, "lab": 1}), {"students": ("ben",), "lab": ("ann",)})
    daemon = served_by(0, config)
    ann, ben = daemon.caller(1001), daemon.caller(1002)
    assert (daemon.quota_groups(ann), daemon.quota_groups(ben)) == (("vision", "lab"), ("students",))


def test_of_a_group_that_the_settings_list_the_systems_members_are_none():
    daemon = served_by(0, Config(groups={"vision": ("ben",)}))
    assert daemon.members(("vision",), (1001, 1002)) == {"ben"}
    assert daemon.members(("vision", "students"), (1001,)) == {"ann", "ben"}


def test_groups_are_looked_up_again_after_a_minute(monkeypatch, asked):
    now = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    daemon = served_by(0)
    for now, times in ((1000.0, 1), (1059.0, 1), (1061.0, 2), (1119.0, 2)):
        daemon.caller(1001)
        assert asked.count(1001) == times, now


def test_use_counts_for_a_group_where_there_is_just_one():
    assert [default_group(groups) for groups in ((), ("vision",), ("vision", "speech"))] == ["", "vision", ""]


def test_what_is_remembered_is_bounded():
    daemon = served_by(0)
    daemon._known = {uid: (0.0, "", {}, True) for uid in range(5000, 15_000)}
    daemon.caller(1001)
    assert len(daemon._known) == 10_001
    daemon.caller(1002)
    assert list(daemon._known) == [1002]


def test_the_kernel_says_who_calls():
    near, far = socket.socketpair(socket.AF_UNIX)
    with near, far:
        assert served_by(0).peer_uid(near) == os.getuid()
    ucred = SimpleNamespace(getsockopt=lambda level, option, size: struct.pack("3i", 11, 22, 33)[:size])  # pid, uid, gid
    assert served_by(0).peer_uid(ucred) == 22


def test_what_an_id_of_a_sandbox_holds_is_its_owners(monkeypatch, tmp_path):
    (tmp_path / "subuid").write_text("# ids\nann:100000:65536\nnobody-known:300000:10\n1002:165536:65536\ndockless:500000:5\nann:x:y\n")
    monkeypatch.setattr(idmaps, "SUBUID", str(tmp_path / "subuid"))
    monkeypatch.setattr(module.pwd, "getpwnam", lambda name: SimpleNamespace(pw_uid={n: u for u, n in USERS.items()}[name]))
    daemon = served_by(0, Config(limits(groups={"vision": 1, "students": 2})))
    ann, ben = ("ann", ("vision", "students")), ("ben", ("students",))
    assert daemon.quota_of(1001) == daemon.quota_of(100_000) == daemon.quota_of(165_535) == ann
    assert daemon.quota_of(165_536) == daemon.quota_of(231_071) == ben
    assert daemon.quota_of(idmaps.ROOT_BASE)[0] == daemon.quota_of(500_004)[0] == "root"
    assert [daemon.quota_of(uid) for uid in (99_999, 231_072, 300_000, 500_005)] == [
        (f"uid-{uid}", ()) for uid in (99_999, 231_072, 300_000, 500_005)
    ]
    with pytest.raises(NotPermitted, match="has no account"):
        daemon.caller(100_000)
    (tmp_path / "subuid").unlink()
    assert daemon.quota_of(100_000) == ("uid-100000", ())
