"""One case of the hunt: an image, options and deeds as plain JSON, drawn from a seed.

``{base}`` in any text stands for the directory of the canaries. The same seed and number give the same case, on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

Case = dict[str, Any]
Entry = list[Any]

LOADERS = ("lib64/ld-linux-x86-64.so.2", "lib/ld-linux-aarch64.so.1", "lib/ld-linux.so.2", "bin/sh")
"""Where programs and scripts of the host look for what runs them: in every image it is the hostile program."""
PROGRAMS = ("tool", "static", "script")
TARGETS = (
    "/proc", "/proc/self", "/proc/sys", "/proc/sys/kernel", "/proc/1", "/proc/1/root", "/proc/self/fd/16", "/proc/self/cwd", "/proc/acpi",
    "/sys", "/sys/fs", "/sys/fs/cgroup", "/sys/firmware", "/dev", "/dev/pts", "/dev/shm", "/dev/null", "/etc", "/", "proc", "../../../proc",
    "./dev/../sys", "..", "{base}/home", "{base}/home/secret", "../../../../../../../../..{base}/home", "chain0", "/data",
)  # fmt: skip
CAPABILITIES = (
    "NET_ADMIN", "SYS_ADMIN", "SYS_PTRACE", "DAC_READ_SEARCH", "DAC_OVERRIDE", "MKNOD", "SETUID", "NET_RAW", "CHOWN",
    "FOWNER", "SYS_CHROOT", "ALL", "LINUX_IMMUTABLE",
)  # fmt: skip
USERS = ("app", "1000", "1000:1000", "root", "nobody", "0:1000", "65534:65534", "app:root", "1:0")
NO_USERS = ("4294967295", "-1", "0x0", "+0", " 0", "app:", ":", "99999999999")
NAMES = (*("data", "link0", "link1", "chain0", "chain1", "v") * 3, "tmp", "var", "usr", "run", "home", "tmp/x", "etc/x", "bin/x")
NO_NAMES = ("proc", "sys", "dev", "proc/self", "dev/null", "dev/shm", "etc", "etc/hostname", "etc/hosts", "etc/passwd")
"""What mostly ends a start: now and then only, so that most cases run."""


def _mostly(rng: random.Random, usual: Sequence[str], rarely: Sequence[str]) -> str:
    return rng.choice(rarely if rng.random() < 0.08 else usual)


def draw(seed: str, number: int, *, root: bool) -> Case:
    """The case of that number. ``root``: with what only root may ask for."""
    rng = random.Random(f"{seed}/{number}")
    weights = {"run": 20, "race": 1, "owner": 1 if root else 0, "replace": 1 if root else 0}
    kind = rng.choices(list(weights), list(weights.values()))[0]
    case: Case = {"seed": f"{seed}/{number}", "kind": kind}
    make: Callable[[random.Random, Case, bool], None] = {"run": _run, "race": _race, "owner": _owner, "replace": _replace}[kind]
    make(rng, case, root)
    return case


def _run(rng: random.Random, case: Case, root: bool) -> None:
    """One image, tried a few times: to load it costs more than to start it."""
    form = rng.choices(["written", "indexed" if root else "written", "host"], [6, 2, 1])[0]
    case["image"] = {"form": form} if form == "host" else {"form": form, **_image(rng)}
    case["flags"] = [name for name in ("upper", "linger", "signals", "flood") if rng.random() < 0.2]
    case["tries"] = [_try(rng, form, root) for _ in range(4)]
    if root and rng.random() < 0.5:
        # What an image reaches with the ids of a range that owns nothing is little: what it reaches as the host's root is what counts.
        case["tries"][0]["options"] |= {"namespaces": {"user": "host"}, "profile": rng.choice(["default", "untrusted"])}
        case["tries"][0]["options"].pop("cap_add", None)
    for one in case["tries"]:
        _leave_out_what_has_no_effect(one["options"])


def _try(rng: random.Random, form: str, root: bool) -> Case:
    one: Case = {"options": _options(rng, root), "detached": rng.random() < 0.3}
    if form == "host":
        one["options"]["mounts"] = [*one["options"].get("mounts", ()), "{base}/programs:/mnt:ro"]
        one["args"] = ["/mnt/probe"]
    elif rng.random() < 0.1:
        one["options"]["entrypoint"] = rng.choice(["/bin/probe", "probe", *PROGRAMS, door(rng, "home/bin/tool"), "/proc/self/exe"])
    if one["detached"]:
        one["after"] = [name for name in ("diff", "commit", "export", "files", "tars", "events", "restart") if rng.random() < 0.25]
        one["meanwhile"] = [name for name in ("exec", "terminal", "files", "tars", "events") if rng.random() < 0.25]
        if rng.random() < 0.25:
            program = "/mnt/probe" if form == "host" else "/bin/probe"
            one["options"]["health"] = {"argv": [program], "interval": 0.05, "timeout": rng.choice([0.2, 5.0])}
    else:
        one["tty"] = rng.random() < 0.1
    return one


def _race(rng: random.Random, case: Case, root: bool) -> None:
    """One sandbox exchanges directories and links in what it shares with others that start meanwhile."""
    case["image"] = {"form": "written", "layers": [base()], "config": {"Entrypoint": ["/bin/probe"]}}
    shared = rng.choice(["moving:/v", "{base}/loose:/v"])
    below = [
        rng.choice(["{base}/fixed:/v/v0/sys:ro", "other:/v/v1/x", "other:/v/v2/self", "{base}/fixed:/v/v3:ro"])
        for _ in range(rng.choice([0, 1, 1, 2]))
    ]
    case["options"] = {
        "mounts": [shared, *dict.fromkeys(below)],
        "tmpfs": [f"/v/v{rng.randrange(4)}/sys" for _ in range(rng.randrange(2))],
        "root": rng.choice(["disk", "readonly"]),
    }
    case["link"] = rng.choice(["/proc", "/sys", "/dev", "/", "../..", "/etc", "/proc/self/root/proc", "../../../../../..{base}/home"])
    case["flips"] = {"mounts": [shared], "root": "tmpfs"}


def _owner(rng: random.Random, case: Case, root: bool) -> None:
    """Root starts sandboxes for a user who exchanges links where her volumes go."""
    case["image"] = {"form": "written", "layers": [base()], "config": {"Entrypoint": ["/bin/probe"]}}
    case["options"] = {"mounts": [f"v{n}:/v{n}" for n in range(rng.choice([40, 60]))]}
    case["target"] = rng.choice(["{base}/home/secret", "{base}/home", "{base}/home/notes"])


def _replace(rng: random.Random, case: Case, root: bool) -> None:
    """The host replaces a masked secret while a sandbox that shares its user namespace looks on."""
    case["image"] = {"form": "host"}
    case["options"] = {"mounts": ["{base}/programs:/mnt:ro"], "namespaces": {"user": rng.choice(["host", "host", "new"])}}
    case["args"] = ["/mnt/patient"]


# -- images ----------------------------------------------------------------------------------------------------------------------------


def base() -> list[Entry]:
    return [
        ["file", ".hunt", "HUNT-\n", 0o666, 0, 0],
        ["file", "bin/probe", "<probe>", 0o755, 0, 0],
        ["file", "bin/again", "<probe>", 0o755, 0, 0],
        ["file", "bin/setuid", "<probe>", 0o6755, 0, 0],
        *(["file", name, "<probe>", 0o755, 0, 0] for name in (*LOADERS, "bin/go", *(f"bin/{program}" for program in PROGRAMS))),
        ["file", "etc/passwd", "root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/home:/bin/sh\nnobody:x:65534:65534::/:/\n", 0o644, 0, 0],
        ["file", "etc/group", "root:x:0:\napp:x:1000:\n", 0o644, 0, 0],
    ]


def door(rng: random.Random, inside: str, slot: int | None = None) -> str:
    """A path that leads out through an open descriptor, if there is one. ``inside``: below the base."""
    slot = rng.choice([*range(3, 48), *range(15, 30)]) if slot is None else slot
    ups = rng.choice([0, 1, 2, 3, 4, 5, 6, 6, 12, 12, 12, 12])
    start = rng.choice(["/proc/self/fd", "/proc/self/fd", "/proc/self/fd", "/dev/fd", "/proc/thread-self/fd", "/proc/1/fd"])
    return f"{start}/{slot}{'/..' * ups}" + (f"{{base}}/{inside}" if ups == 12 else f"/{inside}")


def _sweep(rng: random.Random, inside: str) -> list[str]:
    """One such path for each descriptor of a range: whatever the number of the one that is open, it is among them."""
    first, state = rng.choice([3, 12, 15]), rng.getrandbits(32)
    # The same way for all: with a way drawn for each, the right one would rarely meet the right descriptor.
    return [door(random.Random(state), inside, slot) for slot in range(first, first + rng.choice([12, 24, 40]))]


def _image(rng: random.Random) -> Case:
    layers = [base()]
    config: dict[str, Any] = {"Entrypoint": ["/bin/probe"], "Env": []}
    choice = rng.randrange(10)
    if choice < 3:
        program = rng.choice(PROGRAMS)
        config["Entrypoint"] = [program]
        config["Env"].append("PATH=" + ":".join([*_sweep(rng, "home/bin"), "/bin"]))
    elif choice < 4:
        # The layer's own files, by the descriptor of the layer: read-only, or they are everybody's.
        config["Entrypoint"] = ["probe"]
        first = rng.choice([3, 15])
        config["Env"].append("PATH=" + ":".join([*(f"/proc/self/fd/{slot}/bin" for slot in range(first, first + 30)), "/bin"]))
    elif choice < 8:
        script = choice < 6
        paths = _sweep(rng, f"home/bin/{rng.choice(PROGRAMS if script else ('static', 'tool'))}")
        layer = [["file", f"s/{n}/go", f"#!{path}\n" if script else f"<interpreter>{path}", 0o755, 0, 0] for n, path in enumerate(paths)]
        layers.append(layer)
        config["Entrypoint"] = ["go"]
        config["Env"].append("PATH=" + ":".join([*(f"/s/{n}" for n in range(len(paths))), "/bin"]))
    if rng.random() < 0.15:
        config["WorkingDir"] = rng.choice(
            [door(rng, ""), door(rng, "home"), "/link0", "/link0/..", "/proc/self/cwd/..", "/proc/1/root", "/data", "/proc/self/fd"]
        )
    if rng.random() < 0.4:
        config["User"] = _mostly(rng, USERS, NO_USERS)
    if rng.random() < 0.4:
        config["Volumes"] = {
            rng.choice(["/data", "/data/x", "/link0", "/link0/x", "/chain0", "/proc/sys", "/dev/shm", "/v"]): {} for _ in range(2)
        }
    if rng.random() < 0.2:
        config["StopSignal"] = _mostly(rng, ["SIGKILL", "SIGRTMIN+3", "TERM", "SIGSTOP"], ["0", "99", "19"])
    for _ in range(rng.choice([0, 0, 1, 2, 3])):
        layers.append(_layer(rng))
    return {"layers": layers, "config": {key: value for key, value in config.items() if value}}


def _layer(rng: random.Random) -> list[Entry]:
    entries: list[Entry] = []
    for _ in range(rng.randrange(1, 8)):
        what = rng.randrange(12)
        name = _mostly(rng, NAMES, NO_NAMES)
        if what < 6:
            entries.append(["link", name, rng.choice(TARGETS)])
        elif what < 7:
            entries += [["link", f"chain{n}", f"chain{n + 1}"] for n in range(rng.randrange(1, 45))] + [
                ["link", "chain9", rng.choice(TARGETS)]
            ]
        elif what < 8:
            entries.append(["white", rng.choice(["etc/hosts", "lib", "tmp", "bin/again", "proc", "sys"])])
        elif what < 9:
            entries.append(["opaque", rng.choice(["tmp", "tmp", "data", "etc"])])
        elif what < 10:
            entries.append(["dir", name, rng.choice([0o755, 0o700, 0o000, 0o1777, 0o2775]), rng.choice([0, 1000, 65535]), 0])
        elif what < 11:
            entries.append(
                [
                    "file",
                    name,
                    rng.choice(["HUNT-\n", "<probe>", f"#!{door(rng, 'home/bin/tool')}\n"]),
                    rng.choice([0o644, 0o4755, 0o000]),
                    0,
                    0,
                ]
            )
        else:
            entries.append(["node", f"node{rng.randrange(4)}", *rng.choice([(1, 1), (1, 3), (8, 0), (254, 0), (195, 0)])])
    return entries


# -- options ---------------------------------------------------------------------------------------------------------------------------


def _leave_out_what_has_no_effect(options: dict[str, Any]) -> None:
    """What dockless refuses beside another option would keep the rest from being tried."""
    if options.get("profile") == "untrusted":
        for name, value in (("network", "host"), ("root", "disk")):
            if options.get(name) == value:
                del options[name]
    if options.get("namespaces", {}).get("uts") == "host":
        options.pop("hostname", None)


def _options(rng: random.Random, root: bool) -> dict[str, Any]:
    options: dict[str, Any] = {}

    def sometimes(chance: float, name: str, values: Sequence[Any]) -> None:
        if rng.random() < chance:
            options[name] = rng.choice(values)

    sometimes(0.35, "profile", ["untrusted", "untrusted", "untrusted", *(["privileged"] if root else [])])
    sometimes(0.5, "root", ["tmpfs", "readonly", "disk"])
    sometimes(0.15, "network", ["host"])
    sometimes(0.25, "cap_add", [[name] for name in CAPABILITIES])
    sometimes(0.25, "cap_drop", [["ALL"], ["CHOWN", "SETUID"], ["NET_RAW"]])
    sometimes(0.1, "seccomp", ["unconfined"])
    sometimes(0.2, "user", USERS)
    sometimes(0.01, "user", NO_USERS)
    sometimes(0.1, "workdir", ["/data", "/link0", "/link0/../x", "/proc/self/fd/16", "/v/new", "/tmp", "/chain0"])
    sometimes(0.15, "group_add", [[1000], [5, 6], [0]])
    sometimes(0.1, "umask", [0, 0o777])
    sometimes(0.1, "memory", ["64M"])
    sometimes(0.1, "pids", [64])
    sometimes(0.1, "gpus", [1])
    sometimes(0.1, "env", [{"LD_PRELOAD": "/bin/probe"}, {"PATH": "/bin:/proc/self/fd/16"}, {"HUNT": "x" * 3000}])
    sometimes(0.1, "hostname", ["hunted"])
    sometimes(0.1, "ttl", [0.3, 2])
    sometimes(0.1, "idle_timeout", [0.3, 2])
    sometimes(0.05, "ulimits", [{"nofile": 16}, {"nproc": 10}, {"core": "unlimited"}])
    if rng.random() < 0.25:
        kinds = ["ipc", "uts", "cgroup", *(["user", "user", "user"] if root else [])]
        options["namespaces"] = {rng.choice(kinds): "host"}
        if "user" in options["namespaces"] and options.get("profile") == "privileged":
            del options["profile"]
    if options.get("namespaces", {}).get("user") == "host":
        options.pop("cap_add", None)  # it would be the host's own root
    if options.get("profile") == "privileged":
        # The host's own namespaces and all rights: nothing is promised there, and nothing is tried.
        options.pop("namespaces", None)
        options.pop("network", None)
    mounts = []
    for _ in range(rng.choice([0, 0, 0, 1, 2, 3])):
        source = rng.choice(["{base}/fixed", "{base}/loose", "v0", "v1", "{base}/fixed/text", "{base}/loose/new/../.hunt"])
        target = rng.choice(
            [
                "/data",
                "/data/x",
                "/data/sys/kernel",
                "/link0",
                "/link0/x",
                "/chain0",
                "/v",
                "/v/deep/er",
                "/tmp/../v",
                "/dev/x",
                "/dev/shm",
                "/etc/passwd",
            ]
        )
        flags = ["ro"] if source.startswith("{base}/fixed") or rng.random() < 0.2 else []
        flags += ["norecursive"] if "{" in source and rng.random() < 0.2 else []
        flags += ["idmap"] if root and source == "{base}/loose" and rng.random() < 0.3 else []
        mounts.append(f"{source}:{target}" + (f":{','.join(flags)}" if flags else ""))
    if mounts:
        options["mounts"] = mounts
    sometimes(0.15, "tmpfs", [["/data"], ["/link0:size=1M"], ["/chain0:mode=0755"], ["/v:size=64K"]])
    return options
