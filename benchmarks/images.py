"""``make bench-images``: an image of real size into place, beside umoci, skopeo, podman and containerd.

    images.py [--rounds N] [--only stages,local,vfs,proof,second,pull,memory] [--peers umoci,podman] [--place DIR] [--json FILE | -]

The first time it makes the image (``bench_image.py``: root, network, some minutes). Takes about twelve minutes and 12 GB of disk for each
round; everything goes at the end. Results go to benchmarks/results/images-*.json.

Measure on a file system where nothing much was deleted in the last five minutes: ext4 without a journal looks at every inode that was
freed in that time whenever it creates a file.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

# At the end: the folders of this repository must not hide modules of the standard library (``sched``).
sys.path.append(str(Path(__file__).resolve().parent.parent))

from benchmarks import image_measures, image_peers, machine, report
from benchmarks.bench_image import CannotBuild, bench_image
from benchmarks.contender import ContenderFailed
from benchmarks.image_runs import place, warm
from dockless.errors import DocklessError

RESULTS = Path(__file__).resolve().parent / "results"


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-images ARGS=…", description="How fast images come into place, beside other tools.")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each contender (default %(default)s)")
    parser.add_argument("--only", default="", help=f"some of {','.join(image_measures.MEASURES)}")
    parser.add_argument("--peers", default="", help="some peers by a part of their name; - for none")
    parser.add_argument("--place", type=Path, default=Path("/var/tmp"), help="on which disk (default %(default)s)")
    parser.add_argument("--json", default="", metavar="FILE", help="write the JSON there instead of benchmarks/results; - for stdout")
    words = parser.parse_args(argv)
    words.only = [name for name in words.only.split(",") if name] or list(image_measures.MEASURES)
    unknown = [name for name in words.only if name not in image_measures.MEASURES]
    if unknown:
        parser.error(f"no measurement {unknown[0]!r}: there are {', '.join(image_measures.MEASURES)}")
    return words


def _headline(about: dict[str, Any]) -> str:
    image, versions = about["image"], about["versions"]
    return (
        f"Linux {about['kernel']}, {about['cpus']} × {about['cpu'] or about['machine']}, {about['memory_bytes'] / 2**30:.0f} GiB, "
        f"{about['disk']}, {'root' if about['root'] else 'an ordinary user'}, load {os.getloadavg()[0]:.1f}\n"
        f"image: {len(image['images']['bench'])} layers, {image['size'] / 1e6:.0f} MB of gzip, {image['unpacked'] / 1e6:.0f} MB of tar, "
        f"{image['files']} files\npeers: {', '.join(f'{name} {version}' for name, version in versions.items())}"
    )


def main(argv: list[str] | None = None) -> int:
    words = parse(argv)
    out = sys.stderr if words.json == "-" else sys.stdout
    when = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    try:
        image = bench_image()
    except (CannotBuild, OSError) as error:
        print(f"benchmarks: no image to measure with: {error}", file=sys.stderr)
        return 1
    tables: list[report.Table] = []
    with place(words.place) as directory:
        about = machine.describe(directory) | {"versions": image_peers.versions(), "image": image.facts}
        print(_headline(about), file=out)
        warm([*image.blobs(), *image.blobs("next")])
        scene = image_measures.Scene(directory, image, words.rounds, tuple(name for name in words.peers.split(",") if name))
        for name in words.only:
            with machine.Noise() as noise:
                try:
                    table = image_measures.MEASURES[name](scene)
                except (DocklessError, ContenderFailed, OSError) as error:
                    table = report.Table(name, name, notes=[f"not measured: {type(error).__name__}: {error}"])
            table.noise = noise.figures
            tables.append(table)
            print(report.text(table), file=out, flush=True)
    content = report.document(tables, about, {"rounds": words.rounds, "peers": words.peers}, when)
    if words.json == "-":
        print(content)
    elif words.json:
        Path(words.json).write_text(content + "\n")
    else:
        print(f"\n{report.save(RESULTS, 'images-' + time.strftime('%Y%m%d-%H%M%S'), content, latest='images-latest')}", file=out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
