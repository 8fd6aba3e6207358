"""docs/security.md lists what root does on paths, and whether others can change them. This reads the code and compares: a function that
opens, makes, changes, removes or looks at a path, and a launcher's operation that takes one, is in a table there or this fails."""

from __future__ import annotations

import ast
import fnmatch
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dockless import native

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("src/dockless", "base", "sched", "sandbox", "images", "cgroups", "native")
CHAPTER = "## What root does on paths that others can change"

_OF_OS = {
    *"open chmod chown lchown mkdir makedirs rename renames replace unlink remove rmdir removedirs scandir listdir stat lstat".split(),
    *"readlink symlink link mknod mkfifo truncate utime access walk fwalk statvfs chdir chroot listxattr getxattr setxattr".split(),
    "removexattr",
}  # fmt: skip
_OF_OS_PATH = set("exists lexists isdir isfile islink ismount realpath samefile getsize getmtime".split())
_METHODS = {
    *"open exists is_dir is_file is_symlink is_mount mkdir chmod lchmod touch unlink rename rmdir iterdir glob rglob read_text".split(),
    *"read_bytes write_text write_bytes stat lstat symlink_to hardlink_to readlink samefile bind connect".split(),
}  # fmt: skip
_MODULES = {"shutil", "tempfile", "subprocess"}
_OURS = {
    *"open replacing write_atomic make_private sync_directory sync_file sync_filesystem locked remove_tree temporary_directory".split(),
    *"sweep is_locked open_log volume_path".split(),
}  # fmt: skip
"""Calls by name: the built-in, and our own helpers that take a path."""

SAFELY = {
    "images/layers/walk.py", "images/layers/merged.py", "images/archive/diff.py", "images/archive/export.py", "images/archive/entries.py",
    "sandbox/run/logfile.py", "sched/wire/logs.py", "sandbox/volumes.py",
}  # fmt: skip
"""Files whose trees sandboxes and users change: every name in them is opened and looked at without following a link."""


def sources() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if not any(above.is_symlink() for above in path.parents if above.is_relative_to(ROOT)):
                yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def kind(call: ast.Call) -> str:
    """What a call does on a path, empty if nothing."""
    match call.func:
        case ast.Name(id=name):
            return name if name in _OURS else ""
        case ast.Attribute(value=ast.Name(id="os"), attr=name):
            return f"os.{name}" if name in _OF_OS else ""
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="os"), attr="path"), attr=name):
            return f"os.path.{name}" if name in _OF_OS_PATH else ""
        case ast.Attribute(value=ast.Name(id=module), attr=name) if module in _MODULES:
            return f"{module}.{name}"
        case ast.Attribute(value=ast.Name(id=module), attr=name) if (module, name) in (("native", "openat2"), ("paths", "make")):
            return f"{module}.{name}"
        case ast.Attribute(attr=name):
            return f".{name}" if name in _METHODS else ""
    return ""


def actions(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, str, ast.Call]]:
    """(function, what, call) of everything that is done on a path."""
    for node in ast.iter_child_nodes(tree):
        name = inside
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = f"{inside}.{node.name}" if inside else node.name
        if isinstance(node, ast.Call) and (what := kind(node)):
            yield inside or "the module", what, node
        yield from actions(node, name)


@functools.cache
def in_the_code() -> set[tuple[str, str]]:
    return {(path, function) for path, tree in sources() for function, _, _ in actions(tree)}


def chapter() -> str:
    text = (ROOT / "docs" / "security.md").read_text()
    assert text.count(f"\n{CHAPTER}\n") == 1
    return re.split(r"^## ", text.partition(f"\n{CHAPTER}\n")[2], flags=re.M)[0]


def rows() -> list[list[str]]:
    """The cells of every table row of the chapter."""
    lines = [line for line in chapter().splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


def in_the_document() -> tuple[list[str], list[tuple[str, str]]]:
    """Files (``room/*.py``: those of a room that have no row of their own) that are listed whole, for nobody else can change what they
    touch, and (file, function) of the rows that name functions."""
    whole, single = [], []
    for first, *_ in rows():
        words = re.findall(r"`([^`]+)`", first)
        files = [word for word in words if word.endswith(".py")]
        if len(files) == len(words):
            whole += files
        elif files:
            single += [(files[0], function) for function in words[1:]]
    return whole, single


def test_every_function_that_acts_on_a_path_is_listed():
    whole, single = in_the_document()
    by_function = {file for file, _ in single}
    missing = [
        (file, function)
        for file, function in sorted(in_the_code() - set(single))
        if file in by_function or not any(fnmatch.fnmatchcase(file, pattern) for pattern in whole)
    ]
    assert not missing, f"say in docs/security.md what these do, on whose path, and what holds: {missing}"


def test_nothing_is_listed_that_is_not_there_or_is_listed_twice():
    whole, single = in_the_document()
    assert sorted(set(single) - in_the_code()) == []
    assert [pattern for pattern in whole if not fnmatch.filter((file for file, _ in in_the_code()), pattern)] == []
    assert sorted(row for row in {*single, *whole} if (single + whole).count(row) > 1) == []
    assert sorted({file for file, _ in single} & set(whole)) == []


def test_a_file_whose_tree_others_change_is_never_listed_whole():
    assert SAFELY & set(in_the_document()[0]) == set()


def test_every_row_says_who_can_change_the_path_and_what_holds():
    assert [row for row in rows() if len(row) < 3 or not all(row)] == []


def test_every_operation_of_the_launcher_that_takes_a_path_is_listed():
    taking = {shape.name for shape in native.operations().values() if "p" in (shape.a, shape.b)} | {"EXEC"}
    listed = {name for first, *_ in rows() for name in re.findall(r"`([A-Z_]+)`", first)}
    assert taking - listed == set() and listed <= set(native.operations())


def follows_a_link(what: str, call: ast.Call) -> bool:
    """Whether the last name of the path could be a link and would be followed."""
    text = ast.unparse(call)
    if what in ("os.open", "native.openat2"):
        return "NOFOLLOW" not in text and "_DIRECTORY" not in text
    if what in ("os.stat", "os.getxattr", "os.listxattr", "os.setxattr", "os.removexattr", "os.chmod", "os.chown", "os.utime", "os.link"):
        by_descriptor = isinstance(call.args[0], ast.Name) and call.args[0].id in ("fd", "folder", "root")
        return "follow_symlinks=False" not in text and not by_descriptor
    return what in (".stat", ".exists", ".is_dir", ".is_file", ".chmod", ".read_text", ".read_bytes", ".write_text", ".touch", ".mkdir")


@pytest.mark.parametrize("file", sorted(SAFELY))
def test_no_name_in_a_tree_that_others_change_is_followed(file):
    tree = ast.parse((ROOT / file).read_text())
    assert [f"{function}: {ast.unparse(call)}" for function, what, call in actions(tree) if follows_a_link(what, call)] == []


@pytest.mark.parametrize(
    "line", ["os.open(p, os.O_RDONLY)", "os.stat(p)", "os.getxattr(p, 'user.x')", "Path(p).read_text()", "os.chmod(p, 0)"]
)
def test_the_check_sees_what_follows(line):
    ((_, what, call),) = actions(ast.parse(line))
    assert follows_a_link(what, call)


def test_the_check_sees_a_new_action():
    code = "def f(p):\n open(p)\n os.chown(p, 0, 0)\n p.touch()\n shutil.rmtree(p)\nclass A:\n def g(self): paths.make(self.p)"
    assert [(function, what) for function, what, _ in actions(ast.parse(code))] == [
        ("f", "open"), ("f", "os.chown"), ("f", ".touch"), ("f", "shutil.rmtree"), ("A.g", "paths.make"),
    ]  # fmt: skip
