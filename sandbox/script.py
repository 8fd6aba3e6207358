"""A plan as one shell script, to be run by root or by the user who asked: the same mounts, names, ids and capabilities, nothing on the
host changed.

::

    the host     a directory for the script's own mounts, user namespaces with the id maps, a mount namespace (root)
    keeper       each stage ends in a chain of commands that make the next one's namespaces and ids, as the plan's order has it
    init
    program      capsh: chroot, capabilities, ids; the image's /bin/sh; the program

A script is for looking, not for holding anybody: it uses chroot(2), installs no seccomp filter and sets no limit.
Commands: ``sandbox.plan.operations``.
"""

from __future__ import annotations

import os
import shlex

from dockless.base.dataclass import dataclass, field
from dockless.base.idmaps import IdMap
from dockless.base.text import escaped
from dockless.sandbox.compile import USERNS_LABEL
from dockless.sandbox.plan.explain import ExplainedStep, environment, rows
from dockless.sandbox.plan.plan import Plan
from dockless.sandbox.plan.wording import IMPOSSIBLE, name_of
from dockless.sandbox.resolved import Resolved

_CHAINED = ("SETSID", "SIGNALS", "SETNS", "UNSHARE", "CLONE", "PDEATHSIG", "SET_IDS")
"""Commands that run another one, in another state: the rest of the script."""

_LAST = ("BOUNDING", "SET_IDS", "CAPS", "NO_NEW_PRIVS")
"""Words of the one command that becomes the program."""

_MADE = "# Made by dockless"
"""By which the script knows itself: ``$0`` is no such file where a shell reads it from a pipe."""

_HEAD = r"""#!/bin/sh
# The sandbox of: {command}
{made}, for looking: a hostile program is not held by it (no seccomp filter, no limits, chroot instead of pivot_root).
# Needs util-linux 2.38 (2.39 to map owners), capsh of libcap{tools}, and a /bin/sh in the image. Run it as {user}.
set -eu
umask 022
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
capsh=$(command -v capsh) || {{ echo "capsh is missing: install libcap2-bin, or libcap" >&2; exit 1; }}

# The path of $2 below $1: links on the way lead to places below $1, as they do inside.
below() (
    found=$1 rest=$2 links=0
    while [ -n "$rest" ]; do
        name=${{rest%%/*}}
        case $rest in */*) rest=${{rest#*/}} ;; *) rest= ;; esac
        case $name in
        '' | .) ;;
        ..) [ "$found" = "$1" ] || found=${{found%/*}} ;;
        *)
            if [ -L "$found/$name" ]; then
                links=$((links + 1))
                [ $links -le 40 ] || {{ echo "$2: too many links" >&2; exit 1; }}
                link=$(readlink "$found/$name") rest=$(readlink "$found/$name")/$rest
                case $link in /*) found=$1 ;; esac
            else
                found=$found/$name
            fi
            ;;
        esac
    done
    printf '%s\n' "$found"
)

# Make $2, if it is missing, so that $1 can be mounted on it: a directory on a directory, anything else on a file.
target() {{
    if [ -d "$1" ]; then mkdir -p "$2"; else mkdir -p "${{2%/*}}"; [ -e "$2" ] || : > "$2"; fi
}}

# Give the mount $2 the flags $1 besides those that it has; with -R the mounts below it, too.
flags() {{
    findmnt --noheadings --list --notruncate ${{3-}} --output VFS-OPTIONS,TARGET --mountpoint "$2" | while read -r had mount; do
        mount -o "remount,bind,$had,$1" "$mount"
    done
}}

# Cover $3, if it is there and no link leads to it, read-only: a directory with $2, anything else with $1.
hide() {{
    [ -e "$3" ] && [ "$(realpath "$3")" = "$3" ] || return 0
    if [ -d "$3" ]; then mount --bind "$2" "$3"; else mount --bind "$1" "$3"; fi
    flags ro "$3"
}}

# Shift the owners of the mount $2 by the maps of the user namespace $1.
idmap() {{
    case $(mount --help) in
    *--map-users*) mount -o "bind,X-mount.idmap=$1" "$2" "$2" ;;
    *) echo "not possible with this mount(8), only with that of util-linux 2.39: the owners of $2 stay" >&2 ;;
    esac
}}

# A user namespace with the id maps $2 and $3 (inside, outside, count), kept by a process that sleeps: $1 leads to it.
hold() {{
    unshare --user sleep infinity &
    holders="$holders $!"
    while kill -0 $! && [ "$(readlink "/proc/$!/ns/user")" = "$(readlink /proc/self/ns/user)" ]; do :; done
{maps}
    ln -s "/proc/$!/ns/user" "$1"
}}

# However the script ends, nothing of it stays: the processes in the session of $keeper (with its init ends the sandbox), those that hold
# user namespaces, the directory.
end() {{
    trap '' HUP INT QUIT TERM
    case " $holders $keeper " in *" ${{!-}} "*) ;; *) keeper=$! ;; esac  # ended before the line that notes what was begun
    if [ -n "$keeper" ]; then
        kill -s KILL "$keeper" "-$keeper" 2> /dev/null || :
        wait "$keeper" || :
        tries=0
        while [ $tries -lt 100 ] && kill -0 "-$keeper" 2> /dev/null; do tries=$((tries + 1)); sleep 0.01; done
    fi
    [ -z "$holders" ] || kill $holders
    [ -z "$place" ] || rm -r "$place"
}}
"""
_EROFS = r"""
# Mount the tree of the index $1, whose files' data lie in the tars $3 and so on, at $2. The loop devices go with the mount.
erofs() {
    index=$(losetup --read-only --find --show "$1")
    where=$2 loops=$index options=ro,nodev
    shift 2
    for tar; do
        tar=$(losetup --read-only --find --show "$tar")
        loops="$loops $tar" options=$options,device=$tar
    done
    mount -t erofs -o "$options" "$index" "$where"
    losetup --detach $loops
}
"""
_MAPS = {
    "written": r"""    printf '%s\n' "$2" > /proc/$!/uid_map
    printf '%s\n' "$3" > /proc/$!/gid_map""",
    "denied": r"""    echo deny > /proc/$!/setgroups
    printf '%s\n' "$2" > /proc/$!/uid_map
    printf '%s\n' "$3" > /proc/$!/gid_map""",
    "helped": r"""    newuidmap $! $2
    newgidmap $! $3""",
}


@dataclass(slots=True)
class _Script:
    """Lines so far, and a chain of commands that has begun."""

    lines: list[str]
    comments: list[str] = field(default_factory=list)
    chain: list[str] = field(default_factory=list)
    stages: list[str] = field(default_factory=list)

    def add(self, row: ExplainedStep) -> None:
        self.lines += ["", _comment(row), f"    {row.shell}"]

    def begin(self, actor: str) -> None:
        """The stage in which the next operations run."""
        name = actor if actor not in self.stages else f"{actor}-{len(self.stages)}"
        if self.chain:
            self.lines += ["", *self.comments, *_continued([*self.chain, f'/bin/sh "$script" {name}'])]
        self.chain, self.comments = [], []
        if self.stages:
            self.lines += ["    ;;"]
        self.stages.append(name)
        self.lines += [f"{name})"]


def script(resolved: Resolved, plan: Plan, notes: list[str]) -> str:
    """The text of the script. ``notes``: what else the sandbox has and the script has not, for its first lines."""
    out = _Script(_head(resolved, plan, notes).splitlines())
    places = '    mount -t tmpfs -o mode=1777 none "$slots"'
    out.begin("keeper")
    if resolved.rootful:
        out.lines += ["    # for mounts that are attached nowhere yet", places]
    last: list[ExplainedStep] = []
    for row in rows(plan):
        chained = row.operation in _CHAINED and not row.shell.startswith(IMPOSSIBLE)
        if row.actor == "program" and (row.operation in _LAST or row.operation == "EXEC"):
            if out.chain:
                out.begin(row.actor)
            last.append(row)
        elif chained or (out.chain and row.shell.startswith("--")):
            out.comments.append(_comment(row))
            out.chain.append(row.shell)
        else:
            if out.chain:
                out.begin(row.actor)
                if not resolved.rootful and row.actor == "init" and places not in out.lines:
                    out.lines += ["    # for mounts that are attached nowhere yet", places]
            out.add(row)
        if row.operation == "SPAWN":
            out.begin("program")
    if out.chain:
        out.begin("program")
    out.lines += [
        "",
        *map(_comment, last),
        *_continued([environment(plan), *(row.shell for row in last if not row.shell.startswith("#"))]),
    ]
    return "\n".join([*out.lines, "    ;;", "esac", ""])


def _comment(row: ExplainedStep) -> str:
    """On one line, whatever is in it: an image may have put a newline and a command into a path."""
    return f"    # {escaped(row.words)}"


def _continued(commands: list[str]) -> list[str]:
    return [
        f"    {'exec ' if index == 0 else '    '}{c}{' ' + chr(92) if index < len(commands) - 1 else ''}"
        for index, c in enumerate(commands)
    ]


def _head(resolved: Resolved, plan: Plan, notes: list[str]) -> str:
    names = {op.name for op in plan.ops}
    uid = 0 if resolved.rootful else os.geteuid()
    user = f"user {uid}" if uid else "root"
    assert plan.command is not None
    command = " ".join(shlex.join(plan.command.argv).split())
    maps = plan.maps | {slot: resolved.idmap for slot, label in plan.slots.items() if label == USERNS_LABEL and resolved.idmap is not None}
    filled = {op.slot_out for op in plan.ops if op.name not in ("MOVE_MOUNT", "MKTARGET", "MASK", "MOUNT_ATTR") and op.slot_out >= 0}
    head = _HEAD.format(
        made=_MADE,
        command=escaped(command),
        tools=", iproute2" if "LOOPBACK_UP" in names else "",
        user=user,
        maps=_MAPS["denied" if resolved.setgroups_denied else "written" if resolved.rootful else "helped"],
    )
    if any(label == "erofs context" or slot in plan.held for slot, label in plan.slots.items()):
        head += _EROFS
    inner = "unshare --mount --propagation private /bin/sh" if resolved.rootful else "/bin/sh"
    return head + "\n".join(
        [
            "",
            *(f"{IMPOSSIBLE}{note}" for note in notes),
            "case ${1-} in",
            "'')",
            f"""    grep -qs '^{_MADE}' -- "$0" || {{ echo "save this script into a file, then run: sh FILE" >&2; exit 1; }}""",
            f"""    [ "$(id -u)" = {uid} ] || {{ echo "this script was made for {user}: run it as {user}" >&2; exit 1; }}""",
            "    # on the host: what is made here goes when the script ends",
            "    place= holders= keeper=",
            "    trap end EXIT",
            "    trap 'exit 129' HUP; trap 'exit 130' INT; trap 'exit 131' QUIT; trap 'exit 143' TERM",
            '    place=$(realpath "$(mktemp -d -p /dev/shm dockless-XXXXXX)")',
            '    chmod 755 "$place"',
            '    mkdir "$place/slots"',
            '    cp -- "$0" "$place/script"',
            *(f'    hold "$place/{name_of(plan, slot)}" {_map(idmap)}' for slot, idmap in maps.items()),
            "    exec 3<&0  # in the background a shell would give it /dev/null",
            f'    place=$place {inner} "$place/script" keeper <&3 3<&- &',
            "    keeper=$!",
            '    wait "$keeper" && code=0 || code=$?',
            "    keeper=",
            "    exit $code",
            "    ;;",
            "esac",
            "slots=$place/slots script=$place/script",
            "export place",
            *(f"{name_of(plan, slot)}=$place/{name_of(plan, slot)}" for slot in maps),
            *(
                f"{name_of(plan, slot)}=$slots/{name_of(plan, slot)}"
                for slot in sorted(filled)
                if not plan.slots.get(slot, "").endswith(" context")
            ),
            "",
            "case $1 in",
        ]
    )


def _map(idmap: IdMap) -> str:
    return f"{shlex.quote(idmap.uid_text().strip())} {shlex.quote(idmap.gid_text().strip())}"
