"""Image by image what dockless, skopeo and umoci say about a folder of sample images, as a table in Markdown.

    python benchmarks/image_verdicts.py [--images DIR] > docs/images-table.md

dockless: loaded into a store of its own, then run (its own command, or the first of a few programs that it has). skopeo: copied to
``dir:``. umoci: unpacked from the layout, or from the layout that skopeo makes of an archive, for umoci reads nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PROBES = (("/bin/busybox", "echo", "hello"), ("/hello",), ("/bin/sh", "-c", "echo hello"))
_LIMIT = 20.0


def samples(root: Path) -> list[Path]:
    """Layouts and files."""
    return sorted({path.parent for path in root.glob("*/*/index.json")} | {path for path in root.glob("*/*") if path.is_file()})


def short(text: str, most: int = 110) -> str:
    """The end of an error, on one line, without what differs from run to run."""
    lines = [line for line in text.strip().splitlines() if line.strip()] or ["failed"]
    line = lines[-1]
    if (found := re.search(r'msg="(.*)"$', line)) is not None:
        line = found[1].replace('\\"', '"')
    line = re.sub(r"(/[\w.+-]+){3,}", lambda match: "…/" + match[0].rpartition("/")[2], line.strip())
    line = re.sub(r"[0-9a-f]{64}", lambda match: match[0][:8] + "…", line).replace("|", "/")
    return line if len(line) <= most else line[: most - 1] + "…"


# -- dockless ----------------------------------------------------------------------------------------------------------------------------


def ours(path: Path) -> tuple[str, str]:
    """Whether it loads, and whether it runs."""
    from dockless.errors import DocklessError
    from dockless.images import Store

    try:
        images = Store().load(path)
    except DocklessError as error:
        return f"refused: {type(error).__name__}: {short(str(error).removeprefix(str(path)).lstrip(': '))}", ""
    names = ", ".join(image.reference or "without a name" for image in images)
    return f"loaded: {names}", "; ".join(
        dict.fromkeys(_run(image.digest, bool(image.config.entrypoint or image.config.cmd)) for image in images)
    )


def _run(name: str, has_command: bool) -> str:
    import dockless
    from dockless.errors import CommandNotFound, DocklessError

    said = "holds no program that could be tried"
    for words in ([()] if has_command else []) + list(_PROBES):
        try:
            result = dockless.run(name, list(words) or None, timeout=_LIMIT, capture_output=True, stdin=subprocess.DEVNULL)
        except CommandNotFound as error:
            if not words:
                said = f"its command is not in it ({short(str(error), 60)})"
            continue
        except DocklessError as error:
            return f"not run: {type(error).__name__}: {short(str(error), 80)}"
        output = next((line for line in result.stdout.decode(errors="replace").splitlines() if line.strip()), "")
        if result.returncode == 0:
            return f"ran{': ' + short(output, 40) if output else ''}"
        said = f"ran, exit {result.returncode}"
    return said


# -- peers -------------------------------------------------------------------------------------------------------------------------------


def _said(*words: str | Path) -> tuple[bool, str]:
    try:
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return False, "no answer within two minutes"
    return done.returncode == 0, done.stderr


def references(path: Path) -> list[str]:
    """How skopeo may call the images of a sample, likely ones first."""
    if path.is_dir():
        return [f"oci:{path}", *(f"oci:{path}:{tag}" for tag in _tags(path))]
    return [f"oci-archive:{path}", f"docker-archive:{path}", f"docker-archive:{path}:@0"]


def _tags(layout: Path) -> Iterator[str]:
    try:
        for entry in json.loads((layout / "index.json").read_text())["manifests"]:
            if name := entry.get("annotations", {}).get("org.opencontainers.image.ref.name"):
                yield name
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return


def skopeo(path: Path, work: Path) -> tuple[str, str]:
    """Its verdict, and under which reference it could read the image."""
    errors = []
    for number, source in enumerate(references(path)):
        good, error = _said("skopeo", "--insecure-policy", "copy", "--quiet", source, f"dir:{work}/dir{number}")
        if good:
            return f"copied ({source.partition(':')[0]})", source
        errors.append(error)
    best = next((error for error in reversed(errors) if "docker-archive" not in error and "oci" not in error), errors[-1])
    return f"refused: {short(best)}", ""


def umoci(path: Path, source: str, work: Path) -> str:
    rootless = ["--rootless"] if os.geteuid() else []
    layout, tag, how = path, next(_tags(path), "") if path.is_dir() else "", ""
    if not path.is_dir() or not tag:
        if not source:
            return "–"
        good, error = _said("skopeo", "--insecure-policy", "copy", "--quiet", source, f"oci:{work}/oci:made")
        if not good:
            return f"– (skopeo makes no layout of it: {short(error, 60)})"
        layout, tag, how = work / "oci", "made", ", by way of skopeo"
    good, error = _said("umoci", "unpack", *rootless, "--image", f"{layout}:{tag}", work / "bundle")
    if not good:
        return f"refused: {short(error)}"
    count = sum(len(folders) + len(files) for _, folders, files in os.walk(work / "bundle/rootfs"))
    return f"unpacked, {count} entries{how}"


# -- table -------------------------------------------------------------------------------------------------------------------------------


def main() -> int:
    shared = Path(os.environ.get("DOCKLESS_SHARED") or Path(__file__).resolve().parents[2] / "shared")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=Path, default=shared / "images")
    options = parser.parse_args()
    if not options.images.is_dir():
        print(f"skipped: no images at {options.images} (--images)", file=sys.stderr)
        return 0
    have = [program for program in ("skopeo", "umoci") if shutil.which(program)]
    print("# Sample images, image by image\n")
    print(f"Made by `benchmarks/image_verdicts.py` on {os.uname().machine}. {_versions(have)}\n")
    print("| image | dockless | run | skopeo | umoci |\n|---|---|---|---|---|")
    counts: dict[str, int] = {}
    for path in samples(options.images):
        with tempfile.TemporaryDirectory(prefix="dk-") as place:
            os.environ["DOCKLESS_HOME"] = f"{place}/home"
            loaded, ran = ours(path)
            theirs, source = skopeo(path, Path(place)) if "skopeo" in have else ("not installed", "")
            unpacked = umoci(path, source, Path(place)) if "umoci" in have else "not installed"
            print(f"| {path.relative_to(options.images)} | {loaded} | {ran} | {theirs} | {unpacked} |", flush=True)
            key = f"dockless {loaded.partition(':')[0]}, skopeo {theirs.partition(' ')[0].rstrip(':')}"
            counts[key] = counts.get(key, 0) + 1
    print("\n" + "; ".join(f"{key}: {number}" for key, number in sorted(counts.items())) + ".")
    return 0


def _versions(programs: list[str]) -> str:
    found = []
    for program in programs:
        said = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.split()
        found.append(f"{program} {next((word for word in said if word[:1].isdigit()), '')}")
    return f"Beside {' and '.join(found)}." if found else "Neither skopeo nor umoci is installed."


if __name__ == "__main__":
    sys.exit(main())
