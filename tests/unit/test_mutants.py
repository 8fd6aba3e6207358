"""The mutants themselves: each a change of meaning that is still a program, and none where only words are."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from mutants import known, nearest, of_c, of_python, run

TESTS = Path(__file__).resolve().parents[1]
PYTHON = b'''"""Docstring > 1."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import x
def f(a: int = 3, *, keep=True) -> int:
    if a < 1 and keep:
        return 0
    if not a:
        raise ValueError(f"{a + 1} is wrong", 7)
    os.fsync(a)
    g(a, 2, mode=0o600, hint="say " + "so")
    return a + 1
def unseen(end):
    return time.monotonic() > end or self.fd < 0 or 1 > own_fd
def the_same(a, b):
    return max(a, b), zip(a, strict=True)
def unseen_too():
    return os.open(a, os.O_RDONLY | os.O_CLOEXEC), threading.Thread(target=f, name="f")
@overload
def f(a: bool = False) -> int: ...
'''
C = b"""/* if (x < 1) return 2; */
#define ONE 1
static int f(int fd, unsigned flags) {
    if (flags < 4) return -1;
    close(fd);
    if (here.fd >= 0) here.fd = gone;
    char room[64];
    int found = 1;
    return open("a < b", O_RDONLY | O_NOFOLLOW, 0755) == 0 && flags ? 4 : fd + 1;
}
"""


def changed(found, source):
    return {(one.kind, one.line, *one.change(source)) for one in found}


def test_python():
    found = of_python.mutants("a.py", PYTHON)
    for one in found:
        ast.parse(one.applied(PYTHON))
        assert one.applied(PYTHON) != PYTHON
    kinds = {(one.kind, one.line) for one in found}
    assert {("dropped check", 6), ("negated condition", 6), ("swapped comparison", 6), ("and for or", 6), ("dropped operand", 6)} <= kinds
    assert {("dropped not", 8), ("dropped call", 10), ("removed keyword", 11), ("swapped arguments", 11), ("swapped operator", 12)} <= kinds
    assert not {line for _, line in kinds} & {1, 2, 3, 4, 9}
    assert {kind for kind, line in kinds if line == 14} == {"and for or", "dropped operand"}
    assert not {kind for kind, line in kinds if line in (16, 20)}
    assert {one.change(PYTHON)[1] for one in found if one.line == 18 and one.kind != "swapped arguments"} == {
        'return os.open(a, os.O_RDONLY | os.O_CLOEXEC), threading.Thread( name="f")'
    }
    assert ("removed keyword", 11, 'g(a, 2, mode=0o600, hint="say " + "so")', 'g(a, 2, hint="say " + "so")') in changed(found, PYTHON)


def test_c():
    found = of_c.mutants("a.c", C)
    kinds = {(one.kind, one.line) for one in found}
    assert {("dropped check", 4), ("swapped comparison", 4), ("negated condition", 4), ("dropped call", 5), ("dropped flag", 9)} <= kinds
    assert {("and for or", 9), ("changed constant", 9), ("swapped operator", 9)} <= kinds
    assert not {line for _, line in kinds} & {1, 2, 3}
    assert [(kind, line) for kind, line in kinds if line in (6, 7)] == [("negated condition", 6)]
    assert ("changed constant", 8, "int found = 1;", "int found = 0;") in changed(found, C)
    assert all(b'"a < b"' in one.applied(C) for one in found)
    assert ("changed constant", 4, "if (flags < 4) return -1;", "if (flags < 4) return -0;") in changed(found, C)


@pytest.mark.parametrize(
    ("path", "test"),
    [
        ("sched/policy/policy.py", "unit/test_policy.py"), ("native/launcher/plan.c", "native/test_validator.py"),
        ("cgroups/limits.py", "unit/test_limits.py"),
        ("images/files.py", "unit/test_publishing.py"), ("src/dockless/_options.py", "unit/test_option_grammar.py"),
        ("sandbox/run/reconcile.py", "integration/test_reconcile.py"), ("native/layer/pax.c", "unit/test_image_tarstream.py"),
    ],
)  # fmt: skip
def test_nearest(path, test):
    near, wide = nearest.tests_for(TESTS, path)
    assert test in near and not set(near) & set(wide)


def test_the_lists_can_be_read():
    """And each equivalent one is still a mutant: a row that fits nothing any more goes."""
    assert known.read()
    for path in {path for path, _, _ in run._equivalent()}:
        source = (run.TOP / path).read_bytes()
        changes = {one.change(source) for one in run._mutants(path)}
        assert not {row[1:] for row in run._equivalent() if row[0] == path} - changes
