"""Mutants of Python, from the syntax tree.

Left alone: docstrings and other strings, annotations, what only type checkers run, ``raise`` statements (their text is for people),
``assert`` and imports. So is what nobody could see: ``>`` for ``>=`` beside a clock, 1 for 0 where a descriptor is compared with it, a
thread's name, the order of what ``max`` and ``min`` compare, and ``O_RDONLY | O_CLOEXEC``, which Python asks for anyway (PEP 446).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from mutants.mutation import Mutant

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.FloorDiv: "*",
    ast.BitOr: "&",
    ast.BitAnd: "|",
}
_LEAVES = (ast.Raise, ast.Return, ast.Continue, ast.Break)
_FOR_PEOPLE = ("hint", "help", "metavar", "description")
_BOUND = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_UNSEEN = re.compile(r"\b(monotonic|time)\(\)|^[\w.]*fd$")
_NO_FLAGS = re.compile(r"os\.O_RDONLY \| os\.O_CLOEXEC\Z")
_SKIPPED = (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr)


def mutants(path: str, source: bytes) -> list[Mutant]:
    return list(_Finder(path, source).walk(ast.parse(source)))


class _Finder:
    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source
        self.left_alone: set[ast.AST] = set()
        self.lines = [0]
        for line in source.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))

    def walk(self, node: ast.AST) -> Iterator[Mutant]:
        if isinstance(node, _SKIPPED) or _is_for_type_checkers(node):
            return
        if node not in self.left_alone:
            yield from self.of(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.keyword) and _is_no_behaviour(node, child):
                    continue
                if isinstance(child, ast.AST):
                    yield from self.walk(child)

    def of(self, node: ast.AST) -> Iterator[Mutant]:
        match node:
            case ast.If(test=test, body=body, orelse=orelse):
                if isinstance(body[-1], _LEAVES) and not orelse and not self._is_elif(node):
                    yield self.replaced(node, "dropped check", "pass")
                yield self.replaced(test, "negated condition", f"not ({self.text(test)})")
            case ast.While(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.Constant):
                yield self.replaced(test, "negated condition", f"not ({self.text(test)})")
            case ast.Compare(left=left, ops=[op], comparators=[right]) if isinstance(op, _BOUND) and self._unseen(left, right):
                self.left_alone.update((left, right))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
                yield self.replaced(node, "swapped comparison", f"{self.text(left)} {_COMPARISONS[type(op)]} {self.text(right)}")
            case ast.BoolOp(op=op, values=values):
                other = " or " if isinstance(op, ast.And) else " and "
                yield self.replaced(node, "and for or", "(" + other.join(f"({self.text(value)})" for value in values) + ")")
                joint = " and " if isinstance(op, ast.And) else " or "
                for at in range(len(values)):
                    rest = joint.join(self.text(value) for value in values[:at] + values[at + 1 :])
                    yield self.replaced(node, "dropped operand", f"({rest})")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield self.replaced(node, "dropped not", f"({self.text(operand)})")
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                if _NO_FLAGS.match(self.text(node)):
                    return
                if not any(isinstance(side, (ast.JoinedStr, ast.List, ast.Tuple)) or _is_text(side) for side in (left, right)):
                    yield self.replaced(node, "swapped operator", f"{self.text(left)} {_ARITHMETIC[type(op)]} {self.text(right)}")
            case ast.Constant(value=bool() as value):
                yield self.replaced(node, "changed constant", str(not value))
            case ast.Constant(value=int() as value):
                yield self.replaced(node, "changed constant", str(value + 1))
            case ast.Constant(value=float() as value):
                yield self.replaced(node, "changed constant", str(value * 100 + 1))
            case ast.Expr(value=ast.Call() | ast.Await()):
                yield self.replaced(node, "dropped call", "pass")
            case ast.AugAssign():
                yield self.replaced(node, "dropped assignment", "pass")
            case ast.Call():
                yield from self.of_call(node)

    def of_call(self, node: ast.Call) -> Iterator[Mutant]:
        # In front of each argument there is a comma or the bracket; the last comma may stay behind.
        for keyword in node.keywords:
            if keyword.arg is not None and not _is_no_behaviour(node, keyword):
                start, end = self.span(keyword)
                before = self.source[:start].rstrip()
                if before.endswith(b","):
                    yield self.made(node, "removed keyword", len(before) - 1, end, b"", line=keyword.value.lineno)
                elif before.endswith(b"("):
                    after = self.source[end:].lstrip()
                    drop = end + len(self.source[end:]) - len(after) + 1 if after.startswith(b",") else end
                    yield self.made(node, "removed keyword", start, drop, b"", line=keyword.value.lineno)
        match node.args:
            case [first, second, *_] if self.text(node.func) not in ("max", "min") and not any(
                isinstance(one, ast.Starred) for one in (first, second)
            ):
                (start, middle), (again, end) = self.span(first), self.span(second)
                between = self.source[middle:again]
                if self.source[start:middle] != self.source[again:end]:
                    new = self.source[again:end] + between + self.source[start:middle]
                    yield self.made(node, "swapped arguments", start, end, new)

    def span(self, node: ast.AST) -> tuple[int, int]:
        return (
            self.lines[node.lineno - 1] + node.col_offset,  # type: ignore[attr-defined]
            self.lines[node.end_lineno - 1] + node.end_col_offset,  # type: ignore[attr-defined]
        )

    def text(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.source[start:end].decode()

    def replaced(self, node: ast.AST, kind: str, new: str) -> Mutant:
        start, end = self.span(node)
        return self.made(node, kind, start, end, new.encode())

    def made(self, node: ast.AST, kind: str, start: int, end: int, new: bytes, line: int = 0) -> Mutant:
        return Mutant(self.path, line or node.lineno, kind, start, end, new)  # type: ignore[attr-defined]

    def _unseen(self, *sides: ast.expr) -> bool:
        return any(_UNSEEN.search(self.text(side)) for side in sides)

    def _is_elif(self, node: ast.If) -> bool:
        start, _ = self.span(node)
        return self.source[start : start + 4] == b"elif"


def _is_for_type_checkers(node: ast.AST) -> bool:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return any(ast.unparse(one) in ("overload", "typing.overload") for one in node.decorator_list)
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def _is_no_behaviour(call: ast.AST, keyword: ast.keyword) -> bool:
    """Words for people, a thread's name among them, and an assertion: that of what is zipped nothing is left over."""
    callee = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
    return keyword.arg in _FOR_PEOPLE or (keyword.arg, callee.removeprefix("threading.")) in (("strict", "zip"), ("name", "Thread"))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
