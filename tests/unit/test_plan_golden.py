"""Plans as text, for specs × kernels × id maps made out of thin air: tests/golden/*.txt, reviewed like code (pytest --update-golden)."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from dataclasses import replace

import pytest
from tests.support.plan_cases import (
    CASES,
)

from dockless import native
from dockless.sandbox.compile import OWNER_LABEL, USERNS_LABEL, compile_plan
from dockless.sandbox.plan import operations
from dockless.sandbox.plan.builder import TREE_CLONE
from dockless.sandbox.plan.explain import rows
from dockless.sandbox.plan.plan import Command, Op, Plan, encode
from dockless.sandbox.script import script


def _full_text(plan: Plan) -> str:
    sections, actor = [], ""
    lines = operations.lines(plan).splitlines()
    for row, line in zip(rows(plan), lines, strict=True):
        if row.actor != actor:
            actor = row.actor
            sections.append(f"# {actor}")
        sections.append(line)
    return "\n".join(sections) + "\n"


@pytest.mark.parametrize("name", sorted(CASES))
def test_golden(name, golden):
    golden(f"{name}.txt", _full_text(compile_plan(CASES[name])))


@pytest.mark.parametrize("name", sorted(CASES))
def test_compiling_is_pure(name):
    """The same input, the same plan, to the byte; nothing of this machine in it."""
    first, second = compile_plan(CASES[name]), compile_plan(CASES[name])
    assert first == second and encode(first) == encode(second)
    assert os.uname().nodename not in operations.lines(first) or len(os.uname().nodename) < 4


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_validator_takes_every_plan(name):
    for options in ({}, {"times": True}, {"detached": True}):
        assert native.validate(encode(compile_plan(CASES[name]), **options)) == (True, -1)


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_plan_is_a_script(name):
    """A shell reads it, every place it names is defined, and no step is left out."""
    plan = compile_plan(CASES[name])
    text = script(CASES[name], plan, ["limit pids.max to 5"])
    assert subprocess.run(["sh", "-n"], input=text, text=True, capture_output=True).stderr == ""
    defined = set(re.findall(r"^([a-z]\w*)=", text, re.M)) | set(re.findall(r"[ ;]([a-z]\w*)=", text))
    used = set(re.findall(r"\$\{?([a-z]\w*)", text)) | {"options"}
    assert used <= defined | {"had", "mount", "fd"}, used - defined  # those of read and for
    assert all(f"# {row.words}" in text for row in rows(plan)) and "# not possible in shell: limit pids.max to 5" in text


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_plan_can_be_explained(name):
    plan = compile_plan(CASES[name])
    table = rows(plan)
    assert len(table) == len(plan.ops) + 1 and all(row.words and row.shell for row in table)
    assert [row.actor for row in table] == sorted((row.actor for row in table), key=["keeper", "init", "program"].index)


RARE = Plan(
    (
        Op("REMOVE", 16, a="gone"), Op("CHOWN", 16, a="a b", x=7 | 8 << 32), Op("CHOWN", 16, a="", x=7 | 8 << 32),
        Op("OPEN", 16, 17, a="/x"),
        Op("WRITE", 16, a="/x", b="t\\\t\n", x=0), Op("WRITE", a="/x", b="y" * 79, x=0), Op("WRITE", a="/x", b="y" * 80, x=0),
        Op("RLIMIT", a=struct.pack("<QQ", 5, 2**64 - 1), c=7), Op("RLIMIT", a=struct.pack("<QQ", 2**64 - 1, 6), c=9),
        Op("AFFINITY", a=struct.pack("<Q", 0b1000101)), Op("BOUNDING", x=(1 << 41) - 1), Op("BOUNDING", x=0), Op("CAPS", x=1 << 40 | 1),
        Op("SET_IDS", a=1, b=b"", x=7 | 8 << 32), Op("SET_IDS", a=0, b=b"", x=7 | 8 << 32), Op("SET_IDS", b=struct.pack("<II", 5, 6), x=7),
        Op("SYMLINK", 16, a="/a b", b="c d"), Op("MKDIR", 16, 18, a="x", x=0o700), Op("EXPECT_DEVICE", 16, x=195 << 8 | 255),
        Op("MOVE_MOUNT", 16, a="/"), Op("MOVE_MOUNT", 16, a="/x y"), Op("FS_STRING", 16, a="source", b="/proc/self/fd/17/x"),
        Op("FS_STRING", 16, a="lowerdir", b="/proc/self/fd/17:/proc/self/fd/18"), Op("CLONE"), Op("SPAWN"),
        Op("SET_IDS", a=1, b=b"", x=7 | 8 << 32), Op("SET_IDS", b=struct.pack("<I", 5), x=7 | 8 << 32), Op("PDEATHSIG", x=9),
    ),
    Command(("/bin/x",), ("x", "a b"), ("A=1", "1=2", "B C=3")),
    slots={16: "a place", 17: "a-place", 18: "other"},
)  # fmt: skip
"""What the plans above have not."""


@pytest.mark.parametrize("name", ["RARE", *sorted(CASES)])
def test_a_line_leaves_nothing_out(name):
    """Another number, another slot, another text: another line. What plans are compared by must show all that differs."""
    plan = RARE if name == "RARE" else compile_plan(CASES[name])
    for op in plan.ops:
        others = [replace(op, optional=not op.optional)]
        others += [replace(op, x=op.x ^ 1 << bit) for bit in range(op.x.bit_length())]
        others += [replace(op, c=op.c ^ 1 << bit) for bit in range(op.c.bit_length()) if op.name != "RLIMIT"]
        others += [replace(op, **{slot: 900}) for slot in ("slot_in", "slot_out") if getattr(op, slot) >= 0]
        others += [replace(op, **{part: _another(getattr(op, part))}) for part in ("a", "b") if getattr(op, part) and op.name != "SECCOMP"]
        one = operations.lines(replace(plan, ops=(op,)))
        assert [other for other in others if operations.lines(replace(plan, ops=(other,))) == one] == []


def _another(value):
    return value + "x" if isinstance(value, str) else bytes([value[0] ^ 1]) + value[1:] if isinstance(value, bytes) else 0


def test_each_operation_explained(golden):
    """In words and as a command, each once: a reader of --explain sees nothing else."""
    plans = [RARE, *(compile_plan(CASES[name]) for name in ("root-everything", "root-indexed-old-kernel", "user-mounts", "root-waiting"))]
    lines = dict.fromkeys(f"{row.actor} {row.operation}: {row.words}\n    {row.shell}\n" for plan in plans for row in rows(plan))
    golden("explained.txt", "".join(lines))


def test_a_whole_script(golden):
    golden("script.txt", script(CASES["root-everything"], compile_plan(CASES["root-everything"]), ["limit pids.max to 5"]))


# -- what must hold for every plan -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_slot_is_filled_before_it_is_used(name):
    plan = compile_plan(CASES[name])
    filled = (
        {0, 1, 2, 3, 4, 5, 6, 15}
        | {slot for slot, label in plan.slots.items() if label in (USERNS_LABEL, OWNER_LABEL)}
        | plan.held.keys()
        | plan.maps.keys()
    )
    for index, op in enumerate(plan.ops):
        assert op.slot_in < 0 or op.slot_in in filled, (index, op)
        if op.name in ("MOVE_MOUNT", "MOUNT_ATTR", "MKTARGET", "MASK"):
            assert op.slot_out < 0 or op.slot_out in filled, (index, op)
        elif op.slot_out >= 0:
            filled.add(op.slot_out)


@pytest.mark.parametrize("name", sorted(CASES))
def test_rights_are_dropped_in_order(name):
    """In the program: what needs a right, then the ids, the capabilities, no_new_privs, no leaked file, the filter; then the exec."""
    plan = compile_plan(CASES[name])
    names = [op.name for op in plan.ops]
    program = names[names.index("SPAWN") + 1 :]
    wanted = [word for word in ("BOUNDING", "SET_IDS", "CAPS", "NO_NEW_PRIVS", "SECCOMP") if word in program]
    assert [word for word in program if word in wanted] == wanted
    assert {"BOUNDING", "SET_IDS", "CAPS", "SIGNALS", "SETSID"} <= set(program)
    if "privileged" not in name:
        assert "NO_NEW_PRIVS" in program and program[-1] == "SECCOMP"
    after = names[names.index("PIVOT") :]
    assert not set(after) & {"OPEN_TREE", "FSOPEN", "SETNS", "UNSHARE", "OVERLAY"}


@pytest.mark.parametrize("name", sorted(CASES))
def test_kernel_file_systems_refuse_links(name):
    """A25, A26: every mount on /proc, /sys and /dev says RESOLVE_NO_SYMLINKS."""
    for op in compile_plan(CASES[name]).ops:
        if op.name == "MOVE_MOUNT" and op.a in ("/proc", "/sys", "/dev", "/sys/fs/cgroup"):
            assert op.c & 0x04, op


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_mount_is_attached_in_the_end(name):
    """The kernel waits for an RCU grace period for each that is not, when its descriptor is closed."""
    ops = compile_plan(CASES[name]).ops
    made = {op.slot_out for op in ops if op.name == "FSMOUNT" or (op.name == "OPEN_TREE" and op.x & TREE_CLONE)}
    attached = {op.slot_in for op in ops if op.name == "MOVE_MOUNT"}
    assert made <= attached


@pytest.mark.parametrize("name", [name for name in sorted(CASES) if name.startswith(("user", "single"))])
def test_a_users_keeper_touches_nothing(name):
    """Without rights in the host's namespaces the keeper only makes sessions, enters namespaces and opens what is handed on."""
    names = [op.name for op in compile_plan(CASES[name]).ops]
    assert set(names[: names.index("CLONE")]) <= {"SETSID", "SETNS", "UNSHARE", "WRITE", "OPEN"}


def test_an_owner_opens_her_own_files():
    """Sources are opened between two changes of the file-system ids; nothing else of the keeper's is."""
    ops = compile_plan(CASES["root-for-an-owner"]).ops
    changes = [index for index, op in enumerate(ops) if op.name == "FS_IDS"]
    assert len(changes) == 2 and ops[changes[0]].x == 1000 | 1000 << 32 and ops[changes[1]].x == 0
    opened = [op for op in ops[changes[0] : changes[1]] if op.name == "OPEN_TREE"]
    assert [op.a for op in opened] == ["/data", "/scratch"]
