"""Programs of this host for layers, with the libraries that they need."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from support.make_image import Entry, file


def entries(*programs: str) -> Iterator[Entry]:
    """Each in ``bin``, its libraries where they are here."""
    found: set[str] = set()
    for program in programs:
        path = shutil.which(program)
        assert path is not None, program
        yield file(f"bin/{program}", Path(path).read_bytes(), 0o755)
        found |= {*re.findall(r"(/\S+) \(0x", subprocess.run(["ldd", path], check=True, capture_output=True, text=True).stdout)}
    for library in sorted(found):
        yield file(library.lstrip("/"), Path(library).read_bytes(), 0o755)
