"""From the plan of a sandbox that runs to the plan of a program that enters it. Pure: everything is taken from what the sandbox was started
with, so what enters has no right that the sandbox's own program has not.

::

    keeper   a child of the sandbox's keeper, in its user namespace already
    CLONE    straight into a cgroup below the sandbox's
    init     outside of the sandbox's processes: the other namespaces, root there
    MARK     where it has no cgroup: limits by which its processes are found later
    SPAWN    into the PID namespace
    program  the sandbox's own: limits, ids, capabilities, no_new_privs, seccomp
    EXEC

``compile_look``: with the root and the program section of another one instead, and the sandbox's own root below ``TARGET``.

Nothing inside can look into what enters before its program begins: it is not dumpable, and its memory belongs to the host's user
namespace. No path of the sandbox is opened on the way but the working directory and the program. setns(2), namespaces(7)
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from dockless.base.checks import check_record
from dockless.base.dataclass import dataclass, replace
from dockless.errors import BadInput
from dockless.sandbox.accounts import Account, check_account
from dockless.sandbox.command import candidates, directory
from dockless.sandbox.plan.builder import NEW_NS, NO_SYMLINKS, NODEV, NOSUID, PRIVATE, RDONLY, RECURSIVE, TREE_CLONE
from dockless.sandbox.plan.plan import PTMX, SLOT_CGROUP, SLOT_NAMESPACES, SLOT_ROOT, SLOT_TERMINAL, Command, Op, Plan
from dockless.sandbox.spec import RLIMITS, check_beginning

_KINDS = ("mount", "cgroup", "uts", "ipc", "pid", "net")
"""In the order of their slots, ``native/launcher/door.c``."""
_ORDER = ("net", "ipc", "uts", "cgroup", "pid", "mount")
"""In which they are entered: the mount namespace last, because the host's paths end there."""
_SIGKILL = 9
_MARK = (RLIMITS["locks"], RLIMITS["rttime"], RLIMITS["rss"])
"""Resource limits: two of these three are set to values that mark the processes of a command that has no cgroup."""
TARGET = "/target"
"""Where the files of a sandbox are for whoever looks into it."""
_CLONES = {"/": TARGET[1:], "/proc": "proc", "/sys": "sys"}
"""What they see of it, and where."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What enters. ``argv``: as the image's programs are called; ``env`` is added to the sandbox's. ``workdir`` empty: the sandbox's.
    ``account`` None: the sandbox's own. ``timeout``: seconds until its whole tree is killed, 0 for none. ``given``: the program is a
    descriptor, not ``argv[0]``. ``tty``: a terminal of its own, whose other side goes to the socket in ``SLOT_TERMINAL``. ``handed``: its
    standard streams come by a socket, the one it is given as standard input. ``ends``: when it ends, all processes that it has started
    are killed. They are found by its mark; where it has a cgroup, whoever made the cgroup kills them instead."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    workdir: str = ""
    account: Account | None = None
    timeout: float = 0.0
    given: bool = False
    tty: bool = False
    handed: bool = False
    ends: bool = False

    def __post_init__(self) -> None:
        check_record(self)
        if self.account is not None:
            check_account(self.account)
        check_beginning(self.env, self.workdir, self.timeout)


def compile_entry(plan: Plan, entry: Entry, *, has_cgroup: bool) -> Plan:
    """The plan of what enters the sandbox that was started by ``plan``. ``BadInput`` for a command that is empty."""
    return with_command(compile_way(plan, entry, has_cgroup=has_cgroup), entry)


def same_way(entry: Entry, has_cgroup: bool) -> Hashable:
    """Equal for entries of which ``compile_way`` makes the same."""
    return entry.workdir, entry.account, entry.tty, entry.handed, entry.ends, has_cgroup


def compile_way(plan: Plan, entry: Entry, *, has_cgroup: bool) -> Plan:
    """Its operations, and the variables that every command has that enters in this way."""
    init, program = _sections(plan)
    owned = [replace(op, x=_owner(entry.account, op.x)) for op in init if op.name == "OWN_PIPES"]
    ops = (*_inside(init, has_cgroup), *owned, *_terminal(program, entry), *_spawned(program, entry, has_cgroup))
    assert plan.command is not None
    return _entering(ops, plan.command, entry)


def compile_look(plan: Plan, tools: Plan, entry: Entry, *, has_cgroup: bool, write: bool) -> Plan:
    """The plan of a program of another sandbox, made by the plan ``tools``, among the processes of the one that was started by ``plan``:
    the descriptor in ``SLOT_ROOT`` is its root. ``write``: the files in ``TARGET`` can be changed. ``BadInput`` for a command that is
    empty."""
    init, _ = _sections(plan)
    _, program = _sections(tools)
    assert tools.command is not None
    ops = (
        *_inside(init, has_cgroup),
        *_other_root(write),
        *_terminal(program, entry),
        *_spawned(program, replace(entry, ends=True), has_cgroup),  # it has more rights than the sandbox
    )
    way = _entering(ops, tools.command, entry)
    shown = {SLOT_ROOT + number: f"the sandbox's {path}" for number, path in enumerate(_CLONES, 1)}
    return with_command(replace(way, slots={**way.slots, **shown, SLOT_ROOT: "root of the tools"}), entry)


def _other_root(write: bool) -> Iterator[Op]:
    """In the sandbox's mount namespace: clones of what is to be seen of it, a copy of the namespace, and in that another root. Nothing of
    this shows in the sandbox, and nothing that is mounted there later shows here."""
    clones = {path: SLOT_ROOT + number for number, path in enumerate(_CLONES, 1)}
    for path, tree in clones.items():
        yield Op("OPEN_TREE", slot_out=tree, a=path, x=TREE_CLONE | RECURSIVE)
        # A clone of a shared mount, which the sandbox may have, is its peer: what is mounted below one would appear below the other.
        attributes = NOSUID | NODEV | (0 if write else RDONLY) if path == "/" else 0
        yield Op("MOUNT_ATTR", tree, a="", b=PRIVATE, x=attributes, c=RECURSIVE)
    yield Op("UNSHARE", x=NEW_NS["mount"])
    yield Op("MOUNT_ATTR", a="/", b=PRIVATE, c=RECURSIVE)
    yield Op("MOVE_MOUNT", SLOT_ROOT, a="/")
    for path, tree in clones.items():
        yield Op("MOVE_MOUNT", tree, SLOT_ROOT, a=_CLONES[path], c=NO_SYMLINKS)
    yield Op("PIVOT", SLOT_ROOT)


def _sections(plan: Plan) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """What init does before it starts the program, and what that does."""
    names = [op.name for op in plan.ops]
    spawn = names.index("SPAWN")
    return plan.ops[names.index("CLONE") + 1 : spawn], plan.ops[spawn + 1 :]


def _inside(init: tuple[Op, ...], has_cgroup: bool) -> tuple[Op, ...]:
    handed = next(op.x for op in init if op.name == "HAND_OVER")
    return (
        Op("SUBREAPER"),
        Op("CLONE", SLOT_CGROUP if has_cgroup else -1),
        *(op for op in init if op.name == "WRITE" and op.a == "/proc/self/oom_score_adj"),
        *_into(handed),
        next(op for op in init if op.name == "SET_IDS"),
        Op("PDEATHSIG", x=_SIGKILL),
    )


def _entering(ops: tuple[Op, ...], own: Command, entry: Entry) -> Plan:
    slots = {SLOT_NAMESPACES + number: f"{kind} namespace" for number, kind in enumerate(_KINDS)}
    return Plan(ops, Command((), (), _variables(own, entry)), {**slots, SLOT_CGROUP: "cgroup"})


def with_command(way: Plan, entry: Entry) -> Plan:
    """The whole plan. ``BadInput`` for a command that is empty."""
    assert way.command is not None
    if not entry.argv or not entry.argv[0]:
        raise BadInput("the command is empty", subject="command", hint="say what to run: the first argument is the program")
    envp = way.command.envp
    if entry.env:
        envp = _written(_read(envp) | dict(entry.env))
    found = ("",) if entry.given else candidates(entry.argv[0], _path(envp))
    return Plan(way.ops, Command(found, entry.argv, envp), way.slots, entry.timeout)


def _owner(account: Account | None, own: int) -> int:
    return own if account is None else account.uid | account.gid << 32


def _into(handed: int) -> Iterator[Op]:
    for kind in _ORDER:
        if handed & NEW_NS[kind]:
            yield Op("SETNS", SLOT_NAMESPACES + _KINDS.index(kind), x=NEW_NS[kind])


def _terminal(program: tuple[Op, ...], entry: Entry) -> Iterator[Op]:
    if entry.tty:
        own = next(op.x for op in program if op.name == "SET_IDS")
        yield Op("TERMINAL", SLOT_TERMINAL, a=PTMX, x=_owner(entry.account, own))


def _spawned(program: tuple[Op, ...], entry: Entry, has_cgroup: bool) -> tuple[Op, ...]:
    """The program section. Where there is no cgroup the mark is set before the first process of the command is in the sandbox, see
    native/launcher/marked.c; the program's own values of these limits are set before the mark, as they may be higher."""
    first = () if has_cgroup else tuple(op for op in program if op.name == "RLIMIT" and op.c in _MARK)
    mark = () if has_cgroup else (Op("MARK", x=int(entry.ends)),)
    return (*first, *mark, Op("SPAWN"), *_program(tuple(op for op in program if op not in first), entry))


def _program(ops: tuple[Op, ...], entry: Entry) -> Iterator[Op]:
    """The sandbox's own program section, with the directory and the account of what enters."""
    if entry.handed and not entry.tty:
        yield Op("PDEATHSIG", x=_SIGKILL)
        yield Op("STREAMS")  # before anything limits its descriptors
    account = entry.account
    kept = next(op.x for op in ops if op.name == "BOUNDING")
    for op in ops:
        if op.name == "CHDIR" and entry.workdir:
            op = replace(op, a=directory(entry.workdir))
        elif op.name == "SET_IDS" and account is not None:
            groups = b"".join(group.to_bytes(4, "little") for group in account.groups)
            op = replace(op, b=groups, x=_owner(account, 0))
        elif op.name == "CAPS" and account is not None:
            op = replace(op, x=kept if account.uid == 0 else 0)
        elif op.name == "SETSID":
            op = replace(op, x=int(entry.tty))
        elif op.name == "PDEATHSIG":
            continue
        yield op
        if op.name == "SET_IDS":
            yield Op("PDEATHSIG", x=_SIGKILL)


def _variables(own: Command, entry: Entry) -> tuple[str, ...]:
    variables = _read(own.envp)
    if entry.account is not None:
        variables["HOME"] = entry.account.home
    if entry.tty:
        variables.setdefault("TERM", "xterm")
    return _written(variables)


def _read(envp: tuple[str, ...]) -> dict[str, str]:
    return dict(variable.partition("=")[::2] for variable in envp)


def _written(variables: dict[str, str]) -> tuple[str, ...]:
    return tuple(f"{name}={value}" for name, value in variables.items())


def _path(envp: tuple[str, ...]) -> str:
    return next((variable[5:] for variable in envp if variable.startswith("PATH=")), "")
