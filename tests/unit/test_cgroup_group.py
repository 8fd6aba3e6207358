"""A group over a made-up hierarchy: what is asked of the kernel, in which order, and what is left when it refuses. Real ones:
test_cgroup_bare, test_cgroup_v2."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

import pytest

from dockless.cgroups import Cgroup, Delegation, Limits, Rounding, unavailable
from dockless.cgroups import group as module
from dockless.cgroups.group import check_name
from dockless.errors import BadInput, CgroupError, LimitUnavailable

PIDS = Limits(pids_max=5)


@pytest.fixture
def place(tmp_path):
    """A place whose groups can have pids and memory."""
    have = frozenset({"pids", "memory"})
    return Delegation(tmp_path, have, have | {"io"}, "subtree", "a test")


@pytest.fixture
def asked(monkeypatch):
    """What was asked of ``enable`` and ``apply``, and which place was to be looked at anew."""
    asked = []

    def enable(place, wanted):
        asked.append(("enable", place, list(wanted)))
        place.home.mkdir(exist_ok=True)
        return frozenset({"pids"})

    def apply(fd, writes, have, place, best_effort):
        asked.append(("apply", os.readlink(f"/proc/self/fd/{fd}"), writes, have, place, best_effort))
        return ["a warning"], [Rounding("pids.max", "5", "4")]

    monkeypatch.setattr(module, "enable", enable)
    monkeypatch.setattr(module, "apply", apply)
    monkeypatch.setattr(module, "forget", lambda place: asked.append(("forget", place)))
    return asked


@pytest.fixture
def group(tmp_path):
    """One with the files of a group, which a directory of files cannot lose: it is never removed."""
    path = tmp_path / "dockless" / "job"
    path.mkdir(parents=True)
    for name in ("kill", "freeze", "procs", "events", "controllers"):
        (path / f"cgroup.{name}").touch()
    made = Cgroup(str(path), os.open(path, os.O_RDONLY | os.O_DIRECTORY))
    yield made
    made.close()


# -- making


def test_a_group_without_limits(place, asked):
    before = os.umask(0)
    try:
        with Cgroup.create("job", delegation=place) as group:
            assert (group.path, group.warnings, group.readback) == (place.home / "job", (), ())
            assert stat.S_IMODE(group.path.stat().st_mode) == 0o755 and repr(group) == f"Cgroup({str(group.path)!r})"
            assert os.path.samestat(os.fstat(group.fd), os.stat(group.path))
    finally:
        os.umask(before)
    assert asked == [("enable", place, [])] and not (place.home / "job").exists() and group.fd == -1


@pytest.mark.parametrize("best_effort", [False, True])
def test_a_group_with_limits(place, asked, monkeypatch, best_effort):
    monkeypatch.setattr(module, "find_delegation", lambda: place)
    group = Cgroup.create("job", PIDS, best_effort=best_effort)
    assert asked == [
        ("enable", place, ["pids"]),
        ("apply", str(place.home / "job"), PIDS.writes(), frozenset({"pids"}), place, best_effort),
    ]
    assert (group.warnings, group.readback) == (("a warning",), (Rounding("pids.max", "5", "4"),))
    group.remove()


@pytest.mark.parametrize("nowhere", [False, True])
def test_a_limit_that_cannot_be_had_makes_nothing(tmp_path, place, asked, nowhere):
    limits = Limits(pids_max=5, io_weight=10)
    if nowhere:
        place = Delegation(None, frozenset({"pids", "io"}), frozenset(), "none", "no bus")
    with pytest.raises(LimitUnavailable) as caught:
        Cgroup.create("job", limits, delegation=place)
    first = limits.writes()[0].controller if nowhere else "io"
    assert caught.value.controller == first and asked == [] and not (tmp_path / "dockless").exists()
    if not nowhere:
        Cgroup.create("job", limits, delegation=place, best_effort=True).remove()
        assert [one[0] for one in asked] == ["enable", "apply"]


@pytest.mark.parametrize("limits", [Limits(), PIDS])
def test_limits_are_compared_with_the_host_where_there_are_any(place, asked, monkeypatch, limits):
    def check_host(self):
        raise BadInput("planted")

    monkeypatch.setattr(Limits, "check_host", check_host)
    with pytest.raises(BadInput, match="planted") if limits != Limits() else contextlib.nullcontext():
        Cgroup.create("job", limits, delegation=place).remove()
    assert not (place.home / "job").exists() and len(asked) == (limits == Limits())


def test_somebody_tidied_up_meanwhile(place, asked, monkeypatch):
    """``<place>/dockless`` was known, and is gone: once more from the start, and no more than once."""
    enable, calls = module.enable, []

    def forgetful(place, wanted):
        calls.append(1)
        if len(calls) > gone:
            return enable(place, wanted)
        return frozenset({"nothing"})

    monkeypatch.setattr(module, "enable", forgetful)
    gone = 1
    Cgroup.create("job", PIDS, delegation=place).remove()
    assert asked[0] == ("forget", place) and asked[1] == ("enable", place, ["pids"]) and asked[2][3] == frozenset({"pids"})
    place.home.rmdir()
    calls.clear()
    gone = 2
    with pytest.raises(CgroupError, match=r"cannot make the group .*/dockless/job: No such file or directory"):
        Cgroup.create("job", delegation=place)


def test_why_a_group_cannot_be_made(tmp_path, place, asked, monkeypatch):
    Cgroup.create("job", delegation=place).close()
    with pytest.raises(CgroupError, match=f"^cannot make the group {place.home}/job: File exists$") as caught:
        Cgroup.create("job", delegation=place)
    hint = "another group has this name: use another, or Cgroup.open it and remove it"
    assert (caught.value.subject, caught.value.hint) == (f"{place.home}/job", hint)

    def mkdir(path, *_):
        raise OSError(errno.EAGAIN, "planted")

    monkeypatch.setattr(module.os, "mkdir", mkdir)
    with pytest.raises(CgroupError, match="job: planted") as caught:
        Cgroup.create("job", delegation=place)
    assert caught.value.hint == "cgroup.max.descendants or cgroup.max.depth above it may be exhausted"


def test_a_group_that_cannot_be_opened_or_limited_is_removed(place, asked, monkeypatch):
    def full(path, *_, **__):
        raise OSError(errno.EMFILE, "planted")

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "open", full)
        with pytest.raises(CgroupError, match=f"^cannot open the new group {place.home}/job: planted$") as caught:
            Cgroup.create("job", delegation=place)
    assert caught.value.subject == f"{place.home}/job" and os.listdir(place.home) == []

    def refused(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "apply", refused)
    with pytest.raises(KeyboardInterrupt):
        Cgroup.create("job", PIDS, delegation=place)
    assert os.listdir(place.home) == []


@pytest.mark.parametrize("name", ["a", "A9_.:@+-", "x" * 127, "a.cgroup", "cgroups"])
def test_names(name, place, asked):
    assert check_name(name) == name
    Cgroup.create(name, delegation=place).remove()


@pytest.mark.parametrize("name", ["x" * 128, "cgroup.x", "-a", "a\n"])
def test_names_that_are_refused(name, place, asked):
    with pytest.raises(BadInput, match="cannot name a group") as caught:
        Cgroup.create(name, delegation=place)
    assert caught.value.subject == name[:80] and asked == []
    place.home.mkdir()
    with pytest.raises(BadInput, match="cannot name a group"), Cgroup(str(place.home), -1) as outer:
        outer.child(name)


def test_only_what_dockless_made_is_opened(tmp_path, group):
    again = Cgroup.open(group.path)
    assert again.path == group.path and again.fd != group.fd
    again.close()
    again.close()
    inside = tmp_path / "dockless" / "plain"
    inside.mkdir()
    for path, said in (
        (tmp_path / "dockless", "was not made by dockless"),
        (tmp_path / "other" / "job", "was not made by dockless"),
        (tmp_path / "dockless" / ".." / "dockless" / "job", "was not made by dockless"),
        (tmp_path / "dockless" / "gone", "cannot open the group .*: No such file or directory"),
        (inside, "is not a cgroup v2 group"),
    ):
        with pytest.raises(CgroupError, match=said) as caught:
            Cgroup.open(path)
        assert caught.value.subject == str(path)


def test_one_below_a_group_that_holds_processes(tmp_path, group):
    with Cgroup.below(str(group.path), "exec-1") as inside:
        assert inside.path == group.path / "exec-1" and list(inside.usage_files()) in (["cpu.stat"], [])
        with pytest.raises(CgroupError, match="exec-1"):
            Cgroup.below(str(group.path), "exec-1")
    for path in (tmp_path, tmp_path / "dockless" / ".." / "other", tmp_path / "dockless" / "gone"):
        with pytest.raises(CgroupError, match=r"was not made by dockless|cannot make the group"):
            Cgroup.below(str(path), "exec-1")
    assert not (tmp_path / "exec-1").exists()


def test_what_a_place_cannot_enforce(place):
    """One error for each controller, of the first limit that needs it."""
    limits = Limits(memory_max=1 << 20, memory_high=1 << 20, io_weight=10, cpu_max=1.0, cpu_weight=5, pids_max=5)
    found = unavailable(limits, place)
    assert [(error.controller, error.subject) for error in found] == [("cpu", "cpu.max"), ("io", "io.weight")]
    assert unavailable(Limits(), place) == ()


# -- looking


def test_who_is_in_it(group):
    assert group.pids() == ()
    (group.path / "cgroup.procs").write_text("12\n34\n")
    assert group.pids() == (12, 34)


def test_what_it_has_used(group):
    """What is not there, or cannot be read, is left out; how long it waited only where that is of use."""
    (group.path / "pids.current").write_text("3\n")
    (group.path / "cpu.pressure").write_text("some avg10=1.50 avg60=0.00 avg300=0.00 total=0\n")
    (group.path / "memory.peak").mkdir()
    assert group.usage_files() == {"pids.current": "3\n", "cpu.pressure": "some avg10=1.50 avg60=0.00 avg300=0.00 total=0\n"}
    assert group.usage_files(pressure=False) == {"pids.current": "3\n"}
    assert group.usage().cpu_pressure.some_avg10 == 1.5 and group.usage(pressure=False).cpu_pressure is None
    assert group.usage(pressure=False).pids_current == 3


def test_a_file_that_is_not_there_is_told_with_what_to_do(group):
    name = group.path.name
    for work, said, hint in (
        (group.thaw, "job: cannot write 0 to cgroup.freeze", "see Documentation/admin-guide/cgroup-v2.rst"),
        (group.kill, "job: cannot write 1 to cgroup.kill", "cgroup.kill needs Linux 5.14"),
        (group.pids, "job: cannot read cgroup.procs", "see Documentation/admin-guide/cgroup-v2.rst"),
        (lambda: group.add(7), "job: cannot write 7 to cgroup.procs", "the process must exist, and both groups must be this user's"),
    ):
        for file in group.path.iterdir():
            file.unlink()
        with pytest.raises(CgroupError) as caught:
            work()
        assert (str(caught.value), caught.value.hint) == (f"{said}: No such file or directory", hint)
        assert caught.value.subject == str(group.path)
    group.path.rmdir()
    group.kill()  # nothing is left to kill
    with pytest.raises(CgroupError) as caught:
        group.freeze()
    assert caught.value.hint == "the group is gone" and name == "job"
    group.close()
    group.path.mkdir()
    with pytest.raises(CgroupError) as caught:
        group.pids()
    assert caught.value.hint == "the group is gone"


# -- power


def test_what_is_written(group, monkeypatch):
    waits = []
    monkeypatch.setattr(module, "wait_for", lambda *how: waits.append(how) or True)
    monkeypatch.setattr(module, "wait_empty", lambda *how: waits.append(how) or "empty")
    monkeypatch.setattr(module.devices, "attach", lambda fd, rules, flags: waits.append((fd, rules, flags)))
    group.freeze()
    assert (group.path / "cgroup.freeze").read_text() == "1"
    group.freeze(3.0)
    group.thaw()
    assert (group.path / "cgroup.freeze").read_text() == "0"
    group.thaw(4.0)
    group.kill()
    group.add(0)
    assert (group.path / "cgroup.kill").read_text() == "1" and (group.path / "cgroup.procs").read_text() == "0"
    assert group.wait_empty() == group.wait_empty(5.0) == "empty"
    group.allow_devices(["rule"])
    group.allow_devices(["rule"], flags=7)
    fd = group.fd
    assert waits == [
        (fd, "frozen", 1, 10.0), (fd, "frozen", 1, 3.0), (fd, "frozen", 0, 10.0), (fd, "frozen", 0, 4.0), (fd, None), (fd, 5.0),
        (fd, ["rule"], module.devices.ALLOW_MULTI), (fd, ["rule"], 7),
    ]  # fmt: skip


def test_what_does_not_freeze_or_thaw(group, monkeypatch):
    monkeypatch.setattr(module, "wait_for", lambda *_: False)
    with pytest.raises(CgroupError, match=r"^job did not freeze in 2\.5 s$") as caught:
        group.freeze(2.5)
    assert (group.path / "cgroup.freeze").read_text() == "0" and caught.value.subject == str(group.path)
    with pytest.raises(CgroupError, match=r"^job did not thaw$") as caught:
        group.thaw()
    assert caught.value.subject == str(group.path)


# -- the end


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A group with groups below it; ``empty``: what waiting for its last process says, and with how much time left it was asked."""
    path = tmp_path / "dockless" / "job"
    for name in ("a/b", "c"):
        (path / name).mkdir(parents=True)
    made = Cgroup(str(path), os.open(path, os.O_RDONLY | os.O_DIRECTORY))
    waits = []
    monkeypatch.setattr(module, "wait_empty", lambda fd, left: waits.append((fd, left)) or True)
    yield made, waits
    made.close()


def test_removed_with_what_is_below(tree):
    group, waits = tree
    fd = group.fd
    group.remove()
    assert not group.path.exists() and group.fd == -1 and waits[0][0] == fd and 4.0 < waits[0][1] <= 5.0
    group.remove()
    assert len(waits) == 1


def test_what_lives_is_named_and_left(tree, monkeypatch):
    group, _ = tree
    monkeypatch.setattr(module, "wait_empty", lambda *_: False)
    for time, (pids, said) in enumerate((([], "dying ones"), (range(1, 21), " ".join(map(str, range(1, 17)))))):
        (group.path / "a" / "b" / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        (group.path / "cgroup.procs").write_text("odd\n")
        with pytest.raises(CgroupError, match=f"^job still has processes: {said}$") as caught:
            group.remove(timeout=time)
        assert (caught.value.subject, caught.value.hint) == (str(group.path), "kill() first") and group.fd >= 0


def test_what_cannot_be_removed_is_tried_until_the_time_is_over(tree, monkeypatch):
    """Somebody may have put a process into it between two looks."""
    group, waits = tree
    (group.path / "c" / "file").touch()
    with pytest.raises(CgroupError, match=f"^cannot remove {group.path}: Directory not empty$") as caught:
        group.remove(timeout=0.0)
    assert caught.value.hint == "a process was added meanwhile: kill() first" and caught.value.subject == str(group.path)
    assert not (group.path / "a").exists() and waits == [(group.fd, 0.0)]
    tried = []

    def wait_empty(fd, left):
        tried.append(left)
        if len(tried) == 3:
            (group.path / "c" / "file").unlink()
        return True

    monkeypatch.setattr(module, "wait_empty", wait_empty)
    group.remove(timeout=60.0)
    assert len(tried) == 3 and not group.path.exists()


def test_what_is_below_comes_first_and_no_link_is_followed(tmp_path):
    (tmp_path / "x" / "a" / "b").mkdir(parents=True)
    (tmp_path / "x" / "link").symlink_to(tmp_path / "x" / "a")
    top = f"{tmp_path}/x"
    assert module._tree(top) == [f"{top}/a/b", f"{top}/a", top]
    assert module._tree(f"{top}/gone") == [f"{top}/gone"]


def test_leaving_the_block(group, tree, monkeypatch):
    """The usual case is one call; what does not go is killed first; an error of the cleaning up hides no other."""
    steps = []
    for name in ("kill", "remove"):
        monkeypatch.setattr(Cgroup, name, lambda self, name=name: steps.append(name))
    empty = Cgroup(str(group.path.parent / "empty"), os.open(group.path, os.O_RDONLY))
    empty.path.mkdir()
    with empty:
        pass
    assert steps == [] and empty.fd == -1 and not empty.path.exists()
    with empty:
        pass
    detached = Cgroup(str(group.path.parent / "detached"), os.open(group.path, os.O_RDONLY))
    detached.path.mkdir()
    with detached:
        detached.close()  # it lives on
    assert steps == [] and detached.path.exists()
    gone = Cgroup(str(group.path.parent / "gone"), os.open(group.path, os.O_RDONLY))
    with gone:
        pass
    assert steps == [] and gone.fd == -1
    with group:
        pass
    assert steps == ["kill", "remove"] and group.fd == -1

    def refused(self):
        raise CgroupError("planted")

    monkeypatch.setattr(Cgroup, "remove", refused)
    other, _ = tree
    with pytest.raises(CgroupError, match="planted"), other:
        pass
    assert other.fd == -1
    other.fd = os.open(other.path, os.O_RDONLY)
    with pytest.raises(ZeroDivisionError) as caught, other:
        _ = 1 / 0
    assert caught.value.__notes__ == ["and the group could not be cleaned up: planted"] and other.fd == -1
