"""Id maps: subordinate ranges as files say them, and the maps made of them. No namespace is made here."""

from __future__ import annotations

import errno
import itertools
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockless.base import idmaps
from dockless.base.idmaps import IdMap, Range
from dockless.errors import BadInput, IdMapError
from dockless.native import userns

FULL = [(0, 2**32 - 1)]


def test_ranges_by_name_and_by_number_in_order():
    data = b"me:300000:10\nother:100000:65536\n1000:500000:5\nme:100:7\n"
    assert idmaps.parse_subordinate(data, "me", 1000) == [(300000, 10), (500000, 5), (100, 7)]
    assert idmaps.parse_subordinate(data, None, 1000) == [(500000, 5)]
    assert idmaps.parse_subordinate(data, "nobody", 65534) == []


@pytest.mark.parametrize(
    "line",
    [
        b"me:1",
        b"me:1:2:3",
        b"me::5",
        b"me:5:",
        b"me:-1:5",
        b"me:5:-1",
        b"me:5:0",
        b"me:0x10:5",
        b"me: 5:5",
        b"me:4294967295:1",
        b"me:4294967294:2",
        b"me:1:99999999999999999999",
        b"#me:5:5",
        b"\xff\xfe:1:1",
        b"",
    ],
)
def test_malformed_lines_are_ignored(line):
    assert idmaps.parse_subordinate(line + b"\nme:100000:65536", "me", 1000) == [(100000, 65536)]


def test_overlapping_lines_are_used_once():
    assert idmaps.parse_subordinate(b"me:100:50\nme:149:10\nme:100:50\nme:150:10\n", "me", 1) == [(100, 50), (150, 10)]


def test_a_missing_file_is_an_empty_one(tmp_path):
    assert idmaps.subordinate_ranges(str(tmp_path / "none"), "me", 1) == []


def test_a_file_of_many_ranges():
    assert len(idmaps.parse_subordinate(b"".join(b"me:%d:1\n" % n for n in range(0, 4000, 2)), "me", 1)) == 2000


def test_lookups():
    idmap = IdMap((Range(0, 1000, 1), Range(1, 100000, 65535)), (Range(0, 1000, 1),))
    assert [idmap.outside_uid(n) for n in (0, 1, 65535, 65536)] == [1000, 100000, 165534, None]
    assert idmap.maps_uid(65535) and not idmap.maps_uid(65536) and not idmap.maps_uid(-1)
    assert idmap.maps_gid(0) and not idmap.maps_gid(1)
    assert idmap.root() == (1000, 1000) and IdMap((Range(5, 7, 1), Range(0, 8, 1)), (Range(0, 0, 1),)).root() == (8, 0)
    assert idmap.uid_text() == "0 1000 1\n1 100000 65535\n"
    assert idmap.gid_text() == "0 1000 1\n"
    idmap.require(65535, 0)
    for ids in ((65536, 0), (0, 1), (0, 0, [7])):
        with pytest.raises(IdMapError) as raised:
            idmap.require(*ids)
        assert raised.value.hint


def place(monkeypatch, tmp_path, subuid="", subgid=None, own=FULL):
    """This machine with other files and another map of its own."""
    for name, text in (("SUBUID", subuid), ("SUBGID", subuid if subgid is None else subgid)):
        path = tmp_path / name
        path.write_text(text)
        monkeypatch.setattr(idmaps, name, str(path))
    monkeypatch.setattr(idmaps, "_own_map", lambda kind: own)


def test_roots_map(monkeypatch, tmp_path):
    place(monkeypatch, tmp_path)
    assert idmaps._root_map() == IdMap((Range(0, 0x6FFF0000, 65536),), (Range(0, 0x6FFF0000, 65536),))
    place(monkeypatch, tmp_path, "dockless:200000:70000\n")
    assert idmaps._root_map().uids == (Range(0, 200000, 70000),)
    place(monkeypatch, tmp_path, "dockless:200000:70000\n", "")
    assert idmaps._root_map().uids == (Range(0, 0x6FFF0000, 65536),), "both files must name it"


def test_roots_map_inside_another_user_namespace(monkeypatch, tmp_path):
    place(monkeypatch, tmp_path, own=[(0, 65536)])
    assert idmaps._root_map().uids == (Range(0, 1, 65535),)
    place(monkeypatch, tmp_path, own=[(0, 200000)])
    assert idmaps._root_map().uids == (Range(0, 200000 - 65536, 65536),)
    place(monkeypatch, tmp_path, own=[(0, 1), (1, 65536), (70000, 10)])
    assert idmaps._root_map().uids == (Range(0, 11, 65526), Range(65526, 70000, 10))
    place(monkeypatch, tmp_path, own=[(0, 1)])
    assert idmaps._root_map() == IdMap((Range(0, 0, 1),), (Range(0, 0, 1),), single=True)


def test_a_users_map(monkeypatch, tmp_path):
    monkeypatch.setattr(idmaps, "user_name", lambda uid: "me")
    monkeypatch.setattr(idmaps, "_primary_gid", lambda uid: 1001)
    place(monkeypatch, tmp_path, "me:100000:65536\nme:300000:10\n", "1000:200000:5\n")
    assert idmaps._user_map(1000, direct=True) == IdMap(
        (Range(0, 1000, 1), Range(1, 100000, 65536), Range(65537, 300000, 10)), (Range(0, 1001, 1), Range(1, 200000, 5))
    )
    place(monkeypatch, tmp_path, "me:990:20\n", "me:1001:2\n")
    assert idmaps._user_map(1000, direct=True) == IdMap(
        (Range(0, 1000, 1), Range(1, 990, 10), Range(11, 1001, 9)), (Range(0, 1001, 1), Range(1, 1002, 1))
    ), "her own id is in the map once"
    place(monkeypatch, tmp_path, "me:100000:65536\n", "")
    assert idmaps._user_map(1000, direct=True) == IdMap((Range(0, 1000, 1),), (Range(0, 1001, 1),), single=True)
    place(monkeypatch, tmp_path, "me:100000:65536\n", own=[(0, 100010)])
    assert idmaps._user_map(1000, direct=True).uids == (Range(0, 1000, 1), Range(1, 100000, 10)), "only ids that exist here"


def test_without_the_tools_a_user_has_a_single_id(monkeypatch, tmp_path):
    monkeypatch.setattr(idmaps, "user_name", lambda uid: "me")
    monkeypatch.setattr(idmaps, "_primary_gid", lambda uid: 1001)
    place(monkeypatch, tmp_path, "me:100000:65536\n")
    monkeypatch.setattr(idmaps, "_TOOL_PLACES", (str(tmp_path),))
    made = idmaps._user_map(1000, direct=False)
    assert made.single and made.uids == (Range(0, 1000, 1),) and made.gids == (Range(0, os.getegid(), 1),)


def test_tools_of_strangers_are_not_used(monkeypatch, tmp_path):
    monkeypatch.setattr(idmaps, "_TOOL_PLACES", (str(tmp_path),))
    tool = tmp_path / "newuidmap"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    assert idmaps.find_tool("newuidmap") is None, "neither set-user-id nor with a capability"
    tool.chmod(0o4757)
    assert idmaps.find_tool("newuidmap") is None, "anyone may write it"
    (tmp_path / "newgidmap").mkdir()
    assert idmaps.find_tool("newgidmap") is None
    tool.chmod(0o4755)
    assert idmaps.find_tool("newuidmap") == (str(tool) if os.geteuid() == 0 else None)


def test_maps_never_grow_beyond_what_the_kernel_takes():
    assert len(idmaps._lay_out([(n * 2, 1) for n in range(100_000)])) == 340
    laid = idmaps._lay_out([(0, 2**32 - 1), (5, 5)])
    assert sum(r.count for r in laid) <= 2**32 - 1


@given(st.lists(st.tuples(st.integers(0, 2**32 - 2), st.integers(1, 2**32 - 2)), max_size=12), st.integers(0, 2**32 - 2))
def test_a_laid_out_map_is_one_the_kernel_takes(pieces, own):
    data = b"".join(b"me:%d:%d\n" % piece for piece in pieces)
    ranges = idmaps._without(idmaps.parse_subordinate(data, "me", -1), own)
    laid = idmaps._lay_out([(own, 1), *ranges])
    outside = sorted((r.outside, r.outside + r.count) for r in laid)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(outside))
    position = 0
    for r in laid:
        assert r.inside == position and r.count > 0 and r.outside + r.count <= 2**32 - 1
        position += r.count
    assert position <= 2**32 - 1


def test_the_advice_is_a_line_to_type(monkeypatch, tmp_path):
    monkeypatch.setattr(idmaps, "user_name", lambda uid: "me")
    place(monkeypatch, tmp_path, "other:100000:65536\nthird:165536:65536\n")
    assert "usermod --add-subuids 231072-296607 --add-subgids 231072-296607 me" in idmaps.range_problem(1000)
    place(monkeypatch, tmp_path, "me:100000:65536\n")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(idmaps, "_TOOL_PLACES", ())
    assert "apt install uidmap" in idmaps.range_problem(1000)


@pytest.mark.parametrize(
    "name, value, text",
    [
        ("user/max_user_namespaces", 0, "sysctl -w user.max_user_namespaces="),
        ("kernel/unprivileged_userns_clone", 0, "sysctl -w kernel.unprivileged_userns_clone=1"),
        ("kernel/apparmor_restrict_unprivileged_userns", 1, "AppArmor"),
    ],
)
def test_the_setting_that_forbids_namespaces_is_named(monkeypatch, name, value, text):
    monkeypatch.setattr(userns, "_sysctl", lambda asked: value if asked == name else None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert text in userns.namespace_problem()


def test_only_root_asks_for_others(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(IdMapError, match="only root"):
        idmaps.default_map(1001)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(BadInput):
        idmaps.default_map(2**32 - 1)
    with pytest.raises(IdMapError, match="no user has the id"):
        idmaps.default_map(1999999999)


# -- edges ---------------------------------------------------------------------------------------------------------------------------

LAST = 2**32 - 2


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"me:4294967294:1", [(LAST, 1)]),
        (b"me:4294967293:2", [(LAST - 1, 2)]),
        (b"me:0:4294967295", [(0, LAST + 1)]),
        (b"me:0:4294967296", []),
        (b"me:1:4294967295", []),
        (b"me:0000000005:1", [(5, 1)]),
        (b"me:00000000005:1", []),
        (b"  me:5:1\r", [(5, 1)]),
        (b"me:5:2\nme:4:1\nme:7:1", [(5, 2), (4, 1), (7, 1)]),
        (b"me:5:2\nme:4:2", [(5, 2)]),
        (b"me:5:2\nme:6:2", [(5, 2)]),
        (b"me:5:9\nme:6:2", [(5, 9)]),
        (b"me:6:2\nme:5:9", [(6, 2)]),
    ],
)
def test_the_last_ids_of_a_line(line, found):
    assert idmaps.parse_subordinate(line, "me", 1) == found


def test_names_that_are_no_text():
    assert idmaps.parse_subordinate(b"m\xff:5:1\n1:7:1", "m\udcff", 1) == [(5, 1), (7, 1)]
    assert idmaps.parse_subordinate(b":5:1", "", 1) == []


@pytest.mark.parametrize(
    ("pieces", "own", "found"),
    [
        ([(10, 5)], [(0, 100)], [(10, 5)]),
        ([(10, 5)], [(0, 10), (15, 5)], []),
        ([(10, 5)], [(0, 11), (14, 5)], [(10, 1), (14, 1)]),
        ([(10, 5)], [(0, 12), (12, 5)], [(10, 5)]),
        ([(10, 5), (15, 5)], [(0, 100)], [(10, 10)]),
        ([(10, 5), (16, 5)], [(0, 100)], [(10, 5), (16, 5)]),
        ([(15, 5), (10, 5)], [(12, 6)], [(15, 3), (12, 3)]),
        ([], [(0, 5)], []),
    ],
)
def test_ids_that_exist_here(pieces, own, found):
    assert idmaps._intersect(pieces, own) == found


@pytest.mark.parametrize(
    ("pieces", "number", "left"),
    [
        ([(10, 5)], 9, [(10, 5)]),
        ([(10, 5)], 10, [(11, 4)]),
        ([(10, 5)], 12, [(10, 2), (13, 2)]),
        ([(10, 5)], 14, [(10, 4)]),
        ([(10, 5)], 15, [(10, 5)]),
        ([(10, 1), (20, 1)], 10, [(20, 1)]),
    ],
)
def test_ids_less_one(pieces, number, left):
    assert idmaps._without(pieces, number) == left


@pytest.mark.parametrize(
    ("own", "top"),
    [
        ([(0, 1)], []),
        ([(0, 2)], [(1, 1)]),
        ([(0, 65537)], [(1, 65536)]),
        ([(0, 65538)], [(2, 65536)]),
        ([(5, 10), (100, 65530)], [(9, 6), (100, 65530)]),
        ([(5, 10), (15, 65530)], [(9, 65536)]),
        ([(5, 10), (100, 65536)], [(100, 65536)]),
    ],
)
def test_the_top_of_the_ids_that_there_are(own, top):
    assert idmaps._top(own) == top


def test_what_is_laid_out():
    assert idmaps._lay_out([(7, 2), (20, 3)]) == (Range(0, 7, 2), Range(2, 20, 3))
    assert idmaps._lay_out([(0, LAST), (LAST, 1), (5, 5)]) == (Range(0, 0, LAST), Range(LAST, LAST, 1))
    assert idmaps._lay_out([(0, LAST + 1), (5, 5)]) == (Range(0, 0, LAST + 1),)
    assert len(idmaps._lay_out([(2 * n, 1) for n in range(340)])) == 340


def test_the_ids_of_this_process():
    for kind in ("uid", "gid"):
        lines = [line.split() for line in Path(f"/proc/self/{kind}_map").read_text().splitlines()]
        assert idmaps._own_map(kind) == sorted((int(inside), int(count)) for inside, _, count in lines)
    assert idmaps._own_map("no") == [(0, LAST + 1)]


def test_roots_range_must_be_whole_here(monkeypatch, tmp_path):
    """Of a range of which only a part exists, nothing is taken: in both maps."""
    line = "dockless:200000:10\n"
    usual = (Range(0, idmaps.ROOT_BASE, 65536),)
    place(monkeypatch, tmp_path, line)
    for short in ("uid", "gid"):
        monkeypatch.setattr(idmaps, "_own_map", lambda kind, short=short: [(0, 200_005), (200_009, LAST)] if kind == short else FULL)
        assert idmaps._root_map() == IdMap(usual, usual)
    for short in ("uid", "gid"):
        monkeypatch.setattr(idmaps, "_own_map", lambda kind, short=short: [(0, 3)] if kind == short else FULL)
        made = idmaps._root_map()
        assert [made.uids, made.gids][short == "gid"] == (Range(0, 1, 2),)
        assert [made.gids, made.uids][short == "gid"] == (Range(0, LAST + 1 - 65536, 65536),)
        assert not made.single


def test_what_is_missing_is_named():
    one = IdMap((Range(0, 1000, 1),), (Range(0, 1000, 1), Range(1, 5000, 9)))
    one.require(0, 9, (3, 0))
    for ids, said, subject in (
        ((1, 0), "user id 1 does not exist in this sandbox: its map has 1 id", "1"),
        ((0, 10), "group id 10 does not exist in this sandbox: its map has 10 ids", "10"),
        ((0, 0, (4, 11)), "group id 11 does not exist in this sandbox: its map has 10 ids", "11"),
    ):
        with pytest.raises(IdMapError) as caught:
            one.require(*ids)
        assert (str(caught.value).splitlines()[0], caught.value.subject) == (said, subject)


def test_how_to_get_more_ids(monkeypatch, tmp_path):
    place(monkeypatch, tmp_path, "1000:100000:65536\n")
    roots, hers = IdMap((Range(0, idmaps.ROOT_BASE, 9),), ()), IdMap((Range(0, 1000, 1),), ())
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert roots._how_to_grow() == f"give the user 'dockless' a larger range in {idmaps.SUBUID} and {idmaps.SUBGID}"
    larger = f"add a larger range to {idmaps.SUBUID} and {idmaps.SUBGID}"
    assert hers._how_to_grow() == larger
    place(monkeypatch, tmp_path, "")
    assert "has no range in" in hers._how_to_grow()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "has no range in" in roots._how_to_grow(), "they are not root's own"
    monkeypatch.setattr(idmaps, "user_name", lambda uid: None)
    assert IdMap((Range(5, 7, 1),), ())._how_to_grow().startswith("1000 has no range in"), "without an id 0 it is the caller's"


@pytest.mark.parametrize(
    ("subuid", "subgid", "start"),
    [
        ("", "", 100000),
        ("a:5:5\n", "", 100000),
        ("a:100000:65536\n", "b:300000:7\n", 300007),
        ("a:300000:7\n", "b:100000:65536\n", 300007),
        ("a:300000\nb:300000:7:1\nc:x:y\n", "", 100000),
        (f"a:{idmaps.ROOT_BASE - 65536 - 1}:0\n", "", idmaps.ROOT_BASE - 65536 - 1),
        (f"a:{idmaps.ROOT_BASE - 65536}:0\n", "", 100000),
    ],
)
def test_the_range_that_is_advised_is_free(monkeypatch, tmp_path, subuid, subgid, start):
    place(monkeypatch, tmp_path, subuid, subgid)
    assert idmaps._free_start() == start
    monkeypatch.setattr(idmaps, "user_name", lambda uid: None)
    assert idmaps.range_problem(4321) == (
        f"4321 has no range in {idmaps.SUBUID}; as root: usermod --add-subuids {start}-{start + 65535} "
        f"--add-subgids {start}-{start + 65535} 4321"
    )
    (tmp_path / "SUBUID").unlink()
    (tmp_path / "SUBGID").unlink()
    assert idmaps._free_start() == 100000


def test_the_file_that_lacks_a_range_is_named(monkeypatch, tmp_path):
    place(monkeypatch, tmp_path, "1000:100000:5\n0:200000:5\n", "0:200000:5\n")
    assert f"has no range in {idmaps.SUBGID}" in idmaps.range_problem(1000)
    monkeypatch.setattr(idmaps, "_TOOL_PLACES", ())
    assert idmaps.range_problem(0) is None, "root writes maps herself"
    place(monkeypatch, tmp_path, "1000:100000:5\n")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert idmaps.range_problem(1000) is None, "and others'"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for missing in ("newuidmap", "newgidmap"):
        monkeypatch.setattr(idmaps, "find_tool", lambda tool, missing=missing: None if tool == missing else "/x")
        assert idmaps.range_problem(1000).startswith(f"{missing} is not installed")
    monkeypatch.setattr(idmaps, "find_tool", lambda tool: "/x")
    assert idmaps.range_problem(1000) is None


@pytest.mark.parametrize(
    ("setting", "value", "forbids", "root_too"),
    [
        ("user/max_user_namespaces", 0, True, True), ("user/max_user_namespaces", 1, False, False),
        ("kernel/unprivileged_userns_clone", 0, True, False), ("kernel/unprivileged_userns_clone", 1, False, False),
        ("kernel/apparmor_restrict_unprivileged_userns", 1, True, False),
        ("kernel/apparmor_restrict_unprivileged_userns", 0, False, False),
    ],
)  # fmt: skip
def test_which_settings_forbid_namespaces_to_whom(monkeypatch, setting, value, forbids, root_too):
    monkeypatch.setattr(userns, "_sysctl", lambda asked: value if asked == setting else None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert (userns.namespace_problem() is not None) == forbids
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert (userns.namespace_problem() is not None) == root_too


def test_settings_that_are_no_numbers():
    assert userns._sysctl("kernel/pid_max") == int(Path("/proc/sys/kernel/pid_max").read_text())
    assert userns._sysctl("kernel/ostype") is userns._sysctl("kernel/no_such") is None


def test_why_a_namespace_could_not_be_made(monkeypatch):
    monkeypatch.setattr(userns, "namespace_problem", lambda: None)
    why = {number: userns._why(OSError(number, "")) for number in (errno.ENOSPC, errno.EAGAIN, errno.EPERM, errno.EINVAL)}
    assert "nested too deep" in why[errno.ENOSPC] and "security module" in why[errno.EPERM] and "doctor" in why[errno.EINVAL]
    assert len(set(why.values())) == 4
    monkeypatch.setattr(userns, "namespace_problem", lambda: "switched off")
    assert {userns._why(OSError(number, "")) for number in why} == {"switched off"}


def test_whose_map_it_is(monkeypatch):
    monkeypatch.setattr(idmaps, "_root_map", lambda: "root's")
    monkeypatch.setattr(idmaps, "_user_map", lambda uid, *, direct: (uid, direct))
    for caller, asked, made in (
        (0, None, "root's"),
        (0, 0, "root's"),
        (7, None, (7, False)),
        (7, 7, (7, False)),
        (0, 7, (7, True)),
        (0, LAST, (LAST, True)),
    ):
        monkeypatch.setattr(os, "geteuid", lambda caller=caller: caller)
        assert idmaps.default_map(asked) == made
    for asked in (-1, LAST + 1):
        with pytest.raises(BadInput, match="cannot be mapped"):
            idmaps.default_map(asked)


def test_the_group_of_a_user_without_a_name(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1_999_999)
    assert idmaps._primary_gid(1_999_999) == os.getegid()
    assert idmaps._primary_gid(0) == 0
    assert (idmaps.user_name(0), idmaps.user_name(1_999_999)) == ("root", None)


@pytest.mark.parametrize("both", [("newuidmap", "newgidmap"), ("newuidmap",), ("newgidmap",), ()])
def test_a_larger_map_needs_both_tools(monkeypatch, tmp_path, both):
    monkeypatch.setattr(idmaps, "user_name", lambda uid: "me")
    monkeypatch.setattr(idmaps, "_primary_gid", lambda uid: 1001)
    monkeypatch.setattr(idmaps, "find_tool", lambda tool: tool if tool in both else None)
    place(monkeypatch, tmp_path, "me:100000:65536\n")
    assert idmaps._user_map(1000, direct=False).single == (len(both) < 2)
    assert not idmaps._user_map(1000, direct=True).single
    place(monkeypatch, tmp_path, "", "me:100000:65536\n")
    alone = idmaps._user_map(1000, direct=True)
    assert (alone.uids, alone.gids, alone.single) == ((Range(0, 1000, 1),), (Range(0, 1001, 1),), True)


# -- the tools -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes what belongs to root")
def test_tools_that_are_used(monkeypatch, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
        (directory / "newuidmap").touch()
        (directory / "newuidmap").chmod(0o4755)
    monkeypatch.setattr(idmaps, "_TOOL_PLACES", (str(tmp_path / "none"), str(first), str(second)))
    tool = first / "newuidmap"
    assert idmaps.find_tool("newuidmap") == str(tool)
    for mode in (0o4775, 0o4757, 0o755, 0o2755):
        tool.chmod(mode)
        assert idmaps.find_tool("newuidmap") == str(second / "newuidmap"), oct(mode)
    os.chown(tool, 1000, 0)
    tool.chmod(0o4755)
    assert idmaps.find_tool("newuidmap") == str(second / "newuidmap")
    os.chown(tool, 0, 0)
    tool.chmod(0o755)
    os.setxattr(tool, "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 7, 0, 0, 0))
    assert idmaps.find_tool("newuidmap") == str(tool)


def script(path, text: str) -> str:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def test_how_the_tools_are_called(monkeypatch, tmp_path):
    """Groups first; nothing of the caller's environment, directory or input."""
    said = tmp_path / "said"
    for tool in ("newgidmap", "newuidmap"):
        script(tmp_path / tool, f'echo "{tool} $* $(pwd) ${{HOME-none}} $(cat | wc -c)" >> {said}; echo out; echo err >&2\n')
    monkeypatch.setattr(idmaps, "find_tool", lambda tool: str(tmp_path / tool))
    userns._run_tools(77, IdMap((Range(0, 1000, 1), Range(1, 5000, 9)), (Range(0, 1001, 1),)))
    assert said.read_text().splitlines() == ["newgidmap 77 0 1001 1 / none 0", "newuidmap 77 0 1000 1 1 5000 9 / none 0"]
    for tool in ("newgidmap", "newuidmap"):
        monkeypatch.setattr(idmaps, "find_tool", lambda asked, tool=tool: None if asked == tool else str(tmp_path / asked))
        with pytest.raises(IdMapError, match=f"{tool} is not installed") as caught:
            userns._run_tools(77, IdMap((), ()))
        assert caught.value.subject == tool


def test_what_a_tool_says_when_it_fails(monkeypatch, tmp_path):
    place(monkeypatch, tmp_path, "")
    monkeypatch.setattr(idmaps, "user_name", lambda uid: "me")
    loud = script(tmp_path / "loud", "printf '%0500d' 7 >&2; exit 1")
    with pytest.raises(IdMapError) as caught:
        userns._run_tool(loud, [], "/etc/subuid")
    assert str(caught.value).splitlines()[0] == f"{loud} refused the id map: {'0' * 400}"
    assert "me has no range" in caught.value.hint
    place(monkeypatch, tmp_path, "me:1:1\n")
    monkeypatch.setattr(idmaps, "find_tool", lambda tool: "/x")
    quiet = script(tmp_path / "quiet", "exit 3")
    with pytest.raises(IdMapError, match=r"refused the id map: exit code 3") as caught:
        userns._run_tool(quiet, [], "/etc/subgid")
    assert caught.value.hint == "the ranges asked for are not all me's in /etc/subgid"
    monkeypatch.setattr(userns, "_TOOL_TIMEOUT", 0.01)
    with pytest.raises(IdMapError, match=r"did not end within 0\.01 seconds"):
        userns._run_tool(script(tmp_path / "slow", "exec sleep 60"), [], "/etc/subgid")


def test_a_descriptor_is_known_by_what_it_is(tmp_path):
    fd = os.open(tmp_path, os.O_RDONLY)
    found = os.stat(tmp_path)
    assert userns._identity(fd) == (found.st_dev, found.st_ino)
    os.close(fd)
    assert userns._identity(fd) is None
