"""Devices that files of the Container Device Interface describe, made of nodes that every host has."""

from __future__ import annotations

import json
from pathlib import Path

KIND = "example.com/gpu"
COMMON = {"path": "/dev/control", "hostPath": "/dev/tty"}
NODES = {"0": "null", "1": "zero", "2": "full", "3": "urandom"}


def describe(directory: Path, names: str = "0123", kind: str = KIND) -> str:
    """Write the file of so many devices, each with a node of its own beside the file's, and of ``all``. The settings with which they are
    leased."""
    directory.mkdir(exist_ok=True)
    nodes = {name: {"path": f"/dev/example{name}", "hostPath": f"/dev/{NODES[name]}"} for name in names}
    devices = [{"name": name, "containerEdits": {"deviceNodes": [node], "env": [f"WITH_{name}=1"]}} for name, node in nodes.items()]
    devices.append({"name": "all", "containerEdits": {"deviceNodes": [*nodes.values()]}})
    said = {"cdiVersion": "0.5.0", "kind": kind, "containerEdits": {"deviceNodes": [COMMON]}, "devices": devices}
    (directory / f"{kind.replace('/', '-')}.json").write_text(json.dumps(said))
    return f'[gpus]\ncdi = ["{directory}"]\ndevices = ["{kind}"]\n'
