"""Whatever is given to the front door, it is ``BadInput`` with the name of the argument, or it works; never a ``TypeError`` from inside."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import math
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dockless
from dockless._options import make_spec
from dockless._submitting import make_job
from dockless.base import units
from dockless.base.checks import annotation, check
from dockless.cgroups import IoMax, Limits
from dockless.cli import VERBS, main, parser_of
from dockless.cli.sandbox_options import image_and_command, keywords
from dockless.errors import BadInput, DocklessError
from dockless.images import Store
from dockless.sandbox.gpus.gpu import parse_request
from dockless.sandbox.spec import Bind, Mount, Namespaces, Rlimit, Spec, Tmpfs, Volume
from dockless.sched import JobSpec
from dockless.sched.wire.client import Client


class Strange:
    def __str__(self) -> str:
        raise RuntimeError("nobody may ask")

    __repr__ = __str__


ODD = [
    0, 1, -1, 2**63, -(2**80), 10**5000, True, False, 1.5, -0.0, math.nan, math.inf, -math.inf, 1e308, None, "", " ", "\0", "a\0b",
    "\ud800",
    "\udcff", "é", "x" * 5000, "9" * 5000, "9999999999999999999999999999999999", "-1", "1e9", "inf", "/a:/b", "a=b", "=", ":",
    ",", "/", ".",
    "\n", "0x10", "٣", "²", b"", b"bytes", bytearray(b"x"), memoryview(b"x"), [], [1], [None], ["x"], [b"x"], [["x"]], ["\0"], ["\ud800"],
    (), (1, 2), (1, 2, 3),
    ("x", 1), {}, {"a": 1}, {1: 2}, {"a": None}, {"": ""}, {"a": "\0"}, {"nofile": (1, 2, 3)}, {"nofile": "9" * 5000}, {"pid": 1}, set(),
    {"x"}, frozenset({1}), range(3), object, object(), Strange(), Path("/a"), Path("rel"), int, len, 3j, Ellipsis, NotImplemented,
    Bind("/a", "/b"), Limits(), Namespaces(), Spec(), Exception("x"),
]  # fmt: skip
GENERATORS = [lambda: iter([1]), lambda: (x for x in "ab"), lambda: iter("ab"), lambda: zip([1], [2], strict=True), lambda: map(str, [1])]


def odd():
    return st.sampled_from(ODD) | st.sampled_from(GENERATORS).map(lambda make: make()) | st.text(max_size=5) | st.integers() | st.floats()


def survives(call, *args, **kwargs):
    """What ``BadInput`` said, or None; anything else is a failure."""
    try:
        call(*args, **kwargs)
    except DocklessError as error:
        assert (str(error) and str(error).isprintable()) or error.subject
        return error
    return None


KEYWORDS = sorted(dockless.Options.__annotations__)


@pytest.mark.parametrize("name", KEYWORDS)
def test_every_keyword_with_every_odd_value(name):
    for value in [*ODD, *(make() for make in GENERATORS)]:
        error = survives(make_spec, "host", ["true"], **{name: value})
        if error is not None and type(value) in (object, type, complex, Strange, type(Ellipsis)):
            assert isinstance(error, BadInput) and error.subject == name and name in str(error)
        survives(make_job, "host", ["true"], {name: value})


@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        ({"mounts": "/a:/b"}, "mounts"), ({"env": "A=b"}, "env"), ({"group_add": "12"}, "group_add"), ({"tmpfs": "/x"}, "tmpfs"),
        ({"mounts": [("/a", "/b")]}, "mounts[0]"), ({"mounts": {"/a": "/b"}}, "mounts"), ({"env": {"A": 1}}, "env['A']"),
        ({"env": {1: "A"}}, "env"), ({"env": [b"A=1"]}, "env"), ({"env": ["A=1", 2]}, "env[1]"), ({"hostname": b"h"}, "hostname"),
        ({"workdir": 1}, "workdir"), ({"workdir": "/\ud800"}, "workdir"), ({"cpus": math.nan}, "cpus"), ({"cpus": True}, "cpus"),
        ({"memory": 1.5}, "memory"), ({"memory": "9" * 100}, "memory"), ({"memory": 10**5000}, "memory"), ({"memory": -1}, "memory"),
        ({"io_weight": "9" * 40}, "io_weight"), ({"cpu_weight": math.inf}, "cpu_weight"), ({"timeout": math.inf}, "timeout"),
        ({"timeout": "9" * 40}, "timeout"), ({"best_effort": "no"}, "best_effort"), ({"umask": True}, "umask"), ({"umask": 1.0}, "umask"),
        ({"stop_signal": 1.5}, "stop_signal"), ({"profile": 3}, "profile"), ({"profile": []}, "profile"),
        ({"time_offset": 10**30}, "time_offset"),
        ({"cap_add": [1]}, "cap_add"), ({"ulimits": {"nofile": 1.5}}, "ulimits"), ({"ulimits": 5}, "ulimits"), ({"gpus": 1.5}, "gpus"),
        ({"entrypoint": ["a", 1]}, "entrypoint"), ({"entrypoint": 1}, "entrypoint"), ({"namespaces": "host"}, "namespaces"),
        ({"cpu_affinity": [1, "2"]}, "cpu_affinity"), ({"limits": {}}, "limits"), ({"hugetlb": ["2MB=1G"]}, "hugetlb"),
        ({"oom_score_adj": "5"}, "oom_score_adj"), ({"user": 1.5}, "user"), ({"io": 5}, "io"),
        ({"env": itertools.repeat("A=1")}, "iterator"),
    ],
)  # fmt: skip
def test_the_argument_is_named(keywords, named):
    with pytest.raises(BadInput) as caught:
        make_spec("host", ["true"], **keywords)
    assert caught.value.subject == named.partition("[")[0] and named in str(caught.value) and caught.value.hint


@pytest.mark.parametrize(
    ("image", "args", "named"),
    [
        (1, None, "image"), (1, ["ls"], "image"), (b"x", None, "image"), ({"a": 1}, None, "image"), ("", ["ls"], "image"),
        ("a\0", None, "image"),
        ("\ud800", None, "image"), (None, "ls", "args"), (None, [1], "args[0]"), (None, ["ls", None], "args[1]"), ("x", {"a": 1}, "args"),
        (["ls", "\ud800"], None, "args[1]"), (["ls", "\0"], None, "args[1]"), (object(), None, "image"), (True, None, "image"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("call", [dockless.run, dockless.Sandbox, dockless.submit])
def test_image_and_arguments(call, image, args, named):
    with pytest.raises(BadInput) as caught:
        call(image, args)
    assert caught.value.subject == named.partition("[")[0] and named in str(caught.value)


def test_bytes_paths_and_iterators_are_arguments():
    assert dockless.Sandbox(["ls", b"\xff", Path("/x")]).spec.argv == ("ls", "\udcff", "/x")
    assert dockless.Sandbox(iter(["ls", "-l"])).spec.argv == ("ls", "-l")
    assert dockless.Sandbox(["ls"], env=(x for x in ["A=1"])).spec.env == (("A", "1"),)


@pytest.mark.parametrize("name", ["id", "stdin", "stdout", "stderr", "text", "encoding", "errors", "measure"])
def test_every_keyword_of_a_sandbox(name):
    for value in ODD:
        if isinstance(value, int) and not isinstance(value, bool) and name.startswith("std"):
            continue
        survives(dockless.Sandbox, ["true"], **{name: value})


@pytest.mark.parametrize("name", ["input", "stdin", "stdout", "stderr", "encoding", "errors", "id"])
def test_every_keyword_of_run_before_anything_starts(name):
    for value in (3j, object(), {"a": 1}, 1.5, [1]):
        with pytest.raises(BadInput) as caught:
            dockless.run(["true"], **{name: value})
        assert caught.value.subject == name
    for value in (1 << 40, 987654):
        if name.startswith("std"):
            with pytest.raises(BadInput, match=name):
                dockless.run(["true"], **{name: value})


@pytest.mark.parametrize("how", [{"encoding": "no-such"}, {"encoding": "base64"}, {"encoding": "utf-8", "errors": "no-such"}])
def test_unknown_encodings(how):
    with pytest.raises(BadInput):
        dockless.run(["cat"], input="x", **how)
    with pytest.raises(BadInput, match="input"):
        dockless.run(["cat"], input="é", encoding="ascii")


RECORDS = [Spec, Mount, Namespaces, Rlimit, Limits, IoMax, JobSpec]


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(RECORDS), st.data())
def test_records_of_anything(kind, data):
    names = list(inspect.signature(kind).parameters)
    needed = [name for name, one in inspect.signature(kind).parameters.items() if one.default is one.empty]
    chosen = {*needed, *data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3))}
    survives(kind, **{name: data.draw(odd(), label=name) for name in sorted(chosen)})


@pytest.mark.parametrize("kind", RECORDS)
def test_every_field_of_a_record_names_itself(kind):
    sound = {"kind": "bind", "target": "/x", "name": "core", "soft": 1, "hard": 1}
    needed = {name: sound.get(name, "/x") for name, one in inspect.signature(kind).parameters.items() if one.default is one.empty}
    if kind is IoMax:
        needed["rbps"] = 1
    for name in inspect.signature(kind).parameters:
        with pytest.raises(BadInput) as caught:
            kind(**needed | {name: object()})
        assert caught.value.subject == name and name in str(caught.value)


@pytest.mark.parametrize("make", [Bind, Volume, Tmpfs])
def test_mounts(make):
    for value in [*ODD, *(generator() for generator in GENERATORS)]:
        for name in inspect.signature(make).parameters:
            sound = {"source": "/a", "target": "/b", "name": "v"}
            given = {key: text for key, text in sound.items() if key in inspect.signature(make).parameters}
            survives(make, **given | {name: value})
    assert Bind(Path("/a"), Path("/b")) == Bind("/a", "/b")
    assert Tmpfs(Path("/b")) == Tmpfs("/b")
    with pytest.raises(TypeError):
        Bind(Path("/a"))  # an argument left out is the caller's own mistake, said by Python
    with pytest.raises(BadInput, match="mounts"):
        dockless.run(["true"], mounts=Bind("/a", "/b"))


@pytest.mark.parametrize("parse", [units.parse_size, units.parse_rate, units.parse_count, units.parse_cores, units.parse_duration])
@given(value=odd())
def test_units(parse, value):
    survives(parse, value, "memory")


METHODS = ["load", "pull", "push", "get", "find", "tag", "remove", "prune", "check"]


@pytest.mark.parametrize("method", METHODS)
def test_store_methods(tmp_path, method):
    function = getattr(Store, method)
    parameters = [name for name in inspect.signature(function).parameters if name != "self"]
    needed = {name: "x" for name in parameters if inspect.signature(function).parameters[name].default is inspect.Parameter.empty}
    for name in parameters:
        for value in (3j, object(), {"a": 1}, Exception("x"), b"x", [1]):
            with pytest.raises(BadInput) as caught:
                function(Store(tmp_path), **needed | {name: value})
            assert caught.value.subject == name, name
    for value in (1, b"x", object()):
        with pytest.raises(BadInput, match="root"):
            Store(value)
    for name in ("", "\0", "\ud800", "x" * 5000):
        assert survives(function, Store(tmp_path), **needed | {parameters[0]: name}) or method in ("prune", "check")


@pytest.mark.parametrize("method", ["submit_array", "queue", "job", "cancel", "wait", "logs", "wait_many"])
def test_client_methods(tmp_path, method):
    client = Client(tmp_path / "none.sock")
    parameters = inspect.signature(getattr(Client, method)).parameters
    needed = {name: 1 for name, one in parameters.items() if one.default is one.empty and name != "self"}
    if method == "wait_many":
        needed["jobs"] = [1]
    if method == "submit_array":
        needed["job"] = JobSpec()
    for name in parameters:
        if name == "self" or (name == "job" and method == "submit_array"):
            continue
        with pytest.raises(BadInput) as caught:
            list(getattr(client, method)(**needed | {name: [object()]}) or ())
        assert caught.value.subject.startswith(name), name


@pytest.mark.parametrize("call", [dockless.diff, dockless.commit])
def test_what_is_no_sandbox(call):
    for value in (1, None, b"x", object(), "", "\0", "\ud800", ["x"]):
        with pytest.raises(DocklessError):
            call(value)


def annotations(path):
    """What is checked by its annotation in a file: (line, text). Parameters of ``@checked``, fields of records, keywords."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if "checked" in map(ast.unparse, node.decorator_list):
                found = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                yield from ((one.lineno, ast.unparse(one.annotation)) for one in found if one.annotation)
        elif isinstance(node, ast.ClassDef) and ("check_record(self)" in ast.unparse(node) or node.name == "Options"):
            yield from ((one.lineno, ast.unparse(one.annotation)) for one in node.body if isinstance(one, ast.AnnAssign))


def test_every_name_in_an_annotation_is_known_when_a_program_runs():
    root = Path(dockless.__file__).parent
    count = 0
    for top, _, names in os.walk(root, followlinks=True):
        for path in (Path(top, name) for name in names if name.endswith(".py")):
            module = ".".join(("dockless", *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
            for _, text in annotations(path):
                importlib.import_module(module)
                annotation(text, module)
                count += 1
    assert count > 150


@pytest.mark.parametrize("value", [5, [], object(), "lzma", b"gzip"])
def test_a_compression_that_there_is_not(value):
    with pytest.raises(BadInput) as caught:
        dockless.commit("nobody", compression=value)
    assert caught.value.subject == "compression"


@pytest.mark.parametrize("value", [5, object(), b"x"])
def test_what_is_no_image(value):
    with pytest.raises(BadInput) as caught:
        dockless.Sandbox(value)
    assert caught.value.subject == "image"


@given(odd(), st.sampled_from([str, int, float, bool, str | None, list[str], tuple[int, ...], dict[str, int], tuple[str, int], Path]))
def test_what_passes_is_what_the_annotation_says(value, hint):
    error = survives(check, "name", value, hint)
    if error is None and isinstance(hint, type) and hint is not float:
        assert isinstance(value, hint)
    if error is not None:
        assert error.subject == "name" and error.hint


# -- the command line

VALUES = [text for text in ODD if isinstance(text, str)]
SAID = [*VALUES, "x" * 200_000, "-", "--", "\x1b[2J", "a,b=c", "type=bind", "0:0", "1" * 30]


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("demo", "doctor", "daemon")])
def test_every_option_of_the_command_line_with_every_odd_text(monkeypatch, tmp_path, capsys, verb):
    """Parsed and made a spec of; nothing is started: the verbs that would are stopped before."""
    monkeypatch.setenv("DOCKLESS_HOME", str(tmp_path / "home"))
    parser = parser_of(verb)
    for action in parser.full().actions:
        if not action.option_strings or action.nargs == 0:
            continue
        for text in SAID:
            try:
                options = parser.parse([f"{action.option_strings[-1]}={text}", *(["x"] if verb not in ("run", "submit") else [])])
                if verb in ("run", "submit"):
                    options.command = ["true"]
                    image, command = image_and_command(options)
                    wanted = keywords(options)
                    make_job(image, command, wanted)
                    if wanted.get("gpus") is not None:
                        parse_request(wanted["gpus"])
            except DocklessError as error:
                assert str(error)
            except SystemExit:
                pass


@pytest.mark.parametrize(
    "verb", ["inspect", "history", "rmi", "tag", "rm", "kill", "stop", "logs", "diff", "commit", "save", "export", "load"]
)
def test_every_argument_of_the_command_line(monkeypatch, tmp_path, capsys, verb):
    monkeypatch.setenv("DOCKLESS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for text in SAID:
        capsys.readouterr()
        more = ["y"] if verb == "tag" else []
        assert main([verb, text, *more]) in (0, 1, 125), text
        assert "this is a bug" not in capsys.readouterr().err, text


@pytest.mark.parametrize(
    "content", [b"A=\0", b"\xff\xfe=\xff", b"=", b"=x", b"A", b"A" * 100_000, b"A=1\r\nB=2\r", b"\0", b"A\xed\xa0\x80=1", b"export A=1"]
)
def test_an_env_file_of_anything(tmp_path, content):
    path = tmp_path / "env"
    path.write_bytes(content)
    options = parser_of("run").parse(["--env-file", str(path)])
    options.command = ["true"]
    error = survives(lambda: make_spec("host", ["true"], **keywords(options)))
    assert error is None or isinstance(error, BadInput)
    if b"\0" in content and b"=" in content:
        assert error is not None and "env" in str(error)


@pytest.mark.parametrize("what", ["", "\0", "\ud800", "/", "x" * 5000, "."])
def test_an_env_file_that_is_none(what):
    options = parser_of("run").parse([f"--env-file={what}"])
    options.command = ["true"]
    with pytest.raises(BadInput, match="--env-file"):
        keywords(options)
