"""What ``import dockless`` gives, and how keywords become a Spec. No sandbox is started here."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import dockless
from dockless import _async_files, aio
from dockless._exchange import PipeWriter, Reader, exchange
from dockless._mounts import parse_mount
from dockless._options import gpus_wanted, image_and_args, make_spec
from dockless._result import Result
from dockless._stdio import PIPE, STDOUT, Stdio, Text
from dockless.base.units import parse_signal
from dockless.base.waits import readable
from dockless.errors import BadInput
from dockless.sandbox.spec import Bind, Namespaces, Rlimit, Tmpfs, Volume

PUBLIC = """
AddressTaken Attachment Row
BadAnswer BadDigest BadImage BadInput Bind CallFailed CallTimedOut Called
CgroupError Change CheckFailed CommandNotExecutable CommandNotFound DEVNULL DaemonUnavailable
Copied create DocklessError Egress Endpoint Event Events Execution Exit FileEvent FileInfo Files
GpuDriverMissing GpuError Health HealthCheck IdMapError Image ImageError ImageInUse IoMax Job JobSpec LaunchFailed LimitError
LimitUnavailable Limits Mount
Namespaces NetworkError NetworkInUse NetworkInfo Port Rule
NoRoom NotEnded NotEnoughGpus NotFound NotPermitted NotRunnable Options OutputLost PIPE Pool QueueOptions RateLimited Refused
RegistryError RegistryUnavailable Result
Rlimit STDOUT Sandbox SandboxError SandboxGone SchedError Spec State Store Submitted Tmpfs Unauthorized UnknownGpu UnknownImage UnknownJob
UnknownNetwork Killed OutOfMemory SandboxLost TimedOut
UnknownVolume UnsafeLayer UnsafeRequest Unsupported Unwritable Usage Volume VolumeInUse VolumeInfo
Watch Zygote ZygoteError ZygoteLost __version__ arun commit diff events list run start submit submit_file
"""


def test_the_public_names_are_these():
    assert sorted(dockless.__all__) == sorted(PUBLIC.split())
    assert set(dockless.__all__) <= set(dir(dockless))
    for name in dockless.__all__:
        assert getattr(dockless, name) is not None


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(dockless.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == {*dockless.__all__, *dockless._PACKAGES}


ONLY_BLOCKING = {
    "Sandbox": {"fileno", "held", "inner", "process"},  # for select; the objects behind it
    "Execution": set(),
    "Submitted": set(),
    "Files": {"open"},  # gives a file object of Python's
    "Attachment": {"come", "into", "pause", "put"},  # the steps that both are made of
    "Pool": set(),
    "Zygote": set(),
}
SET_BY_INIT = {"Submitted": {"id"}, "Attachment": {"name", "scrollback", "tty"}}
"""What is a property where it is awaited, and an attribute of the object where it is not."""


@pytest.mark.parametrize("name", ONLY_BLOCKING)
def test_what_is_awaited_has_the_same_names_and_parameters(name):
    blocking = _surface(getattr(dockless, name))
    awaited = _surface(_async_files.Files if name == "Files" else getattr(aio, name))
    assert blocking.keys() - awaited.keys() == ONLY_BLOCKING[name]
    assert awaited.keys() - blocking.keys() == SET_BY_INIT.get(name, set())
    assert {key: value for key, value in awaited.items() if key in blocking and value != blocking[key]} == {}


FUNCTIONS = ("commit", "create", "diff", "events", "list", "run", "start", "submit", "submit_file")


def test_functions_that_are_awaited_have_the_same_parameters():
    assert {name: _parameters(getattr(aio, name)) for name in FUNCTIONS} == {
        name: _parameters(getattr(dockless, name)) for name in FUNCTIONS
    }


@pytest.mark.parametrize("module", ["networks", "volumes"])
def test_what_is_awaited_has_the_same_parameters(module):
    awaited, plain = getattr(aio, module), getattr(dockless, module)
    assert {name: _parameters(getattr(awaited, name)) for name in plain.__all__} == {
        name: _parameters(getattr(plain, name)) for name in plain.__all__
    }


def _surface(kind: type) -> dict[str, object]:
    return {name: _parameters(getattr(kind, name)) for name in dir(kind) if not name.startswith("_")}


def _parameters(value: object) -> object:
    """In their order, those that are given by name alone in any."""
    if not callable(value):
        return "a property"
    found = [one.replace(annotation=one.empty) for one in inspect.signature(value).parameters.values() if one.name != "self"]
    return ([str(one) for one in found if one.kind is not one.KEYWORD_ONLY], {str(one) for one in found if one.kind is one.KEYWORD_ONLY})


def test_every_error_of_ours_is_public():
    from dockless import errors

    names = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, errors.DocklessError)}
    assert names <= set(dockless.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing"):
        dockless.nothing  # noqa: B018


def test_run_stays_a_function_whatever_is_imported():
    import dockless._box
    import dockless._call
    import dockless.sandbox.run.foreground

    assert callable(dockless.run) and callable(dockless.Sandbox)


def _said(code: str) -> str:
    said = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    return said.stdout


def test_importing_loads_no_module_of_ours_but_itself():
    code = "import sys, dockless; print(len([m for m in sys.modules if m.startswith('dockless.')]))"
    assert _said(code) == "0\n"


# -- image and arguments


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((None, ["true"]), ("host", ("true",))),
        ((["true", "x"], None), ("host", ("true", "x"))),
        (("busybox", None), ("busybox", ())),
        (("busybox", ("a", Path("/b"))), ("busybox", ("a", "/b"))),
        ((None, None), ("host", ())),
    ],
)
def test_image_and_arguments(given, expected):
    assert image_and_args(*given) == expected


@pytest.mark.parametrize("given", [("busybox", "ls -l"), (["ls"], ["-l"]), (None, b"ls")])
def test_a_shell_string_and_two_commands_are_refused(given):
    with pytest.raises(BadInput) as caught:
        image_and_args(*given)
    assert caught.value.hint


# -- keywords


def test_an_unknown_keyword_is_a_type_error():
    with pytest.raises(TypeError, match="memroy"):
        make_spec("host", ["true"], memroy="1G")
    with pytest.raises(TypeError, match="memroy"):
        dockless.run(["true"], memroy="1G")


@pytest.mark.parametrize(("word", "ours"), [("cwd", "workdir"), ("volumes", "mounts"), ("mem_limit", "memory"), ("environment", "env")])
def test_keywords_of_others_are_answered_with_ours(word, ours):
    with pytest.raises(TypeError, match=f"{word!r}: use {ours}"):
        dockless.run(["true"], **{word: "/x"})


def test_keywords_in_human_units():
    spec = make_spec(
        "img", ["a"], memory="4G", cpus="1.5", pids="10k", swap=0, io="/data:read=50MB/s", cpuset="0-1", timeout="1m30s", grace=2,
        env={"A": "1"}, workdir="/w", user=1000, group_add=["5", 6], hostname="h", entrypoint="/e", profile="privileged", root="tmpfs",
        root_size="64M", shm_size="2G", network="host", namespaces={"time": "new", "ipc": "host"}, time_offset=60, cap_add=["NET_ADMIN"],
        cap_drop="ALL", ulimits={"nofile": (1024, 4096), "core": 0}, umask="027", oom_score_adj=5, cpu_affinity="0,2-3",
        stop_signal="SIGINT", best_effort=True,
    )  # fmt: skip
    assert (spec.image, spec.argv, spec.entrypoint) == ("img", ("a",), ("/e",))
    limits = spec.limits
    assert (limits.memory_max, limits.cpu_max, limits.pids_max, limits.memory_swap_max) == (4 << 30, 1.5, 10_000, 0)
    assert limits.io_max[0].rbps == 50 << 20 and limits.cpuset_cpus == "0-1"
    assert (spec.timeout, spec.grace, spec.env, spec.workdir) == (90.0, 2.0, (("A", "1"),), "/w")
    assert (spec.user, spec.groups, spec.hostname, spec.profile) == ("1000", (5, 6), "h", "privileged")
    assert (spec.root, spec.root_size, spec.shm_size, spec.network) == ("tmpfs", 64 << 20, 2 << 30, "host")
    assert spec.namespaces == Namespaces(time="new", ipc="host") and spec.time_offset == 60
    assert (spec.cap_add, spec.cap_drop) == (("NET_ADMIN",), ("ALL",))
    assert spec.rlimits == (Rlimit("nofile", 1024, 4096), Rlimit("core", 0, 0))
    assert (spec.umask, spec.oom_score_adj, spec.cpus, spec.stop_signal, spec.best_effort) == (0o27, 5, (0, 2, 3), 2, True)


def test_none_means_not_said():
    assert make_spec("host", ["a"], **dict.fromkeys(dockless.Options.__annotations__)) == make_spec("host", ["a"])


@pytest.mark.parametrize(
    "keywords",
    [
        {"memory": "lots"}, {"cpus": 0}, {"timeout": "soon"}, {"env": ["A"]}, {"env": {"": "1"}}, {"group_add": ["1wheel"]},
        {"network": "a b"}, {"profile": "x"}, {"root": "x"}, {"namespaces": {"user": "other"}}, {"namespaces": {"mount": "host"}},
        {"ulimits": {"nofile": "x"}}, {"ulimits": ["nofile=5:4"]}, {"umask": "99"}, {"umask": 0o1777}, {"stop_signal": "NOPE"},
        {"stop_signal": "99"}, {"workdir": "relative"}, {"mounts": ["/a"]}, {"mounts": ["/a:b"]}, {"tmpfs": ["/x:color=red"]},
        {"cpu_affinity": "a-b"}, {"limits": dockless.Limits(), "memory": "1G"}, {"env": {"A": "\0"}}, {"tmpfs": ["/x:size=0"]},
        {"shm_size": 0}, {"log_size": "0K"}, {"disk": 0}, {"root_size": "0", "root": "tmpfs"},
    ],
)  # fmt: skip
def test_impossible_values_are_bad_input_before_anything_happens(keywords):
    with pytest.raises(BadInput) as caught:
        make_spec("host", ["true"], **keywords)
    assert str(caught.value)


@pytest.mark.parametrize(
    ("image", "keywords"),
    [
        ("img", {"root_size": "1M"}),
        ("img", {"root_size": "1M", "root": "disk"}),
        ("host", {"root_size": "1M", "root": "readonly"}),
        ("host", {"disk": "1M"}),
        ("img", {"disk": "1M", "root": "tmpfs"}),
        ("host", {"profile": "untrusted", "network": "host"}),
        ("img", {"profile": "untrusted", "root": "disk"}),
        ("host", {"hostname": "h", "namespaces": {"uts": "host"}}),
    ],
)
def test_what_would_have_no_effect_is_refused(image, keywords):
    with pytest.raises(BadInput) as caught:
        make_spec(image, ["true"], **keywords)
    assert caught.value.subject in keywords and caught.value.hint


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"devices": ["amd.com/gpu:2", "amd.com/gpu:1"]}, "'amd.com/gpu:2' and 'amd.com/gpu:1' together"),
        ({"devices": ["amd.com/gpu:2"], "gpu_memory": "2G"}, "'amd.com/gpu:2' and gpu_memory 2G together"),
        ({"gpus": "device=0", "gpu_class": "whole"}, "gpus names GPUs, and gpu_class says which class"),
    ],
)
def test_what_does_not_go_together_is_told_as_it_was_written(keywords, words):
    with pytest.raises(BadInput, match=words):
        gpus_wanted(keywords)


@pytest.mark.parametrize("text", ["amd.com/gpu", "amd.com/gpu:x", "amd.com/gpu:-1"])
def test_half_a_name_of_devices_is_told_how_to_go_on(text):
    with pytest.raises(BadInput) as caught:
        make_spec("host", devices=[text])
    assert "VENDOR/CLASS=NAME, a number of leased ones VENDOR/CLASS:NUMBER" in caught.value.hint


def test_a_root_in_memory_has_a_size():
    assert make_spec("img", root="tmpfs", root_size="1M").root_size == make_spec("host", root_size="1M").root_size == 1 << 20
    assert make_spec("img", profile="untrusted", root="tmpfs", root_size="1M").network == "none"


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        ("/a:/b", Bind("/a", "/b")),
        ("/a:/b:ro", Bind("/a", "/b", readonly=True)),
        ("/a:/b:ro,norecursive", Bind("/a", "/b", readonly=True, recursive=False)),
        ("/a:/b:idmap,rw", Bind("/a", "/b", idmap=True)),
        ("cache:/b", Volume("cache", "/b")),
        ("cache:/b:ro", Volume("cache", "/b", readonly=True)),
    ],
)
def test_mounts(text, mount):
    assert parse_mount(text) == mount


def test_relative_sources_and_home_are_made_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/anna")
    assert parse_mount("./x:/b").source == str(tmp_path / "x")
    assert parse_mount("~/x:/b").source == "/home/anna/x"
    assert make_spec("host", [], mounts=["/a:/b"], tmpfs=["/t:size=1M,mode=700"]).mounts[1] == Tmpfs("/t", size=1 << 20, mode=0o700)


@pytest.mark.parametrize("text", ["/a", "/a:", ":/b", "/a:/b:rx", "/a:/b:ro,rw", "cache:/b:idmap", ""])
def test_mounts_that_cannot_be_meant(text):
    with pytest.raises(BadInput):
        parse_mount(text)


@pytest.mark.parametrize(("text", "number"), [("TERM", 15), ("sigint", 2), ("9", 9), (0, 0), ("", 0), ("RTMIN+3", 37)])
def test_signals(text, number):
    assert parse_signal(text) == number


# -- results


def test_result_reads_like_subprocess():
    killed = Result(("a",), "host", -9, None, None, signal=9, oom_killed=True, started=1.0, ended=3.0)
    assert (killed.exit_code, killed.duration, killed.why) == (137, 2.0, "out of memory (killed by signal 9)")
    late = Result(("a",), "host", -9, None, None, signal=9, timed_out=True)
    assert late.exit_code == 124
    with pytest.raises(dockless.CheckFailed) as caught:
        late.check_returncode()
    assert caught.value.result is late
    Result((), "host", 0, b"", b"").check_returncode()


# -- streams


class Ends:
    """Has ended when the pipe's other end is closed."""

    def __init__(self, reader: int) -> None:
        self.reader = reader

    def fileno(self) -> int:
        return self.reader

    def poll(self) -> bytes | None:
        return os.read(self.reader, 1) if readable(self.reader, 0) else None


def test_exchange_moves_bytes_both_ways_without_deadlock():
    back_reader, back_writer = os.pipe()
    there_reader, there_writer = os.pipe()
    end_reader, end_writer = os.pipe()
    data = os.urandom(1 << 20)
    echo = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"
    child = subprocess.Popen([sys.executable, "-c", echo], stdin=there_reader, stdout=back_writer, pass_fds=[end_writer])
    for fd in (there_reader, back_writer, end_writer):
        os.close(fd)  # end_writer lives in the child: its end is the child's end
    reader, writer = Reader(back_reader), PipeWriter(there_writer, data)
    assert exchange(Ends(end_reader), [reader, writer], 30.0)
    reader.finish()
    assert reader.data() == data
    child.wait()
    os.close(end_reader)


def test_exchange_gives_up_in_time_and_a_leaked_pipe_does_not_hold_it():
    end_reader, end_writer = os.pipe()
    pipe_reader, pipe_writer = os.pipe()
    reader = Reader(pipe_reader)
    assert not exchange(Ends(end_reader), [reader], 0.01)
    os.write(pipe_writer, b"said")
    os.close(end_writer)
    assert exchange(Ends(end_reader), [reader])
    reader.finish()
    assert reader.data() == b"said"  # pipe_writer is still open
    os.close(pipe_writer)
    os.close(end_reader)


def test_a_copy_of_a_descriptor_in_another_process_is_no_end():
    """As one that another thread is just starting has: epoll reports the copy of what was closed here without a word."""
    end_reader, end_writer = os.pipe()
    pipe_reader, pipe_writer = os.pipe()
    copy = os.dup(pipe_reader)
    os.close(pipe_writer)
    later = threading.Timer(0.2, os.close, [end_writer])
    later.start()
    assert exchange(Ends(end_reader), [Reader(pipe_reader)])
    later.join()
    os.close(copy)
    os.close(end_reader)


def test_a_reader_that_went_away_ends_the_writing():
    reader, writer = os.pipe()
    os.close(reader)
    feed = PipeWriter(writer, b"x" * 10)
    assert not feed.step()
    feed.close()


def test_stdio_opens_what_was_asked_and_closes_it(tmp_path):
    before = set(os.listdir("/proc/self/fd"))
    with open(tmp_path / "out", "wb") as file:
        streams = Stdio(PIPE, file, STDOUT)
        assert streams.theirs[1] == streams.theirs[2] == file.fileno()
        assert streams.ours[0] >= 0 and streams.ours[1:] == [-1, -1]
        streams.close()
    with pytest.raises(BadInput):
        Stdio(STDOUT, None, None)
    with pytest.raises(AttributeError):
        Stdio(PIPE, PIPE, object())
    assert set(os.listdir("/proc/self/fd")) == before


def test_text_and_bytes():
    text = Text(True, "utf-8", None)
    assert text.decode("ä\r\nb\r".encode()) == "ä\nb\n" and text.encode("ä") == "ä".encode()
    with pytest.raises(BadInput):
        text.encode(b"x")
    with pytest.raises(BadInput):
        Text(None, None, None).encode("x")
    assert Text(None, None, "replace").on


@pytest.mark.parametrize("wrong", [{"stdout": PIPE}, {"stderr": PIPE}, {"stdout": PIPE, "stderr": STDOUT}, {"stdout": 1, "stderr": 2}])
def test_where_the_output_goes_is_said_once(wrong):
    with pytest.raises(BadInput, match="capture_output"):
        dockless.run("host", "true", capture_output=True, **wrong)


def test_how_much_an_iterator_may_give(monkeypatch):
    monkeypatch.setattr(dockless._options, "_MOST_ITEMS", 3)
    assert make_spec("host", ["true"], group_add=iter(["1", "2", "3"])).groups == (1, 2, 3)
    with pytest.raises(BadInput, match="more than 3"):
        make_spec("host", ["true"], group_add=iter(["1", "2", "3", "4"]))
