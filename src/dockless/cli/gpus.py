"""``gpu``: this host's GPUs, and what other programs are told of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from dockless.base.typing import TYPE_CHECKING, Any
from dockless.base.units import format_size
from dockless.cli.output import out, print_json, table
from dockless.cli.parser import Namespace, Parser
from dockless.errors import BadInput, DocklessError, GpuDriverMissing

if TYPE_CHECKING:
    from dockless.sched import Client


_MIG = {
    "profiles": "gpu mig profiles GPU",
    "create": "gpu mig create GPU PROFILE …",
    "remove": "gpu mig remove UUID …",
}


def gpu_options(parser: Parser) -> None:
    parser.usage = "dockless gpu list | cdi [-o FILE] [--format json|yaml] | mig profiles GPU | create GPU PROFILE … | remove UUID …"
    about = "list: GPUs and MIG slices; cdi: describe them in a file, for other programs; mig: make slices of a divided GPU, or remove them"
    parser.add_argument("action", choices=("list", "cdi", "mig"), metavar="list|cdi|mig", help=about)
    parser.add_argument("words", nargs="*", default=[], metavar="WORD", help="profiles GPU; create GPU PROFILE …; remove UUID … (mig)")
    parser.add_argument("-o", "--output", metavar="FILE", help="instead of standard output (cdi)")
    parser.add_argument("--format", choices=("json", "yaml"), help="of the description (cdi); the default is by the name of FILE, or yaml")
    parser.json()


def gpu(options: Namespace) -> int:
    if options.action != "cdi" and (options.output or options.format):
        raise BadInput(f"gpu {options.action} takes no --output and no --format", subject=options.action, hint="--json is for programs")
    if options.action != "mig" and options.words:
        raise BadInput(f"gpu {options.action} takes no {options.words[0][:40]!r}", subject=options.action, hint="dockless gpu --help")
    return {"list": _list, "cdi": _describe, "mig": _mig}[options.action](options)


def _list(options: Namespace) -> int:
    from dockless.cli.overview import shares
    from dockless.sandbox.gpus import cdi, gpu, handed_out, lease

    error = ""
    units: tuple[gpu.Gpu, ...] = ()
    try:
        units = gpu.units(gpu.inventory(links=False))
    except GpuDriverMissing as missing:
        error = str(missing)
    names = [unit.uuid for unit in handed_out.beside(units)]
    unleased = handed_out.unleased(handed_out.kinds())
    units = lease.told(units)
    users, parts = lease.users([*(unit.uuid for unit in units), *names]), shares([unit.uuid for unit in units])
    troubles = lease.out_of_service(names) | unleased
    rows: list[dict[str, Any]] = [
        {
            "index": unit.index,
            "uuid": unit.uuid,
            "model": unit.model,
            "memory": unit.memory,
            "slice_of": unit.parent,
            "user": users.get(unit.uuid, ""),
            "shares": [{"user": one.user, "memory": one.memory} for one in parts.get(unit.uuid, ())],
            "trouble": unit.trouble,
            "simulated": unit.simulated,
        }
        for unit in units
    ]
    described = [(f"{file.kind}={name}", file.path) for file in cdi.listed() for name in file.devices]
    devices = [
        {"name": name, "file": path, "leased": name in names, "user": users.get(name, ""), "trouble": troubles.get(name, "")}
        for name, path in described
    ]
    if options.json:
        print_json({"gpus": rows, "gpu_error": error, "devices": devices})
        return 0
    if rows:
        cells = [(r["index"], r["model"], format_size(r["memory"]), r["uuid"], _holders(r), r["trouble"]) for r in rows]
        table(("GPU", "MODEL", "MEMORY", "UUID", "LEASED BY", "TROUBLE"), cells)
    else:
        out(f"There are no GPUs: {error}" if error else "There are no GPUs.")
    if devices:
        lines = [
            (one["name"], one["file"], one["user"] or ("free" if one["leased"] and not one["trouble"] else ""), one["trouble"])
            for one in devices
        ]
        table(("DEVICE", "DESCRIBED IN", "LEASED BY", "TROUBLE"), lines)
    return 0


def _holders(row: dict[str, Any]) -> str:
    shares = ", ".join(f"{one['user']} {format_size(one['memory'])}" for one in row["shares"])
    return shares or row["user"] or ("" if row["trouble"] else "free")


def _describe(options: Namespace) -> int:
    from dockless.sandbox.gpus import gpu
    from dockless.sandbox.gpus.cdi_writing import description

    suffix = (options.output or "").rpartition(".")[2]
    form = "json" if options.json and not options.output else options.format or ("json" if suffix == "json" else "yaml")
    if options.output and suffix not in ({"json": ("json",), "yaml": ("yaml", "yml")}[form]):
        hint = f"name it FILE.{form}: programs go by the suffix"
        raise BadInput(f"{options.output} is not the name of a {form} file", subject=options.output, hint=hint)
    with gpu.session():
        text = _text(description(gpu.inventory(processes=False, links=False)), form)
    if not options.output:
        out(*text.splitlines())
        return 0
    from dockless.base import paths
    from dockless.base.path import Path
    from dockless.images.files import replacing

    path = Path(options.output)
    with paths.writing("a description of GPUs", path), replacing(path) as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(text.encode())
    if options.json:
        print_json({"file": options.output})
    return 0


def _mig(options: Namespace) -> int:
    from dockless.base.records import plain
    from dockless.sandbox.gpus import mig

    verb, *words = options.words or [""]
    if verb not in _MIG:
        raise BadInput(f"gpu mig has no {verb[:40]!r}" if verb else "gpu mig: what?", subject="mig", hint="; ".join(_MIG.values()))
    if len(words) < (2 if verb == "create" else 1):
        missing = "a profile, or several" if words else "the UUID of a slice, or several" if verb == "remove" else "the index of a GPU"
        hint = f"{_MIG[verb]}; `gpu mig profiles {words[0]}` lists its profiles" if words and words[0].isdecimal() else _MIG[verb]
        raise BadInput(f"gpu mig {verb} needs {missing}", subject=verb, hint=hint)
    if verb == "profiles" and words[1:]:
        raise BadInput(f"{words[1][:40]!r} is one argument too many", subject=verb, hint=_MIG[verb])
    daemon = _root_daemon() if verb != "profiles" and os.geteuid() != 0 else None
    if verb == "remove":
        if daemon is not None:
            with daemon:
                daemon.remove_slices(words)
        else:
            mig.remove(words)
            _tell_daemon()
        if options.json:
            print_json({"removed": words})
        return 0
    if not words[0].isascii() or not words[0].isdecimal() or len(words[0]) > 4:
        raise BadInput(f"{words[0][:40]!r} is not the index of a GPU", subject="mig", hint="`dockless gpu list` has them first")
    if verb == "create":
        made: Sequence[str]
        if daemon is not None:
            with daemon:
                made = daemon.create_slices(int(words[0]), words[1:])
        else:
            made = mig.create(int(words[0]), words[1:])
            _tell_daemon()
        if options.json:
            print_json({"created": made})
        else:
            out(*made)
        return 0
    found = mig.profiles(int(words[0]))
    if options.json:
        print_json(plain(list(found)))
    else:
        table(("PROFILE", "MEMORY", "ROOM FOR"), [(one.name, format_size(one.memory), one.free) for one in found])
    return 0


def _text(document: dict[str, Any], form: str) -> str:
    if form == "json":
        import json

        return json.dumps(document, indent=2) + "\n"
    import yaml

    return "---\n" + str(yaml.safe_dump(document, sort_keys=False, width=1000, default_flow_style=None))


def _root_daemon() -> Client | None:
    """A client of root's daemon, which may what its administrators may not themselves; None where none answers."""
    from dockless.sched import connect
    from dockless.sched.wire.client import ROOT_SOCKET, socket_path

    for path in dict.fromkeys((socket_path(), ROOT_SOCKET)):
        with contextlib.suppress(DocklessError):
            client = connect(path)
            if client.ping().owner_uid == 0:
                return client
            client.close()
    return None


def _tell_daemon() -> None:
    """That GPUs are to be listed again. One that does not answer, or that is another user's, is left alone."""
    from dockless.sched import connect

    with contextlib.suppress(DocklessError), connect() as queue:
        queue.reload()
