"""The seccomp compiler: its programs decide what a direct reading of the profile decides."""

from __future__ import annotations

import functools
import json
import operator
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import cbpf

from dockless.base.syscalls import table
from dockless.errors import BadInput
from dockless.sandbox.capabilities import ALL, DEFAULT
from dockless.sandbox.seccomp import bpf, seccomp

KERNEL = (6, 1)
U64 = 2**64 - 1
COMPARE = {"EQ": operator.eq, "NE": operator.ne, "LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge}
ACTIONS = {"SCMP_ACT_ALLOW": 0x7FFF0000, "SCMP_ACT_LOG": 0x7FFC0000, "SCMP_ACT_KILL_PROCESS": 0x80000000, "SCMP_ACT_TRAP": 0x30000}


def profile(*entries, default="SCMP_ACT_ERRNO", errno=1):
    return {"defaultAction": default, "defaultErrnoRet": errno, "syscalls": list(entries)}


def entry(names, action="SCMP_ACT_ALLOW", args=(), **more):
    return {"names": names.split(), "action": action, "args": [arg(*a) for a in args], **more}


def arg(index, op, value, second=0):
    return {"index": index, "op": f"SCMP_CMP_{op}", "value": value, "valueTwo": second}


def compiled(prof, caps=frozenset(), arch="x86_64", kernel=KERNEL):
    program = seccomp.compile_profile(prof, caps, arch, kernel)
    cbpf.verify(program)
    return program


def ask(prof, name, *args, caps=frozenset(), arch="x86_64", kernel=KERNEL):
    return cbpf.decide(compiled(prof, caps, arch, kernel), arch, table(arch)[name], args)


def word(part, key="action", number="errnoRet"):
    return ACTIONS.get(part[key]) or cbpf.errno(part.get(number) or 1)


def holds(a, args):
    value = args[a["index"]]
    op = a["op"].removeprefix("SCMP_CMP_")
    if op == "MASKED_EQ":
        return value & a["value"] == a["valueTwo"] & a["value"]
    return COMPARE[op](value, a["value"])


def by_reading(prof, name, args):
    """What the format's description says, without any compilation: first match decides."""
    for e in prof["syscalls"]:
        if name in e["names"]:
            indexes = [a["index"] for a in e["args"]]
            quantifier = any if len(set(indexes)) < len(indexes) else all
            if quantifier(holds(a, args) for a in e["args"]):
                return word(e)
    return word(prof, "defaultAction", "defaultErrnoRet")


# ---- the program's frame ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_foreign_architecture_is_killed(arch):
    program = compiled(profile(entry("read")), arch=arch)
    for foreign in (0x40000003, 0x40000028, 0, 0xFFFFFFFF, cbpf.AUDIT["aarch64" if arch == "x86_64" else "x86_64"]):
        assert cbpf.decide(program, foreign, 0) == cbpf.KILL


@pytest.mark.parametrize("default", ["SCMP_ACT_ERRNO", "SCMP_ACT_ALLOW"])
def test_x32_does_not_exist(default):
    program = compiled(profile(entry("read"), default=default))
    for number in (0x40000000, 0x40000000 | 59, 0x40000200, 0xFFFFFFFF):
        assert cbpf.decide(program, "x86_64", number) == cbpf.ENOSYS


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_numbers_beyond_the_table_do_not_exist(arch):
    program = compiled(profile(entry("read")), arch=arch)
    top = max(table(arch).values())
    assert cbpf.decide(program, arch, top + 1) == cbpf.ENOSYS
    assert cbpf.decide(program, arch, top + 1000) == cbpf.ENOSYS
    assert cbpf.decide(program, arch, 423) == cbpf.ENOSYS, "a hole in the table may be filled by a newer kernel"
    assert cbpf.decide(program, arch, top) == cbpf.EPERM, "known and not named: the profile's default"


def test_numbers_beyond_the_table_follow_a_default_that_is_no_errno():
    assert cbpf.decide(compiled(profile(default="SCMP_ACT_LOG")), "x86_64", 3000) == ACTIONS["SCMP_ACT_LOG"]
    assert cbpf.decide(compiled(profile(default="SCMP_ACT_KILL_PROCESS")), "x86_64", 3000) == cbpf.KILL


def test_unknown_names_are_skipped():
    prof = profile(entry("read frobnicate socketcall"))
    assert ask(prof, "read") == cbpf.ALLOW
    assert ask(prof, "write") == cbpf.EPERM


# ---- rules -----------------------------------------------------------------------------------------------------------------------------

EDGES = [0, 1, 7, 2**31, 2**32 - 1, 2**32, 2**32 + 7, 2**63, U64 - 1, U64]


@pytest.mark.parametrize("op", [*COMPARE, "MASKED_EQ"])
@pytest.mark.parametrize("index", [0, 5])
def test_every_comparison_is_of_64_bits(op, index):
    for value in EDGES:
        for second in (0, value, 7) if op == "MASKED_EQ" else (0,):
            prof = profile(entry("read", args=[(index, op, value, second)]))
            program = compiled(prof)
            for tried in {*EDGES, max(value - 1, 0), min(value + 1, U64)}:
                args = [U64 if i != index else tried for i in range(6)]
                assert cbpf.decide(program, "x86_64", 0, args) == by_reading(prof, "read", args), (op, value, second, tried)


def test_conditions_of_one_rule_must_all_hold():
    prof = profile(entry("socket", args=[(0, "EQ", 16), (2, "EQ", 9)]))
    assert ask(prof, "socket", 16, 3, 9) == cbpf.ALLOW
    assert ask(prof, "socket", 16, 3, 0) == cbpf.EPERM
    assert ask(prof, "socket", 2, 3, 9) == cbpf.EPERM


def test_an_argument_named_twice_means_any_of_them():
    prof = profile(entry("socket", args=[(0, "EQ", 1), (0, "EQ", 2)]))
    assert [ask(prof, "socket", n) for n in (1, 2, 3)] == [cbpf.ALLOW, cbpf.ALLOW, cbpf.EPERM]


def test_the_first_rule_that_matches_decides():
    deny = entry("ioctl", "SCMP_ACT_ERRNO", [(1, "EQ", 5)], errnoRet=13)
    assert ask(profile(deny, entry("ioctl")), "ioctl", 0, 5) == cbpf.errno(13)
    assert ask(profile(deny, entry("ioctl")), "ioctl", 0, 6) == cbpf.ALLOW
    assert ask(profile(entry("ioctl"), deny), "ioctl", 0, 5) == cbpf.ALLOW
    assert ask(profile(entry("read", "SCMP_ACT_ERRNO"), entry("read")), "read") == cbpf.EPERM


def test_includes_and_excludes():
    both = entry("bpf", includes={"caps": ["CAP_BPF", "CAP_PERFMON"]})
    assert ask(profile(both), "bpf", caps=frozenset({"CAP_BPF"})) == cbpf.EPERM
    assert ask(profile(both), "bpf", caps=frozenset({"CAP_BPF", "CAP_PERFMON"})) == cbpf.ALLOW
    neither = entry("bpf", excludes={"caps": ["CAP_BPF", "CAP_PERFMON"]})
    assert ask(profile(neither), "bpf", caps=frozenset({"CAP_BPF"})) == cbpf.EPERM
    assert ask(profile(neither), "bpf") == cbpf.ALLOW
    newer = entry("ptrace", includes={"minKernel": "4.8"})
    assert ask(profile(newer), "ptrace", kernel=(4, 7)) == cbpf.EPERM
    assert ask(profile(newer), "ptrace", kernel=(4, 10)) == cbpf.ALLOW
    older = entry("ptrace", excludes={"minKernel": "4.8"})
    assert ask(profile(older), "ptrace", kernel=(4, 8)) == cbpf.EPERM
    for arch, name in (("x86_64", "amd64"), ("aarch64", "arm64")):
        assert ask(profile(entry("read", includes={"arches": ["s390", name]})), "read", arch=arch) == cbpf.ALLOW
        assert ask(profile(entry("read", includes={"arches": ["s390"]})), "read", arch=arch) == cbpf.EPERM
        assert ask(profile(entry("read", excludes={"arches": [name]})), "read", arch=arch) == cbpf.EPERM
    assert ask(profile(entry("read", includes={"caps": ["CAP_OF_THE_FUTURE"]})), "read", caps=ALL) == cbpf.EPERM


def test_errno_as_text_and_the_old_single_name():
    prof = {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrno": "ENOSYS",
        "syscalls": [{"name": "read", "action": "SCMP_ACT_ERRNO", "errno": "EACCES"}],
    }
    assert ask(prof, "read") == cbpf.errno(13)
    assert ask(prof, "write") == cbpf.ENOSYS


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"defaultAction": "SCMP_ACT_NOTIFY"},
        {"defaultAction": "ALLOW"},
        {"defaultAction": 5},
        profile(errno=4096),
        profile(errno=-1),
        profile(errno=True),
        {"defaultAction": "SCMP_ACT_ERRNO", "defaultErrno": "__name__"},
        {"defaultAction": "SCMP_ACT_ERRNO", "defaultErrno": "EWHAT"},
        {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": {"a": 1}},
        {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": ["read"]},
        {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": "read"},
        {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": 1},
        profile({"names": "read", "action": "SCMP_ACT_ALLOW"}),
        profile({"names": ["read"]}),
        profile({"names": [5], "action": "SCMP_ACT_ALLOW"}),
        profile(entry("read", args=[(6, "EQ", 1)])),
        profile(entry("read", args=[(0, "EQ", -1)])),
        profile(entry("read", args=[(0, "EQ", 2**64)])),
        profile(entry("read", args=[(0, "XX", 1)])),
        profile({"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": [1]}),
        profile(entry("read", includes={"caps": "CAP_BPF"})),
        profile(entry("read", includes=["x"])),
        profile(entry("read", includes={"minKernel": "four"})),
    ],
)
def test_broken_profiles_are_refused(broken):
    with pytest.raises(BadInput) as raised:
        seccomp.compile_profile(broken, frozenset(), "x86_64", KERNEL)
    assert raised.value.subject or raised.value.hint


def test_unknown_architecture_is_refused():
    with pytest.raises(BadInput, match="riscv64"):
        seccomp.compile_profile(profile(), frozenset(), "riscv64")


def test_too_many_rules_are_refused_and_not_cut():
    many = [entry("read", args=[(0, "EQ", n)]) for n in range(2000)]
    with pytest.raises(BadInput, match="instructions"):
        seccomp.compile_profile(profile(*many), frozenset(), "x86_64", KERNEL)


def test_profile_files(tmp_path):
    path = tmp_path / "p.json"
    for text, what in ((None, "No such file"), ("{", "not JSON"), ("[]", "not a JSON object"), ("[" * 100000, "not JSON")):
        if text is not None:
            path.write_text(text)
        with pytest.raises(BadInput, match=what):
            seccomp.compile_profile(path, frozenset(), "x86_64")
    path.write_text(json.dumps(profile(entry("read"))))
    assert cbpf.decide(seccomp.compile_profile(path, frozenset(), "x86_64"), "x86_64", 1) == cbpf.EPERM
    path.write_text(json.dumps(profile(entry("read write"))))
    assert cbpf.decide(seccomp.compile_profile(path, frozenset(), "x86_64"), "x86_64", 1) == cbpf.ALLOW, "a changed file is read again"


def test_programs_are_remembered():
    first = seccomp.compile_profile(seccomp.default_profile(), DEFAULT, "x86_64")
    assert seccomp.compile_profile(seccomp.default_profile(), DEFAULT, "x86_64") is first
    assert seccomp.compile_profile(seccomp.default_profile(), ALL, "x86_64") != first


# ---- properties ------------------------------------------------------------------------------------------------------------------------

VALUES = st.sampled_from(EDGES) | st.integers(0, U64)
ARGS = st.lists(st.builds(arg, st.integers(0, 5), st.sampled_from([*COMPARE, "MASKED_EQ"]), VALUES, VALUES), max_size=4)
ENTRIES = st.fixed_dictionaries(
    {
        "names": st.lists(st.sampled_from(["read", "write", "openat", "socket", "clone3", "nosuch"]), min_size=1, max_size=3),
        "action": st.sampled_from(["SCMP_ACT_ERRNO", *ACTIONS]),
        "errnoRet": st.integers(1, 4095),
        "args": ARGS,
    }
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ENTRIES, max_size=8), st.sampled_from(["SCMP_ACT_ERRNO", "SCMP_ACT_ALLOW"]), st.data())
def test_programs_decide_as_the_profile_reads(entries, default, data):
    prof = profile(*entries, default=default, errno=99)
    program = compiled(prof)
    interesting = [v for e in entries for a in e["args"] for v in (a["value"], a["valueTwo"])]
    value = st.sampled_from([w & U64 for v in (interesting or [0]) for w in (v - 1, v, v + 1, v ^ 2**32)]) | VALUES
    for name in ("read", "write", "openat", "socket", "clone3", "mmap"):
        args = data.draw(st.lists(value, min_size=6, max_size=6))
        assert cbpf.decide(program, "x86_64", table("x86_64")[name], args) == by_reading(prof, name, args)


def test_every_number_is_found_in_a_profile_without_any_pattern():
    """Alternate actions, so that no two neighbours share a range: the largest search tree there can be."""
    chooser = random.Random(5)
    for arch in ("x86_64", "aarch64"):
        names = list(table(arch))
        prof = profile(*({"names": [n], "action": "SCMP_ACT_ERRNO", "errnoRet": chooser.randrange(2, 4000), "args": []} for n in names))
        program = compiled(prof, arch=arch)
        for name, number in table(arch).items():
            assert cbpf.decide(program, arch, number) == by_reading(prof, name, [0] * 6)


@functools.cache
def _far_program():
    asm = bpf.Assembler()
    far, near = asm.label(), asm.label()
    asm.load(bpf.NR)
    asm.jump(bpf.JEQ, 7, far, near)
    asm.place(near)
    for n in range(400):
        skip = asm.label()
        asm.jump(bpf.JEQ, 1000 + n, bpf.NEXT, skip)
        asm.ret(n)
        asm.place(skip)
    asm.ret(0xDEAD)
    asm.place(far)
    asm.ret(0xFA5)
    return asm.assemble()


def test_far_jumps():
    program = _far_program()
    cbpf.verify(program)
    assert cbpf.decide(program, 0, 7) == 0xFA5
    assert cbpf.decide(program, 0, 8) == 0xDEAD
    assert cbpf.decide(program, 0, 1399) == 399


def test_a_backward_jump_is_a_bug():
    asm = bpf.Assembler()
    back = asm.label()
    asm.place(back)
    asm.load(bpf.NR)
    asm.go(back)
    with pytest.raises(AssertionError):
        asm.assemble()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2**65)
    | st.sampled_from(["read", "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO", "SCMP_CMP_EQ", "4.8", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "names",
                    "name",
                    "action",
                    "args",
                    "includes",
                    "excludes",
                    "errnoRet",
                    "errno",
                    "index",
                    "op",
                    "value",
                    "valueTwo",
                    "caps",
                    "arches",
                    "minKernel",
                ]
            ),
            inner,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(["defaultAction", "defaultErrnoRet", "defaultErrno", "syscalls"]), JSON), JSON)
def test_any_json_is_a_program_or_bad_input(prof, entries):
    for candidate in (prof, {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [entries]}):
        try:
            program = seccomp.compile_profile(candidate, frozenset(), "x86_64", KERNEL)
        except BadInput:
            continue
        cbpf.verify(program)


@pytest.mark.parametrize("side", ["true", "false"])
@pytest.mark.parametrize("between", [0, 253, 254, 255, 256, 257, 600])
def test_a_long_jump_only_where_a_short_one_does_not_reach(side, between):
    """255 instructions are jumped over by the comparison itself."""
    program = bpf.Assembler()
    there = program.label()
    program.load(bpf.NR)
    program.jump(bpf.JEQ, 7, **{side: there})
    for _ in range(between):
        program.ret(1)
    program.place(there)
    program.ret(2)
    code = program.assemble()
    cbpf.verify(code)
    assert len(code) // 8 == between + 3 + (between > 255)
    taken, other = (7, 8) if side == "true" else (8, 7)
    assert cbpf.decide(code, "x86_64", taken) == 2
    assert cbpf.decide(code, "x86_64", other) == (1 if between else 2)


def test_as_many_instructions_as_the_kernel_takes():
    program = bpf.Assembler()
    for _ in range(bpf.MAX_INSTRUCTIONS):
        program.ret(0)
    assert len(program.assemble()) == bpf.MAX_INSTRUCTIONS * 8
    program.ret(0)
    with pytest.raises(BadInput, match=f"needs {bpf.MAX_INSTRUCTIONS + 1} instructions"):
        program.assemble()
