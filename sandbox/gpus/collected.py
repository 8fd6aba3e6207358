"""The files of the NVIDIA driver, looked for once in each boot. Each sandbox takes what it needs from this list.

::

    driver_files.find ─► DriverFile …     kept with the time of the last change of each file, and of each place that was searched

So the list is made anew when a part of the driver is installed, removed or replaced, or has another mode or owner.
"""

from __future__ import annotations

import contextlib
import os

from dockless.base import json, paths
from dockless.images.files import replacing
from dockless.images.model import digest
from dockless.sandbox.gpus import driver_files
from dockless.sandbox.gpus.driver_files import DriverFile
from dockless.sandbox.gpus.extra_layer import place_of_boot, stamp

_FORMAT = "2"
"""Of what is kept: another one is not read."""


def collected(root: str, version: str) -> tuple[DriverFile, ...]:
    """``driver_files.find``, or what it found last time where nothing has changed since. ``GpuError``"""
    place = place_of_boot()
    record = place / f"{digest.of(json.dumps(['found', _FORMAT, root, version]).encode()).hex[:32]}.json"
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        known = json.loads(record.read_bytes())
        same = driver_files.changed_at(root, known["searched"]) == known["changed"]
        if same and all(stamp(file[0]) == changed for file, changed in known["files"]):
            os.utime(record)
            return tuple(_file(*file) for file, _ in known["files"])
    searched = driver_files.searched(root, version)
    changed = driver_files.changed_at(root, searched)  # before the search: what changes meanwhile is looked at again
    found = driver_files.find(root, version)
    files = [[fields(file), stamp(file.source)] for file in found]
    with paths.writing("the image store", place), replacing(record) as out:
        out.write(json.dumps({"searched": searched, "changed": changed, "files": files}).encode())
    return found


def fields(file: DriverFile) -> list[object]:
    """As JSON has it."""
    return [file.source, file.place, file.name, file.capabilities, file.soname, file.links]


def _file(source: str, place: str, name: str, capabilities: list[str], soname: str, links: list[str]) -> DriverFile:
    return DriverFile(source, place, name, tuple(capabilities), soname, tuple(links))
