"""A plan for people: each operation in plain words, with the shell command that does the same and, if it was measured, what it took.

The commands are for reading and trying by hand; ``$slot`` stands for a mount or file that an earlier line made. ``--explain`` prints
these rows.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from dockless.sandbox.builder import IDMAP, NEW_NS, NODEV, NOEXEC, NOSUID, RDONLY
from dockless.sandbox.plan import Op, Plan
from dockless.sandbox.spec import RLIMITS

_RLIMIT_NAMES = {number: name for name, number in RLIMITS.items()}
_FLAGS = ((RDONLY, "ro"), (NOSUID, "nosuid"), (NODEV, "nodev"), (NOEXEC, "noexec"))
_UNSHARE = {
    "mount": "--mount",
    "uts": "--uts",
    "ipc": "--ipc",
    "pid": "--pid --fork",
    "net": "--net",
    "user": "--user",
    "cgroup": "--cgroup",
    "time": "--time",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One operation. ``actor``: keeper, init or job; ``seconds`` None where nothing was measured."""

    index: int
    actor: str
    operation: str
    words: str
    shell: str
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class _Said:
    """An operation as it is spoken of: texts as text, blobs as bytes."""

    slot_in: int
    slot_out: int
    a: str
    b: str
    blob_a: bytes
    blob_b: bytes
    c: int
    x: int


def rows(plan: Plan, times: tuple[int, ...] = (), started: int = 0) -> list[Row]:
    """Every operation in order. ``times``: from the flight recorder, with the CLOCK_MONOTONIC nanoseconds of the start."""
    result = []
    actor, before = "keeper", started
    for index, op in enumerate((*plan.ops, *((Op("EXEC"),) if plan.command else ()))):
        seconds = None
        if index < len(times) and times[index]:
            seconds = (times[index] - before) / 1e9
            before = times[index]
        result.append(Row(index, actor, op.name, words(op, plan), shell(op, plan), seconds))
        actor = {"CLONE": "init", "SPAWN": "job"}.get(op.name, actor)
    return result


def _label(plan: Plan, slot: int) -> str:
    return plan.slots.get(slot, f"slot {slot}")


def _variable(plan: Plan, slot: int) -> str:
    return "$" + "".join(c if c.isalnum() else "_" for c in _label(plan, slot)).strip("_")


def _kinds(flags: int) -> list[str]:
    return [kind for kind, bit in NEW_NS.items() if flags & bit]


def _options(bits: int) -> str:
    return ",".join(name for bit, name in _FLAGS if bits & bit)


def _ids(op: _Said) -> tuple[int, int]:
    return op.x & 0xFFFFFFFF, op.x >> 32


def _text(value: str | bytes | int) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _quoted(value: str | bytes | int) -> str:
    text = _text(value)
    return shlex.quote(text if len(text) <= 60 else text[:57] + "...")


def _attributes(op: _Said, plan: Plan) -> tuple[str, str]:
    name = _label(plan, op.slot_in) if op.slot_in >= 0 else op.a
    where = _variable(plan, op.slot_in) if op.slot_in >= 0 else op.a
    if op.b != "0":
        return f"make every mount below {name} private: nothing mounted here shows outside", f"mount --make-rprivate {where}"
    if op.x & IDMAP:
        return (
            f"shift the owners of {name} by the id map of the user namespace",
            f"mount -o bind,X-mount.idmap=/proc/$holder/ns/user {where} {where}",
        )
    return f"make {name} {_options(op.x)}", f"mount -o remount,bind,{_options(op.x)} {where}"


def _move(op: _Said, plan: Plan) -> tuple[str, str]:
    what = _label(plan, op.slot_in)
    if op.slot_out < 0:
        return f"mount {what} at {op.a}", f"mount --move {_variable(plan, op.slot_in)} {op.a}"
    where = op.a or "/"
    return (
        f"mount {what} at {where} of {_label(plan, op.slot_out)}",
        f"mount --move {_variable(plan, op.slot_in)} {_variable(plan, op.slot_out)}/{where.lstrip('/')}",
    )


def _set_ids(op: _Said, plan: Plan) -> tuple[str, str]:
    uid, gid = _ids(op)
    raw = op.blob_b
    groups = [str(int.from_bytes(raw[i : i + 4], "little")) for i in range(0, len(raw), 4)]
    keep = "leave the groups, " if op.a != "0" else f"set the supplementary groups to {','.join(groups) or 'none'}, "
    clear = "--keep-groups" if op.a != "0" else (f"--groups {','.join(groups)}" if groups else "--clear-groups")
    return f"{keep}become user {uid}, group {gid}", f"setpriv --reuid {uid} --regid {gid} {clear}"


def _below(op: _Said, plan: Plan) -> str:
    path = op.a
    return path if op.slot_in < 0 else f"{_variable(plan, op.slot_in)}/{path.lstrip('/')}"


def _in(op: _Said, plan: Plan) -> str:
    return f"{op.a}" if op.slot_in < 0 else f"{op.a} in {_label(plan, op.slot_in)}"


def _caps(mask: int) -> str:
    from dockless.sandbox.capabilities import from_mask, ordered

    return ",".join(name.removeprefix("CAP_").lower() for name in ordered(from_mask(mask & ((1 << 41) - 1)))) or "none"


def _bounding(op: _Said, plan: Plan) -> tuple[str, str]:
    kept = _caps(op.x)
    plus = "".join(f",+{name}" for name in kept.split(",")) if kept != "none" else ""
    return f"drop every capability from the bounding set but: {kept}", f"setpriv --bounding-set -all{plus}"


def _open_tree(op: _Said, plan: Plan) -> tuple[str, str]:
    source = op.a or _label(plan, op.slot_in)
    if (layer := plan.held.get(op.slot_in)) is not None:
        held, clone = (_variable(plan, slot) for slot in (op.slot_in, op.slot_out))
        return (
            f"clone {source}: the tree of the index {layer.path}, its files' data in the tar {layer.tar}; nothing was unpacked. Mounted "
            "once per process, so that all its sandboxes share what was read",
            f"mountpoint -q {held} || mount -t erofs -o ro,nodev,device={layer.tar} {layer.path} {held}; mount --bind {held} {clone}",
        )
    return (
        f"take a clone of {source}, mounted nowhere yet",
        f"mount --{'r' if op.x & 0x8000 else ''}bind {source} {_variable(plan, op.slot_out)}",
    )


def _exec(op: _Said, plan: Plan) -> tuple[str, str]:
    assert plan.command is not None
    program = plan.command.argv[0]
    return f"run {program}", f"exec env -i {' '.join(_quoted(e) for e in plan.command.envp)} {shlex.join(plan.command.argv)}"


def _rlimit(op: _Said, plan: Plan) -> tuple[str, str]:
    raw = op.blob_a
    soft, hard = (int.from_bytes(raw[i : i + 8], "little") for i in (0, 8))
    values = ":".join("unlimited" if v == (1 << 64) - 1 else str(v) for v in (soft, hard))
    return f"limit {_RLIMIT_NAMES[op.c]} to {values}", f"prlimit --{_RLIMIT_NAMES[op.c]}={values}"


def _affinity(op: _Said, plan: Plan) -> tuple[str, str]:
    mask = int.from_bytes(op.blob_a, "little")
    return f"run on processors {','.join(str(i) for i in range(mask.bit_length()) if mask >> i & 1)} only", f"taskset {mask:#x}"


_FSOPEN_MORE = {"erofs": ": a layer's tree, in an index over the tar that it came in; nothing was unpacked"}

_SAY: dict[str, Callable[[_Said, Plan], tuple[str, str]]] = {
    "OPEN_TREE": _open_tree,
    "MOUNT_ATTR": _attributes,
    "FSOPEN": lambda op, p: (f"begin a new {op.a} file system{_FSOPEN_MORE.get(op.a, '')}", f"fs={op.a}"),
    "FS_STRING": lambda op, p: (
        f"set its {op.a} to {op.b}",
        f"source={op.b}" if op.a == "source" else f"options+=,{op.a}={op.b}",
    ),
    "FS_FLAG": lambda op, p: (f"set its option {op.a}", f"options+=,{op.a}"),
    "FS_CREATE": lambda op, p: ("create it", ": fsconfig(CMD_CREATE)"),
    "FSMOUNT": lambda op, p: (
        f"make it a mount, attached nowhere yet ({_label(p, op.slot_out)})",
        f"mount -t $fs -o $options{',' + _options(op.x) if op.x else ''} ${{source:-none}} {_variable(p, op.slot_out)}",
    ),
    "MOVE_MOUNT": _move,
    "MKDIR": lambda op, p: (f"make the directory {_in(op, p)}", f"mkdir -p -m {op.x:o} {_below(op, p)}"),
    "MKTARGET": lambda op, p: (
        f"make {_in(op, p)} to mount {_label(p, op.slot_out)} on",
        f"[ -e {_below(op, p)} ] || touch {_below(op, p)}",
    ),
    "SYMLINK": lambda op, p: (f"link {op.a} to {op.b}", f"ln -s {op.b} {_below(op, p)}"),
    "OPEN": lambda op, p: (f"open {_in(op, p)}", f"exec {{fd}}< {_below(op, p)}"),
    "CLOSE": lambda op, p: (f"close {_label(p, op.slot_in)}", "exec {fd}<&-"),
    "PIVOT": lambda op, p: (f"make {_label(p, op.slot_in)} the root, and let go of the host's", "pivot_root . . && umount -l . && cd /"),
    "SETNS": lambda op, p: (
        f"enter the {'/'.join(_kinds(op.x))} namespace, made beforehand with its id maps",
        f"nsenter --{'/'.join(_kinds(op.x))}=/proc/$holder/ns/{'/'.join(_kinds(op.x))}",
    ),
    "UNSHARE": lambda op, p: (
        f"leave for a new {' and '.join(_kinds(op.x))} namespace",
        f"unshare {' '.join(_UNSHARE[k] for k in _kinds(op.x))}",
    ),
    "WRITE": lambda op, p: (
        f"write {op.b.strip()!r} to {_in(op, p)}" if len(op.b) < 80 else f"write {_in(op, p)}",
        f"printf %s {_quoted(op.b)} > {_below(op, p)}",
    ),
    "HOSTNAME": lambda op, p: (f"call the host {op.a}", f"hostname {op.a}"),
    "LOOPBACK_UP": lambda op, p: ("bring the loopback interface up", "ip link set lo up"),
    "SET_IDS": _set_ids,
    "FS_IDS": lambda op, p: (
        "open files as user {}, group {} from here on".format(*_ids(op)),
        ": setfsuid({}), setfsgid({})".format(*_ids(op)),
    ),
    "CLONE": lambda op, p: (
        f"start the sandbox's init in new namespaces: {', '.join(_kinds(op.x))}"
        + (", straight into its cgroup" if op.slot_in >= 0 else ""),
        f"unshare {' '.join(_UNSHARE[k] for k in _kinds(op.x))}",
    ),
    "SPAWN": lambda op, p: (
        "close every file but 0-2, start the job's process; init stays behind to reap and to forward signals",
        "( … ) & wait",
    ),
    "SETSID": lambda op, p: ("start a session of its own, without a terminal", "setsid"),
    "RLIMIT": _rlimit,
    "UMASK": lambda op, p: (f"set the umask to {op.x:04o}", f"umask {op.x:04o}"),
    "CHDIR": lambda op, p: (f"go to {op.a}, which must lie inside the root", f"cd {op.a}"),
    "AFFINITY": _affinity,
    "BOUNDING": _bounding,
    "CAPS": lambda op, p: (f"keep these capabilities: {_caps(op.x)}", "setpriv --inh-caps -all --ambient-caps -all"),
    "NO_NEW_PRIVS": lambda op, p: ("give up gaining privileges by setuid programs, for good", "setpriv --no-new-privs"),
    "SECCOMP": lambda op, p: (
        f"install the seccomp filter ({len(op.blob_a) // 8} instructions)",
        "systemd-run -p SystemCallFilter=@system-service …",
    ),
    "PDEATHSIG": lambda op, p: ("die when the keeper dies", "setpriv --pdeathsig kill"),
    "SUBREAPER": lambda op, p: ("adopt the job's orphans", ": prctl(PR_SET_CHILD_SUBREAPER)"),
    "SIGNALS": lambda op, p: ("set every signal to its default, none blocked", "env --default-signal --block-signal="),
    "KEYRING": lambda op, p: ("start a session keyring of its own", "keyctl new_session"),
    "CHOWN": lambda op, p: (
        "give {} to user {}, group {} of the host".format(_in(op, p), *_ids(op)),
        "chown {1}:{2} {0}".format(_below(op, p), *_ids(op)),
    ),
    "EXPECT_DEVICE": lambda op, p: (
        f"check that {_label(p, op.slot_in)} is the device {os.major(op.x)}:{os.minor(op.x)}",
        f"[ $(stat -c %Hr:%Lr {_variable(p, op.slot_in)}) = {os.major(op.x)}:{os.minor(op.x)} ]",
    ),
    "MASK": lambda op, p: (f"hide {op.a}", f"mount --bind /dev/null {op.a}"),
    "READONLY": lambda op, p: (f"make {op.a} read-only", f"mount --rbind {op.a} {op.a} && mount -o remount,bind,ro {op.a}"),
    "OVERLAY": lambda op, p: (f"mount an overlay at {op.b}", f"mount -t overlay -o {op.a} overlay {op.b}"),
    "REMOVE": lambda op, p: (f"remove {_in(op, p)} and everything below", f"rm -rf {_below(op, p)}"),
    "OWN_PIPES": lambda op, p: (
        "give pipes on the standard streams to user {}, group {}".format(*_ids(op)),
        "chown {}:{} /dev/stdin /dev/stdout /dev/stderr".format(*_ids(op)),
    ),
    "NULL_STREAMS": lambda op, p: (
        "replace standard streams that are the host's /dev/null by the sandbox's",
        f"exec <{_below(op, p)}",
    ),
    "EXEC": _exec,
}


def _say(op: Op, plan: Plan) -> tuple[str, str]:
    blob_a, blob_b = (value if isinstance(value, bytes) else b"" for value in (op.a, op.b))
    return _SAY[op.name](_Said(op.slot_in, op.slot_out, _text(op.a), _text(op.b), blob_a, blob_b, op.c, op.x), plan)


def words(op: Op, plan: Plan) -> str:
    """The operation in plain words, beginning with a verb."""
    said = _say(op, plan)[0]
    return said + " (if it is there)" if op.optional else said


def shell(op: Op, plan: Plan) -> str:
    """The shell command that does the same, as near as a shell can come."""
    return _say(op, plan)[1]


def text(table: list[Row]) -> str:
    """The rows as the CLI prints them."""
    lines = []
    actor = ""
    for row in table:
        if row.actor != actor:
            actor = row.actor
            lines.append(f"\n{actor}:")
        took = f"{row.seconds * 1e6:8.0f} µs  " if row.seconds is not None else ""
        lines.append(f"{row.index:4}  {took}{row.words}\n        # {row.shell}")
    return "\n".join(lines).lstrip("\n")
