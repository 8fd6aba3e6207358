"""A tool for an agent: it runs code that nobody has read, one step after the other, in one sandbox.

    python examples/agent.py [IMAGE]

The code has no network, no capability and none of your files. Memory, processes, time and output are limited; files go in and come out
as copies; everything else is gone when the ``with`` is left.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import dockless

STEPS = (
    """
import csv
print(sum(row["euros"] for row in csv.DictReader(open("sales.csv"))))
""",
    """
import csv, json
total = sum(int(row["euros"]) for row in csv.DictReader(open("sales.csv")))
json.dump({"total": total}, open("report.json", "w"))
""",
    """
while True:
    print("Done! " * 50)
""",
)
"""What a model might answer, one after the other."""


@contextmanager
def workspace(image: str) -> Generator[dockless.Sandbox[bytes]]:
    """A sandbox that waits for steps, with an empty ``/work``. All its files are in memory, 256 MiB at most."""
    with dockless.Sandbox(
        image,
        ["sleep", "infinity"],
        profile="untrusted",
        root="tmpfs",
        root_size="256M",
        memory="512M",
        cpus=1,
        pids=64,
        best_effort=True,  # where this host cannot limit memory, go on; leave it out on a server
    ) as box:
        box.files.mkdir("/work")
        yield box


def step(box: dockless.Sandbox[bytes], code: str, seconds: float = 5) -> str:
    """Run one step. What it wrote, and how it ended unless it ended well, as a text for the model."""
    result = box.exec(
        "python3",
        "-",
        input=code,
        workdir="/work",
        stderr=dockless.STDOUT,
        text=True,
        errors="replace",
        timeout=seconds,
        max_output="2K",
    )
    said = result.stdout
    if result.stdout_dropped:
        said += f"\n[{result.stdout_dropped} more bytes]"
    if result.returncode:
        said += f"\n[{result.why}]"
    return said.strip()


def main(image: str = "python:3.12-slim") -> None:
    with tempfile.TemporaryDirectory() as folder, workspace(image) as box:
        sales = Path(folder, "sales.csv")
        sales.write_text("city,euros\nLisbon,120\nOslo,80\n")
        box.files.copy_in(sales, "/work/")
        for code in STEPS:
            print(f"{code}---\n{step(box, code)}")
        box.files.copy_out("/work/report.json", folder, max_size="1M")
        print(Path(folder, "report.json").read_text())


if __name__ == "__main__":
    main(*sys.argv[1:])
