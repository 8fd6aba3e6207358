"""What single operations of the launcher bring about, each by itself: the plan's text says nothing about that."""

from __future__ import annotations

import os
import struct

import pytest
from support.requires import requires

from dockless import native
from dockless.sandbox.plan.plan import HEADER_SIZE, Command, Op, Plan, encode

from .test_launcher import FAILED, STATUS, _launch

O_PATH, O_DIRECTORY = 0x200000, 0x10000
NEW_USER_AND_MOUNTS = 0x10020000
ENOENT, ELOOP, EACCES, ENODEV, ENAMETOOLONG = 2, 40, 13, 19, 36
NOBODY = 65534

in_a_namespace = requires("userns")


def carried_out(*ops: Op) -> tuple[int, ...]:
    """(kind, operation, value) of the last report of an errand."""
    _, reports, _ = _launch(encode(Plan(ops, None)))
    return reports[-1][:3]


def exit_code(script: str, *ops: Op) -> int:
    """How a shell ended that was started behind these operations."""
    plan = Plan((Op("CLONE"), Op("SPAWN"), *ops), Command(("/bin/sh",), ("sh", "-c", script), ("PATH=/usr/bin:/bin",)))
    _, reports, _ = _launch(encode(plan))
    assert reports[-1][0] == STATUS, reports
    return reports[-1][2] >> 8


# -- masks


@in_a_namespace
@pytest.mark.parametrize("code", ["MASK", "READONLY"])
@pytest.mark.parametrize("deep", [False, True], ids=["last", "in the middle"])
def test_hiding_a_path_follows_no_link(tmp_path, code, deep):
    (tmp_path / "real" / "sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    path = str(tmp_path / ("link/sub" if deep else "link"))
    ops = [
        Op("UNSHARE", x=NEW_USER_AND_MOUNTS),
        Op("OPEN", slot_out=16, a="/dev/null", x=O_PATH),
        Op("OPEN", slot_out=17, a=str(tmp_path), x=O_PATH | O_DIRECTORY),
    ]
    hide = Op("MASK", 16, 17, a=path) if code == "MASK" else Op("READONLY", a=path)
    assert carried_out(*ops, hide) == (FAILED, 3, ELOOP)
    real = str(tmp_path / "real" / "sub")
    assert carried_out(*ops, Op("MASK", 16, 17, a=real) if code == "MASK" else Op("READONLY", a=real))[0] == STATUS


# -- directories that are made on the way


@pytest.mark.parametrize(("length", "made"), [(255, True), (256, False), (3000, False)])
def test_a_name_as_long_as_a_name_can_be(tmp_path, length, made):
    root = Op("OPEN", slot_out=16, a=str(tmp_path), x=O_PATH | O_DIRECTORY)
    name = "n" * length
    outcome = carried_out(root, Op("MKDIR", 16, a=f"missing/{name}/last", x=0o755))
    assert (outcome[0] == STATUS) == made and (tmp_path / "missing").is_dir()
    if made:
        assert (tmp_path / "missing" / name / "last").is_dir()
    else:
        assert outcome == (FAILED, 1, ENAMETOOLONG)


# -- the working directory


@in_a_namespace
def test_a_working_directory_is_not_reached_by_a_magic_link(tmp_path):
    ops = (Op("UNSHARE", x=NEW_USER_AND_MOUNTS), Op("OPEN_TREE", slot_out=16, a=str(tmp_path), x=1))
    assert carried_out(*ops, Op("CHDIR", a="/proc/self/fd/16")) == (FAILED, 2, ELOOP)
    assert carried_out(*ops, Op("CHDIR", a=str(tmp_path)))[0] == STATUS


@requires("root")
def test_a_working_directory_that_leads_nowhere_is_refused(tmp_path):
    """It can be entered once more, and getcwd(2) has no path for it."""
    (tmp_path / "gone").mkdir()
    above = Op("OPEN", slot_out=16, a=str(tmp_path), x=O_PATH | O_DIRECTORY)
    ops = (above, Op("CHDIR", a=str(tmp_path / "gone")), Op("CHDIR", a="."))
    assert carried_out(*ops)[0] == STATUS
    assert carried_out(*ops, Op("REMOVE", 16, a="gone"), Op("CHDIR", a=".")) == (FAILED, 4, ENOENT)


# -- devices


@pytest.mark.parametrize(
    ("path", "number", "ends"),
    [("/dev/null", 1 << 8 | 3, None), ("/dev/null", 1 << 8 | 5, ENODEV), ("/dev/zero", 1 << 8 | 3, ENODEV), ("/", 1 << 8 | 3, ENODEV)],
)
def test_a_device_of_another_number_is_refused(path, number, ends):
    ended = carried_out(Op("OPEN", slot_out=16, a=path, x=O_PATH), Op("EXPECT_DEVICE", 16, x=number))
    assert ended[0] == STATUS if ends is None else ended == (FAILED, 1, ends)


def test_a_device_of_the_other_kind_is_refused():
    ended = carried_out(Op("OPEN", slot_out=16, a="/dev/null", x=O_PATH), Op("EXPECT_DEVICE", 16, c=1, x=1 << 8 | 3))
    assert ended == (FAILED, 1, ENODEV)


# -- ids


def ids(uid: int, gid: int) -> int:
    return uid | gid << 32


def groups(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


@pytest.fixture
def in_roots_group():
    """Root's own supplementary groups, whatever this process was started with."""
    before = os.getgroups()
    os.setgroups([0])
    yield
    os.setgroups(before)


@requires("root")
@pytest.mark.parametrize(("given", "kept"), [((), False), ((7, 9), False), ((), True)])
def test_the_program_has_the_groups_it_was_given(in_roots_group, given, kept):
    expected = "65534 0" if kept else " ".join(map(str, (NOBODY, *given)))
    op = Op("SET_IDS", a=int(kept), b=groups(*given), x=ids(NOBODY, NOBODY))
    assert exit_code(f'test "$(id -u) $(id -G)" = "{NOBODY} {expected}"', op) == 0


@requires("root")
@pytest.mark.parametrize(("mode", "opens"), [(0o640, False), (0o644, True)])
def test_files_are_opened_with_the_owners_rights_alone(tmp_path, in_roots_group, mode, opens):
    """A bind for a user: root's supplementary group must not open what she could not."""
    source = tmp_path / "source"
    source.touch()
    source.chmod(mode)
    root = Op("OPEN", slot_out=16, a=str(tmp_path), x=O_PATH | O_DIRECTORY)
    ops = (root, Op("FS_IDS", b=groups(), x=ids(NOBODY, NOBODY)), Op("OPEN", 16, 17, a="source", x=0))
    os.chmod(tmp_path, 0o755)
    ended = carried_out(*ops)
    assert ended[0] == STATUS if opens else ended == (FAILED, 2, EACCES)
    allowed = (root, Op("FS_IDS", b=groups(0), x=ids(NOBODY, NOBODY)), Op("OPEN", 16, 17, a="source", x=0))
    assert carried_out(*allowed)[0] == STATUS


# -- the validator: every kind of data stays inside


@pytest.mark.parametrize(
    ("op", "field"),
    [
        (Op("WRITE", a="/x", b="text", x=0), 16), (Op("SET_IDS", b=groups(1, 2), x=0), 16), (Op("FS_IDS", b=groups(1, 2), x=0), 16),
        (Op("RLIMIT", a=bytes(16)), 12), (Op("SECCOMP", a=bytes(8)), 12), (Op("AFFINITY", a=bytes(8)), 12),
    ],
    ids=lambda value: getattr(value, "name", ""),
)  # fmt: skip
@pytest.mark.parametrize("where", ["offset", "length"])
def test_data_past_the_end_is_refused(op, field, where):
    raw = bytearray(encode(Plan((op,), None)))
    assert native.validate(bytes(raw)) == (True, -1)
    at = HEADER_SIZE + field + (0 if where == "offset" else 4)
    struct.pack_into("<I", raw, at, 0xFFFFFFF0 if where == "offset" else (len(raw) + 64) & ~15)
    assert native.validate(bytes(raw)) == (False, 0)
