"""The packages' one direction, and what may be imported when: read from the sources with ``ast``, whatever the tests happen to run."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dockless.base import typing as ours

SOURCE = Path(__file__).resolve().parents[2] / "src" / "dockless"
FLOOR = {"_version", "base", "errors"}
PACKAGES = ("native", "cgroups", "images", "sandbox", "sched")
BELOW = {
    "native": FLOOR,
    "cgroups": FLOOR | {"native"},
    "images": FLOOR | {"native"},
    "sandbox": FLOOR | {"native", "cgroups", "images"},
    "sched": FLOOR | {"native", "cgroups", "images", "sandbox"},
}
HEAVY = (
    "asyncio",
    "isal",
    "jeepney",
    "psutil",
    "pynvml",
    "pyroute2",
    "rich",
    "sqlite3",
    "ssl",
    "tomlkit",
    "multiprocessing",
    "unittest",
    "yaml",
)

needs_sources = pytest.mark.skipif(not SOURCE.is_dir(), reason="only the installed package is here, not the sources")


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, first name below ``dockless``) of every import in a file, those inside functions too. The front door itself is "dockless"."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names = [f"dockless.{alias.name}" for alias in node.names] if node.module == "dockless" else [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "dockless":
                yield node.lineno, [*name.split("."), "dockless"][1]


@needs_sources
@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_is_below(package):
    wrong = [
        f"{path}:{line}: {package} imports dockless.{name}"
        for path in sorted((SOURCE / package).rglob("*.py"))
        for line, name in imported(path)
        if name != package and name not in BELOW[package]
    ]
    assert not wrong, "\n".join(wrong)


def in_the_packages() -> list[Path]:
    return sorted(path for package in ("base", *PACKAGES) for path in (SOURCE / package).rglob("*.py"))


@needs_sources
def test_the_floor_imports_only_the_floor():
    files = [SOURCE / "errors.py", *(SOURCE / "base").glob("*.py")]
    assert {what for path in files for _, what in imported(path)} <= FLOOR


@needs_sources
@pytest.mark.parametrize("package", ("images", "sandbox", "sched"))
def test_a_package_has_no_circles(package):
    """Among its folders and the files beside them, also by imports inside functions and for type checkers alone."""
    graph: dict[str, set[str]] = {}
    for path in (SOURCE / package).rglob("*.py"):
        here, *_ = path.relative_to(SOURCE / package).with_suffix("").parts
        graph.setdefault(here, set()).update(set(places(path, package)) - {here})
    del graph["__init__"]  # what is public of all of it, imported when it is first used
    graphlib.TopologicalSorter(graph).prepare()


def places(path: Path, package: str, when_it_runs: bool = False) -> Iterator[str]:
    """What a file imports of its own package: a folder's name, or that of a file beside the folders. ``when_it_runs``: leave out what only
    type checkers import."""
    folder, depth = SOURCE.joinpath(*package.split(".")), 1 + len(package.split("."))
    tree = ast.parse(path.read_text(), str(path))
    if when_it_runs:
        tree.body = [node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"dockless.{package}."):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from {name.split(".")[depth] for name in names} & {entry.stem for entry in folder.iterdir()}


@needs_sources
def test_the_engine_has_no_circles():
    """Among its folders and the files beside them, when it runs: for type checkers each names the engine that its functions are given."""
    top = SOURCE / "sched" / "engine"
    graph: dict[str, set[str]] = {}
    for path in top.rglob("*.py"):
        here, *_ = path.relative_to(top).with_suffix("").parts
        graph.setdefault(here, set()).update(set(places(path, "sched.engine", when_it_runs=True)) - {here})
    assert graph["lifecycle"] >= {"gpus", "host", "stopping"}
    graphlib.TopologicalSorter(graph).prepare()


@needs_sources
def test_dataclasses_are_ours():
    """Those of the standard library cost a start a millisecond each."""
    wrong = []
    for path in sorted(SOURCE.glob("*.py")) + sorted(SOURCE.glob("cli/*.py")) + in_the_packages():
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            if isinstance(node, ast.ImportFrom) and node.module == "dataclasses" and path.name != "dataclass.py":
                wrong += [f"{path}:{node.lineno}: {one.name}" for one in node.names if one.name in ("dataclass", "field", "replace")]
    assert not wrong, "import it from dockless.base.dataclass:\n" + "\n".join(wrong)


def python(code: str) -> str:
    """What a fresh interpreter prints, started in the repository's root as ``make`` does it."""
    root = SOURCE.parents[1]
    return subprocess.run([sys.executable, "-P", "-c", code], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def test_import_sched_is_the_standard_library():
    assert Path(python("import sched; assert sched.scheduler; print(sched.__file__)")).name == "sched.py"


@pytest.mark.parametrize("module", ["dockless", "dockless.sandbox", "dockless.cgroups", "dockless.images", "dockless.sched"])
def test_importing_a_package_loads_nothing_heavy(module):
    loaded = python(f"import sys, {module}; print(' '.join(sys.modules))").split()
    assert not [name for name in HEAVY if name in loaded]


@needs_sources
def test_a_thread_never_keeps_the_program_from_ending():
    """One that waits for a registry or a full queue would; after an error nobody may be left to wake it."""
    wrong, seen = [], 0
    for path in sorted(path for place in (SOURCE, SOURCE / "cli") for path in place.glob("*.py")) + in_the_packages():
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("threading.Thread"):
                seen += 1
                if not any(one.arg == "daemon" and ast.unparse(one.value) == "True" for one in node.keywords):
                    wrong.append(f"{path.name}:{node.lineno}")
    assert seen >= 5 and wrong == []


@needs_sources
def test_typing_is_ours():
    """The standard module takes as long to import as a sandbox lives. What type checkers alone see may come from anywhere."""
    wrong = []
    for path in sorted(SOURCE.glob("*.py")) + sorted(SOURCE.glob("cli/*.py")) + in_the_packages():
        for node in ast.parse(path.read_text(), str(path)).body:
            if isinstance(node, ast.ImportFrom) and node.module == "typing":
                wrong += [f"{path}:{node.lineno}: {one.name}" for one in node.names if hasattr(ours, one.name)]
    assert not wrong, "import it from dockless.base.typing:\n" + "\n".join(wrong)
