"""Id maps: subordinate ranges as files say them, and the maps made of them. No namespace is made here."""

from __future__ import annotations

import itertools
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockless.errors import BadInput, IdMapError
from dockless.native import userns
from dockless.native.userns import IdMap, Range

FULL = [(0, 2**32 - 1)]


def test_ranges_by_name_and_by_number_in_order():
    data = b"me:300000:10\nother:100000:65536\n1000:500000:5\nme:100:7\n"
    assert userns.parse_subordinate(data, "me", 1000) == [(300000, 10), (500000, 5), (100, 7)]
    assert userns.parse_subordinate(data, None, 1000) == [(500000, 5)]
    assert userns.parse_subordinate(data, "nobody", 65534) == []


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
    assert userns.parse_subordinate(line + b"\nme:100000:65536", "me", 1000) == [(100000, 65536)]


def test_overlapping_lines_are_used_once():
    assert userns.parse_subordinate(b"me:100:50\nme:149:10\nme:100:50\nme:150:10\n", "me", 1) == [(100, 50), (150, 10)]


def test_a_missing_file_is_an_empty_one(tmp_path):
    assert userns.subordinate_ranges(str(tmp_path / "none"), "me", 1) == []


def test_huge_files_end_soon():
    start = time.perf_counter()
    assert len(userns.parse_subordinate(b"".join(b"me:%d:1\n" % n for n in range(0, 4000, 2)), "me", 1)) == 2000
    assert time.perf_counter() - start < 5


def test_lookups():
    idmap = IdMap((Range(0, 1000, 1), Range(1, 100000, 65535)), (Range(0, 1000, 1),))
    assert [idmap.outside_uid(n) for n in (0, 1, 65535, 65536)] == [1000, 100000, 165534, None]
    assert idmap.maps_uid(65535) and not idmap.maps_uid(65536) and not idmap.maps_uid(-1)
    assert idmap.maps_gid(0) and not idmap.maps_gid(1)
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
        monkeypatch.setattr(userns, name, str(path))
    monkeypatch.setattr(userns, "_own_map", lambda kind: own)


def test_roots_map(monkeypatch, tmp_path):
    place(monkeypatch, tmp_path)
    assert userns._root_map() == IdMap((Range(0, 0x6FFF0000, 65536),), (Range(0, 0x6FFF0000, 65536),))
    place(monkeypatch, tmp_path, "dockless:200000:70000\n")
    assert userns._root_map().uids == (Range(0, 200000, 70000),)
    place(monkeypatch, tmp_path, "dockless:200000:70000\n", "")
    assert userns._root_map().uids == (Range(0, 0x6FFF0000, 65536),), "both files must name it"


def test_roots_map_inside_another_user_namespace(monkeypatch, tmp_path):
    place(monkeypatch, tmp_path, own=[(0, 65536)])
    assert userns._root_map().uids == (Range(0, 1, 65535),)
    place(monkeypatch, tmp_path, own=[(0, 200000)])
    assert userns._root_map().uids == (Range(0, 200000 - 65536, 65536),)
    place(monkeypatch, tmp_path, own=[(0, 1), (1, 65536), (70000, 10)])
    assert userns._root_map().uids == (Range(0, 11, 65526), Range(65526, 70000, 10))
    place(monkeypatch, tmp_path, own=[(0, 1)])
    assert userns._root_map() == IdMap((Range(0, 0, 1),), (Range(0, 0, 1),), single=True)


def test_a_users_map(monkeypatch, tmp_path):
    monkeypatch.setattr(userns, "_name", lambda uid: "me")
    monkeypatch.setattr(userns, "_primary_gid", lambda uid: 1001)
    place(monkeypatch, tmp_path, "me:100000:65536\nme:300000:10\n", "1000:200000:5\n")
    assert userns._user_map(1000, direct=True) == IdMap(
        (Range(0, 1000, 1), Range(1, 100000, 65536), Range(65537, 300000, 10)), (Range(0, 1001, 1), Range(1, 200000, 5))
    )
    place(monkeypatch, tmp_path, "me:990:20\n", "me:1001:2\n")
    assert userns._user_map(1000, direct=True) == IdMap(
        (Range(0, 1000, 1), Range(1, 990, 10), Range(11, 1001, 9)), (Range(0, 1001, 1), Range(1, 1002, 1))
    ), "her own id is in the map once"
    place(monkeypatch, tmp_path, "me:100000:65536\n", "")
    assert userns._user_map(1000, direct=True) == IdMap((Range(0, 1000, 1),), (Range(0, 1001, 1),), single=True)
    place(monkeypatch, tmp_path, "me:100000:65536\n", own=[(0, 100010)])
    assert userns._user_map(1000, direct=True).uids == (Range(0, 1000, 1), Range(1, 100000, 10)), "only ids that exist here"


def test_without_the_tools_a_user_has_a_single_id(monkeypatch, tmp_path):
    monkeypatch.setattr(userns, "_name", lambda uid: "me")
    monkeypatch.setattr(userns, "_primary_gid", lambda uid: 1001)
    place(monkeypatch, tmp_path, "me:100000:65536\n")
    monkeypatch.setattr(userns, "_TOOL_PLACES", (str(tmp_path),))
    made = userns._user_map(1000, direct=False)
    assert made.single and made.uids == (Range(0, 1000, 1),) and made.gids == (Range(0, os.getegid(), 1),)


def test_tools_of_strangers_are_not_used(monkeypatch, tmp_path):
    monkeypatch.setattr(userns, "_TOOL_PLACES", (str(tmp_path),))
    tool = tmp_path / "newuidmap"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    assert userns.find_tool("newuidmap") is None, "neither set-user-id nor with a capability"
    tool.chmod(0o4757)
    assert userns.find_tool("newuidmap") is None, "anyone may write it"
    (tmp_path / "newgidmap").mkdir()
    assert userns.find_tool("newgidmap") is None
    tool.chmod(0o4755)
    assert userns.find_tool("newuidmap") == (str(tool) if os.geteuid() == 0 else None)


def test_maps_never_grow_beyond_what_the_kernel_takes():
    assert len(userns._lay_out([(n * 2, 1) for n in range(100_000)])) == 340
    laid = userns._lay_out([(0, 2**32 - 1), (5, 5)])
    assert sum(r.count for r in laid) <= 2**32 - 1


@given(st.lists(st.tuples(st.integers(0, 2**32 - 2), st.integers(1, 2**32 - 2)), max_size=12), st.integers(0, 2**32 - 2))
def test_a_laid_out_map_is_one_the_kernel_takes(pieces, own):
    data = b"".join(b"me:%d:%d\n" % piece for piece in pieces)
    ranges = userns._without(userns.parse_subordinate(data, "me", -1), own)
    laid = userns._lay_out([(own, 1), *ranges])
    outside = sorted((r.outside, r.outside + r.count) for r in laid)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(outside))
    position = 0
    for r in laid:
        assert r.inside == position and r.count > 0 and r.outside + r.count <= 2**32 - 1
        position += r.count
    assert position <= 2**32 - 1


def test_the_advice_is_a_line_to_type(monkeypatch, tmp_path):
    monkeypatch.setattr(userns, "_name", lambda uid: "me")
    place(monkeypatch, tmp_path, "other:100000:65536\nthird:165536:65536\n")
    assert "usermod --add-subuids 231072-296607 --add-subgids 231072-296607 me" in userns.range_problem(1000)
    place(monkeypatch, tmp_path, "me:100000:65536\n")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(userns, "_TOOL_PLACES", ())
    assert "apt install uidmap" in userns.range_problem(1000)


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
        userns.default_map(1001)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(BadInput):
        userns.default_map(2**32 - 1)
    with pytest.raises(IdMapError, match="no user has the id"):
        userns.default_map(1999999999)
