"""Values that cross between a call and who asked for it: as they were, and never more than numbers, texts, bytes and containers."""

from __future__ import annotations

import ast
import enum
import json
import math
import os
import pickle
import socket
import sys
import time
from collections import namedtuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockless import HealthCheck, Pool, Zygote, aio
from dockless._zygote import _result
from dockless.errors import BadAnswer, BadInput, CallFailed, CallTimedOut, Unsupported
from dockless.sandbox.zygote.answers import Conversation, Said, names, texts, value_of
from dockless.sandbox.zygote.server import script
from dockless.sandbox.zygote.values import DEPTH, Unencodable, decode, encode

HASHABLE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.complex_numbers(allow_nan=False),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
VALUES = st.recursive(
    HASHABLE | st.binary().map(bytearray) | st.sets(HASHABLE, max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(HASHABLE, inner, max_size=4) | st.tuples(inner),
    max_leaves=12,
)


def crossed(value):
    return decode(json.loads(json.dumps(encode(value)).encode()))


@given(VALUES)
def test_a_value_comes_as_it_was(value):
    found = crossed(value)
    assert found == value
    assert type(found) is type(value)


def test_numbers_that_json_has_not():
    assert crossed(2**5000) == 2**5000
    assert crossed(-(2**5000)) == -(2**5000)
    assert math.isnan(crossed(math.nan))
    assert crossed([math.inf, -math.inf]) == [math.inf, -math.inf]


def test_subclasses_become_their_base():
    class Colour(enum.IntEnum):
        RED = 3

    assert crossed(Colour.RED) == 3
    assert type(crossed(Colour.RED)) is int
    assert crossed(namedtuple("Pair", "a b")(1, 2)) == (1, 2)


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value", [object(), {1: object()}, nested(DEPTH + 1), 1 << (1 << 21)], ids=["object", "inside", "deep", "long"])
def test_what_cannot_cross_is_said(value):
    with pytest.raises(Unencodable):
        encode(value)


def test_a_value_may_be_as_deep_as_it_says():
    assert crossed(nested(DEPTH)) == nested(DEPTH)


HOSTILE = [
    {"x": 1}, {}, {"b": "?"}, {"b": 1}, {"b": "A"}, {"i": "12"}, {"i": 12}, {"f": "1.5"}, {"d": [[1]]}, {"d": [[[], 1]]}, {"d": [1]},
    {"s": [[1]]}, {"s": 1}, {"c": [1]}, {"c": ["a", 1]}, {"c": [{"i": hex(1 << 5000)}, 1]}, {"t": None}, {"t": [], "s": []},
    json.loads("[" * 70 + "]" * 70),
]  # fmt: skip


@pytest.mark.parametrize("coded", HOSTILE, ids=str)
def test_what_is_not_so_encoded_is_an_error(coded):
    with pytest.raises(BadAnswer):
        value_of({"value": coded})


@pytest.mark.parametrize("tag", ["s", "z"])
def test_numbers_of_one_hash_are_refused_before_they_are_hashed_into_one_place(tag):
    prime = 2**61 - 1
    many = [{"i": hex(prime * number)} for number in range(40_000)]
    began = time.process_time()
    with pytest.raises(BadAnswer, match="one hash"):
        value_of({"value": {tag: many}})
    with pytest.raises(BadAnswer, match="one hash"):
        value_of({"value": {"d": [[one, 1] for one in many]}})
    assert time.process_time() - began < 5


def test_a_long_set_crosses():
    assert crossed({*range(100_000)}) == {*range(100_000)}


@pytest.mark.parametrize("record", [None, [], {}, {"type": 1, "message": ""}])
def test_records_of_exceptions_are_checked(record):
    with pytest.raises(BadAnswer):
        texts(record, "type", "message")


def test_lists_of_names_are_checked():
    assert names(["a", 1]) == "a, 1"
    with pytest.raises(BadAnswer):
        names(3)


def said(outcome=None, status=None, **more):
    return Said(outcome, status, b"out", b"err\xff", **more)


def failure(one, **more):
    with pytest.raises(CallFailed) as caught:
        _result(one, 2.0, **{"out_of_memory": False, "seconds": 0.1, **more})
    assert caught.value.stdout == "out"
    assert caught.value.stderr == "err\ufffd"
    return caught.value


def test_how_a_call_ended():
    assert "signal SIGSEGV" in str(failure(said(status={"status": 11})))
    assert "exit code 3" in str(failure(said(status={"status": 3 << 8})))
    assert "for memory" in str(failure(said(status={"status": 9}), out_of_memory=True))
    assert "could not begin: enter" in str(failure(said({"failed": "enter the mount namespace"})))
    assert "cannot cross: builtins.object" in str(failure(said({"unsent": "builtins.object"})))
    assert isinstance(failure(said(late=True)), CallTimedOut)
    raised = failure(said({"raised": {"type": "ValueError", "message": "m", "traceback": "t"}}))
    assert (raised.kind, raised.text, raised.traceback) == ("ValueError", "m", "t")


@pytest.mark.parametrize(("more", "error"), [(b"", None), (b" ", "more than was asked for"), (b"\n" * 99999, "more than was asked for")])
def test_what_follows_an_answer_is_none_of_it(more, error):
    raw = b'{"value": 1}'
    ours, theirs = socket.socketpair()
    pipes = [os.pipe() for _ in range(3)]
    with ours, theirs:
        theirs.sendall(len(raw).to_bytes(8, "big") + raw + more)
        talk = Conversation(ours, pipes[0][0], (pipes[1][0], pipes[2][0]), b"{}", limit=99, most=99)
        try:
            if error is None:
                assert talk.run(10).outcome == {"value": 1}
            else:
                with pytest.raises(BadAnswer, match=error):
                    talk.run(10)
        finally:
            for fd in (fd for pair in pipes for fd in pair):
                os.close(fd)


@pytest.mark.parametrize("ask", [
    lambda z: z.call("math"), lambda z: z.call("math:"), lambda z: z.call("a b:c"), lambda z: z.call("math:sqrt", object()),
    lambda z: z.run_code("1", {"a b": 1}), lambda z: z.run_code("1", {"a": object()}), lambda z: z.branch(["no name"]),
])  # fmt: skip
def test_a_wrong_question_is_an_error_before_anything_starts(ask):
    zygote = Zygote("host")
    zygote._process = object()  # open, for all that it knows
    with pytest.raises(BadInput):
        ask(zygote)


@pytest.mark.parametrize("options", [
    {"size": 0}, {"preload": ["no name"]}, {"preload": [3]},
])  # fmt: skip
def test_a_wrong_zygote_is_an_error(options):
    with pytest.raises(BadInput):
        Zygote("host", **options)


@pytest.mark.parametrize("options", [
    {"gpus": 1}, {"profile": "privileged"}, {"seccomp": "unconfined"}, {"cap_add": ["SYS_ADMIN"]}, {"namespaces": {"pid": "host"}},
    {"tty": True},
    {"devices": ["/dev/null"]}, {"network": "bridge"}, {"ttl": "1h"}, {"idle_timeout": 5}, {"grace": 1}, {"health": HealthCheck(["true"])},
])  # fmt: skip
def test_what_no_call_could_be_held_in_is_unsupported(options):
    from dockless.sandbox.zygote import plans

    with pytest.raises(Unsupported):
        plans.check(Zygote("host", **options).spec)


def test_what_runs_inside_is_python_of_3_8_and_its_standard_library():
    text = script()
    compile(text, "<string>", "exec")
    tree = ast.parse(text, feature_version=(3, 8))
    tree.body = [node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "MYPY")]
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names
    assert len(text.encode()) < 100_000  # an argument of a program: execve(2)


def test_what_runs_inside_defines_no_name_twice():
    """It is the text of two files."""
    tree = ast.parse(script())
    named = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    named += [
        name.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for name in ast.walk(node)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
    ]
    assert {name for name in named if named.count(name) > 1} == {"MYPY"}


@pytest.mark.parametrize("made", [Zygote, aio.Zygote, Pool, aio.Pool])
def test_what_has_no_id_says_to_make_another_one(made):
    with pytest.raises(TypeError, match=r"cannot be pickled or copied: make another one there$"):
        pickle.dumps(made("busybox"))
