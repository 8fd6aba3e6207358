"""From a seccomp profile to a filter program. seccomp(2), Documentation/userspace-api/seccomp_filter.rst

::

    profile (JSON as Docker and Podman have it)
       │  which rules apply: includes, excludes, capabilities, architecture, kernel
       ▼
    one chain of rules per system call        first rule that matches decides, then defaultAction
       │  neighbouring numbers with equal chains become one range
       ▼
    binary search over the ranges ─► shared RETs, and blocks that look at arguments
       │  bpf.Assembler
       ▼
    struct sock_filter[]

**The order of rules** is the file's: of the rules for one system call the first whose arguments match decides. libseccomp differs
in one point: there a rule without arguments wins over one with arguments wherever it stands. So a profile can say here
"TIOCSTI: EPERM" and then "ioctl: allow", which the shared format has no other way to say. As in runc, all conditions of a rule
must hold, except that a rule that names one argument twice means "any of them"; comparisons are of 64 bits, unsigned. (Of an ``int``
argument the kernel looks at the low 32 bits only: a rule that *denies* a value must mask, or ``1 << 32 | value`` walks past it.)

**What is not in our table.** Unknown names are skipped, as every runtime does. Numbers that the table does not know (newer kernels),
and all of x32, give ENOSYS whenever the default is some errno, so that C libraries fall back. A foreign architecture (32-bit
code) is killed: with ENOSYS it could not even exit.

**Cost.** System calls without argument rules are decided on the number alone, in some 10 instructions, and in a shape that the kernel's
per-number cache of "always allowed" (Linux 5.11) understands: then the program does not run at all.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from dockless.base.syscalls import table
from dockless.base.typing import Any
from dockless.errors import BadInput
from dockless.sandbox.seccomp import bpf

ARCHES = {"x86_64": (0xC000003E, "amd64"), "aarch64": (0xC00000B7, "arm64")}
"""Machine name → (AUDIT_ARCH_* number, the name includes and excludes use)."""

_X32_BIT = 0x40000000
_ENOSYS = 0x00050000 | errno.ENOSYS
_KILL_PROCESS = 0x80000000
_ACTIONS = {
    "SCMP_ACT_KILL": 0x00000000,
    "SCMP_ACT_KILL_THREAD": 0x00000000,
    "SCMP_ACT_KILL_PROCESS": _KILL_PROCESS,
    "SCMP_ACT_TRAP": 0x00030000,
    "SCMP_ACT_ERRNO": 0x00050000,
    "SCMP_ACT_TRACE": 0x7FF00000,
    "SCMP_ACT_LOG": 0x7FFC0000,
    "SCMP_ACT_ALLOW": 0x7FFF0000,
}
_WITH_DATA = ("SCMP_ACT_ERRNO", "SCMP_ACT_TRACE")
_OPERATORS = ("NE", "LT", "LE", "EQ", "GE", "GT", "MASKED_EQ")
_PROFILES = Path(__file__).parent / "profiles"
_U64 = 2**64 - 1
_U32 = 2**32 - 1


class Condition(NamedTuple):
    """One comparison of an argument (0-5). MASKED_EQ: its value ``& mask == value``; the mask is all ones otherwise."""

    argument: int
    op: str
    value: int
    mask: int = _U64


class Rule(NamedTuple):
    """``action`` (a SECCOMP_RET_* word) if all conditions hold."""

    conditions: tuple[Condition, ...]
    action: int


Chain = tuple[Rule, ...]
"""The rules of one system call; the last one has no conditions."""


def compile_profile(
    profile: Mapping[str, Any] | Path | str, capabilities: frozenset[str], arch: str, kernel: tuple[int, int] | None = None
) -> bytes:
    """The filter for a process with these capabilities, as ``struct sock_filter[]``. Remembered for the life of this process.

    ``profile``: a parsed profile or the path of one. ``arch``: ``x86_64`` or ``aarch64``. ``kernel``: for ``minKernel`` rules, (major,
    minor), the running one by default. Errors: ``BadInput``.
    """
    if arch not in ARCHES:
        raise BadInput(f"no seccomp table for architecture {arch!r}", subject=arch, hint=f"supported are {', '.join(ARCHES)}")
    kernel = kernel or _running_kernel()
    if isinstance(profile, (str, os.PathLike)):
        return _compile_file(os.fspath(profile), _stamp(profile), capabilities, arch, kernel)
    for untrusted in (False, True):
        if profile is _parsed_default(untrusted):
            return _compile_default(untrusted, capabilities, arch, kernel)
    return _compile_text(_canonical(profile), capabilities, arch, kernel)


def default_profile(untrusted: bool = False) -> Mapping[str, Any]:
    """dockless's own profile, parsed. ``untrusted``: the stricter one. Treat it as read-only: it is shared."""
    return _parsed_default(untrusted)


def load_profile(path: Path | str) -> dict[str, Any]:
    """A profile file, parsed. Unreadable or not a JSON object: ``BadInput``."""
    import json

    try:
        parsed = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise _unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"seccomp profile {path} is not JSON: {error}", subject=str(path)) from error
    if not isinstance(parsed, dict):
        raise BadInput(f"seccomp profile {path} is not a JSON object", subject=str(path))
    return parsed


def chains(profile: Mapping[str, Any], capabilities: frozenset[str], arch: str, kernel: tuple[int, int]) -> tuple[dict[str, Chain], int]:
    """What the profile says about each system call of ``arch`` that it names, and the default action. No BPF yet."""
    default = _action(profile, "defaultAction", "defaultErrnoRet", "defaultErrno")
    rules: dict[str, list[Rule]] = {}
    known = table(arch)
    for entry in _entries(profile):
        if not _applies(entry, capabilities, ARCHES[arch][1], kernel):
            continue
        parsed = _rules(entry)
        for name in _names(entry):
            if name in known:
                rules.setdefault(name, []).extend(parsed)
    return {name: _shorten(found, default) for name, found in rules.items()}, default


# Reading the profile ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _entries(profile: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    entries = profile.get("syscalls") or []
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise BadInput("seccomp profile: 'syscalls' is not a list of objects", subject="syscalls")
    return entries


def _names(entry: Mapping[str, Any]) -> list[str]:
    names = entry.get("names") or ([entry["name"]] if entry.get("name") else [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadInput("seccomp profile: 'names' is not a list of system call names", subject="names")
    return names


def _applies(entry: Mapping[str, Any], capabilities: frozenset[str], arch: str, kernel: tuple[int, int]) -> bool:
    """As Docker decides it: all of ``includes`` must be so, none of ``excludes``."""
    excludes, includes = _filter(entry, "excludes"), _filter(entry, "includes")
    if arch in _strings(excludes, "arches") or any(cap in capabilities for cap in _strings(excludes, "caps")):
        return False
    if excludes.get("minKernel") and kernel >= _version(excludes["minKernel"]):
        return False
    arches = _strings(includes, "arches")
    if arches and arch not in arches:
        return False
    if not all(cap in capabilities for cap in _strings(includes, "caps")):
        return False
    return not includes.get("minKernel") or kernel >= _version(includes["minKernel"])


def _filter(entry: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = entry.get(key) or {}
    if not isinstance(value, Mapping):
        raise BadInput(f"seccomp profile: {key!r} is not an object", subject=key)
    return value


def _strings(part: Mapping[str, Any], key: str) -> list[str]:
    value = part.get(key) or []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BadInput(f"seccomp profile: {key!r} is not a list of strings", subject=key)
    return value


def _version(text: object) -> tuple[int, int]:
    major, _, minor = str(text).partition(".")
    if not (major.isdecimal() and minor.isdecimal()) or len(major) > 4 or len(minor) > 4:
        raise BadInput(f"seccomp profile: minKernel {str(text)[:20]!r} is not MAJOR.MINOR", subject="minKernel")
    return int(major), int(minor)


def _action(part: Mapping[str, Any], key: str, number: str, text: str) -> int:
    name = part.get(key)
    if not isinstance(name, str) or name not in _ACTIONS:
        raise BadInput(f"seccomp profile: {key} {str(name)[:40]!r} is not supported", subject=key, hint=f"use one of {', '.join(_ACTIONS)}")
    if name not in _WITH_DATA:
        return _ACTIONS[name]
    value = part.get(number)
    if value is None and part.get(text):
        value = getattr(errno, str(part[text]), None) if str(part[text]).startswith("E") else None
        if value is None:
            raise BadInput(f"seccomp profile: {text} {str(part[text])[:40]!r} is not an errno", subject=text)
    value = errno.EPERM if value is None else value
    limit = 4095 if name == "SCMP_ACT_ERRNO" else 0xFFFF
    return _ACTIONS[name] | _integer(value, number, limit)


def _integer(value: object, what: str, limit: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
        raise BadInput(f"seccomp profile: {what} {str(value)[:40]} is not a number from 0 to {limit}", subject=what)
    return value


def _rules(entry: Mapping[str, Any]) -> list[Rule]:
    action = _action(entry, "action", "errnoRet", "errno")
    raw = entry.get("args") or []
    if not isinstance(raw, list) or not all(isinstance(arg, Mapping) for arg in raw):
        raise BadInput("seccomp profile: 'args' is not a list of objects", subject="args")
    conditions = tuple(_condition(arg) for arg in raw)
    if len({condition.argument for condition in conditions}) < len(conditions):
        return [Rule((condition,), action) for condition in conditions]
    return [Rule(conditions, action)]


def _condition(arg: Mapping[str, Any]) -> Condition:
    op = str(arg.get("op", "")).removeprefix("SCMP_CMP_")
    if op not in _OPERATORS:
        raise BadInput(f"seccomp profile: comparison {str(arg.get('op'))[:40]!r} is unknown", subject="op", hint="SCMP_CMP_EQ and the like")
    index = _integer(arg.get("index"), "index", 5)
    value, second = _integer(arg.get("value", 0), "value", _U64), _integer(arg.get("valueTwo") or 0, "valueTwo", _U64)
    return Condition(index, op, second & value, value) if op == "MASKED_EQ" else Condition(index, op, value)


def _shorten(rules: list[Rule], default: int) -> Chain:
    """The chain up to its first rule without conditions, ended by the default; trailing rules that say the same as that end are gone."""
    chain = []
    end = default
    for rule in rules:
        if not rule.conditions:
            end = rule.action
            break
        chain.append(rule)
    while chain and chain[-1].action == end:
        chain.pop()
    return (*chain, Rule((), end))


# Writing the program ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _assemble(profile: Mapping[str, Any], capabilities: frozenset[str], arch: str, kernel: tuple[int, int]) -> bytes:
    found, default = chains(profile, capabilities, arch, kernel)
    ranges = _ranges(found, default, arch)
    asm = bpf.Assembler()
    bodies: dict[Chain, int] = {chain: asm.label() for _, chain in ranges}
    native, foreign = asm.label(), asm.label()
    asm.load(bpf.ARCH)
    asm.jump(bpf.JEQ, ARCHES[arch][0], native, foreign)
    asm.place(native)
    asm.load(bpf.NR)
    _search(asm, ranges, bodies)
    for chain, label in sorted(bodies.items(), key=lambda item: len(item[0])):
        asm.place(label)
        _body(asm, chain)
    asm.place(foreign)
    asm.ret(_KILL_PROCESS)
    return asm.assemble()


def _ranges(found: Mapping[str, Chain], default: int, arch: str) -> list[tuple[int, Chain]]:
    """(first number, chain) in ascending order, neighbours different; the last one reaches to 2**32-1."""
    by_default: Chain = (Rule((), default),)
    unknown: Chain = (Rule((), _ENOSYS if default & 0xFFFF0000 == _ACTIONS["SCMP_ACT_ERRNO"] else default),)
    by_number = {number: found.get(name, by_default) for name, number in table(arch).items()}
    last = max(by_number) + 1
    wanted = [(number, by_number.get(number, unknown)) for number in range(last)] + [(last, unknown)]
    if arch == "x86_64":
        wanted.append((_X32_BIT, (Rule((), _ENOSYS),)))
    ranges: list[tuple[int, Chain]] = []
    for start, chain in wanted:
        if not ranges or ranges[-1][1] != chain:
            ranges.append((start, chain))
    return ranges


def _search(asm: bpf.Assembler, ranges: list[tuple[int, Chain]], bodies: Mapping[Chain, int]) -> None:
    """Binary search; the smaller half follows its comparison, the larger is jumped to."""
    if len(ranges) == 1:
        asm.go(bodies[ranges[0][1]])
        return
    middle = len(ranges) // 2
    smaller, larger = ranges[:middle], ranges[middle:]
    right = bodies[larger[0][1]] if len(larger) == 1 else asm.label()
    left = bodies[smaller[0][1]] if len(smaller) == 1 else bpf.NEXT
    asm.jump(bpf.JGE, larger[0][0], right, left)
    if len(smaller) > 1:
        _search(asm, smaller, bodies)
    if len(larger) > 1:
        asm.place(right)
        _search(asm, larger, bodies)


def _body(asm: bpf.Assembler, chain: Chain) -> None:
    for rule in chain:
        otherwise = asm.label()
        for condition in rule.conditions:
            _compare(asm, condition, otherwise)
        asm.ret(rule.action)
        asm.place(otherwise)


def _compare(asm: bpf.Assembler, condition: Condition, otherwise: int) -> None:
    """On to the next instruction if the condition holds, else to ``otherwise``. 64 bits in two halves, the high one first."""
    holds = asm.label()
    yes, no = holds, otherwise
    op = condition.op
    high, low = condition.value >> 32, condition.value & _U32
    if op in ("NE", "LT", "LE"):  # the negations of EQ, GE, GT
        op = {"NE": "EQ", "LT": "GE", "LE": "GT"}[op]
        yes, no = no, yes
    mask_high, mask_low = condition.mask >> 32, condition.mask & _U32
    if mask_high:
        asm.load(bpf.argument_high(condition.argument))
        if mask_high != _U32:
            asm.and_(mask_high)
        if op in ("GE", "GT"):
            asm.jump(bpf.JGT, high, yes, bpf.NEXT)
        asm.jump(bpf.JEQ, high, bpf.NEXT, no)
    asm.load(bpf.argument_low(condition.argument))
    if mask_low != _U32:
        asm.and_(mask_low)
    asm.jump({"GE": bpf.JGE, "GT": bpf.JGT}.get(op, bpf.JEQ), low, yes, no)
    asm.place(holds)


# Remembering ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def _parsed_default(untrusted: bool) -> Mapping[str, Any]:
    """``untrusted.json`` holds only what it denies beyond the default; its rules stand in front, and the first match decides."""
    default = load_profile(_PROFILES / "default.json")
    if not untrusted:
        return default
    stricter = load_profile(_PROFILES / "untrusted.json")
    return {**default, "syscalls": [*stricter["syscalls"], *default["syscalls"]]}


@functools.lru_cache(maxsize=64)
def _compile_default(untrusted: bool, capabilities: frozenset[str], arch: str, kernel: tuple[int, int]) -> bytes:
    return _assemble(_parsed_default(untrusted), capabilities, arch, kernel)


@functools.lru_cache(maxsize=64)
def _compile_file(path: str, stamp: tuple[int, ...], capabilities: frozenset[str], arch: str, kernel: tuple[int, int]) -> bytes:
    return _assemble(load_profile(path), capabilities, arch, kernel)


@functools.lru_cache(maxsize=64)
def _compile_text(text: str, capabilities: frozenset[str], arch: str, kernel: tuple[int, int]) -> bytes:
    import json

    return _assemble(json.loads(text), capabilities, arch, kernel)


def _canonical(profile: Mapping[str, Any]) -> str:
    import json

    return json.dumps(profile, default=dict)


def _stamp(path: Path | str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _unreadable(path: Path | str, error: OSError) -> BadInput:
    return BadInput(f"seccomp profile {path}: {error.strerror}", subject=str(path), hint="give the path of a readable JSON file")


@functools.cache
def _running_kernel() -> tuple[int, int]:
    numbers: Iterable[str] = os.uname().release.split("-")[0].split(".")
    digits = [int(part) for part in numbers if part.isdecimal()] + [0, 0]
    return digits[0], digits[1]
