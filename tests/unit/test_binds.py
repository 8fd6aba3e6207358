"""Whose rights root's own binds give: what is looked at, and what it decides. What the kernel does: integration/test_sandbox_mounts.py."""

from __future__ import annotations

import os
import stat
from types import SimpleNamespace

import pytest

from dockless.base.idmaps import IdMap, Range
from dockless.sandbox import binds
from dockless.sandbox.features import Features
from dockless.sandbox.spec import Bind, Namespaces, Spec, Tmpfs

MAP = IdMap((Range(0, 100_000, 10),), (Range(0, 200_000, 10),))
DATA = Bind("/data", "/x")
DIRECTORY, FILE = stat.S_IFDIR, stat.S_IFREG


class Person(binds._Person):
    """Somebody whose group has others in it, or not."""

    __slots__ = ()
    alone = False

    def is_alone(self) -> bool:
        return self.alone


class Alone(Person):
    __slots__ = ()
    alone = True


SHE, ALONE = Person(1000, 1000, "she"), Alone(1000, 1000, "she")


def above(uid: int, mode: int, gid: int = 0) -> SimpleNamespace:
    return SimpleNamespace(st_uid=uid, st_gid=gid, st_mode=DIRECTORY | mode)


@pytest.mark.parametrize(
    ("mode", "readonly", "may"),
    [
        (FILE | 0o006, False, True), (FILE | 0o004, False, False), (FILE | 0o004, True, True), (FILE | 0o002, True, False),
        (FILE | 0o770, False, False), (DIRECTORY | 0o007, False, True), (DIRECTORY | 0o006, False, False),
        (DIRECTORY | 0o005, False, False), (DIRECTORY | 0o005, True, True), (DIRECTORY | 0o004, True, False),
        (DIRECTORY | 0o001, True, False),
    ],
)  # fmt: skip
def test_what_everybody_may(mode, readonly, may):
    assert binds._everybody_may(mode, readonly) == may


@pytest.mark.parametrize(
    ("place", "who", "safe"),
    [
        (above(0, 0o755), SHE, True), (above(1000, 0o755), SHE, True), (above(1001, 0o755), SHE, False), (above(1001, 0o1755), SHE, False),
        (above(0, 0o777), SHE, False), (above(0, 0o1777), SHE, True), (above(0, 0o702), SHE, False), (above(0, 0o720), SHE, False),
        (above(1000, 0o770, 1000), SHE, False), (above(1000, 0o770, 1000), ALONE, True), (above(1000, 0o770, 1001), ALONE, False),
        (above(1000, 0o772, 1000), ALONE, False), (above(0, 0o1720), SHE, True),
    ],
)  # fmt: skip
def test_who_decides_what_lies_at_a_path(tmp_path, monkeypatch, place, who, safe):
    """Each directory above counts, and no link may be on the way."""
    for places in ([place], [above(0, 0o755), place], [place, above(0, 0o755)]):
        monkeypatch.setattr(binds, "_above", lambda path, places=places: iter(places))
        assert binds._theirs(str(tmp_path), who) == safe
    (tmp_path / "link").symlink_to(tmp_path)
    assert not binds._theirs(str(tmp_path / "link"), who)
    assert binds._theirs(f"{tmp_path}/./x/..", who) == safe


@pytest.mark.parametrize(
    ("place", "who", "closed"),
    [
        (above(0, 0o700), SHE, True), (above(1000, 0o766), SHE, True), (above(1001, 0o700), SHE, False), (above(0, 0o710), SHE, False),
        (above(0, 0o701), SHE, False), (above(0, 0o711), SHE, False), (above(1000, 0o710, 1000), ALONE, True),
        (above(1000, 0o711, 1000), ALONE, False), (above(1000, 0o710, 1001), ALONE, False), (above(1000, 0o710, 1000), SHE, False),
    ],
)  # fmt: skip
def test_what_keeps_others_out(monkeypatch, place, who, closed):
    """One directory above is enough."""
    for places, expected in (
        ([place], closed),
        ([above(0, 0o755), place], closed),
        ([above(0, 0o700), place], True),
        ([above(0, 0o755)], False),
        ([], False),
    ):
        monkeypatch.setattr(binds, "_above", lambda path, places=places: iter(places))
        assert binds._closed("/x", who) == expected


def test_the_directories_above(tmp_path):
    found = list(binds._above(str(tmp_path / "not there")))
    assert found[0].st_ino == tmp_path.lstat().st_ino and found[-1].st_ino == os.lstat("/").st_ino
    assert len(found) == len(tmp_path.parts)
    assert list(binds._above("/")) == []


@pytest.mark.parametrize(
    ("mode", "gid", "bits"),
    [(0o770, 1000, 0o070), (0o720, 1000, 0o070), (0o710, 1000, 0o070), (0o740, 1000, 0), (0o707, 1000, 0), (0o770, 1001, 0)],
)
def test_the_bits_of_a_group_of_one(mode, gid, bits):
    assert binds._own_bits(above(0, mode, gid), ALONE) == bits
    assert binds._own_bits(above(0, mode, gid), SHE) == 0


def test_who_else_is_in_a_group(monkeypatch):
    import grp
    import pwd

    def accounts(members: list[str], *primary: tuple[int, int]) -> None:
        monkeypatch.setattr(grp, "getgrgid", lambda gid: SimpleNamespace(gr_mem=members))
        monkeypatch.setattr(pwd, "getpwall", lambda: [SimpleNamespace(pw_uid=uid, pw_gid=gid) for uid, gid in primary])

    she = binds._Person(1000, 1000, "she")
    for members, primary, alone in (
        ([], [(1000, 1000)], True),
        (["she"], [(1000, 1000), (1001, 1001)], True),
        (["she", "he"], [(1000, 1000)], False),
        (["he"], [], False),
        ([], [(1000, 1000), (1001, 1000)], False),
        ([], [], True),
    ):
        accounts(members, *primary)
        assert she.is_alone() == alone

    def missing(gid: int) -> None:
        raise KeyError(gid)

    for primary, alone in (((1001, 1000), False), ((1001, 1001), True)):
        accounts(["he"], primary)
        monkeypatch.setattr(grp, "getgrgid", missing)
        assert she.is_alone() == alone


def test_one_owner_alone():
    assert binds._only(SHE, MAP) == IdMap((Range(1000, 100_000, 1),), (Range(1000, 200_000, 1),))


@pytest.fixture
def grant(tmp_path, monkeypatch):
    """What a bind of a directory gets, where all is well but for what a test changes."""
    facts = {"st_uid": 1000, "st_gid": 1000, "st_mode": DIRECTORY | 0o700}
    monkeypatch.setattr(binds, "os", SimpleNamespace(**{**vars(os), "stat": lambda path: SimpleNamespace(**facts)}))
    monkeypatch.setattr(binds, "namespace_fd", lambda idmap: 77)
    answers = {"accepts_idmap": True, "_person": SHE, "_theirs": True, "_closed": True}
    for name in answers:
        monkeypatch.setattr(binds, name, lambda *arguments, name=name: answers[name])

    def of(mount: Bind | Tmpfs = DATA, *, untrusted: bool = False, **changes: object) -> binds.Grant:
        facts.update({name: value for name, value in changes.items() if name in facts})
        answers.update({name: value for name, value in changes.items() if name in answers})
        return binds.grant(mount, MAP, untrusted=untrusted)

    return of


def test_what_its_owner_gets(grant):
    assert grant() == binds.Grant(IdMap((Range(1000, 100_000, 1),), (Range(1000, 200_000, 1),)))


def test_what_roots_gets(grant):
    assert grant(st_uid=0, _person=binds._Person(0, 0, "root")) == binds.Grant(MAP)


@pytest.mark.parametrize("mount", [Tmpfs("/x"), Bind("/data", "/x", idmap=True), Bind("/data", "/x", idmap=False)])
def test_what_is_asked_for_or_needs_nothing(grant, mount):
    assert grant(mount) == binds.Grant()


@pytest.mark.parametrize(("uid", "inside"), [(99_999, False), (100_000, True), (100_009, True), (100_010, False)])
def test_owners_that_the_sandbox_has(grant, uid, inside):
    assert (grant(st_uid=uid) == binds.Grant()) == inside


def test_what_everybody_may_needs_nothing(grant):
    assert grant(st_mode=DIRECTORY | 0o007) == binds.Grant()
    assert grant(Bind("/data", "/x", readonly=True), st_mode=DIRECTORY | 0o005) == binds.Grant()
    assert grant(Bind("/data", "/x"), st_mode=DIRECTORY | 0o005) != binds.Grant()


SO = "so does lying in a directory that only its owner can enter (mode 0700)"
HELPS = "/data:/x:idmap gives the sandbox root's rights over it"
READ_ONLY = "/data:/x:ro says that it is to be read only"
LETS = "/data:/x:ro lets it be read"
VOLUME = "a named volume belongs to the sandbox"


@pytest.mark.parametrize(
    ("changes", "why", "ways"),
    [
        ({"untrusted": True}, "the untrusted profile gives no rights over it", [VOLUME]),
        ({"accepts_idmap": False}, "its file system cannot map owners", [VOLUME]),
        ({"_person": None}, "its owner is no user of this host", [HELPS, VOLUME]),
        ({"_theirs": False}, "others may decide what lies at this path", [HELPS, VOLUME]),
        ({"_closed": False}, "no directory above it keeps others out", [HELPS, SO, LETS, VOLUME]),
    ],
)
def test_why_it_gets_nothing(grant, changes, why, ways):
    given = grant(**changes)
    assert given.idmap is None
    said, _, rest = given.warning.partition(": ")
    assert said == "/data belongs to 1000:1000 and cannot be read or changed inside"
    assert rest.startswith(why) and rest.endswith("; " + ", ".join(ways))
    readable = grant(**{**changes, "st_mode": DIRECTORY | 0o755})
    assert readable.warning.startswith("/data belongs to 1000:1000 and cannot be changed inside: ")
    assert readable.warning.endswith(", ".join([*(way for way in ways if way not in (LETS, VOLUME)), READ_ONLY, VOLUME]))


def test_what_is_only_read(grant):
    """Nobody can be given it, so what keeps others out does not matter."""
    readonly = Bind("/data", "/x", readonly=True)
    assert grant(readonly, _closed=False).idmap is not None
    assert grant(readonly, _theirs=False).warning.startswith("/data belongs to 1000:1000 and cannot be read inside: ")


def test_what_is_not_there(grant, monkeypatch):
    def missing(path: str) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(binds, "os", SimpleNamespace(**{**vars(os), "stat": missing}))
    assert grant() == binds.Grant()


@pytest.mark.parametrize(
    ("spec", "owner", "uid", "admin", "asked"),
    [
        ({}, None, 0, True, True), ({}, 0, 0, True, True), ({}, 7, 0, True, False), ({}, None, 7, True, False), ({}, None, 0, False, False),
        ({"namespaces": Namespaces(user="host")}, None, 0, True, False), ({"profile": "privileged"}, None, 0, True, False),
        ({"mounts": ()}, None, 0, True, False), ({"profile": "untrusted"}, None, 0, True, True),
    ],
)  # fmt: skip
def test_who_is_asked_about(monkeypatch, spec, owner, uid, admin, asked):
    seen = []
    monkeypatch.setattr(binds.os, "geteuid", lambda: uid)
    monkeypatch.setattr(binds, "probe", lambda: Features("6.18.0", "x86_64", sys_admin=admin))
    monkeypatch.setattr(binds, "default_map", lambda: MAP)
    monkeypatch.setattr(binds, "grant", lambda mount, idmap, *, untrusted: seen.append((mount.target, idmap, untrusted)) or binds.Grant())
    given = binds.grants(Spec(**{"argv": ("x",), "mounts": (Bind("/", "/a"), Bind("/", "/b")), **spec}), owner)
    expected = [(target, MAP, spec.get("profile") == "untrusted") for target in ("/a", "/b")] if asked else []
    assert seen == expected and len(given) == len(expected)
