"""A plan for people: each operation in plain words, with the shell command that does the same and, if it was measured, what it took.

A ``$name`` is a place where an earlier line mounted something: a shell has no mounts that are attached nowhere. ``below``, ``target``,
``flags``, ``hide``, ``idmap`` and ``erofs`` are small functions of the script that ``sandbox.script`` makes of these commands; commands
that run another one (``unshare``, ``setpriv``, …) run the rest of the script there. What a shell cannot do begins with ``IMPOSSIBLE``.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from dockless.sandbox.plan.builder import IDMAP, NEW_NS, NODEV, NOEXEC, NOSUID, RDONLY, RECURSIVE
from dockless.sandbox.plan.plan import DIRECTORY, Op, Plan
from dockless.sandbox.spec import RLIMITS

IMPOSSIBLE = "# not possible in shell: "
NOTHING = "# nothing to do in shell: "

_BEGIN = (
    'until [ "$1" = -- ]; do (export "$1") 2> /dev/null && export "$1"; shift; done; '  # a shell keeps some to itself, such as bash UID
    'shift; cd -P "$0" && exec "$@"'
)
"""Of the image's shell, which alone may see the image's environment: variables, ``--``, the program and its arguments."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
"""What a shell can export."""

_RLIMIT_NAMES = {number: name for name, number in RLIMITS.items()}
_FLAGS = ((RDONLY, "ro"), (NOSUID, "nosuid"), (NODEV, "nodev"), (NOEXEC, "noexec"))
_UNSHARE = {
    "mount": "--mount",
    "uts": "--uts",
    "ipc": "--ipc",
    "pid": "--pid",
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
    actor: str


def rows(plan: Plan, times: tuple[int, ...] = (), started: int = 0) -> list[Row]:
    """Every operation in order. ``times``: from the flight recorder, with the CLOCK_MONOTONIC nanoseconds of the start."""
    result = []
    actor, before = "keeper", started
    for index, op in enumerate((*plan.ops, *((Op("EXEC"),) if plan.command else ()))):
        seconds = None
        if index < len(times) and times[index]:
            seconds = (times[index] - before) / 1e9
            before = times[index]
        result.append(Row(index, actor, op.name, words(op, plan), shell(op, plan, actor), seconds))
        actor = {"CLONE": "init", "SPAWN": "job"}.get(op.name, actor)
    return result


def _label(plan: Plan, slot: int) -> str:
    return plan.slots.get(slot, f"slot {slot}")


def name_of(plan: Plan, slot: int) -> str:
    """The shell variable of a slot: its label, with its number where another one is labelled so."""
    name = _identifier(_label(plan, slot))
    same = [other for other, label in plan.slots.items() if _identifier(label) == name]
    return name if same in ([], [slot]) else f"{name}_{slot}"


def _identifier(label: str) -> str:
    return re.sub(r"[^a-zA-Z0-9]", "_", label).strip("_")


def _variable(plan: Plan, slot: int) -> str:
    return "$" + name_of(plan, slot)


def _through_slots(text: str, plan: Plan) -> str:
    """A text for the shell in which /proc/self/fd/N is the place of slot N."""
    parts = re.split(r"/proc/self/fd/(\d+)", text)
    return "".join(_variable(plan, int(part)) if index % 2 else shlex.quote(part) if part else "" for index, part in enumerate(parts))


def _kinds(flags: int) -> list[str]:
    return [kind for kind, bit in NEW_NS.items() if flags & bit]


def _options(bits: int) -> str:
    return ",".join(name for bit, name in _FLAGS if bits & bit)


def _ids(op: _Said) -> tuple[int, int]:
    return op.x & 0xFFFFFFFF, op.x >> 32


def _text(value: str | bytes | int) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _attributes(op: _Said, plan: Plan) -> tuple[str, str]:
    name = _label(plan, op.slot_in) if op.slot_in >= 0 else op.a
    where = _variable(plan, op.slot_in) if op.slot_in >= 0 else shlex.quote(op.a)
    said, done = [], []
    recursive = op.c & RECURSIVE
    if op.b != "0":
        said.append(f"make {'every mount below ' if recursive else ''}{name} private: nothing mounted here shows outside")
        done.append(f"mount --make-{'r' if recursive else ''}private {where}")
    if options := _options(op.x):
        said.append(f"make {name} {options}")
        done.append(f"flags {options} {where}{' -R' if recursive else ''}")
    if op.x & IDMAP:
        said.append(f"shift the owners of {name} by the id map of the {_label(plan, op.slot_out)}")
        done.append(f"idmap {_variable(plan, op.slot_out)} {where}")
    return ", ".join(said), "; ".join(done)


def _move(op: _Said, plan: Plan) -> tuple[str, str]:
    what, tree = _label(plan, op.slot_in), _variable(plan, op.slot_in)
    if op.slot_out < 0:
        if op.a == "/":
            return f"mount {what} at {op.a}", f"{NOTHING}it is mounted at {tree}, where the following goes"
        return f"mount {what} at {op.a}", f"mount --rbind {tree} {shlex.quote(op.a)}"
    where = _below(op, plan, op.slot_out)
    carries = any(other.name == "MOVE_MOUNT" and other.slot_out == op.slot_in for other in plan.ops)
    from_now_on = f"; {tree[1:]}={where}" if carries else ""  # what is mounted on it must show there
    return f"mount {what} at {op.a or '/'} of {_label(plan, op.slot_out)}", f"mount --rbind {tree} {where}{from_now_on}"


def _set_ids(op: _Said, plan: Plan) -> tuple[str, str]:
    uid, gid = _ids(op)
    raw = op.blob_b
    groups = ",".join(str(int.from_bytes(raw[i : i + 4], "little")) for i in range(0, len(raw), 4))
    first = "leave the groups" if op.a != "0" else f"set the supplementary groups to {groups or 'none'}"
    said = f"{first}, become user {uid}, group {gid}"
    if op.actor == "job":
        return said, f"{'' if op.a != '0' else f'--groups={groups} '}--gid={gid} --uid={uid}"
    clear = "--keep-groups" if op.a != "0" else (f"--groups {groups}" if groups else "--clear-groups")
    return said, f"setpriv --reuid {uid} --regid {gid} {clear}"


def _below(op: _Said, plan: Plan, slot: int) -> str:
    """A path of the host, or below a slot: one that begins with ``/`` may lead through links of an image."""
    if slot < 0:
        return shlex.quote(op.a)
    if not op.a:
        return _variable(plan, slot)
    if op.a.startswith("/"):
        return f'"$(below {_variable(plan, slot)} {shlex.quote(op.a)})"'
    return f"{_variable(plan, slot)}/{shlex.quote(op.a)}"


def _inside(op: _Said, plan: Plan) -> str:
    """A path of the new root."""
    root = next((_variable(plan, other.slot_in) for other in plan.ops if other.name == "PIVOT"), "")
    return root + shlex.quote(op.a)


def _in(op: _Said, plan: Plan) -> str:
    return f"{op.a}" if op.slot_in < 0 else f"{op.a} in {_label(plan, op.slot_in)}"


def _caps(mask: int) -> str:
    from dockless.sandbox.capabilities import from_mask, ordered

    return ",".join(name.removeprefix("CAP_").lower() for name in ordered(from_mask(mask & ((1 << 41) - 1)))) or "none"


def _bounding(op: _Said, plan: Plan) -> tuple[str, str]:
    dropped = ",".join(str(number) for number in range(41) if not op.x >> number & 1)
    return (
        f"drop every capability from the bounding set but: {_caps(op.x)}",
        f"--drop={dropped}" if dropped else f"{NOTHING}none is dropped",
    )


def _open_tree(op: _Said, plan: Plan) -> tuple[str, str]:
    clone = _variable(plan, op.slot_out)
    if (layer := plan.held.get(op.slot_in)) is not None:
        return (
            f"clone {op.a or _label(plan, op.slot_in)}: the tree of the index {layer.path}, its files' data in the tar {layer.tar}; "
            "nothing was unpacked. Mounted once per process, so that all its sandboxes share what was read",
            f"mkdir {clone}; erofs {shlex.quote(str(layer.path))} {shlex.quote(str(layer.tar))} {clone}",
        )
    source = _below(op, plan, op.slot_in)
    return (
        f"take a clone of {op.a or _label(plan, op.slot_in)}, mounted nowhere yet",
        f"target {source} {clone}; mount --{'r' if op.x & RECURSIVE else ''}bind {source} {clone}",
    )


def _string(op: _Said, plan: Plan) -> tuple[str, str]:
    erofs = _label(plan, op.slot_in) == "erofs context"
    value = _through_slots(op.b, plan)
    if op.a == "source" or (erofs and op.a == "device"):
        return f"set its {op.a} to {op.b}", f"{op.a}={value}"
    return f"set its {op.a} to {op.b}", f"options=$options,{op.a}={value}"


def _fsmount(op: _Said, plan: Plan) -> tuple[str, str]:
    place = _variable(plan, op.slot_out)
    said = f"make it a mount, attached nowhere yet ({_label(plan, op.slot_out)})"
    if _label(plan, op.slot_in) == "erofs context":
        return said, f"mkdir {place}; erofs $source $device {place}"
    flags = f"; flags {_options(op.x)} {place}" if op.x else ""
    return said, f"mkdir {place}; mount -t $fs -o $options $source {place}{flags}"


def _open(op: _Said, plan: Plan) -> tuple[str, str]:
    place = _variable(plan, op.slot_out)
    return f"open {_in(op, plan)}", f"mkdir {place}" if op.a == DIRECTORY else f"ln -s {_below(op, plan, op.slot_in)} {place}"


def _mkdir(op: _Said, plan: Plan) -> tuple[str, str]:
    path = _below(op, plan, op.slot_in)
    held = f"; ln -s {path} {_variable(plan, op.slot_out)}" if op.slot_out >= 0 else ""
    return f"make the directory {_in(op, plan)}", f"mkdir -p -m {op.x:o} {path}{held}"


def _write(op: _Said, plan: Plan) -> tuple[str, str]:
    said = f"write {op.b.strip()!r} to {_in(op, plan)}" if len(op.b) < 80 else f"write {_in(op, plan)}"
    if op.a == "/proc/self/timens_offsets":  # the words of the unshare before it
        return said, " ".join(f"--{clock} {seconds}" for clock, seconds, _ in map(str.split, op.b.splitlines()))
    text = op.b.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")
    return said, f"printf %b {shlex.quote(text)} > {_below(op, plan, op.slot_in)}"


def _null_streams(op: _Said, plan: Plan) -> tuple[str, str]:
    null = _below(op, plan, op.slot_in)
    each = (f"[ ! /dev/fd/{fd} -ef /dev/null ] || exec {fd}{'<' if fd == 0 else '>'} {null}" for fd in range(3))
    return "replace standard streams that are the host's /dev/null by the sandbox's", "; ".join(each)


def _setns(op: _Said, plan: Plan) -> tuple[str, str]:
    kinds = "/".join(_kinds(op.x))
    keep = any(other.name == "SET_IDS" and other.a for other in plan.ops)  # setgroups(2) is denied there
    return (
        f"enter the {kinds} namespace, made beforehand with its id maps",
        f"nsenter --{kinds}={_variable(plan, op.slot_in)}{' --preserve-credentials' if keep else ''}",
    )


def _clone(op: _Said, plan: Plan) -> tuple[str, str]:
    kinds = _kinds(op.x)
    return (
        f"start the sandbox's init in new namespaces: {', '.join(kinds)}" + (", straight into its cgroup" if op.slot_in >= 0 else ""),
        f"unshare {' '.join(_UNSHARE[kind] for kind in kinds)} --fork --kill-child",
    )


def environment(plan: Plan) -> str:
    """The beginning of the last command: a root of its own, and no environment, for a program of the host runs here. Its middle is said by
    the operations before EXEC."""
    root = next((_variable(plan, op.slot_in) for op in plan.ops if op.name == "PIVOT"), "/")
    return f'env -i "$capsh" --chroot={root}'


def _exec(op: _Said, plan: Plan) -> tuple[str, str]:
    assert plan.command is not None
    variables = [entry for entry in plan.command.envp if _VARIABLE.match(entry)]
    arguments = shlex.join([*variables, "--", *plan.command.argv])
    return f"run {plan.command.argv[0]}", f'--shell=/bin/sh -- -c {shlex.quote(_BEGIN)} "$workdir" {arguments}'


def _rlimit(op: _Said, plan: Plan) -> tuple[str, str]:
    raw = op.blob_a
    soft, hard = (int.from_bytes(raw[i : i + 8], "little") for i in (0, 8))
    values = ":".join("unlimited" if v == (1 << 64) - 1 else str(v) for v in (soft, hard))
    return f"limit {_RLIMIT_NAMES[op.c]} to {values}", f"prlimit --pid $$ --{_RLIMIT_NAMES[op.c]}={values}"


def _affinity(op: _Said, plan: Plan) -> tuple[str, str]:
    mask = int.from_bytes(op.blob_a, "little")
    return (
        f"run on processors {','.join(str(i) for i in range(mask.bit_length()) if mask >> i & 1)} only",
        f"taskset --pid {mask:#x} $$ > /dev/null",
    )


_FSOPEN_MORE = {"erofs": ": a layer's tree, in an index over the tar that it came in; nothing was unpacked"}

_SAY: dict[str, Callable[[_Said, Plan], tuple[str, str]]] = {
    "OPEN_TREE": _open_tree,
    "MOUNT_ATTR": _attributes,
    "FSOPEN": lambda op, p: (f"begin a new {op.a} file system{_FSOPEN_MORE.get(op.a, '')}", f"fs={op.a} source=none options=rw"),
    "FS_STRING": _string,
    "FS_FLAG": lambda op, p: (f"set its option {op.a}", f"options=$options,{op.a}"),
    "FS_CREATE": lambda op, p: ("create it", f"{NOTHING}mount(8) creates and mounts in one"),
    "FSMOUNT": _fsmount,
    "MOVE_MOUNT": _move,
    "MKDIR": _mkdir,
    "MKTARGET": lambda op, p: (
        f"make {_in(op, p)} to mount {_label(p, op.slot_out)} on",
        f"target {_variable(p, op.slot_out)} {_below(op, p, op.slot_in)}",
    ),
    "SYMLINK": lambda op, p: (
        f"link {op.a} to {op.b}",
        f"ln -s {shlex.quote(op.b)} {_variable(p, op.slot_in)}/{shlex.quote(op.a.lstrip('/'))}",
    ),
    "OPEN": _open,
    "CLOSE": lambda op, p: (f"close {_label(p, op.slot_in)}", f"{NOTHING}it holds no descriptor of it"),
    "PIVOT": lambda op, p: (
        f"make {_label(p, op.slot_in)} the root, and let go of the host's",
        f"{IMPOSSIBLE}after pivot_root(2) the host's programs are gone; the last command uses chroot(2), which holds no hostile root",
    ),
    "SETNS": _setns,
    "UNSHARE": lambda op, p: (
        f"leave for a new {' and '.join(_kinds(op.x))} namespace",
        f"unshare {' '.join(_UNSHARE[k] for k in _kinds(op.x))}",
    ),
    "WRITE": _write,
    "HOSTNAME": lambda op, p: (f"call the host {op.a}", f"hostname {shlex.quote(op.a)}"),
    "LOOPBACK_UP": lambda op, p: ("bring the loopback interface up", "ip link set lo up"),
    "SET_IDS": _set_ids,
    "FS_IDS": lambda op, p: (
        "open files as user {}, group {} from here on".format(*_ids(op)),
        IMPOSSIBLE + "setfsuid({}), setfsgid({})".format(*_ids(op)),
    ),
    "CLONE": _clone,
    "SPAWN": lambda op, p: (
        "close every file but 0-2, start the job's process; init stays behind to reap and to forward signals",
        f'/bin/sh "$script" job {" ".join(f"{fd}>&-" for fd in range(3, 10))}',
    ),
    "SETSID": lambda op, p: ("start a session of its own, without a terminal", "setsid --wait"),
    "RLIMIT": _rlimit,
    "UMASK": lambda op, p: (f"set the umask to {op.x:04o}", f"umask {op.x:04o}"),
    "CHDIR": lambda op, p: (f"go to {op.a}, which must lie inside the root", f"workdir={shlex.quote(op.a)}"),
    "AFFINITY": _affinity,
    "BOUNDING": _bounding,
    "CAPS": lambda op, p: (f"keep these capabilities: {_caps(op.x)}", "--inh= --noamb"),
    "NO_NEW_PRIVS": lambda op, p: ("give up gaining privileges by setuid programs, for good", "--no-new-privs"),
    "SECCOMP": lambda op, p: (
        f"install the seccomp filter ({len(op.blob_a) // 8} instructions)",
        f"{IMPOSSIBLE}no command installs a filter of one's own",
    ),
    "PDEATHSIG": lambda op, p: (
        "die when the keeper dies",
        f"{IMPOSSIBLE}capsh has no option for it" if op.actor == "job" else "setpriv --pdeathsig kill",
    ),
    "SUBREAPER": lambda op, p: ("adopt the job's orphans", f"{IMPOSSIBLE}prctl(PR_SET_CHILD_SUBREAPER)"),
    "SIGNALS": lambda op, p: ("set every signal to its default, none blocked", "env --default-signal"),
    "KEYRING": lambda op, p: ("start a session keyring of its own", f"{IMPOSSIBLE}a shell cannot join another keyring"),
    "CHOWN": lambda op, p: (
        "give {} to user {}, group {} of the host".format(_in(op, p), *_ids(op)),
        "chown --no-dereference {1}:{2} {0}".format(_below(op, p, op.slot_in), *_ids(op)),
    ),
    "EXPECT_DEVICE": lambda op, p: (
        f"check that {_label(p, op.slot_in)} is the device {os.major(op.x)}:{os.minor(op.x)}",
        f'[ "$(stat -c %Hr:%Lr {_variable(p, op.slot_in)})" = {os.major(op.x)}:{os.minor(op.x)} ]',
    ),
    "MASK": lambda op, p: (
        f"hide {op.a}",
        f"hide {_variable(p, op.slot_in)} {_variable(p, op.slot_out)} {_inside(op, p)}",
    ),
    "READONLY": lambda op, p: (
        f"make {op.a} read-only",
        f"[ ! -e {_inside(op, p)} ] || {{ mount --rbind {_inside(op, p)} {_inside(op, p)}; flags ro {_inside(op, p)} -R; }}",
    ),
    "OVERLAY": lambda op, p: (
        f"mount an overlay at {op.b}",
        f"mount -t overlay -o {_through_slots(op.a, p)} overlay {_through_slots(op.b, p)}",
    ),
    "REMOVE": lambda op, p: (f"remove {_in(op, p)} and everything below", f"rm -rf {_below(op, p, op.slot_in)}"),
    "OWN_PIPES": lambda op, p: (
        "give pipes on the standard streams to user {}, group {}".format(*_ids(op)),
        "for fd in 0 1 2; do [ ! -p /dev/fd/$fd ] || chown {}:{} /dev/fd/$fd; done".format(*_ids(op)),
    ),
    "NULL_STREAMS": _null_streams,
    "EXEC": _exec,
}


def _say(op: Op, plan: Plan, actor: str = "") -> tuple[str, str]:
    blob_a, blob_b = (value if isinstance(value, bytes) else b"" for value in (op.a, op.b))
    return _SAY[op.name](_Said(op.slot_in, op.slot_out, _text(op.a), _text(op.b), blob_a, blob_b, op.c, op.x, actor), plan)


def words(op: Op, plan: Plan) -> str:
    """The operation in plain words, beginning with a verb."""
    said = _say(op, plan)[0]
    return said + " (if it is there)" if op.optional else said


def shell(op: Op, plan: Plan, actor: str) -> str:
    """The shell command that does the same, as near as a shell can come; in the script it stands where ``actor`` is."""
    return _say(op, plan, actor)[1]


def text(table: list[Row]) -> str:
    """The rows as the CLI prints them."""
    lines = []
    actor = ""
    for row in table:
        if row.actor != actor:
            actor = row.actor
            lines.append(f"\n{actor}:")
        took = f"{row.seconds * 1e6:8.0f} µs  " if row.seconds is not None else ""
        prompt = "" if row.shell.startswith("#") else "$ "
        lines.append(f"{row.index:4}  {took}{row.words}\n        {prompt}{row.shell}")
    return "\n".join(lines).lstrip("\n")
