"""The validator: what it accepts, what it refuses, and that nothing can make it read outside of the plan."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest
from support.requires import requires

from dockless import native
from dockless.sandbox.plan import plan
from dockless.sandbox.plan.operations import OPERATIONS

from .blobs import OP_SIZE, good, mutated

NATIVE = Path(__file__).resolve().parents[2] / "native"  # an installed package has no sources
HEADER = (NATIVE / "launcher" / "plan.h").read_text() if NATIVE.is_dir() else ""
needs_sources = pytest.mark.skipif(not HEADER, reason="the C sources are not here: an installed package is tested")
NAMES = (
    "magic abi flags size n_ops ops_offset data_offset data_size times_offset timeout grace log_limit idle ttl"
    " stop_signal directory cgroup terminal health health_size"
).split()
PLACES = (
    (0, "I"),
    (4, "H"),
    (6, "H"),
    *((8 + 4 * i, "I") for i in range(6)),
    *((32 + 8 * i, "Q") for i in range(5)),
    *((72 + 4 * i, "I") for i in range(6)),
)
FIELDS = dict(zip(NAMES, PLACES, strict=True))


def _set(raw: bytes, **fields: int) -> bytes:
    blob = bytearray(raw)
    for name, value in fields.items():
        offset, kind = FIELDS[name]
        struct.pack_into("<" + kind, blob, offset, value)
    return bytes(blob)


def _get(raw: bytes, name: str) -> int:
    offset, kind = FIELDS[name]
    return struct.unpack_from("<" + kind, raw, offset)[0]


def _op(raw: bytes, index: int, **fields: int) -> bytes:
    places = {
        "code": (0, "H"),
        "flags": (2, "H"),
        "in": (4, "i"),
        "out": (8, "i"),
        "a": (12, "I"),
        "b": (16, "I"),
        "c": (20, "I"),
        "x": (24, "Q"),
    }
    blob = bytearray(raw)
    for name, value in fields.items():
        offset, kind = places[name.rstrip("_")]
        struct.pack_into("<" + kind, blob, _get(raw, "ops_offset") + OP_SIZE * index + offset, value)
    return bytes(blob)


@pytest.mark.parametrize("name", sorted(good()))
def test_good_plans(name):
    assert native.validate(good()[name]) == (True, -1)


SMALL = good()["small"]
TIMED = good()["small-times"]
CODES = {name: shape.code for name, shape in native.operations().items()}


@pytest.mark.parametrize(
    "change",
    [
        {"magic": 0}, {"abi": 0}, {"abi": 2}, {"size": 0}, {"size": len(SMALL) + 1}, {"n_ops": 0}, {"n_ops": 1 << 31}, {"n_ops": 65537},
        {"ops_offset": 0}, {"ops_offset": 1}, {"ops_offset": len(SMALL)}, {"ops_offset": 0xFFFFFFF8}, {"data_offset": 0},
        {"data_offset": 4},
        {"data_offset": len(SMALL) + 8}, {"data_offset": 0xFFFFFFF8}, {"data_size": len(SMALL)}, {"data_size": 0xFFFFFFFF},
        {"stop_signal": 65}, {"directory": 0xFFFFFFFF}, {"cgroup": 0xFFFFFFFF}, {"data_size": 0},
    ],
    ids=lambda change: "-".join(f"{k}-{v:#x}" for k, v in change.items()),
)  # fmt: skip
def test_bad_headers(change):
    accepted, _ = native.validate(_set(SMALL, **change))
    assert not accepted


def test_times_must_have_their_own_place():
    """They are written while the plan runs: on top of operations or data they would change what was checked."""
    inside = _set(TIMED, times_offset=_get(TIMED, "ops_offset"))
    assert not native.validate(inside)[0]
    assert not native.validate(_set(TIMED, times_offset=_get(TIMED, "data_offset")))[0]
    assert not native.validate(_set(TIMED, times_offset=8))[0]
    assert not native.validate(_set(TIMED, times_offset=len(TIMED) - 8))[0]
    assert not native.validate(_set(TIMED, times_offset=_get(TIMED, "times_offset") + 4))[0]


def test_data_must_not_lie_on_operations():
    assert not native.validate(_set(SMALL, data_offset=_get(SMALL, "ops_offset"), data_size=OP_SIZE))[0]


@pytest.mark.parametrize(
    ("index", "change"),
    [
        (0, {"code": 0}), (0, {"code": 999}), (0, {"code": 0xFFFF}), (0, {"flags": 2}), (0, {"in_": 0}), (0, {"out": 5}),
        (0, {"a": 1}), (0, {"b": 1}),
        (1, {"in_": -2}), (1, {"in_": 960}), (1, {"in_": 0x7FFFFFFF}), (1, {"in_": -0x80000000}), (3, {"a": 1}),
        (3, {"a": 0xFFFFFFFC}), (3, {"b": 0xFFFFFFFC}),
        (3, {"b": 0}), (3, {"b": 4}),
    ],
)  # fmt: skip
def test_bad_operations(index, change):
    assert native.validate(_op(SMALL, index, **change)) == (False, index)


@pytest.mark.parametrize(("name", "size"), [("RLIMIT", 8), ("RLIMIT", 24), ("SECCOMP", 0), ("SECCOMP", 7), ("SECCOMP", 4097 * 8)])
def test_blobs_of_a_wrong_size(name, size):
    raw = plan.encode(plan.Plan((plan.Op("CLONE"), plan.Op("SPAWN"), plan.Op(name, a=bytes(size))), good_command()))
    assert native.validate(raw) == (False, 2)


def good_command() -> plan.Command:
    return plan.Command(("/bin/true",), ("true",), ())


@pytest.mark.parametrize(
    "order",
    [(), ("CLONE",), ("SPAWN",), ("SPAWN", "CLONE"), ("CLONE", "CLONE", "SPAWN"), ("CLONE", "SPAWN", "SPAWN"), ("CLONE", "SPAWN", "CLONE")],
)
def test_order(order):
    raw = plan.encode(plan.Plan(tuple(plan.Op(name) for name in order), good_command()))
    assert not native.validate(raw)[0]


def test_an_errand_neither_clones_nor_execs():
    raw = good()["errand"]
    assert not native.validate(_op(raw, 0, code=CODES["CLONE"], out=-1, a=0, x=0))[0]
    assert not native.validate(_set(SMALL, flags=4))[0]


@pytest.mark.parametrize(
    "words",
    [[1, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 0], [2, 0], [0xFFFFFFFF, 0, 0], [1, 0xFFFFFF, 1, 0, 0], [1, 0, 1, 0, 1], [1, 0, 1, 0, 0, 0]],
)
def test_bad_exec_vectors(words):
    raw = bytearray(SMALL)
    index = _get(SMALL, "n_ops") - 1
    offset = _get(SMALL, "ops_offset") + OP_SIZE * index
    a = struct.unpack_from("<I", raw, offset + 12)[0]
    at = _get(SMALL, "data_offset") + a
    room = len(SMALL) - at
    blob = struct.pack(f"<{len(words)}I", *words)
    if len(blob) > room:
        pytest.skip("no room for it in this plan")
    raw[at : at + len(blob)] = blob
    struct.pack_into("<I", raw, offset + 16, len(blob))
    assert native.validate(bytes(raw)) == (False, index)


def test_truncation_at_every_byte():
    for raw in good().values():
        for length in range(0, min(len(raw), 600)):
            assert not native.validate(raw[:length])[0]


@hypothesis.given(st.sampled_from(sorted(good())), st.integers(0, 2**32))
@hypothesis.settings(max_examples=300)
def test_mutations_never_hurt(name, seed):
    blob = mutated(good()[name], seed)
    accepted, bad = native.validate(blob)
    assert bad >= -1 and (not accepted or bad == -1)
    if accepted:
        assert _inside(blob)


def _inside(blob: bytes) -> bool:
    """Everything an accepted plan points at lies in its data; checked from plan.h's table, not from plan.c."""
    data = blob[_get(blob, "data_offset") :][: _get(blob, "data_size")]
    shapes = {shape.code: shape for shape in native.operations().values()}
    for index in range(_get(blob, "n_ops")):
        code, _, slot_in, slot_out, a, b, c, _ = struct.unpack_from("<HHiiIIIQ", blob, _get(blob, "ops_offset") + OP_SIZE * index)
        shape = shapes[code]
        for slot, kind in ((slot_in, shape.slot_in), (slot_out, shape.slot_out)):
            if not (slot == -1 if kind == "-" else 0 <= slot < 960 or (slot == -1 and kind == "o")):
                return False
        for kind, value, size in ((shape.a, a, b), (shape.b, b, c)):
            if kind == "p" and b"\0" not in data[value:]:
                return False
            if kind in "bd" and value + size > len(data):
                return False
    return True


@needs_sources
@requires("gcc")
def test_under_the_sanitizers(tmp_path):
    """The same mutations, and many more, to the validator under AddressSanitizer and UndefinedBehaviorSanitizer."""
    program = tmp_path / "validator"
    command = ["gcc", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{NATIVE / 'launcher'}", "-o", program]
    built = subprocess.run(
        [*command, Path(__file__).with_name("validator.c"), NATIVE / "launcher" / "plan.c"], capture_output=True, text=True
    )
    if built.returncode != 0:
        assert "lasan" in built.stderr or "lubsan" in built.stderr, built.stderr
        pytest.skip("gcc has no sanitizers here (package libgcc-*-dev)")
    blobs = list(good().values())
    count = int(os.environ.get("DOCKLESS_MUTATIONS", "4000"))
    names = sorted(good())
    blobs += [mutated(good()[names[seed % len(names)]], seed) for seed in range(count)]
    stream = b"".join(struct.pack("<I", len(blob)) + blob for blob in blobs)
    done = subprocess.run([program], input=stream, capture_output=True, timeout=300, env={"ASAN_OPTIONS": "detect_leaks=0"})
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    verdicts = [line.split() for line in done.stdout.decode().splitlines()]
    assert len(verdicts) == len(blobs)
    for blob, (accepted, bad) in zip(blobs, verdicts, strict=True):
        assert (accepted == "1", int(bad)) == native.validate(blob)
    assert 0 < sum(accepted == "1" for accepted, _ in verdicts) < len(verdicts)


# -- plan.h is the single source -------------------------------------------------------------------------------------------------------


def _table() -> dict[str, tuple[int, str]]:
    rows = re.findall(r"^\s*X\((\d+), (\w+), '(.)', '(.)', '(.)', '(.)'\)", HEADER, re.M)
    return {name: (int(code), "".join(letters)) for code, name, *letters in rows}


@needs_sources
def test_python_has_the_operations_of_the_header():
    ours = {name: (s.code, s.slot_in + s.slot_out + s.a + s.b) for name, s in native.operations().items()}
    assert ours == _table() and len(ours) > 40
    assert sorted(code for code, _ in ours.values()) == list(range(1, len(ours) + 1))


@needs_sources
def test_every_operation_can_be_explained():
    assert set(OPERATIONS) == set(_table())


@needs_sources
def test_every_operation_is_interpreted():
    """Each has its case in the switch, but CLONE and SPAWN, which split the process."""
    cases = set(re.findall(r"case OP_(\w+):", (NATIVE / "launcher" / "ops.c").read_text()))
    assert cases == set(_table()) - {"CLONE", "SPAWN"}


@needs_sources
def test_numbers_of_the_format_agree():
    slots = dict(re.findall(r"SLOT_(\w+) = (\d+)", HEADER))
    for name in ("PLAN", "REPORT", "LEASH", "CGROUP", "LOCK", "STATE", "STDOUT", "STDERR", "FREE"):
        assert getattr(plan, f"SLOT_{name}") == int(slots[name])
    phases = re.search(r"enum \{ (PHASE_\w+(?:, PHASE_\w+)*) \}", HEADER)
    assert phases and tuple(name.strip()[6:].lower() for name in phases[1].split(",")) == plan.PHASES
    assert f"sizeof(struct plan_header) == {plan.HEADER_SIZE}" in HEADER
    magic = re.search(r"PLAN_MAGIC (0x\w+?)u", HEADER)
    assert magic and int(magic[1], 16) == plan._MAGIC and struct.unpack_from("<I", SMALL)[0] == plan._MAGIC
    assert re.search(rf"PLAN_ABI {plan._ABI}\b", HEADER)


# -- the last that is taken, and the first that is not -----------------------------------------------------------------------------------


def _errand(*ops: plan.Op) -> bytes:
    return plan.encode(plan.Plan(ops, None))


def _limit(name: str) -> int:
    found = re.search(rf"{name} \(?(\w+?)u? ?(?:<< (\d+))?\)?$", HEADER, re.M)
    assert found
    return int(found[1], 0) << int(found[2] or 0)


@needs_sources
def test_as_many_operations_as_a_plan_may_have():
    most = _limit("PLAN_MAX_OPS")
    assert native.validate(_errand(*[plan.Op("SETSID")] * most)) == (True, -1)
    assert native.validate(_errand(*[plan.Op("SETSID")] * (most + 1))) == (False, -1)
    assert native.validate(_errand()) == (False, -1), "and none is no errand"


@needs_sources
def test_as_large_as_a_plan_may_be():
    most = _limit("PLAN_MAX_SIZE")
    room = most - len(_errand(plan.Op("HOSTNAME", a="")))
    largest = _errand(plan.Op("HOSTNAME", a="x" * room))
    assert len(largest) == most and native.validate(largest) == (True, -1)
    assert native.validate(_errand(plan.Op("HOSTNAME", a="x" * (room + 8)))) == (False, -1)


def test_a_header_is_whole():
    for size in (0, 1, plan.HEADER_SIZE - 1):
        assert native.validate(_set(SMALL, size=size)[:size]) == (False, -1)
    assert native.validate(SMALL + bytes(8)) == (False, -1)
    assert native.validate(_set(SMALL + bytes(8), size=len(SMALL) + 8))[0], "more may stand behind"


@pytest.mark.parametrize(
    ("change", "fine"),
    [
        ({"stop_signal": 64}, True), ({"stop_signal": 65}, False), ({"stop_signal": 0}, True),
        ({"directory": _get(SMALL, "data_size") - 1}, True), ({"directory": _get(SMALL, "data_size")}, False),
        ({"cgroup": _get(SMALL, "data_size") - 1}, True), ({"cgroup": _get(SMALL, "data_size")}, False),
        ({"times_offset": 8}, True), ({"times_offset": 4}, False), ({"times_offset": 1}, False),
        ({"data_size": _get(SMALL, "data_size") + 1}, False), ({"ops_offset": plan.HEADER_SIZE - 8}, False),
        ({"ops_offset": plan.HEADER_SIZE + 4}, False), ({"data_offset": _get(SMALL, "data_offset") - 8}, False),
        ({"data_offset": _get(SMALL, "data_offset") + 8}, False), ({"n_ops": _get(SMALL, "n_ops") + 1}, False),
        ({"n_ops": _get(SMALL, "n_ops") - 1}, False), ({"flags": 4}, False),
    ],
)  # fmt: skip
def test_edges_of_the_header(change, fine):
    assert native.validate(_set(SMALL, **change))[0] == fine


def test_edges_of_the_times():
    times, size = _get(TIMED, "times_offset"), len(TIMED)
    assert times == _get(TIMED, "data_offset") + _get(TIMED, "data_size")
    assert native.validate(_set(TIMED + bytes(8), size=size + 8, times_offset=times + 8))[0]
    for offset, more in ((times - 8, 0), (times + 8, 0), (times + 16, 8), (times + 4, 8)):
        assert not native.validate(_set(TIMED + bytes(more), size=size + more, times_offset=offset))[0]


@pytest.mark.parametrize(
    ("op", "changes", "fine"),
    [
        (plan.Op("CLOSE", 16), {"in_": 959}, True), (plan.Op("CLOSE", 16), {"in_": 960}, False), (plan.Op("CLOSE", 16), {"in_": 0}, True),
        (plan.Op("CLOSE", 16), {"in_": -1}, False), (plan.Op("CLOSE", 16), {"out": -1}, True), (plan.Op("CLOSE", 16), {"out": 0}, False),
        (plan.Op("OPEN", -1, 16, a="/"), {"in_": -1}, True), (plan.Op("OPEN", -1, 16, a="/"), {"in_": -2}, False),
        (plan.Op("OPEN", -1, 16, a="/"), {"in_": 959}, True), (plan.Op("OPEN", -1, 16, a="/"), {"in_": 960}, False),
        (plan.Op("OPEN", -1, 16, a="/"), {"out": -1}, False), (plan.Op("OPEN", -1, 16, a="/"), {"b": 1}, False),
        (plan.Op("MOVE_MOUNT", 16, 17, a="/x"), {"b": 959}, True), (plan.Op("MOVE_MOUNT", 16, 17, a="/x"), {"b": 960}, False),
        (plan.Op("CLOSE", 16), {"flags": 1}, True), (plan.Op("CLOSE", 16), {"flags": 2}, False),
        (plan.Op("CLOSE", 16), {"flags": 3}, False),
        (plan.Op("CLOSE", 16), {"a": 1}, False), (plan.Op("CLOSE", 16), {"b": 1}, False), (plan.Op("CLOSE", 16), {"code": 0}, False),
        *[(plan.Op(name, b=bytes(8), x=0), {"b": by}, by % 4 == 0) for name in ("SET_IDS", "FS_IDS") for by in (0, 1, 2, 3, 4)],
        *[(plan.Op(name, b=bytes(8), x=0), {"c": by}, by % 4 == 0) for name in ("SET_IDS", "FS_IDS") for by in (0, 1, 2, 3, 4)],
    ],
)  # fmt: skip
def test_edges_of_an_operation(op, changes, fine):
    assert native.validate(_op(_errand(op), 0, **changes))[0] == fine


@pytest.mark.parametrize(("name", "size"), [("RLIMIT", 16), ("SECCOMP", 8), ("SECCOMP", 4096 * 8)])
def test_blobs_of_the_right_size(name, size):
    assert native.validate(_errand(plan.Op(name, a=bytes(size)))) == (True, -1)


def _with_vector(words: list[int], shift: int = 0, length: int | None = None) -> bytes:
    """An exec whose vector is these words: strings are at 0."""
    blob = struct.pack(f"<{len(words)}I", *words)
    at = bytes(SMALL)
    index, place = _get(at, "n_ops") - 1, _get(at, "data_offset") + _get(at, "data_size")
    raw = _set(at + blob + bytes(-len(blob) % 8), size=len(at) + len(blob) + -len(blob) % 8, data_size=_get(at, "data_size") + len(blob))
    return _op(raw, index, a=place - _get(at, "data_offset") + shift, b=len(blob) if length is None else length)


@pytest.mark.parametrize(
    ("words", "fine"),
    [
        ([1, 0, 1, 0, 0], True), ([2, 0, 0, 1, 0, 0], True), ([1, 0, 1, 0, 1, 0], True), ([0, 1, 0, 0], False), ([1, 0, 0, 0], False),
        ([1, 0, 1, 0], False), ([1, 0, 1, 0, 1], False), ([1, 0, 1, 0, 0, 0], False), ([4, 0, 1, 0, 0], False), ([5, 0, 1, 0, 0], False),
        ([1, 0xFFFFFFF, 1, 0, 0], False), ([1, 0, 1, 0xFFFFFFF, 0], False), ([1, 0, 1, 0, 1, 0xFFFFFFF], False), ([], False), ([1], False),
    ],
)  # fmt: skip
def test_edges_of_an_exec_vector(words, fine):
    assert native.validate(_with_vector(words))[0] == fine


def test_an_exec_vector_is_whole_words():
    words = [1, 0, 1, 0, 0, 0]
    assert native.validate(_with_vector(words, length=20))[0]
    for shift, length in ((1, 20), (2, 20), (4, 20), (0, 19), (0, 21), (0, 18)):
        assert not native.validate(_with_vector(words, shift, length))[0]
