"""Our programs beside those of libseccomp, where its shared library is installed (package libseccomp2)."""

from __future__ import annotations

import ctypes
import json
import platform
import random
import tempfile

import pytest
from support import cbpf
from support.requires import shared

from dockless.base.syscalls import table
from dockless.sandbox.capabilities import ALL, DEFAULT
from dockless.sandbox.seccomp import seccomp

KERNEL = (6, 1)
U64 = 2**64 - 1
OPERATORS = {"NE": 1, "LT": 2, "LE": 3, "EQ": 4, "GE": 5, "GT": 6, "MASKED_EQ": 7}
ARCH = platform.machine()

try:
    lib = ctypes.CDLL("libseccomp.so.2")
except OSError:
    lib = None

pytestmark = [
    pytest.mark.skipif(lib is None, reason="libseccomp.so.2 is not installed (package libseccomp2)"),
    pytest.mark.skipif(ARCH not in seccomp.ARCHES, reason=f"no seccomp table for {ARCH}"),
]


class Comparison(ctypes.Structure):
    _fields_ = (("index", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


def by_libseccomp(default, rules):
    """The program for [(number, [(index, operator, value, value two), …], action), …], added in this order as runc adds them."""
    lib.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(lib.seccomp_init(ctypes.c_uint32(default)))
    try:
        for number, conditions, action in rules:
            if action == default:
                continue
            array = (Comparison * max(len(conditions), 1))(*(Comparison(i, OPERATORS[op], a, b) for i, op, a, b in conditions))
            assert lib.seccomp_rule_add_array(context, ctypes.c_uint32(action), number, len(conditions), array) == 0
        with tempfile.TemporaryFile() as file:
            assert lib.seccomp_export_bpf(context, file.fileno()) == 0
            file.seek(0)
            return file.read()
    finally:
        lib.seccomp_release(context)


def test_comparisons_agree():
    """One rule at a time: of several that overlap libseccomp 2.5 makes a tree that loses some."""
    chooser = random.Random(11)
    edges = [0, 1, 2**32 - 1, 2**32, 2**32 + 1, 2**63, U64, 0x7E020000, 38]
    number = table(ARCH)["socket"]
    for _ in range(100):
        indexes = chooser.sample(range(6), chooser.randrange(1, 4))
        conditions = [(i, chooser.choice(list(OPERATORS)), chooser.choice(edges), chooser.choice(edges)) for i in indexes]
        theirs = by_libseccomp(cbpf.EPERM, [(number, conditions, cbpf.ALLOW)])
        args = [{"index": i, "op": f"SCMP_CMP_{op}", "value": a, "valueTwo": b} for i, op, a, b in conditions]
        entry = {"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": args}
        ours = seccomp.compile_profile({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [entry]}, frozenset(), ARCH, KERNEL)
        for _ in range(60):
            tried = [chooser.choice(edges) + chooser.choice((-1, 0, 0, 0, 1)) & U64 for _ in range(6)]
            assert cbpf.decide(ours, ARCH, number, tried) == cbpf.decide(theirs, ARCH, number, tried), json.dumps([conditions, tried])


@pytest.mark.parametrize("file", ["containers-common-seccomp.json", "moby-seccomp-default.json"])
@pytest.mark.parametrize("caps", [DEFAULT, ALL, frozenset()], ids=["default", "all", "none"])
def test_published_profiles_agree(file, caps):
    place = shared()
    if place is None or not (place / "corpus" / file).exists():
        pytest.skip("the shared folder with Podman's and Docker's profiles is absent (DOCKLESS_SHARED)")
    profile = json.loads((place / "corpus" / file).read_text())
    chains, default = seccomp.chains(profile, caps, ARCH, KERNEL)
    rules = [(table(ARCH)[name], list(map(_condition, rule.conditions)), rule.action) for name, chain in chains.items() for rule in chain]
    theirs = by_libseccomp(default, rules)
    ours = seccomp.compile_profile(profile, caps, ARCH, KERNEL)
    samples = [[0] * 6, [U64] * 6, [16, 3, 9], [16, 3, 0], [38], [40], [39], [41], [8], [0x20008], [0xFFFFFFFF], [0x1200011], [0x10000000]]
    for name, number in table(ARCH).items():
        for args in samples:
            assert cbpf.decide(ours, ARCH, number, args) == cbpf.decide(theirs, ARCH, number, args), (name, args)


@pytest.mark.parametrize("arch, token", [("x86_64", 0xC000003E), ("aarch64", 0xC00000B7)])
def test_system_call_numbers_agree(arch, token):
    """Both tables, both ways, as far as this libseccomp knows the calls (negative numbers: not on this architecture)."""
    lib.seccomp_syscall_resolve_num_arch.restype = ctypes.c_void_p
    known = 0
    for name, number in table(arch).items():
        theirs = lib.seccomp_syscall_resolve_name_arch(token, name.encode())
        assert theirs in (number, -1), name
        known += theirs == number
    assert known > 300
    free = ctypes.CDLL(None).free
    for number in range(max(table(arch).values()) + 1):
        pointer = lib.seccomp_syscall_resolve_num_arch(token, number)
        if pointer:
            assert table(arch).get(ctypes.string_at(pointer).decode()) == number
            free(ctypes.c_void_p(pointer))


def _condition(c):
    return (c.argument, c.op, c.mask, c.value) if c.op == "MASKED_EQ" else (c.argument, c.op, c.value, 0)
