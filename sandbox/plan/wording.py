"""What the words, the commands and the lines of a plan's operations are made of: places, paths, flags, ids.

A ``$name`` is a place where an earlier command mounted something: a shell has no mounts that are attached nowhere.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

from dockless.base.dataclass import dataclass
from dockless.sandbox.plan.builder import NEW_NS, NODEV, NOEXEC, NOSUID, RDONLY
from dockless.sandbox.plan.plan import Op, Plan
from dockless.sandbox.spec import RLIMITS

IMPOSSIBLE = "# not possible in shell: "
NOTHING = "# nothing to do in shell: "

Slots = Mapping[int, str]

RLIMIT_NAMES = {number: name for name, number in RLIMITS.items()}
FLAGS = ((RDONLY, "ro"), (NOSUID, "nosuid"), (NODEV, "nodev"), (NOEXEC, "noexec"))


@dataclass(frozen=True, slots=True)
class Said:
    """An operation as it is spoken of: texts as text, blobs as bytes."""

    slot_in: int
    slot_out: int
    a: str
    b: str
    blob_a: bytes
    blob_b: bytes
    c: int
    x: int
    actor: str

    @classmethod
    def of(cls, op: Op, actor: str) -> Said:
        blob_a, blob_b = (value if isinstance(value, bytes) else b"" for value in (op.a, op.b))
        return cls(op.slot_in, op.slot_out, _text(op.a), _text(op.b), blob_a, blob_b, op.c, op.x, actor)


def _text(value: str | bytes | int) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def label(plan: Plan, slot: int) -> str:
    return plan.slots.get(slot, f"slot {slot}")


def name_of(plan: Plan, slot: int) -> str:
    """The shell variable of a slot: its label, with its number where another one is labelled so."""
    name = _identifier(label(plan, slot))
    same = [other for other, label in plan.slots.items() if _identifier(label) == name]
    return name if same in ([], [slot]) else f"{name}_{slot}"


def _identifier(label: str) -> str:
    return re.sub(r"[^a-zA-Z0-9]", "_", label).strip("_")


def variable(plan: Plan, slot: int) -> str:
    return "$" + name_of(plan, slot)


def through_slots(text: str, plan: Plan) -> str:
    """A text for the shell in which /proc/self/fd/N is the place of slot N."""
    parts = re.split(r"/proc/self/fd/(\d+)", text)
    return "".join(variable(plan, int(part)) if index % 2 else shlex.quote(part) if part else "" for index, part in enumerate(parts))


def below(op: Said, plan: Plan, slot: int) -> str:
    """A path of the host, or below a slot: one that begins with ``/`` may lead through links of an image."""
    if slot < 0:
        return shlex.quote(op.a)
    if not op.a:
        return variable(plan, slot)
    if op.a.startswith("/"):
        return f'"$(below {variable(plan, slot)} {shlex.quote(op.a)})"'
    return f"{variable(plan, slot)}/{shlex.quote(op.a)}"


def inside(op: Said, plan: Plan) -> str:
    """A path of the new root."""
    root = next((variable(plan, other.slot_in) for other in plan.ops if other.name == "PIVOT"), "")
    return root + shlex.quote(op.a)


def place_in(op: Said, plan: Plan) -> str:
    return f"{op.a}" if op.slot_in < 0 else f"{op.a} in {label(plan, op.slot_in)}"


def kinds(flags: int) -> list[str]:
    return [kind for kind, bit in NEW_NS.items() if flags & bit]


def options(bits: int) -> str:
    return ",".join(name for bit, name in FLAGS if bits & bit)


def ids(op: Op | Said) -> tuple[int, int]:
    return op.x & 0xFFFFFFFF, op.x >> 32


def capabilities(mask: int) -> str:
    from dockless.sandbox.capabilities import from_mask, ordered

    return ",".join(name.removeprefix("CAP_").lower() for name in ordered(from_mask(mask & ((1 << 41) - 1)))) or "none"


def bits(value: int, names: Iterable[tuple[int, str]]) -> str:
    """The names of the bits, and the rest as a number: nothing is left out."""
    known = [(bit, name) for bit, name in names if value & bit]
    rest = value & ~sum(bit for bit, _ in known)
    return ",".join([*(name for _, name in known), *([f"{rest:#x}"] if rest else [])])


def place(slots: Slots, slot: int) -> str:
    return f"<{slots.get(slot, slot)}>"


def groups(raw: bytes) -> str:
    """``5,44`` of an array of u32; ``none``."""
    return ",".join(str(int.from_bytes(raw[i : i + 4], "little")) for i in range(0, len(raw), 4)) or "none"


def limits(raw: bytes) -> str:
    """``soft:hard`` of a ``struct rlimit``."""
    values = (int.from_bytes(raw[i : i + 8], "little") for i in (0, 8))
    return ":".join("unlimited" if value == (1 << 64) - 1 else str(value) for value in values)


def processors(raw: bytes) -> str:
    """``0,2,6`` of a CPU mask."""
    mask = int.from_bytes(raw, "little")
    return ",".join(str(number) for number in range(mask.bit_length()) if mask >> number & 1)
