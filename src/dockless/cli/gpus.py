"""``gpu``: this host's GPUs, and what other programs are told of them."""

from __future__ import annotations

import os

from dockless.base.typing import Any
from dockless.base.units import format_size
from dockless.cli.output import out, print_json, table
from dockless.cli.parser import Namespace, Parser
from dockless.errors import BadInput, GpuDriverMissing


def gpu_options(parser: Parser) -> None:
    parser.usage = "dockless gpu list|cdi [-o FILE] [--format json|yaml]"
    parser.add_argument(
        "action", choices=("list", "cdi"), help="list: GPUs and MIG slices; cdi: describe them in a file, for other programs"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="instead of standard output (cdi)")
    parser.add_argument("--format", choices=("json", "yaml"), help="of the description (cdi); the default is by the name of FILE, or yaml")
    parser.json()


def gpu(options: Namespace) -> int:
    if options.action == "list" and (options.output or options.format):
        raise BadInput("gpu list takes no --output and no --format", subject="list", hint="--json prints the list for programs")
    return _describe(options) if options.action == "cdi" else _list(options)


def _list(options: Namespace) -> int:
    from dockless.base.idmaps import user_name
    from dockless.sandbox.gpus import cdi, gpu
    from dockless.sandbox.gpus import lease as gpu_lease

    error = ""
    units: tuple[gpu.Gpu, ...] = ()
    try:
        units = gpu.units(gpu.inventory(links=False))
    except GpuDriverMissing as missing:
        error = str(missing)
    holders = gpu_lease.holders([unit.uuid for unit in units]) if units else {}
    rows: list[dict[str, Any]] = [
        {
            "index": unit.index,
            "uuid": unit.uuid,
            "model": unit.model,
            "memory": unit.memory,
            "slice_of": unit.parent,
            "user": (user_name(holders[unit.uuid]) or str(holders[unit.uuid])) if unit.uuid in holders else "",
            "trouble": unit.trouble,
            "simulated": unit.simulated,
        }
        for unit in units
    ]
    devices = [{"name": f"{file.kind}={name}", "file": file.path} for file in cdi.listed() for name in file.devices]
    if options.json:
        print_json({"gpus": rows, "gpu_error": error, "devices": devices})
        return 0
    if rows:
        cells = [(r["index"], r["model"], format_size(r["memory"]), r["uuid"], r["user"] or "free", r["trouble"]) for r in rows]
        table(("GPU", "MODEL", "MEMORY", "UUID", "LEASED BY", "TROUBLE"), cells)
    else:
        out(f"There are no GPUs: {error}" if error else "There are no GPUs.")
    if devices:
        table(("DEVICE", "DESCRIBED IN"), [(device["name"], device["file"]) for device in devices])
    return 0


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


def _text(document: dict[str, Any], form: str) -> str:
    if form == "json":
        import json

        return json.dumps(document, indent=2) + "\n"
    import yaml

    return "---\n" + str(yaml.safe_dump(document, sort_keys=False, width=1000, default_flow_style=None))
