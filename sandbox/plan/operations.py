"""Every operation of a plan in one place: how it is said in words and as a shell command, how its numbers are read, what a refusal means.

Its arguments and its encoding are those of ``native/launcher/plan.h``, which C and Python share; ``native/launcher/ops.c`` carries it out.

``below``, ``target``, ``flags``, ``hide``, ``idmap`` and ``erofs`` are small functions of the script that ``sandbox.script`` makes of these
commands; commands that run another one (``unshare``, ``setpriv``, …) run the rest of the script there. What a shell cannot do begins
with ``IMPOSSIBLE``.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
from collections.abc import Callable, Mapping

from dockless.base.dataclass import dataclass, field
from dockless.base.text import escaped
from dockless.base.units import format_duration
from dockless.sandbox.plan.builder import HOST_PROC, IDMAP, NEW_NS, NO_SYMLINKS, PRIVATE, RECURSIVE, TREE_CLONE
from dockless.sandbox.plan.plan import DIRECTORY, Op, Plan
from dockless.sandbox.plan.wording import (
    FLAGS,
    IMPOSSIBLE,
    NOTHING,
    RLIMIT_NAMES,
    Said,
    Slots,
    below,
    bits,
    capabilities,
    groups,
    ids,
    inside,
    kinds,
    label,
    limits,
    options,
    place,
    place_in,
    processors,
    through_slots,
    variable,
)  # fmt: skip

_BEGIN = (
    'until [ "$1" = -- ]; do (export "$1") 2> /dev/null && export "$1"; shift; done; '  # a shell keeps some to itself, such as bash UID
    'shift; cd -P "$0" && exec "$@"'
)
"""Of the image's shell, which alone may see the image's environment: variables, ``--``, the program and its arguments."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
"""What a shell can export."""

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


def _attributes(op: Said, plan: Plan) -> tuple[str, str]:
    name = label(plan, op.slot_in) if op.slot_in >= 0 else op.a
    where = variable(plan, op.slot_in) if op.slot_in >= 0 else shlex.quote(op.a)
    said, done = [], []
    recursive = op.c & RECURSIVE
    if op.b != "0":
        said.append(f"make {'every mount below ' if recursive else ''}{name} private: nothing mounted here shows outside")
        done.append(f"mount --make-{'r' if recursive else ''}private {where}")
    if flags := options(op.x):
        said.append(f"make {name} {flags}")
        done.append(f"flags {flags} {where}{' -R' if recursive else ''}")
    if op.x & IDMAP:
        said.append(f"shift the owners of {name} by the id map of the {label(plan, op.slot_out)}")
        done.append(f"idmap {variable(plan, op.slot_out)} {where}")
    return ", ".join(said), "; ".join(done)


def _move(op: Said, plan: Plan) -> tuple[str, str]:
    what, tree = label(plan, op.slot_in), variable(plan, op.slot_in)
    if op.slot_out < 0:
        if op.a == "/":
            return f"mount {what} at {op.a}", f"{NOTHING}it is mounted at {tree}, where the following goes"
        if op.a == HOST_PROC:
            return f"mount {what} at {op.a} of the host's root, to let go of both at once", f"{NOTHING}it is mounted at {tree}"
        return f"mount {what} at {op.a}", f"mount --rbind {tree} {shlex.quote(op.a)}"
    where = below(op, plan, op.slot_out)
    carries = any(other.name == "MOVE_MOUNT" and other.slot_out == op.slot_in for other in plan.ops)
    from_now_on = f"; {tree[1:]}={where}" if carries else ""  # what is mounted on it must show there
    return f"mount {what} at {op.a or '/'} of {label(plan, op.slot_out)}", f"mount --rbind {tree} {where}{from_now_on}"


def _set_ids(op: Said, plan: Plan) -> tuple[str, str]:
    uid, gid = ids(op)
    first = "leave the groups" if op.a != "0" else f"set the supplementary groups to {groups(op.blob_b)}"
    said = f"{first}, become user {uid}, group {gid}"
    numbers = groups(op.blob_b) if op.blob_b else ""
    if op.actor == "program":
        return said, f"{'' if op.a != '0' else f'--groups={numbers} '}--gid={gid} --uid={uid}"
    clear = "--keep-groups" if op.a != "0" else (f"--groups {numbers}" if numbers else "--clear-groups")
    return said, f"setpriv --reuid {uid} --regid {gid} {clear}"


def _bounding(op: Said, plan: Plan) -> tuple[str, str]:
    dropped = ",".join(str(number) for number in range(41) if not op.x >> number & 1)
    return (
        f"drop every capability from the bounding set but: {capabilities(op.x)}",
        f"--drop={dropped}" if dropped else f"{NOTHING}none is dropped",
    )


def _open_tree(op: Said, plan: Plan) -> tuple[str, str]:
    clone = variable(plan, op.slot_out)
    if (layer := plan.held.get(op.slot_in)) is not None:
        where = f"the tar {layer.tar}" if not layer.others else f"{len(layer.tars)} tars, one of each layer"
        return (
            f"clone {op.a or label(plan, op.slot_in)}: the tree of the index {layer.path}, its files' data in {where}; "
            "nothing was unpacked. Mounted once per process, so that all its sandboxes share what was read",
            f"mkdir {clone}; erofs {shlex.quote(str(layer.path))} {clone} {shlex.join(map(str, layer.tars))}",
        )
    source = below(op, plan, op.slot_in)
    return (
        f"take a clone of {op.a or label(plan, op.slot_in)}, mounted nowhere yet",
        f"target {source} {clone}; mount --{'r' if op.x & RECURSIVE else ''}bind {source} {clone}",
    )


def _string(op: Said, plan: Plan) -> tuple[str, str]:
    erofs = label(plan, op.slot_in) == "erofs context"
    value = through_slots(op.b, plan)
    if op.a == "source" or (erofs and op.a == "device"):
        return f"set its {op.a} to {op.b}", f"{op.a}={value}"
    return f"set its {op.a} to {op.b}", f"options=$options,{op.a}={value}"


def _fsmount(op: Said, plan: Plan) -> tuple[str, str]:
    where = variable(plan, op.slot_out)
    said = f"make it a mount, attached nowhere yet ({label(plan, op.slot_out)})"
    if label(plan, op.slot_in) == "erofs context":
        return said, f"mkdir {where}; erofs $source {where} $device"
    flags = f"; flags {options(op.x)} {where}" if op.x else ""
    return said, f"mkdir {where}; mount -t $fs -o $options $source {where}{flags}"


def _open(op: Said, plan: Plan) -> tuple[str, str]:
    where = variable(plan, op.slot_out)
    return f"open {place_in(op, plan)}", f"mkdir {where}" if op.a == DIRECTORY else f"ln -s {below(op, plan, op.slot_in)} {where}"


def _mkdir(op: Said, plan: Plan) -> tuple[str, str]:
    path = below(op, plan, op.slot_in)
    held = f"; ln -s {path} {variable(plan, op.slot_out)}" if op.slot_out >= 0 else ""
    return f"make the directory {place_in(op, plan)}", f"mkdir -p -m {op.x:o} {path}{held}"


def _write(op: Said, plan: Plan) -> tuple[str, str]:
    said = f"write {op.b.strip()!r} to {place_in(op, plan)}" if len(op.b) < 80 else f"write {place_in(op, plan)}"
    if op.a == "/proc/self/timens_offsets":  # the words of the unshare before it
        return said, " ".join(f"--{clock} {seconds}" for clock, seconds, _ in map(str.split, op.b.splitlines()))
    text = op.b.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")
    return said, f"printf %b {shlex.quote(text)} > {below(op, plan, op.slot_in)}"


def _expect(op: Said, plan: Plan) -> tuple[str, str]:
    kind, number, node = "block " if op.c else "", f"{os.major(op.x)}:{os.minor(op.x)}", variable(plan, op.slot_in)
    done = f'[ -{"b" if op.c else "c"} {node} ]; [ "$(stat -c %Hr:%Lr {node})" = {number} ]'
    return f"check that {label(plan, op.slot_in)} is the {kind}device {number}", done


def _setting(path: str) -> str:
    return path.removeprefix("sys/").replace("/", ".")


def _null_streams(op: Said, plan: Plan) -> tuple[str, str]:
    null = below(op, plan, op.slot_in)
    each = (f"[ ! /dev/fd/{fd} -ef /dev/null ] || exec {fd}{'<' if fd == 0 else '>'} {null}" for fd in range(3))
    return "replace standard streams that are the host's /dev/null by the sandbox's", "; ".join(each)


def _setns(op: Said, plan: Plan) -> tuple[str, str]:
    kind = "/".join(kinds(op.x))
    keep = any(other.name == "SET_IDS" and other.a for other in plan.ops)  # setgroups(2) is denied there
    return (
        f"enter the {kind} namespace" + (", made beforehand with its id maps" if kind == "user" else ""),
        f"nsenter --{kind}={variable(plan, op.slot_in)}{' --preserve-credentials' if keep else ''}",
    )


def _clone(op: Said, plan: Plan) -> tuple[str, str]:
    new = kinds(op.x)
    return (
        f"start the sandbox's init in new namespaces: {', '.join(new)}"
        + (f", below the {label(plan, op.slot_out)}" if op.slot_out >= 0 else "")
        + (", straight into its cgroup" if op.slot_in >= 0 else ""),
        f"unshare {' '.join(_UNSHARE[kind] for kind in new)} --fork --kill-child",
    )


def _exec(op: Said, plan: Plan) -> tuple[str, str]:
    assert plan.command is not None
    variables = [entry for entry in plan.command.envp if _VARIABLE.match(entry)]
    arguments = shlex.join([*variables, "--", *plan.command.argv])
    return f"run {plan.command.argv[0]}", f'--shell=/bin/sh -- -c {shlex.quote(_BEGIN)} "$workdir" {arguments}'


def _rlimit(op: Said, plan: Plan) -> tuple[str, str]:
    values = limits(op.blob_a)
    return f"limit {RLIMIT_NAMES[op.c]} to {values}", f"prlimit --pid $$ --{RLIMIT_NAMES[op.c]}={values}"


def _affinity(op: Said, plan: Plan) -> tuple[str, str]:
    return (
        f"run on processors {processors(op.blob_a)} only",
        f"taskset --pid {int.from_bytes(op.blob_a, 'little'):#x} $$ > /dev/null",
    )


_LAYERS_REFUSED = "the kernel refused these layers together: see dmesg; an upper cannot lie on overlayfs, NFS or FUSE. Try --root tmpfs"
_NOT_ITS_OWN = "it is the host's own, or this kernel keeps it for the host's root: leave it out, or try --userns host as root"
_FSOPEN_MORE = {"erofs": ": a layer's tree, in an index over the tar that it came in; nothing was unpacked"}


def _attribute_words(op: Op, _: Slots) -> list[str]:
    cleared = op.x >> 32
    return [
        bits(op.x & 0xFFFFFFFF, (*FLAGS, (IDMAP, "idmap"))),
        f"without {bits(cleared, FLAGS)}" if cleared else "",
        bits(op.b if isinstance(op.b, int) else 0, ((PRIVATE, "private"),)),
        bits(op.c, ((RECURSIVE, "recursive"),)),
    ]


def _id_words(op: Op, slots: Slots) -> list[str]:
    return [*_owner(op, slots), "the groups as they are" if op.a else f"groups {groups(_raw(op.b))}"]


def _raw(value: str | bytes | int) -> bytes:
    return value if isinstance(value, bytes) else b""


def _owner(op: Op, _: Slots) -> list[str]:
    return ["{}:{}".format(*ids(op))]


def _namespaces(op: Op, _: Slots) -> list[str]:
    return [bits(op.x, ((bit, kind) for kind, bit in NEW_NS.items()))]


def _opened(op: Op, _: Slots) -> list[str]:
    return [bits(op.x, ((os.O_PATH, "path"), (os.O_CREAT, "create"), (os.O_TRUNC, "truncate")))]


def _octal(op: Op, _: Slots) -> list[str]:
    return [f"{op.x:04o}"]


def _capabilities(op: Op, _: Slots) -> list[str]:
    return [capabilities(op.x)]


@dataclass(frozen=True, slots=True)
class Operation:
    """``say``: the words, beginning with a verb, and the shell command. ``numbers``: what a line of the plan says besides slots and texts.
    ``hints``: what to do next, by the kernel's error."""

    say: Callable[[Said, Plan], tuple[str, str]]
    numbers: Callable[[Op, Slots], list[str]] = lambda op, slots: []
    hints: Mapping[int, str] = field(default_factory=dict)


OPERATIONS: dict[str, Operation] = {
    "OPEN_TREE": Operation(_open_tree, numbers=lambda op, _: [bits(op.x, ((TREE_CLONE, "clone"), (RECURSIVE, "recursive")))]),
    "MOUNT_ATTR": Operation(
        _attributes,
        numbers=_attribute_words,
        hints={
            errno.EINVAL: "that file system cannot map owners, or not in this kernel: put the store on ext4 or xfs; the image host needs it"
            " for --userns host",
        },
    ),
    "FSOPEN": Operation(
        lambda op, p: (f"begin a new {op.a} file system{_FSOPEN_MORE.get(op.a, '')}", f"fs={op.a} source=none options=rw"),
        hints={
            errno.ENODEV: "this kernel lacks that file system: load its module as root (modprobe overlay)",
            errno.EPERM: "a user namespace may not mount it here: run 'dockless doctor'",
        },
    ),
    "FS_STRING": Operation(_string),
    "FS_FLAG": Operation(lambda op, p: (f"set its option {op.a}", f"options=$options,{op.a}")),
    "FS_CREATE": Operation(
        lambda op, p: ("create it", f"{NOTHING}mount(8) creates and mounts in one"), hints={errno.EINVAL: _LAYERS_REFUSED}
    ),
    "FSMOUNT": Operation(
        _fsmount,
        numbers=lambda op, _: [bits(op.x, FLAGS)],
        hints={
            errno.EPERM: "an existing mount of this file system is partly covered, as inside a container: run outside of it, or share"
            " the namespace",
        },
    ),
    "MOVE_MOUNT": Operation(
        _move,
        numbers=lambda op, slots: [
            f"unless {place(slots, op.b)}" if isinstance(op.b, int) and op.b else "",
            bits(op.c, ((NO_SYMLINKS, "no symlinks"),)),
        ],
        hints={
            errno.ELOOP: "the image has a link at a place where a kernel file system belongs; fix the image",
            errno.EINVAL: "the target is not in this mount namespace; if '/' is an initramfs, switch_root first",
        },
    ),
    "MKDIR": Operation(_mkdir, numbers=_octal),
    "MKTARGET": Operation(
        lambda op, p: (
            f"make {place_in(op, p)} to mount {label(p, op.slot_out)} on",
            f"target {variable(p, op.slot_out)} {below(op, p, op.slot_in)}",
        )
    ),
    "SYMLINK": Operation(
        lambda op, p: (f"link {op.a} to {op.b}", f"ln -s {shlex.quote(op.b)} {variable(p, op.slot_in)}/{shlex.quote(op.a.lstrip('/'))}")
    ),
    "OPEN": Operation(_open, numbers=_opened),
    "CLOSE": Operation(lambda op, p: (f"close {label(p, op.slot_in)}", f"{NOTHING}it holds no descriptor of it")),
    "PIVOT": Operation(
        lambda op, p: (
            f"make {label(p, op.slot_in)} the root, and let go of the host's",
            f"{IMPOSSIBLE}after pivot_root(2) the host's programs are gone; the last command uses chroot(2), which holds no hostile root",
        ),
        hints={errno.EINVAL: "the host's root is an initramfs: switch_root to a real file system first"},
    ),
    "HAND_OVER": Operation(
        lambda op, p: (
            f"give {'the keeper' if op.slot_in < 0 else 'the starter'} the namespaces {', '.join(kinds(op.x))}, so that other"
            f" {'programs' if op.slot_in < 0 else 'processes'} can enter",
            f"{NOTHING}a shell enters by nsenter --target",
        ),
        numbers=_namespaces,
        hints={errno.ENOENT: "mount procfs on the host: mount -t proc proc /proc"},
    ),
    "SETNS": Operation(_setns, numbers=_namespaces, hints={errno.EPERM: "the user namespace belongs to somebody else"}),
    "UNSHARE": Operation(
        lambda op, p: (f"leave for a new {' and '.join(kinds(op.x))} namespace", f"unshare {' '.join(_UNSHARE[k] for k in kinds(op.x))}"),
        numbers=_namespaces,
    ),
    "WRITE": Operation(_write, numbers=_opened, hints={errno.EACCES: "lowering oom_score_adj needs CAP_SYS_RESOURCE on the host"}),
    "HOSTNAME": Operation(lambda op, p: (f"call the host {op.a}", f"hostname {shlex.quote(op.a)}")),
    "DOMAINNAME": Operation(lambda op, p: (f"call its domain {op.a}", f"domainname {shlex.quote(op.a)}")),
    "SYSCTL": Operation(
        lambda op, p: (f"set {_setting(op.a)} to {op.b.strip()} in its own namespace", _write(op, p)[1]),
        hints={
            errno.ENOENT: "this kernel has no such setting, or not for a namespace: ls /proc/sys",
            **dict.fromkeys((errno.EACCES, errno.EPERM), _NOT_ITS_OWN),
            **dict.fromkeys((errno.EINVAL, errno.ERANGE), "the kernel does not take that value: see its Documentation/admin-guide/sysctl"),
        },
    ),
    "LOOPBACK_UP": Operation(lambda op, p: ("bring the loopback interface up", "ip link set lo up")),
    "SET_IDS": Operation(_set_ids, numbers=_id_words),
    "FS_IDS": Operation(
        lambda op, p: (
            "open files as user {}, group {} from here on".format(*ids(op)),
            IMPOSSIBLE + "setfsuid({}), setfsgid({})".format(*ids(op)),
        ),
        numbers=_id_words,
    ),
    "CLONE": Operation(
        _clone,
        numbers=_namespaces,
        hints={
            errno.EPERM: "this user may not make namespaces: run 'dockless doctor'",
            errno.ENOSPC: "too many namespaces: raise sysctl user.max_*_namespaces",
            errno.EAGAIN: "too many processes: raise the limit on processes (ulimit -u, pids.max)",
            errno.EBUSY: "the cgroup has controllers switched on for its children, so it can hold no process",
        },
    ),
    "SPAWN": Operation(
        lambda op, p: (
            "close every file but 0-2, start the program's process; init stays behind to reap and to forward signals",
            f'/bin/sh "$script" program {" ".join(f"{fd}>&-" for fd in range(3, 10))}',
        )
    ),
    "SETSID": Operation(
        lambda op, p: (
            f"start a session of its own, {'with the terminal' if op.x else 'without a terminal'}",
            f"setsid{' --ctty' if op.x else ''} --wait",
        ),
        numbers=lambda op, _: ["with the terminal"] if op.x else [],
    ),
    "RESTORE": Operation(
        lambda op, p: ("wait for the end of the client, then put the modes of its terminal back", f"{NOTHING}stty sane"),
        numbers=lambda op, _: [],
    ),
    "THAW": Operation(
        lambda op, p: ("wait for the end of who has frozen a sandbox, then have it go on", f"{NOTHING}echo 0 > cgroup.freeze"),
        numbers=lambda op, _: [],
    ),
    "TERMINAL": Operation(
        lambda op, p: (f"make a terminal of {op.a} and have it as standard input, output and error", f"{IMPOSSIBLE}script -c makes one"),
        numbers=_owner,
        hints={
            errno.ENOSPC: "too many terminals: raise sysctl kernel.pty.max",
            errno.ENODEV: "something was put in the place of its devpts",
        },
    ),
    "BARRIER": Operation(
        lambda op, p: (
            f"wait{f' for {format_duration(op.x / 1e9)} at most' if op.x else ''} to be told what runs, where and on which streams",
            f"{NOTHING}a shell does not wait",
        ),
        numbers=lambda op, _: [f"{op.x} ns at most"] if op.x else [],
        hints={errno.EINVAL: "this is a bug in dockless", errno.EPERM: "this is a bug in dockless"},
    ),
    "HAND_ROOT": Operation(
        lambda op, p: ("give the starter a clone of the root, with all that is mounted in it", f"{NOTHING}the script keeps its own"),
        numbers=lambda op, _: [],
        hints={errno.EPIPE: "its starter has ended"},
    ),
    "MARK": Operation(
        lambda op, p: (
            "mark what starts here by limits that nobody inside can raise, so that all of it is found and killed at its end",
            f"{IMPOSSIBLE}nobody looks for the mark",
        ),
        numbers=lambda op, _: ["to its end"] if op.x else [],
        hints={
            errno.ERANGE: "of the hard limits 'locks', 'rttime' and 'rss' two have to be unlimited: give the sandbox one at most, "
            "or a cgroup; from what has entered another sandbox so, none can be entered"
        },
    ),
    "STREAMS": Operation(
        lambda op, p: ("take standard input, output and error from whoever is to have them", f"{NOTHING}its own are the script's"),
        numbers=lambda op, _: [],
        hints={errno.EINVAL: "send three descriptors, and stay until it has started"},
    ),
    "RLIMIT": Operation(
        _rlimit,
        numbers=lambda op, _: [RLIMIT_NAMES[op.c], limits(_raw(op.a))],
        hints={errno.EPERM: "raising a hard limit needs CAP_SYS_RESOURCE on the host"},
    ),
    "UMASK": Operation(lambda op, p: (f"set the umask to {op.x:04o}", f"umask {op.x:04o}"), numbers=_octal),
    "CHDIR": Operation(lambda op, p: (f"go to {op.a}, which must lie inside the root", f"workdir={shlex.quote(op.a)}")),
    "AFFINITY": Operation(
        _affinity, numbers=lambda op, _: [processors(_raw(op.a))], hints={errno.EINVAL: "none of these processors is allowed here"}
    ),
    "BOUNDING": Operation(_bounding, numbers=_capabilities),
    "CAPS": Operation(lambda op, p: (f"keep these capabilities: {capabilities(op.x)}", "--inh= --noamb"), numbers=_capabilities),
    "NO_NEW_PRIVS": Operation(lambda op, p: ("give up gaining privileges by setuid programs, for good", "--no-new-privs")),
    "SECCOMP": Operation(
        lambda op, p: (
            f"install the seccomp filter ({len(op.blob_a) // 8} instructions)",
            f"{IMPOSSIBLE}no command installs a filter of one's own",
        ),
        numbers=lambda op, _: [f"{len(_raw(op.a)) // 8} instructions"],
        hints={errno.EINVAL: "this kernel has no seccomp filters, or the profile does not compile to one"},
    ),
    "PDEATHSIG": Operation(
        lambda op, p: (
            "die when the keeper dies",
            f"{IMPOSSIBLE}capsh has no option for it" if op.actor == "program" else "setpriv --pdeathsig kill",
        ),
        numbers=lambda op, _: [signal.Signals(op.x).name],
    ),
    "SUBREAPER": Operation(lambda op, p: ("adopt the program's orphans", f"{IMPOSSIBLE}prctl(PR_SET_CHILD_SUBREAPER)")),
    "SIGNALS": Operation(lambda op, p: ("set every signal to its default, none blocked", "env --default-signal")),
    "KEYRING": Operation(lambda op, p: ("start a session keyring of its own", f"{IMPOSSIBLE}a shell cannot join another keyring")),
    "CHOWN": Operation(
        lambda op, p: (
            "give {} to user {}, group {} of the host".format(place_in(op, p), *ids(op)),
            "chown --no-dereference {1}:{2} {0}".format(below(op, p, op.slot_in), *ids(op)),
        ),
        numbers=_owner,
    ),
    "EXPECT_DEVICE": Operation(
        _expect,
        numbers=lambda op, _: [f"{os.major(op.x)}:{os.minor(op.x)}", "block" if op.c else ""],
        hints={errno.ENODEV: "the node on the host is not the device that its name says: repair /dev"},
    ),
    "MASK": Operation(lambda op, p: (f"hide {op.a}", f"hide {variable(p, op.slot_in)} {variable(p, op.slot_out)} {inside(op, p)}")),
    "READONLY": Operation(
        lambda op, p: (
            f"make {op.a} read-only",
            f"[ ! -e {inside(op, p)} ] || {{ mount --rbind {inside(op, p)} {inside(op, p)}; flags ro {inside(op, p)} -R; }}",
        )
    ),
    "OVERLAY": Operation(
        lambda op, p: (f"mount an overlay at {op.b}", f"mount -t overlay -o {through_slots(op.a, p)} overlay {through_slots(op.b, p)}"),
        hints={
            errno.EINVAL: _LAYERS_REFUSED,
            errno.EPERM: "this kernel has no overlay for user namespaces (Linux 5.11): run as root, or boot a newer kernel",
        },
    ),
    "REMOVE": Operation(lambda op, p: (f"remove {place_in(op, p)} and everything below", f"rm -rf {below(op, p, op.slot_in)}")),
    "OWN_PIPES": Operation(
        lambda op, p: (
            "give pipes on the standard streams to user {}, group {}".format(*ids(op)),
            "for fd in 0 1 2; do [ ! -p /dev/fd/$fd ] || chown {}:{} /dev/fd/$fd; done".format(*ids(op)),
        ),
        numbers=_owner,
    ),
    "NULL_STREAMS": Operation(_null_streams),
    "EXEC": Operation(_exec),
}


def words(op: Op, plan: Plan) -> str:
    """The operation in plain words, beginning with a verb."""
    said = OPERATIONS[op.name].say(Said.of(op, ""), plan)[0]
    return said + " (if it is there)" if op.optional else said


def shell(op: Op, plan: Plan, actor: str) -> str:
    """The shell command that does the same, as near as a shell can come; in the script it stands where ``actor`` is."""
    return OPERATIONS[op.name].say(Said.of(op, actor), plan)[1]


def lines(plan: Plan) -> str:
    """One line per operation, stable, with nothing of it left out but the filter's instructions: what golden tests compare."""
    return "".join(f"{_line(op, plan.slots)}\n" for op in plan.ops) + (
        f"EXEC {' '.join(map(escaped, plan.command.argv))}\n" if plan.command else ""
    )


def _line(op: Op, slots: Slots) -> str:
    texts = [escaped(value) or '""' for value in (op.a, op.b) if isinstance(value, str)]
    if op.name == "WRITE" and isinstance(op.b, bytes):
        texts.append(repr(op.b)[1:])
    numbers = [word for word in OPERATIONS[op.name].numbers(op, slots) if word]
    came = [place(slots, op.slot_in)] if op.slot_in >= 0 else []
    goes = ["->", place(slots, op.slot_out)] if op.slot_out >= 0 else []
    return " ".join([op.name + ("?" if op.optional else ""), *came, *texts, *numbers, *goes])
