"""Where the output cannot be written: standard output of every verb, and the files of ``save`` and ``export``."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import disks
from support import make_image as make
from support.boxes import load
from support.disks import fill
from support.requires import requires
from support.scheduling import DaemonProcess

from dockless.cli import VERBS
from dockless.errors import ImageError, NoRoom
from dockless.images import Store
from dockless.images.archive.export import export
from dockless.images.archive.save import save

pytestmark = requires("userns")
COMMAND = [sys.executable, "-P", "-m", "dockless"]
PRINTING = {
    "run": "--explain -- true",
    "ps": "-a",
    "logs": "box",
    "stop": "box",
    **dict.fromkeys(("attach", "cp", "debug", "exec", "fork", "pause", "rename", "restart", "start", "unpause", "update"), "--help"),
    "create": "--name later one:1",
    "events": "--since 1h --until 0s",
    "snapshot": "box shot:1",
    "stats": "--no-stream",
    "top": "",
    "volume": "ls",
    "network": "ls",
    "port": "--help",
    "pool": "ls",
    "images": "",
    "load": "{layout}",
    "inspect": "one:1 box",
    "history": "one:1",
    "search": "--local one",
    "df": "",
    "diff": "box",
    "commit": "box made:1",
    "save": "one:1",
    "export": "one:1",
    "import": "{tar} imported:1",
    "login": "--help",
    "logout": "--help",
    "pull": "--help",
    "push": "--help",
    "demo": "--help",
    "daemon": "--help",
    "submit": "-- true",
    "convert": "--help",
    "queue": "",
    "wait": "1",
    "cancel": "1",
    "hold": "--help",
    "release": "--help",
    "drain": "--help",
    "undrain": "--help",
    "requeue": "--help",
    "clone": "--print 1",
    "why": "1",
    "gpu": "list",
    "simulate": "{trace} --gpus 2",
    "info": "",
    "quota": "show",
    "usage": "",
    "metrics": "",
    "config": "show",
    "doctor": "",
    "completion": "bash",
    "version": "",
    "tag": "one:1 two:1",
    "rmi": "two:1",
    "prune": "--all --yes",
    "kill": "box",
    "rm": "box",
}
"""Of each verb, in this order, a command line that prints something where it can."""
SILENT = ("stop", "kill", "rm", "tag", "cancel")
"""Those that may have nothing to say."""


def dockless(*arguments: str, stdout: str = "/dev/full", stderr: str = "") -> subprocess.CompletedProcess[str]:
    with open(stdout, "w") as out, open(stderr or os.devnull, "w") as err:
        return subprocess.run(
            [*COMMAND, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=err if stderr else subprocess.PIPE, text=True
        )


def test_every_verb_says_that_its_output_is_lost(home, tmp_path):
    assert set(PRINTING) == set(VERBS)
    load(tmp_path, [make.file("data", "x")], name="one:1")
    export(Store().get("one:1"), tmp_path / "root.tar")
    places = {"layout": str(next(tmp_path.glob("layout-*"))), "tar": str(tmp_path / "root.tar"), "trace": str(tmp_path / "jobs.csv")}
    (tmp_path / "jobs.csv").write_text("submitted,run\n0,1\n")
    (home / "run").mkdir(exist_ok=True)
    daemon = DaemonProcess(home).start()
    try:
        done = dockless("run", "-d", "--name", "box", "one:1", "--", "sh", "-c", "echo said; echo > /new", stdout=os.devnull)
        assert done.returncode == 0, done.stderr
        assert dockless("wait", "box", stdout=os.devnull).returncode == 0
        assert dockless("submit", "--", "true", stdout=os.devnull).returncode == 0
        wrong = []
        for verb, words in PRINTING.items():
            ended = dockless(verb, *words.format(**places).split())
            lines = [line for line in ended.stderr.splitlines() if line.startswith("dockless: cannot write ")]
            expected = "the stream: " if verb in ("save", "export") else "standard output: "
            told = lines == [f"dockless: cannot write {expected}No space left on device"] and ended.returncode == 125
            if not told and not (verb in SILENT and (ended.returncode, ended.stderr) == (0, "")):
                wrong.append((verb, ended.returncode, ended.stderr))
        assert wrong == []
    finally:
        daemon.stop()


def test_a_start_whose_name_is_lost_goes_on(home):
    ended = dockless("run", "-d", "--name", "box", "--", "true")
    assert ended.returncode == 125 and "hint: what was to be done may be done all the same" in ended.stderr
    assert dockless("wait", "box", stdout=os.devnull).returncode == 0
    assert dockless("rm", "box", stdout=os.devnull).returncode == 0


def test_with_json_the_error_is_json():
    ended = dockless("images", "--json")
    told = json.loads(ended.stderr)
    assert (ended.returncode, told["error"], told["subject"]) == (125, "output_lost", "standard output")


def test_a_full_standard_error_changes_no_exit_code(home):
    assert dockless("images", stdout=os.devnull, stderr="/dev/full").returncode == 0
    assert dockless("inspect", "nothing:1", stdout=os.devnull, stderr="/dev/full").returncode == 125


def test_a_reader_that_goes_ends_a_verb_of_several_quietly(home, tmp_path):
    load(tmp_path, name="one:1")
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as gone:
        ended = subprocess.run([*COMMAND, "inspect", *["one:1"] * 3], stdout=gone, stderr=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stderr) == (141, "")


@pytest.fixture
def small(tmp_path):
    """A file system of 64 KB."""
    with disks.small(tmp_path / "small", "size=64k") as place:
        yield place


WAYS = {
    "save": lambda store, to: save(store, ["one:1"], to),
    "save, packed": lambda store, to: save(store, ["one:1"], to, compression="zstd"),
    "save, as docker did": lambda store, to: save(store, ["one:1"], to, format="docker-archive"),
    "save, a directory": lambda store, to: save(store, ["one:1"], to, format="oci-dir"),
    "export": lambda store, to: export(store.get("one:1"), to, store=store),
    "export, packed": lambda store, to: export(store.get("one:1"), to, compression="gzip"),
}


@requires("root")
@pytest.mark.parametrize("way", WAYS)
def test_a_full_disk_of_a_file_is_not_the_stores(tmp_path, small, way):
    load(tmp_path, [make.file("data", os.urandom(200_000))], name="one:1")
    to = small / "out"
    with pytest.raises(NoRoom) as caught:
        WAYS[way](Store(), to)
    assert str(to) in str(caught.value) and "store" not in str(caught.value) and "No space left" in str(caught.value)
    assert caught.value.subject.startswith(str(to))
    assert caught.value.hint == f"make room on the file system {small}, or write to another one"
    fill(small)
    with pytest.raises(NoRoom, match="cannot write"):
        WAYS[way](Store(), to)
    assert not to.is_file() and list(small.glob(".*")) == []


@requires("root")
@pytest.mark.parametrize("way", WAYS)
def test_a_place_that_cannot_be_written_is_named(tmp_path, way):
    load(tmp_path, name="one:1")
    with pytest.raises(ImageError) as caught:
        WAYS[way](Store(), Path("/proc/nothing/out"))
    assert "cannot write /proc/nothing" in str(caught.value) and "file system /proc" in caught.value.hint


@pytest.mark.parametrize("way", ["save", "save, as docker did", "export"])
def test_what_cannot_be_read_is_not_blamed_on_the_output(tmp_path, monkeypatch, way):
    load(tmp_path, [make.file("data", "x")], name="one:1", index=False)

    def broken(*arguments, **more):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Store, "open_blob", broken)
    monkeypatch.setattr("dockless.images.archive.export.walk", broken)
    monkeypatch.setattr("dockless.images.archive.inside.start", broken)
    with pytest.raises(ImageError) as caught:
        WAYS[way](Store(), tmp_path / "out")
    assert "cannot read" in str(caught.value) and "out" not in caught.value.subject


def test_a_stream_that_is_full():
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(NoRoom, match="cannot write the stream: No space left on device"):
        save_empty(full)


def save_empty(to) -> None:
    from dockless.images.archive.output import archive

    with archive(to):
        pass


def test_a_stream_of_a_program_that_fails():
    class Broken(io.BytesIO):
        def write(self, data):
            raise OSError(5, "Input/output error")

    with pytest.raises(ImageError, match="cannot write the stream: Input/output error"):
        save_empty(Broken())
