"""What the daemon may say about an error (decision 032), looked up in its source: ``describe`` and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dockless.sched
from dockless.errors import BadInput, SchedError
from dockless.sched.engine.faults import describe

SCHED = Path(dockless.sched.__file__).parent
SAYING = ("say", "_say", "print")
SETTINGS = ("reload",)
"""Functions that show the administrator an error about her own settings."""


def told_in_full(tree: ast.AST) -> list[str]:
    """Lines that print the text of something that was caught."""
    found = []
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    exempt = {id(node) for function in functions if function.name in SETTINGS for node in ast.walk(function)}
    for function in functions:
        caught = {node.name for node in ast.walk(function) if isinstance(node, ast.ExceptHandler) and node.name}
        caught |= {argument.arg for argument in function.args.args if "Exception" in ast.unparse(argument.annotation or ast.Constant(""))}
        caught |= {"error", "exc", "request"}
        for call in ast.walk(function):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in SAYING:
                continue
            hidden = {id(inner) for part in ast.walk(call) if _describes(part) for inner in ast.walk(part)}
            named = [n for n in ast.walk(call) if isinstance(n, ast.Name) and n.id in caught and id(n) not in hidden | exempt]
            found += [f"{function.name}, line {name.lineno}: {name.id}" for name in named]
    return found


def _describes(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "describe"


@pytest.mark.parametrize("path", sorted(SCHED.rglob("*.py")), ids=lambda path: path.name)
def test_the_log_is_told_an_error_by_describe_alone(path):
    tree = ast.parse(path.read_text())
    main = [node for node in tree.body if isinstance(node, ast.If)]  # what the command itself could not start with
    tree.body = [node for node in tree.body if node not in main]
    assert told_in_full(tree) == []


def test_the_check_sees_what_it_looks_for():
    assert told_in_full(ast.parse("def f():\n try: g()\n except Exception as problem: say(f'no: {problem}')"))
    assert told_in_full(ast.parse("def f(request): print(request, file=2)"))
    assert told_in_full(ast.parse("def f():\n try: g()\n except Exception as problem: say(f'no: {describe(problem)}')")) == []


def test_what_is_told():
    def fails(error: BaseException) -> str:
        try:
            raise error
        except BaseException as caught:
            return describe(caught)

    assert fails(KeyError("secret")).startswith("KeyError in test_sched_log.py:") and "secret" not in fails(KeyError("secret"))
    assert fails(BadInput("secret", subject="secret", hint="secret")).count("secret") == 0
    assert "No space left" in fails(OSError(28, "secret", "/secret")) and "secret" not in fails(OSError(28, "secret", "/secret"))
    assert fails(SchedError("the queue cannot be written")) == "the queue cannot be written"
    assert describe(ValueError("secret")) == "ValueError"
