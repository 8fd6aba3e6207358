"""The device filter's programs, run by a small interpreter of the same instructions and held against the rules in plain Python."""

from __future__ import annotations

import errno
import os
import stat
import struct
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockless import native
from dockless.cgroups import devices
from dockless.cgroups.devices import STANDARD_DEVICES, DeviceRule, assemble
from dockless.errors import BadInput, CgroupError, LimitUnavailable

ACCESS = {"m": 1, "r": 2, "w": 4}
TYPES = {"b": 1, "c": 2}


def run(program: bytes, kind: str, access: str, major: int, minor: int) -> int:
    """Interpret the program for one open or mknod. As strict as the verifier: no unknown opcode, wild jump or unset register."""
    context = (sum(ACCESS[letter] for letter in access) << 16 | TYPES[kind], major, minor)
    registers: dict[int, int | tuple[int, ...]] = {1: context}
    code = [struct.unpack_from("=BBhi", program, at) for at in range(0, len(program), 8)]
    at = 0
    for _ in range(len(code)):
        opcode, packed, off, imm = code[at]
        dst, src = packed & 15, packed >> 4
        at += 1
        if opcode == 0x61:
            base = registers[src]
            assert isinstance(base, tuple) and off % 4 == 0
            registers[dst] = base[off // 4]
        elif opcode == 0xBC:
            registers[dst] = registers[src] & 0xFFFFFFFF
        elif opcode == 0x54:
            registers[dst] &= imm
        elif opcode == 0x74:
            registers[dst] >>= imm
        elif opcode == 0xB7:
            registers[dst] = imm
        elif opcode == 0x55:
            at += off if registers[dst] != imm else 0
        elif opcode == 0x5D:
            at += off if registers[dst] != registers[src] else 0
        elif opcode == 0x95:
            answer = registers[0]
            assert isinstance(answer, int)
            return answer
        else:
            raise AssertionError(f"opcode {opcode:#x}")
        assert at < len(code), "fell off the end"
    raise AssertionError("a loop")


def allowed(rules: tuple[DeviceRule, ...], kind: str, access: str, major: int, minor: int) -> bool:
    return any(
        rule.type in ("a", kind)
        and set(access) <= set(rule.access)
        and rule.major in (None, major)
        and rule.minor in (None, minor)
        for rule in rules
    )  # fmt: skip


def reachable(program: bytes) -> bool:
    """Can every instruction be reached? The verifier refuses a program otherwise."""
    code = [struct.unpack_from("=BBhi", program, at) for at in range(0, len(program), 8)]
    seen, todo = set(), [0]
    while todo:
        at = todo.pop()
        if at not in seen:
            seen.add(at)
            opcode, _, off, _ = code[at]
            todo += [] if opcode == 0x95 else [at + 1, at + 1 + off] if opcode in (0x55, 0x5D) else [at + 1]
    return len(seen) == len(code)


numbers = st.integers(0, 3) | st.sampled_from([195, 4095])
minors = st.integers(0, 3) | st.sampled_from([255, (1 << 20) - 1])
letters = st.sets(st.sampled_from("rwm"), min_size=1).map(lambda chosen: "".join(sorted(chosen)))
rules = st.builds(DeviceRule, st.sampled_from("abc"), st.none() | numbers, st.none() | minors, letters)


@given(st.lists(rules, max_size=8).map(tuple), st.sampled_from("bc"), letters, numbers, minors)
def test_the_program_says_what_the_rules_say(chosen, kind, access, major, minor):
    assert run(assemble(chosen), kind, access, major, minor) == allowed(chosen, kind, access, major, minor)
    assert reachable(assemble(chosen))


def test_everything_allowed_ends_the_program():
    everything = DeviceRule("a", None, None, "wmr")
    assert run(assemble([everything]), "b", "rwm", 8, 0) == 1
    assert assemble([everything, *STANDARD_DEVICES]) == assemble([everything])
    assert reachable(assemble([*STANDARD_DEVICES, everything]))


def test_nothing_allowed():
    assert run(assemble(()), "c", "r", 1, 3) == 0


def test_the_standard_devices():
    assert [str(rule) for rule in STANDARD_DEVICES] == [
        "c 1:3 rw", "c 1:5 rw", "c 1:7 rw", "c 1:8 rw", "c 1:9 rw", "c 5:0 rw", "c 5:2 rw", "c 136:* rw"
    ]  # fmt: skip
    program = assemble(STANDARD_DEVICES)
    for minor in (3, 5, 7, 8, 9):
        assert run(program, "c", "rw", 1, minor) == 1
        assert run(program, "c", "m", 1, minor) == 0
    assert run(program, "c", "rw", 136, 40) == 1
    assert run(program, "c", "r", 1, 1) == 0  # /dev/mem
    assert run(program, "b", "r", 1, 3) == 0
    assert run(program, "c", "r", 195, 0) == 0


def test_doubled_rules_cost_nothing():
    rule = DeviceRule("c", 195, 0)
    assert assemble([rule] * 5000) == assemble([rule])


def test_too_many_rules():
    with pytest.raises(BadInput):
        assemble(DeviceRule("c", 1, minor) for minor in range(501))
    assert len(assemble(DeviceRule("c", 1, minor) for minor in range(500))) // 8 <= 4096


@pytest.mark.parametrize("text", ["c 1:3 rw", "b 8:* r", "a *:* rwm", "c 136:* w"])
def test_rules_are_read(text):
    kind, number, access = text.split()
    rule = DeviceRule.parse(text)
    assert (rule.type, rule.access) == (kind, access)
    assert f"{'*' if rule.major is None else rule.major}:{'*' if rule.minor is None else rule.minor}" == number


@pytest.mark.parametrize(
    "text", ["", "c", "c 1:3", "x 1:3 rw", "c 1 rw", "c 1:3:4 rw", "c 1:3 rx", "c 1:3 rr", "c -1:3 r", "c 4096:0 r", "c 1:1048576 r",
    "c 1:x r", "c 1:² r"]
)  # fmt: skip
def test_rules_are_refused(text):
    with pytest.raises(BadInput) as caught:
        DeviceRule.parse(text)
    assert caught.value.hint


def test_the_largest_numbers_of_a_device():
    assert str(DeviceRule("b", 4095, 1048575, "m")) == "b 4095:1048575 m" and DeviceRule("c", 0, 0)
    for major, minor in ((4096, 0), (0, 1048576), (-1, 0), (0, -1)):
        with pytest.raises(BadInput, match="no device has that number") as caught:
            DeviceRule("c", major, minor)
        assert caught.value.subject == f"c {major}:{minor} rw"
    with pytest.raises(BadInput, match="no device has that number"):
        DeviceRule.parse("c 99999999:0 rw")
    with pytest.raises(BadInput, match="cannot be read"):
        DeviceRule.parse("c 999999999:0 rw")


def test_rules_of_nodes(tmp_path, monkeypatch):
    assert DeviceRule.of("/dev/null") == DeviceRule("c", 1, 3, "rw")
    with monkeypatch.context() as patch:
        for kind, mode in (("b", stat.S_IFBLK), ("c", stat.S_IFCHR)):
            patch.setattr(os, "stat", lambda _, mode=mode: SimpleNamespace(st_mode=mode | 0o660, st_rdev=os.makedev(8, 17)))
            assert DeviceRule.of("/dev/x", "m") == DeviceRule(kind, 8, 17, "m")
    with pytest.raises(BadInput, match="not a device"):
        DeviceRule.of(tmp_path)
    with pytest.raises(BadInput):
        DeviceRule.of(os.fspath(tmp_path / "none"))


@pytest.mark.parametrize(
    ("where", "code", "words", "kind", "said"),
    [
        ("load", errno.ENOSYS, "Function not implemented", LimitUnavailable, "CONFIG_CGROUP_BPF"),
        ("load", errno.EINVAL, "Invalid argument", LimitUnavailable, "CONFIG_CGROUP_BPF"),
        ("load", errno.EPERM, "Operation not permitted", LimitUnavailable, "needs root"),
        ("load", errno.EACCES, "Permission denied", LimitUnavailable, "needs root"),
        ("load", errno.EINVAL, "Invalid argument: R1 invalid mem access", CgroupError, "R1 invalid mem access"),
        ("attach", errno.EINVAL, "Invalid argument", CgroupError, "refused"),
        ("attach", errno.EPERM, "Operation not permitted", LimitUnavailable, "needs root"),
    ],
)
def test_a_filter_that_cannot_be_had_says_why(monkeypatch, where, code, words, kind, said):
    def refused(*_):
        raise OSError(code, words)

    monkeypatch.setattr(
        native, "bpf_prog_load_cgroup_device", refused if where == "load" else lambda code: os.open("/dev/null", os.O_RDONLY)
    )
    monkeypatch.setattr(native, "bpf_prog_attach", refused)
    monkeypatch.setattr(devices, "_program", devices._Program)
    with pytest.raises(kind, match=said) as caught:
        devices.attach(-1, STANDARD_DEVICES)
    assert kind is not LimitUnavailable or caught.value.controller == "devices"
