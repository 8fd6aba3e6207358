"""Mutants of C, from its tokens. What does not compile afterwards is none.

Nobody could see ``fd < 1`` for ``fd < 0``, 2 for a 1 that only says yes (it becomes 0), -2 for -1, nor a buffer that is longer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mutants.mutation import Mutant

_IGNORED = re.compile(rb'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#(?:\\\n|[^\n])*', re.DOTALL | re.MULTILINE)
_DESCRIPTOR = re.compile(rb"(?<=fd) (?:<|>=) 0\b")
_COMPARISON = re.compile(rb" (<=|>=|==|!=|<|>) ")
_FLIPPED = {b"<": b"<=", b"<=": b"<", b">": b">=", b">=": b">", b"==": b"!=", b"!=": b"=="}
_LOGIC = re.compile(rb" (&&|\|\|) ")
_FLAG = re.compile(rb" \| ([A-Z][A-Z0-9_]+|0x[0-9a-f]+)\b")
_NUMBER = re.compile(rb"(?<![\w.])(\d+|0x[0-9a-fA-F]+)(u?l{0,2})\b(?![.\w])")
_ANSWER = re.compile(rb"(?:-|return |= |[?:] )\Z")
_LENGTH = re.compile(rb"^[ \t]+(?:static |const |unsigned |struct )*\w+ \w+\[[^\]\n]+\]", re.MULTILINE)
_CALL = re.compile(rb"^[ \t]+(\w+\([^;{}]*\));[ \t]*(?=\n|$)", re.MULTILINE)
_SUM = re.compile(rb"(?<=[\w)\]]) ([+-]) (?=[\w(])")
_IF = re.compile(rb"\bif \(")
_LEAVES = re.compile(rb"\s*(return|goto|continue|break)\b[^;{}]*;")


def mutants(path: str, source: bytes) -> list[Mutant]:
    """Of functions' bodies and tables; comments, strings and the preprocessor's lines are left alone."""
    code = _IGNORED.sub(lambda match: re.sub(rb"[^\n]", b"\0", match[0]), source)
    code = _LENGTH.sub(lambda match: b"\0" * len(match[0]), code)
    code = _DESCRIPTOR.sub(lambda match: b"\0" * len(match[0]), code)
    found = [Mutant(path, source.count(b"\n", 0, start) + 1, kind, start, end, new) for kind, start, end, new in _all(code, source)]
    return [one for one in found if b"\0" not in code[one.start : one.start + 1]]


def _all(code: bytes, source: bytes) -> Iterator[tuple[str, int, int, bytes]]:
    for match in _COMPARISON.finditer(code):
        yield "swapped comparison", *match.span(1), _FLIPPED[match[1]]
    for match in _LOGIC.finditer(code):
        yield "and for or", *match.span(1), b"||" if match[1] == b"&&" else b"&&"
    for match in _FLAG.finditer(code):
        yield "dropped flag", *match.span(), b""
    for match in _NUMBER.finditer(code):
        decimal = match[1] == b"0" or not match[1].startswith(b"0")  # others are flags, masks and modes
        says_yes = match[1] == b"1" and _ANSWER.search(code, max(0, match.start() - 9), match.start())
        yield "changed constant", *match.span(1), b"%d" % (int(match[1]) + 1) if decimal and not says_yes else b"0"
    for match in _CALL.finditer(code):
        if not match[1].startswith((b"return", b"if", b"for", b"while", b"switch")):
            yield "dropped call", *match.span(1), b"(void)0"
    for match in _SUM.finditer(code):
        yield "swapped operator", *match.span(1), b"-" if match[1] == b"+" else b"+"
    for match in _IF.finditer(code):
        end = _closing(code, match.end())
        condition = source[match.end() : end]
        yield "negated condition", match.end(), end, b"!(" + condition + b")"
        leaves = _LEAVES.match(code, end + 1)
        if leaves and not re.match(rb"\s*else\b", code[leaves.end() :]):
            yield "dropped check", match.start(), leaves.end(), b"(void)0;"


def _closing(code: bytes, at: int) -> int:
    depth = 1
    while depth:
        depth += {40: 1, 41: -1}.get(code[at], 0)
        at += 1
    return at - 1
