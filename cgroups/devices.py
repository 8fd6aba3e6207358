"""The device filter: which device nodes the processes of a group may open or make, as a small eBPF program.

The kernel runs the program (BPF_PROG_TYPE_CGROUP_DEVICE, Linux 4.15) at each open and mknod of a device node, with one record::

    struct bpf_cgroup_dev_ctx { u32 access_type;   // access << 16 | type; access: mknod 1, read 2, write 4; type: block 1, char 2
                                u32 major, minor; };

and 1 allows, 0 is EPERM. What we assemble is a chain of rules, each one "if type, access, major and minor fit: return 1", and at the end
"return 0". The assembler knows the few instructions this needs. include/uapi/linux/bpf.h;
Documentation/bpf/standardization/instruction-set.rst

Loading needs CAP_BPF or CAP_SYS_ADMIN in the host's own user namespace: an ordinary user cannot have a filter, and does not need one,
because her mounts and her file permissions already show her sandboxes only what she may open herself.
"""

from __future__ import annotations

import errno
import functools
import os
import struct
from collections.abc import Iterable

from dockless.base.dataclass import dataclass
from dockless.base.typing import Literal
from dockless.errors import BadInput, CgroupError, LimitUnavailable

#: bpf_prog_attach flag: filters of the groups above and below stay in force too, and all must allow (BPF_F_ALLOW_MULTI).
ALLOW_MULTI = 2

_MKNOD, _READ, _WRITE = 1, 2, 4
_ACCESS = {"r": _READ, "w": _WRITE, "m": _MKNOD}
_TYPES = {"b": 1, "c": 2}
_MOST_RULES = 500  # at most 8 instructions each, to stay below BPF_MAXINSNS (4096)

# opcode = class | operation | source, the names of the instruction set document
_LDX_W = 0x61  # dst = *(u32 *)(src + off)
_AND32_K = 0x54
_RSH32_K = 0x74
_MOV32_X = 0xBC
_MOV64_K = 0xB7
_JNE_K = 0x55
_JNE_X = 0x5D
_EXIT = 0x95


@dataclass(frozen=True, slots=True)
class DeviceRule:
    """Allow ``access`` (letters of ``rwm``; m: mknod) to char ``c``, block ``b`` or all ``a`` devices; None is any number."""

    type: Literal["a", "b", "c"]
    major: int | None
    minor: int | None
    access: str = "rw"

    def __str__(self) -> str:
        major, minor = ("*" if number is None else number for number in (self.major, self.minor))
        return f"{self.type} {major}:{minor} {self.access}"

    def __post_init__(self) -> None:
        text = str(self)
        hint = "write TYPE MAJOR:MINOR ACCESS as in 'c 1:3 rw', 'c 136:* rw', 'a *:* rwm'"
        if self.type not in ("a", "b", "c") or not self.access or set(self.access) - set("rwm") or len(set(self.access)) < len(self.access):
            raise BadInput(f"device rule {text!r} cannot be read", subject=text, hint=hint)
        for number, most in ((self.major, 1 << 12), (self.minor, 1 << 20)):
            if number is not None and not 0 <= number < most:
                raise BadInput(f"device rule {text!r}: no device has that number", subject=text, hint=hint)

    @classmethod
    def parse(cls, text: str) -> DeviceRule:
        """``c 1:3 rwm`` with ``*`` for any number, the format of the cgroup v1 devices files and of ``--device-cgroup-rule``."""
        words = text.split()
        numbers = words[1].split(":") if len(words) == 3 else []
        if len(numbers) != 2 or any(not (part == "*" or (part.isascii() and part.isdigit() and len(part) < 9)) for part in numbers):
            raise BadInput(f"device rule {text[:80]!r} cannot be read", subject=text[:80], hint="write it as in 'c 1:3 rw' or 'c 136:* rw'")
        major, minor = (None if part == "*" else int(part) for part in numbers)
        return cls(words[0], major, minor, words[2])  # type: ignore[arg-type]

    @classmethod
    def of(cls, path: str | os.PathLike[str], access: str = "rw") -> DeviceRule:
        """The rule for one existing device node."""
        try:
            info = os.stat(path)
        except OSError as error:
            raise BadInput(f"device {os.fspath(path)}: {error.strerror}", subject=os.fspath(path), hint="ls -l /dev") from error
        kind = {0o020000: "c", 0o060000: "b"}.get(info.st_mode & 0o170000)
        if kind is None:
            raise BadInput(f"{os.fspath(path)} is not a device", subject=os.fspath(path), hint="name a node below /dev")
        return cls(kind, os.major(info.st_rdev), os.minor(info.st_rdev), access)  # type: ignore[arg-type]


#: What every sandbox may open: null, zero, full, random, urandom, tty, ptmx and the pseudo-terminals. Nothing may be made (no ``m``).
STANDARD_DEVICES: tuple[DeviceRule, ...] = (
    DeviceRule("c", 1, 3),
    DeviceRule("c", 1, 5),
    DeviceRule("c", 1, 7),
    DeviceRule("c", 1, 8),
    DeviceRule("c", 1, 9),
    DeviceRule("c", 5, 0),
    DeviceRule("c", 5, 2),
    DeviceRule("c", 136, None),
)


_EVERYTHING = DeviceRule("a", None, None, "rwm")


def assemble(rules: Iterable[DeviceRule]) -> bytes:
    """The program: 8 bytes per instruction, native byte order. Everything that no rule allows is refused. Raises ``BadInput``."""
    chosen = tuple(dict.fromkeys(DeviceRule(rule.type, rule.major, rule.minor, _sorted_access(rule.access)) for rule in rules))
    if len(chosen) > _MOST_RULES:
        raise BadInput(f"{len(chosen)} device rules are more than {_MOST_RULES}", hint="use '*' for a whole major number")
    # r2 type, r3 access, r4 major, r5 minor; r1 (the context) is then free for arithmetic.
    code = [
        _instruction(_LDX_W, 2, 1, 0),
        _instruction(_MOV32_X, 3, 2),
        _instruction(_AND32_K, 2, imm=0xFFFF),
        _instruction(_RSH32_K, 3, imm=16),
        _instruction(_LDX_W, 4, 1, 4),
        _instruction(_LDX_W, 5, 1, 8),
    ]
    for rule in chosen:
        code += _one(rule)
        if rule == _EVERYTHING:
            return b"".join(code)  # the verifier refuses a program with instructions that nothing can reach
    code += _answer(0)
    return b"".join(code)


def _sorted_access(access: str) -> str:
    return "".join(letter for letter in "rwm" if letter in access)


def _one(rule: DeviceRule) -> list[bytes]:
    """The instructions of one rule; each test that fails jumps behind the rule."""
    tests: list[tuple[list[bytes], tuple[int, int, int, int]]] = []
    if rule.type != "a":
        tests.append(([], (_JNE_K, 2, 0, _TYPES[rule.type])))
    allowed = sum(_ACCESS[letter] for letter in rule.access)
    if allowed != _MKNOD | _READ | _WRITE:
        # every bit asked for must be among those allowed: (asked & allowed) == asked
        tests.append(([_instruction(_MOV32_X, 1, 3), _instruction(_AND32_K, 1, imm=allowed)], (_JNE_X, 1, 3, 0)))
    if rule.major is not None:
        tests.append(([], (_JNE_K, 4, 0, rule.major)))
    if rule.minor is not None:
        tests.append(([], (_JNE_K, 5, 0, rule.minor)))
    length = sum(len(before) + 1 for before, _ in tests) + 2
    out: list[bytes] = []
    for before, (opcode, left, right, imm) in tests:
        out += before
        out.append(_instruction(opcode, left, right, length - len(out) - 1, imm))
    return out + _answer(1)


def _answer(value: int) -> list[bytes]:
    return [_instruction(_MOV64_K, 0, imm=value), _instruction(_EXIT)]


def _instruction(opcode: int, dst: int = 0, src: int = 0, off: int = 0, imm: int = 0) -> bytes:
    """struct bpf_insn. The register nibbles swap with the byte order, as C bit-fields do."""
    registers = dst | src << 4 if _LITTLE else dst << 4 | src
    return struct.pack("=BBhi", opcode, registers, off, imm)


_LITTLE = struct.pack("=H", 1)[0] == 1


class _Program:
    """A loaded program; its fd lives as long as somebody may attach it."""

    def __init__(self, code: bytes) -> None:
        from dockless import native

        self.fd = -1
        self.fd = native.bpf_prog_load_cgroup_device(code)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


@functools.lru_cache(maxsize=16)
def _program(code: bytes) -> _Program:
    """Loading makes the kernel verify and compile, some 150 µs; one loaded program serves any number of groups."""
    return _Program(code)


@functools.lru_cache(maxsize=64)
def _assembled(rules: tuple[DeviceRule, ...]) -> bytes:
    return assemble(rules)


def attach(cgroup_fd: int, rules: Iterable[DeviceRule], *, flags: int = ALLOW_MULTI) -> None:
    """Attach the program of these rules to the group; it stays there as long as the group.

    With ALLOW_MULTI another filter joins the ones there, so a second call only narrows. Raises ``BadInput``, ``LimitUnavailable``
    (controller "devices": not privileged, or a kernel without CONFIG_CGROUP_BPF), ``CgroupError``.
    """
    code = _assembled(tuple(rules))
    from dockless import native

    program: _Program | None = None
    try:
        program = _program(code)
        native.bpf_prog_attach(cgroup_fd, program.fd, flags)
    except OSError as error:
        # EINVAL without a word from the verifier: the kernel does not know this type of program.
        unknown = error.errno == errno.ENOSYS or (
            error.errno == errno.EINVAL and program is None and str(error).endswith("Invalid argument")
        )
        if unknown or error.errno in (errno.EPERM, errno.EACCES):
            reason = "this kernel has no CONFIG_CGROUP_BPF" if unknown else "it needs root"
            raise LimitUnavailable(
                f"devices cannot be filtered: {reason}",
                controller="devices",
                hint="a user's sandbox is held to what the user may open; run as root for a filter",
            ) from error
        raise CgroupError(
            f"the device filter was refused: {error}", hint="another filter without BPF_F_ALLOW_MULTI may be attached"
        ) from error
