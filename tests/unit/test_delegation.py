"""Where groups may be made and what is switched on there, over made-up hierarchies. On real ones: test_cgroup_bare, test_cgroup_v2."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dockless.cgroups import Delegation, delegation, systemd
from dockless.errors import CgroupError

ALL = "cpuset cpu io memory pids"
ME = str(os.getpid())


class Tree:
    """A cgroup2 mount. ``own``: our group's path in it, as /proc/self/cgroup says it."""

    def __init__(self, top: Path, patch: pytest.MonkeyPatch) -> None:
        self.top, self.own, self.root, self.elsewhere = top, "/", "/", ""
        self.written: list[tuple[str, str]] = []
        self.group("", type="")
        read = delegation._text
        proc = {
            "/proc/self/mountinfo": lambda: f"41 31 0:38 {self.root} {top} rw - cgroup2 cgroup2 rw\n{self.elsewhere}",
            "/proc/self/cgroup": lambda: f"0::{self.own}\n",
        }
        patch.setattr(delegation, "_text", lambda path: proc[path]() if path in proc else read(path))
        patch.setattr(delegation, "_try_write", self.write)
        patch.setattr(delegation, "_enabled", {})
        patch.setattr(delegation, "_found", {})

    def group(self, path: str, *, controllers=ALL, passes_on="", procs="", type="domain", ours=True, delegated=False) -> Path:
        place = self.top / path
        place.mkdir(exist_ok=True)
        files = {"controllers": controllers, "procs": procs, "subtree_control": passes_on, "type": type}
        for name, text in files.items():
            if text or name not in ("type", *(() if ours else ("procs", "subtree_control"))):
                (place / f"cgroup.{name}").write_text(text + "\n")
        if delegated:
            os.setxattr(place, "user.delegate", b"1")
        return place

    def write(self, path: Path, value: str) -> None:
        """What the kernel does with it."""
        self.written.append((str(path.relative_to(self.top)), value))
        if path.name == "cgroup.procs" and path.parent.is_dir():
            (path.parents[2] / "cgroup.procs").write_text("")
        if path.name == "cgroup.subtree_control":
            words = delegation._words(path) | {value.removeprefix("+")}
            path.write_text(" ".join(words))


@pytest.fixture
def tree(tmp_path, monkeypatch):
    return Tree(tmp_path, monkeypatch)


def as_user(patch, uid):
    patch.setattr(delegation.os, "geteuid", lambda: uid)


def found(ask_systemd=False) -> Delegation:
    return delegation.find_delegation(ask_systemd=ask_systemd)


def test_no_mount(tree, monkeypatch):
    monkeypatch.setattr(delegation, "_text", lambda path: "")
    place = found()
    assert (place.path, place.kind, place.controllers) == (None, "none", frozenset()) and "cgroup2" in place.why and "mount" in place.hint


def test_root_of_the_host(tree, monkeypatch):
    as_user(monkeypatch, 0)
    words = frozenset(ALL.split())
    assert found() == Delegation(tree.top, words, words, "root", "root of cgroup v2")


def test_root_where_nothing_may_be_written(tree, monkeypatch):
    """As in a container that shows the host's groups read-only; a user's manager is not for root."""
    as_user(monkeypatch, 0)
    monkeypatch.setattr(delegation, "_writable", lambda directory: False)
    monkeypatch.setattr(systemd, "request_scope", None)
    place = found(ask_systemd=True)
    assert (place.path, place.kind, place.why) == (None, "none", "this user may not make groups here")


def test_root_where_cgroup_v1_holds_some(tree, monkeypatch):
    as_user(monkeypatch, 0)
    tree.group("", controllers="cpu pids", type="")
    tree.elsewhere = "35 31 0:32 / /m rw - cgroup cgroup rw,memory\n"
    place = found()
    assert (place.kind, place.controllers, place.elsewhere) == ("root", {"cpu", "pids"}, {"memory"}) and "memory" in place.why


def test_root_where_cgroup_v1_holds_all(tree, monkeypatch):
    as_user(monkeypatch, 0)
    tree.group("", controllers="hugetlb", type="")
    place = found()
    assert (place.kind, place.path, place.controllers) == ("bare", tree.top, {"hugetlb"}) and "hybrid" in place.why and place.hint


@pytest.mark.parametrize("uid", [0, 1000])
def test_our_own_part_of_the_tree(tree, monkeypatch, uid):
    """In a container root's "/" is an ordinary group, and an ordinary user's highest writable group is hers."""
    as_user(monkeypatch, uid)
    tree.group("", type="domain" if uid == 0 else "", ours=uid == 0)
    tree.group("a", ours=uid == 0)
    tree.group("a/b", controllers="cpu pids")
    tree.group("a/b/c", controllers="pids", procs=ME)
    tree.own = "/a/b/c"
    place = found()
    expected = (tree.top, set(ALL.split())) if uid == 0 else (tree.top / "a/b", {"cpu", "pids"})
    assert (place.path, place.controllers, place.kind) == (*expected, "subtree") and place.available == set(ALL.split())
    assert place.why == "the caller's own delegated subtree"


def test_the_root_that_is_a_users_passes_on_beside_processes_too(tree, monkeypatch):
    as_user(monkeypatch, 1000)
    (tree.top / "cgroup.procs").write_text("1\n99\n")
    place = found()
    assert (place.path, place.controllers, place.kind) == (tree.top, set(ALL.split()), "subtree")


def test_what_systemd_has_delegated_goes_before_what_is_above_it(tree, monkeypatch):
    as_user(monkeypatch, 1000)
    tree.group("", ours=False, type="")
    tree.group("unit", delegated=True)
    tree.group("unit/sub", procs=ME)
    tree.own = "/unit/sub"
    (tree.top / "cgroup.procs").write_text("")
    (tree.top / "cgroup.subtree_control").write_text("")
    place = found()
    assert (place.path, place.kind) == (tree.top / "unit", "subtree") and "delegated unit" in place.why


def test_a_scope_that_was_made_for_us(tree, monkeypatch):
    as_user(monkeypatch, 1000)
    tree.group("user@1000.service", delegated=True)
    tree.group("user@1000.service/dockless-12-ab.scope", procs=ME)
    tree.own = "/user@1000.service/dockless-12-ab.scope"
    place = found()
    assert (place.path.name, place.kind) == ("dockless-12-ab.scope", "systemd") and "dockless-12-ab.scope" in place.why


@pytest.mark.parametrize("answer", [None, "the bus is deaf"])
def test_a_user_manager_is_asked(tree, monkeypatch, answer):
    """Its own groups are not ours; it moves us into a scope, or groups without controllers are made beside its."""
    as_user(monkeypatch, 1000)
    tree.group("", ours=False, type="")
    tree.group("user@1000.service", delegated=True, ours=True)
    tree.group("user@1000.service/app", procs=f"{ME}\n99")
    tree.own = "/user@1000.service/app"
    asked = []

    def ask():
        asked.append(1)
        if answer is None:
            tree.group("user@1000.service/dockless-1-2.scope", procs=ME)
            tree.own = "/user@1000.service/dockless-1-2.scope"
        return answer

    monkeypatch.setattr(systemd, "request_scope", ask)
    quiet = found()
    assert (quiet.path.name, quiet.controllers, asked) == ("app", frozenset(), []) and "user manager" in quiet.why
    place = delegation.find_delegation()
    assert asked == [1] and found(ask_systemd=True) is place and asked == [1]
    if answer is None:
        assert (place.kind, place.path.name, place.controllers) == ("systemd", "dockless-1-2.scope", set(ALL.split()))
        assert found() is place
    else:
        assert (place.path.name, place.controllers) == ("app", frozenset()) and answer in place.why


def test_nothing_is_ours(tree, monkeypatch):
    as_user(monkeypatch, 1000)
    tree.group("", ours=False, type="")
    tree.group("a", ours=False, procs=ME)
    tree.own = "/a"
    monkeypatch.setattr(systemd, "request_scope", lambda: None)
    place = found(ask_systemd=True)
    assert (place.path, place.kind, place.available) == (None, "none", set(ALL.split()))
    assert place.why == "this user may not make groups here, and the new scope is not writable"
    assert place.hint == (
        "log in through a session with a systemd user manager, or have root delegate a group (chown it, its cgroup.procs and "
        "cgroup.subtree_control) and start this process in it"
    )


def place_at(path: Path, controllers=ALL) -> Delegation:
    return Delegation(path, frozenset(controllers.split()), frozenset(ALL.split()), "subtree", "a test")


def test_controllers_are_switched_on_as_they_are_needed(tree):
    place = place_at(tree.group("a"))
    have = {"cpu", "memory", "io", "pids"}
    assert delegation.enable(place, ["pids"]) == have == delegation._words(tree.top / "a/cgroup.subtree_control")
    assert tree.written == [(f"a{below}/cgroup.subtree_control", f"+{name}") for below in ("", "/dockless") for name in sorted(have)]
    tree.written.clear()
    assert delegation.enable(place, ["memory"]) == have and tree.written == []
    assert delegation.enable(place, ["cpuset", "hugetlb"]) == {*have, "cpuset"}
    assert tree.written == [("a/cgroup.subtree_control", "+cpuset"), ("a/dockless/cgroup.subtree_control", "+cpuset")]
    delegation.forget(place)
    (tree.top / "a/dockless/cgroup.subtree_control").write_text("")
    assert delegation.enable(place, []) == have


def test_others_may_look_into_the_home_of_all_groups(tree):
    """Whatever the umask of whoever is first."""
    before = os.umask(0)
    try:
        delegation.enable(place_at(tree.group("a")), [])
    finally:
        os.umask(before)
    assert stat.S_IMODE((tree.top / "a/dockless").stat().st_mode) == 0o755


def test_what_was_refused_once_is_not_asked_for_at_every_group(tree, monkeypatch):
    """A controller that cannot be had, as cpu beside realtime tasks; another that is wanted is asked for all the same."""
    write, refused = tree.write, ("+cpu", "+cpuset")
    monkeypatch.setattr(
        delegation, "_try_write", lambda path, value: tree.written.append(value) if value in refused else write(path, value)
    )
    place = place_at(tree.group("a"), f"{ALL} rdma")
    have = {"memory", "io", "pids"}
    for wanted, asked, got in (
        (["pids"], (2, 0), have), ([], (2, 0), have), (["cpuset"], (4, 2), have), ([], (4, 2), have), (["cpuset"], (4, 2), have),
        (["rdma"], (6, 2), {*have, "rdma"}), (["cpuset"], (6, 2), {*have, "rdma"}), ([], (6, 2), {*have, "rdma"}),
    ):  # fmt: skip
        assert delegation.enable(place, wanted) == got
        assert tuple(map(tree.written.count, refused)) == asked, wanted


def test_alone_in_the_group_we_step_aside(tree):
    delegation.enable(place_at(tree.group("a", procs=ME)), [])
    assert tree.written[0] == ("a/dockless/_caller/cgroup.procs", "0") and ("a/cgroup.subtree_control", "+cpu") in tree.written


def test_beside_others_nobody_is_moved(tree):
    """The group cannot pass controllers on: what it would take (cpu, pids) would leave groups below that can hold nobody."""
    delegation.enable(place_at(tree.group("a", procs=f"{ME}\n99")), [])
    assert {path for path, _ in tree.written} == {"a/dockless/cgroup.subtree_control"}
    assert not (tree.top / "a/dockless/_caller").exists()


def test_the_root_passes_on_what_it_likes(tree):
    (tree.top / "cgroup.procs").write_text(f"{ME}\n99")
    delegation.enable(place_at(tree.top), [])
    assert ("cgroup.subtree_control", "+cpu") in tree.written and not (tree.top / "dockless/_caller").exists()


def test_a_threaded_place_is_refused(tree):
    tree.group("a")
    tree.group("a/dockless", type="domain invalid")
    with pytest.raises(CgroupError, match="threaded"):
        delegation.enable(place_at(tree.top / "a"), [])


def test_release_takes_what_is_empty(tree):
    """And what is made after it is made anew."""
    place = place_at(tree.group("a"))
    delegation.enable(place, [])
    (tree.top / "a/dockless/cgroup.subtree_control").unlink()
    (tree.top / "a/dockless/job").mkdir(parents=True)
    assert delegation.release(place) is False
    (tree.top / "a/dockless/job").rmdir()
    assert delegation.release(place) is True and delegation.release(place) is False
    delegation.enable(place, [])
    assert place.home.is_dir()
    assert delegation.release(Delegation(None, frozenset(), frozenset(), "none", "")) is False


# -- its smaller parts


def test_the_place_is_looked_for_once(tree, monkeypatch):
    """By each process and each user: after a fork or a change of ids it may be another."""
    as_user(monkeypatch, 0)
    first = found()
    assert found() is first and delegation.find_delegation(fresh=True, ask_systemd=False) is not first
    second = found()
    assert second is not first and second == first
    as_user(monkeypatch, 1000)
    assert found() is not second
    as_user(monkeypatch, 0)
    monkeypatch.setattr(delegation.os, "getpid", lambda: -5)
    assert found() is not second


def test_why_a_controller_cannot_be_had(tmp_path):
    (tmp_path / "cgroup.controllers").write_text("cpu pids memory\n")
    words = {name: frozenset(text.split()) for name, text in (("have", "pids"), ("there", "pids cpu io memory"), ("v1", "rdma"))}
    place = Delegation(tmp_path, words["have"], words["there"], "subtree", "a test", words["v1"], "a hint")
    scope = "start it in a place of its own: systemd-run --user --scope -p Delegate=yes dockless ..."
    unit = "as root: systemctl edit user@.service, add [Service] Delegate=cpu cpuset io memory pids; then log in again"
    unified = "boot with systemd.unified_cgroup_hierarchy=1 (without systemd: cgroup_no_v1=all, and mount cgroup2 on /sys/fs/cgroup)"
    for controller, text, hint in (
        ("rdma", "this host has the rdma controller in cgroup v1 only", unified),
        ("misc", "this kernel offers no misc controller in cgroup v2", "see /proc/cgroups and the kernel's command line"),
        ("io", f"the io controller is not delegated to {tmp_path}", unit),
        ("cpu", f"other processes live in {tmp_path}, so it cannot pass on the cpu controller", scope),
        ("pids", f"the kernel did not switch the pids controller on below {tmp_path}", unit),
    ):
        error = place.missing(controller)
        assert (str(error), error.hint) == (f"{controller} cannot be limited: {text}", hint)
        assert (error.controller, error.subject) == (controller, controller)
    error = place.missing("pids", "pids.max")
    assert str(error).startswith("pids.max cannot be limited: ") and (error.controller, error.subject) == ("pids", "pids.max")
    error = Delegation(None, words["have"], words["there"], "none", "no bus", words["v1"], "log in").missing("rdma")
    assert (str(error), error.hint) == ("rdma cannot be limited: no bus", "log in")


def test_a_place_that_cannot_be_written(tree):
    (tree.top / "dockless").write_text("a file")
    with pytest.raises(CgroupError, match=f"^cannot make {tree.top}/dockless: File exists$") as caught:
        delegation.enable(place_at(tree.top), [])
    assert caught.value.subject == f"{tree.top}/dockless" and caught.value.hint == "the cgroup2 mount must be writable for this user"
    assert tree.written == []


def test_who_cannot_step_aside_passes_nothing_on(tree):
    (tree.group("a", procs=ME) / "dockless").mkdir()
    (tree.top / "a/dockless/_caller").write_text("in the way")
    delegation.enable(place_at(tree.top / "a"), ["cpu"])
    assert {path for path, _ in tree.written} == {"a/dockless/cgroup.subtree_control"}


def test_what_is_switched_on_already_moves_nobody(tree):
    tree.group("a", procs=ME, passes_on="cpu io memory pids")
    delegation.enable(place_at(tree.top / "a"), [])
    assert {path for path, _ in tree.written} == {"a/dockless/cgroup.subtree_control"}


def test_what_is_refused_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    for name in ("file", "none", "."):
        delegation._try_write(tmp_path / name, "+cpu")
    delegation._try_write(Path("/dev/full"), "+cpu")
    assert (tmp_path / "file").read_text() == "+cpu"


@pytest.mark.parametrize(
    ("marks", "delegated"),
    [({}, False), ({"user.delegate": b"1"}, True), ({"trusted.delegate": b"1"}, True), ({"user.delegate": b"0"}, False),
     ({"user.delegate": b"0", "trusted.delegate": b"1"}, True)],
)  # fmt: skip
def test_what_systemd_marks(monkeypatch, marks, delegated):
    def getxattr(path, name):
        if (path, name) == ("/place", name) and name in marks:
            return marks[name]
        raise OSError

    monkeypatch.setattr(delegation.os, "getxattr", getxattr)
    assert delegation._is_delegated("/place") is delegated


@pytest.mark.parametrize("refused", ["", "/place", "/place/cgroup.procs", "/place/cgroup.subtree_control"])
def test_what_must_be_writable(monkeypatch, refused):
    """With the rights that count for files: a set-user-id program's effective ones."""

    def access(path, mode, *, effective_ids):
        assert mode == os.W_OK and effective_ids is True
        return path != refused

    monkeypatch.setattr(delegation.os, "access", access)
    assert delegation._writable("/place") is (refused == "")


def test_files_that_are_not_there_or_not_text(tmp_path):
    (tmp_path / "file").write_bytes(b"/caf\xe9 b\n")
    assert delegation._text(tmp_path / "file") == "/caf\udce9 b\n" and delegation._text(tmp_path / "none") == ""
    assert delegation._words(tmp_path / "file") == {"/caf\udce9", "b"} and delegation._words(tmp_path / "none") == frozenset()


def test_nothing_is_forgotten_where_there_is_no_place(monkeypatch):
    known = {(os.getpid(), "/place/dockless"): (frozenset(), frozenset()), (1, "/place/dockless"): (frozenset(), frozenset())}
    monkeypatch.setattr(delegation, "_enabled", known)
    delegation.forget(Delegation(None, frozenset(), frozenset(), "none", ""))
    assert len(known) == 2
    delegation.forget(place_at(Path("/place")))
    delegation.forget(place_at(Path("/place")))
    assert list(known) == [(1, "/place/dockless")]
