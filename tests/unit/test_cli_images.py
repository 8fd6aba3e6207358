"""The verbs of images that need no registry and no sandbox: what they print, what they refuse, what they cost."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pty
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from support import make_image as make

from dockless._pulling import present, present_for, told_whose_store
from dockless.cli import main
from dockless.cli.progress import ProgressLine
from dockless.errors import BadInput, NotRunnable, UnknownImage
from dockless.images import Image, Store
from dockless.images.model import platforms
from dockless.images.progress import Progress
from dockless.sched.wire.protocol import DaemonInfo

HERE = Path(__file__).resolve().parent
COMMAND = [sys.executable, "-P", "-m", "dockless"]
ONE = "docker.io/library/one:1"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A store that has ``one:1``: two layers, a label, a history. And its digest."""
    place = tmp_path_factory.mktemp("made")
    layers = [[make.file("etc/first", "1")], [make.file("etc/second", "2"), make.whiteout("etc/first")]]
    history = [
        {"created_by": "ADD first"},
        {"created_by": "/bin/sh -c #(nop)  ENV A=1", "empty_layer": True},
        {"created_by": "RUN second", "comment": "a comment"},
    ]
    path = make.make_oci_layout(
        place / "one", layers, make.config(cmd=("true",), labels={"org.example.title": "The First"}), ref="one:1", history=history
    )
    store = Store(place / "store")
    return store.root, store.load(path)[0].digest


@pytest.fixture
def one(made: tuple[Path, str], home: Path) -> str:
    """The digest of ``one:1`` in a store of the test's own."""
    subprocess.run(["cp", "-a", str(made[0]), str(home)], check=True)
    return made[1]


def said(capfd: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    capfd.readouterr()
    assert main(list(arguments)) == code
    out, err = capfd.readouterr()
    return out if code == 0 else err


# -- looking


def test_images_in_every_form(one, capfd):
    main(["tag", "-q", "one:1", "ghcr.io/team/two:latest"])
    out = said(capfd, "images")
    assert re.search(rf"^{re.escape(ONE)} +{one[7:19]} +linux/\w+ +2 B +\S+ +\S+ ago$", out, re.MULTILINE)
    assert said(capfd, "images", "-q").split() == [ONE, "ghcr.io/team/two:latest"]
    rows = json.loads(said(capfd, "images", "--json"))
    assert [row["reference"] for row in rows] == [ONE, "ghcr.io/team/two:latest"]
    assert rows[0]["disk_usage"] > 0 and rows[0]["in_use"] is False and rows[0]["layers"] == 2
    for pattern, found in (("one", [ONE]), ("one:*", [ONE]), ("*/team/*", ["ghcr.io/team/two:latest"]), ("nothing", []), ("on", [])):
        assert said(capfd, "images", "-q", pattern).split() == found


def test_images_of_roots_store(one, made, capfd, monkeypatch):
    monkeypatch.setattr("dockless.base.paths.shared_store", lambda: made[0])
    assert said(capfd, "images", "--shared", "-q").split() == [ONE] and said(capfd, "images", "--shared", "nothing", "-q") == ""
    assert one[7:19] in said(capfd, "images", "--shared")
    assert json.loads(said(capfd, "images", "--shared", "--json")) == [{"reference": ONE, "digest": one, "size": 2}]


def test_inspect_and_history(one, capfd):
    (about,) = json.loads(said(capfd, "inspect", "one:1"))
    assert about["digest"] == one and about["tags"] == [ONE] and len(about["layers"]) == 2 and about["config"]["cmd"] == ["true"]
    assert {"digest", "diff_id", "chain_id", "form", "size", "blob_kept"} <= set(about["layers"][0])
    (place,) = (path for path in (Store().root / "blobs/sha256").iterdir() if path.name == about["config_digest"][7:])
    assert said(capfd, "inspect", "--raw", "config", "one:1") == place.read_text()
    raw = said(capfd, "inspect", "--raw", "manifest", one[7:19])
    assert json.loads(raw)["layers"][0]["digest"] == about["layers"][0]["digest"]
    lines = said(capfd, "history", "one:1").splitlines()
    assert [line.split("  ")[-1].strip() for line in lines] == ["MADE BY", "# a comment", "ENV A=1", "ADD first"]
    newest, middle, oldest = json.loads(said(capfd, "history", "one:1", "--json"))
    assert (newest["layer"], middle["layer"]) == (about["layers"][1]["digest"], None) and oldest["created_by"] == "ADD first"
    assert said(capfd, "history", "-q", "one:1").split() == [layer["digest"] for layer in reversed(about["layers"])]


def test_inspect_looks_at_no_other_image(one, capfd, tmp_path, monkeypatch):
    """So that it takes as long in a store of a thousand images."""
    made = make.make_oci_layout(tmp_path / "other", [[make.file("f")]], make.config(), ref="other:1")
    (other,) = Store().load(made)
    read: list[str] = []
    read_blob = Store.read_blob
    monkeypatch.setattr(Store, "read_blob", lambda self, name, what: read.append(str(name)) or read_blob(self, name, what))
    (about,) = json.loads(said(capfd, "inspect", "one:1"))
    assert set(read) == {one, about["config_digest"]}
    usage = {image.digest: image for image in Store().disk_usage().images}
    assert other.digest in read, "this one looks at all"
    assert (about["disk_usage"], about["last_used"]) == (usage[one].size, usage[one].last_used) and "unique_size" not in about


def test_images_reads_each_document_once(one, capfd, monkeypatch):
    """Its time grows with their number."""
    read: list[str] = []
    read_blob = Store.read_blob
    monkeypatch.setattr(Store, "read_blob", lambda self, name, what: read.append(str(name)) or read_blob(self, name, what))
    assert "one:1" in said(capfd, "images")
    assert one in read and len(read) == len({*read})


def test_all_about_an_image(one, capfd):
    """As its own documents have it."""
    manifest, config = (json.loads(said(capfd, "inspect", "--raw", which, "one:1")) for which in ("manifest", "config"))
    (about,) = json.loads(said(capfd, "inspect", "--json", "one:1"))
    places = [Path(layer.pop("path")) for layer in about["layers"]]
    assert all(place.is_relative_to(Store().root) and place.exists() for place in places) and len({*places}) == 2
    first, second = config["rootfs"]["diff_ids"]
    chain = [first, f"sha256:{hashlib.sha256(f'{first} {second}'.encode()).hexdigest()}"]
    forms = ["indexed" if layer.tar is not None else "written" for layer in Store().get("one:1").layers]
    assert about["layers"] == [
        {"digest": entry["digest"], "media_type": entry["mediaType"], "size": entry["size"], "diff_id": diff, "chain_id": chain_id,
         "form": form, "blob_kept": True}
        for entry, diff, chain_id, form in zip(manifest["layers"], (first, second), chain, forms, strict=True)
    ]  # fmt: skip
    assert about["history"] == [
        {"created_by": "ADD first", "empty_layer": False},
        {"created_by": "/bin/sh -c #(nop)  ENV A=1", "empty_layer": True},
        {"created_by": "RUN second", "comment": "a comment", "empty_layer": False},
    ]
    assert (about["tags"], about["origins"], about["in_use"]) == ([ONE], [], False)
    assert about["manifest_size"] == len(said(capfd, "inspect", "--raw", "manifest", "one:1").encode())
    main(["prune", "-q", "--blobs"])
    (about,) = json.loads(said(capfd, "inspect", "one:1"))
    assert [layer["blob_kept"] for layer in about["layers"]] == [False, False]


def test_inspect_of_the_host(one, capfd):
    (about,) = json.loads(said(capfd, "inspect", "host"))
    assert about["reference"] == "host" and "history" not in about
    refused = "dockless: the host is no image with documents\n  hint: name an image of 'dockless images'\n"
    assert said(capfd, "inspect", "--raw", "config", "host", code=125) == refused


def test_inspect_without_a_home_says_so(capfd, monkeypatch):
    """Nothing can be looked up then: that the name is unknown would not be true."""

    def nowhere() -> Path:
        raise BadInput("user 7 has no home directory", hint="set HOME")

    monkeypatch.setattr("dockless.base.paths.store", nowhere)
    monkeypatch.setattr("dockless.base.paths.state", nowhere)
    assert said(capfd, "inspect", "one:1", code=125) == "dockless: user 7 has no home directory\n  hint: set HOME\n"


def test_inspect_goes_on_after_an_unknown_name(one, capfd):
    assert main(["inspect", "nothing", "one:1", "s-nothing"]) == 125
    out, err = capfd.readouterr()
    assert [entry["digest"] for entry in json.loads(out)] == [one] and err.count("hint:") == 2


@pytest.mark.parametrize(
    ("text", "found"), [("ONE", "name"), ("the first", "label org.example.title: The First"), ("true", "command: true")]
)
def test_search_in_the_store(one, text, found, capfd):
    (row,) = json.loads(said(capfd, "search", "--local", text, "--json"))
    assert found in row["found"]


def test_search_without_a_hit_and_without_local(one, capfd):
    assert said(capfd, "search", "--local", "nowhere", code=1) == ""
    assert "dockless search --local x" in said(capfd, "search", "x", code=125)


# -- names, room


def test_tags_move_and_rmi_goes_on(one, capfd):
    assert said(capfd, "tag", "one:1", "two", "three:3").split() == ["docker.io/library/two:latest", "docker.io/library/three:3"]
    assert main(["rmi", "two", "nothing", "three:3"]) == 125
    out, err = capfd.readouterr()
    assert out.split() == ["docker.io/library/two:latest", "docker.io/library/three:3"] and "there is no image 'nothing'" in err
    (gone,) = json.loads(said(capfd, "rmi", "--json", one[7:19]))
    assert gone["removed"] == [ONE] and gone["freed"] > 0
    assert said(capfd, "images", "-q") == ""


def test_an_id_with_several_names_wants_force(one, capfd):
    main(["tag", "-q", "one:1", "two"])
    assert "--force" in said(capfd, "rmi", one[7:19], code=125)
    assert len(said(capfd, "rmi", "-f", one[7:19]).split()) == 2


@pytest.mark.parametrize(("words", "out", "freed"), [(["-q"], "", False), ([], ONE, True), (["nothing"], ONE, True)])
def test_what_rmi_says(one, capfd, words, out, freed):
    assert main(["rmi", "one:1", *words]) == (125 if words == ["nothing"] else 0)
    said = capfd.readouterr()
    assert said.out.strip() == out and said.err.rstrip().endswith(" freed") == freed


def test_rmi_of_nothing_frees_nothing(one, capfd):
    assert "freed" not in said(capfd, "rmi", "nothing", code=125)


def test_one_bad_name_tags_nothing(one, capfd):
    assert "lower case" in said(capfd, "tag", "one:1", "good", "docker.io/Bad", code=125)
    assert said(capfd, "images", "-q").split() == [ONE]


def test_df_and_prune(one, capfd):
    room = json.loads(said(capfd, "df", "--json"))
    assert room["images"][0]["tags"] == [ONE] and room["used"] == room["blobs"] + room["layers"] + room["partial"]
    assert int(said(capfd, "df", "-q")) == room["used"]
    table = said(capfd, "df").splitlines()
    assert table[0].startswith("IMAGE ") and table[1].startswith(f"{ONE} ") and table[2] == "" and table[-1].startswith("store ")
    assert said(capfd, "prune") == ""
    assert said(capfd, "prune", "--all", "--dry-run").split() == [ONE]
    assert said(capfd, "prune", "--older-than", "1h") == "" and said(capfd, "prune", "--keep-last", "1") == ""
    assert json.loads(said(capfd, "prune", "--all", "--yes", "--json"))["removed"] == [ONE]
    assert said(capfd, "images", "-q") == "" and said(capfd, "df").startswith("layers ")


def test_prune_of_blobs_keeps_what_runs(one, capfd):
    main(["prune", "-q", "--blobs"])
    assert "pull or load" in said(capfd, "save", "one:1", "-o", "x.tar", code=125)
    assert said(capfd, "images", "check", "-q") == ""


def _typed(answer: str, *arguments: str) -> tuple[int, str]:
    """A verb on a terminal of its own."""
    child, terminal = pty.fork()
    if child == 0:
        os.execv(COMMAND[0], [*COMMAND, *arguments])
    os.write(terminal, answer.encode())
    out = b""
    try:
        while piece := os.read(terminal, 4096):
            out += piece
    except OSError:  # how a terminal ends
        pass
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), out.decode()


def test_prune_asks_on_a_terminal(one, capfd):
    code, out = _typed("n\n", "prune", "--all")
    assert code == 1 and "Remove these?" in out and ONE in out and said(capfd, "images", "-q").split() == [ONE]
    assert _typed("y\n", "prune", "--all")[0] == 0 and said(capfd, "images", "-q") == ""


def test_check_and_repair(one, capfd):
    assert "is sound: 1 images" in said(capfd, "images", "check")
    place = Store().root / "blobs" / "sha256" / json.loads(said(capfd, "inspect", "one:1"))[0]["layers"][0]["digest"][7:]
    place.write_bytes(b"rotten")
    assert main(["images", "check", "--json"]) == 1
    report = json.loads(capfd.readouterr().out)
    assert report["sound"] is False and report["problems"][0]["path"].startswith("blobs/")
    assert main(["images", "check", "--repair"]) == 0 and main(["images", "check"]) == 0


# -- files


@pytest.mark.parametrize("form", ["oci", "docker"])
def test_save_and_load_through_pipes(one, form, tmp_path, capfd):
    saved = subprocess.run([*COMMAND, "save", "--format", form, "--compression", "zstd", "one:1"], capture_output=True, check=True).stdout
    main(["prune", "-q", "--all", "--yes"])
    loaded = subprocess.run([*COMMAND, "load", "-q"], input=saved, capture_output=True)
    assert loaded.stdout.decode().split() == [ONE] and loaded.stderr == b"" and loaded.returncode == 0
    assert Store().get("one:1").read_file("/etc/second") == b"2"
    assert form == "docker" or Store().get("one:1").digest == one


def test_save_into_files_and_directories(one, tmp_path, capfd):
    assert "saved to" in said(capfd, "save", "one:1", "-o", str(tmp_path / "a.tar"))
    assert json.loads(said(capfd, "save", "--json", "--format", "oci-dir", "one:1", "-o", str(tmp_path / "d")))["images"] == [ONE]
    assert (tmp_path / "d/index.json").exists()
    assert said(capfd, "load", "-q", "-i", str(tmp_path / "d"), str(tmp_path / "a.tar")).split() == [ONE, ONE]


def test_a_reader_that_goes_away_is_no_error(one):
    done = subprocess.run(f"{sys.executable} -P -m dockless save -q one:1 | head -c 10 >/dev/null; exit ${{PIPESTATUS[0]}}", shell=True,
                          executable="/bin/bash", capture_output=True)  # fmt: skip
    assert done.stderr == b"" and done.returncode in (0, 141)


def test_nothing_but_an_archive_is_loaded_from_standard_input(one):
    done = subprocess.run([*COMMAND, "load", "-"], input=b"not an archive", capture_output=True, text=False)
    assert done.returncode == 125 and b"standard input is not an image" in done.stderr and b"/tmp/" not in done.stderr
    assert not list((Store().root / "tmp").iterdir())


def test_import_and_export(one, tmp_path, capfd):
    assert main(["export", "-q", "one:1", "-o", str(tmp_path / "root.tar")]) == 0
    with tarfile.open(tmp_path / "root.tar") as archive:
        assert "second" in "".join(archive.getnames()) and "first" not in "".join(archive.getnames())
    out = said(capfd, "import", str(tmp_path / "root.tar"), "again:1", "-c", "CMD true", "-c", "ENV A=1", "-m", "why")
    assert out.startswith("docker.io/library/again:1  ")
    image = Store().get("again:1")
    assert image.config.cmd == ("/bin/sh", "-c", "true") and image.config.env == (("A", "1"),) and image.read_file("/etc/second") == b"2"
    piped = subprocess.run([*COMMAND, "import", "--json", "-"], stdin=open(tmp_path / "root.tar", "rb"), capture_output=True)  # noqa: SIM115
    assert json.loads(piped.stdout)["reference"] is None


# -- wrong input


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["pull"], "required"),
        (["pull", "docker.io/Bad/Name"], "lower case"),
        (["pull", "--policy", "sometimes", "x"], "cannot be 'sometimes'"),
        (["pull", "--platform", "linux//x", "localhost:1/x"], "not a platform"),
        (["pull", "--policy", "never", "x"], "no image"),
        (["push", "nothing"], "no image"),
        (["push", "host"], "cannot be pushed"),
        (["push", "one:1", ""], "not an image reference"),
        (["push", "one:1", "x@sha256:" + "0" * 64], "not to a digest"),
        (["login", "-p", "secret", "localhost:1"], "for everybody to read"),
        (["login", "--password-stdin", "localhost:1"], "without --username"),
        (["login", "localhost:1"], "no terminal"),
        (["logout", "no registry"], "not a registry"),
        (["tag", "one:1"], "required"),
        (["tag", "nothing", "x"], "no image"),
        (["tag", "host", "x"], "cannot be tagged"),
        (["tag", "one:1", "a" * 64], "image id"),
        (["rmi", "host"], "no image"),
        (["rmi", "deadbeef"], "no image"),
        (["save", "nothing", "-o", "x"], "no image"),
        (["save", "host", "-o", "x"], "host"),
        (["save", "one:1", "-o", "/nonexistent/x"], "cannot write"),
        (["save", "one:1", "-o", "x", "--compression", "gzip", "--level", "99"], "level"),
        (["save", "--format", "oci-dir", "one:1"], "directory"),
        (["load", "--name", "x", "a", "b"], "several files"),
        (["load", "/nonexistent"], "No such file"),
        (["load", "/"], "not an image"),
        (["import", "/"], "is a directory"),
        (["import", "/etc/passwd"], "not a tar"),
        (["import", "/nonexistent"], "cannot import"),
        (["import", "/dev/null", "x", "-c", "RUN x"], "not a change"),
        (["import", "/dev/null", "--platform", "a/b/c/d"], "not a platform"),
        (["export", "nothing", "-o", "x"], "neither an image nor a sandbox"),
        (["export", "host", "-o", "x"], "host"),
        (["export", "one:1", "-o", "/"], "is a directory"),
        (["commit", "nothing"], "no sandbox"),
        (["commit", "../x"], "not usable"),
        (["diff", "nothing"], "no sandbox"),
        (["inspect", "nothing"], "neither"),
        (["inspect", ""], "neither"),
        (["inspect", "../.."], "neither"),
        (["inspect", "--type", "sandbox", "nothing"], "no sandbox"),
        (["history", "host"], "no image with a history"),
        (["images", "check", "one:1"], "the whole store"),
        (["load", ""], "empty"),
        (["import", ""], "empty"),
        (["inspect", "--raw", "config", "one:1", "one:1"], "several"),
        (["history", "nothing"], "no image"),
        (["search", "--local"], "required"),
        (["prune", "--older-than", "soon"], "cannot be read"),
        (["prune", "--keep-last", "-1"], "keep-last"),
        (["prune", "--keep-last", "x"], "not a whole number"),
        (["images", "--repair"], "without check"),
        (["df", "x"], "too many"),
        (["run", "--pull", "sometimes", "x"], "cannot be 'sometimes'"),
        (["run", "--pull", "never", "nothing"], "no image"),
    ],
)
def test_wrong_input(line, words, one, capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    capfd.readouterr()
    assert main(line) == 125
    out, err = capfd.readouterr()
    assert out in ("", "[]\n") and words in err
    assert re.fullmatch(r"dockless: .+\n  hint: .+\n", err), err
    assert not (tmp_path / "x").exists()


# -- the image of a run or a job


def test_what_is_there_is_not_pulled(one):
    code = (
        "import sys; from dockless._pulling import present; assert present('one:1') == 'one:1' and present('host', 'always') == 'host';"
        "print([name for name in sys.modules if name.startswith(('ssl', 'rich')) or name == 'dockless.images.transfer.pull'])"
    )
    assert subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


def test_never_leaves_it_to_the_run_and_an_id_is_never_asked_for(one):
    assert present("nothing", "never") == "nothing"
    assert present(one, "always") == one
    for name in ("sha256:" + "0" * 64, "0" * 64, "sha256:01234567"):
        with pytest.raises(UnknownImage):
            present(name)
    with pytest.raises(BadInput, match="policy"):
        present("one:1", "sometimes")


def test_the_image_is_for_the_platform_that_is_asked_for(one, capfd):
    """Said before anything is pulled or starts; a text is no path."""
    here, there = ("linux/amd64", "linux/arm64") if platforms.host().architecture == "amd64" else ("linux/arm64", "linux/amd64")
    assert (
        present("one:1", platform=here) == present("one:1", "never", platform=here) == "one:1" and present("host", platform=here) == "host"
    )
    for image in ("one:1", "host", "nothing"):
        with pytest.raises(NotRunnable, match="runs nothing for"):
            present(image, platform=there)
    with pytest.raises(UnknownImage):
        present("nothing", "never", platform=here)
    for text in ("../../etc", "", "linux/amd64/v1/x", "linux amd64", "linux/amd64\n"):
        with pytest.raises(BadInput, match="not a platform"):
            present("one:1", platform=text)
    assert "runs nothing for" in said(capfd, "run", "--platform", there, "one:1", code=125)
    assert "runs nothing for" in said(capfd, "run", "--explain", "--platform", there, "one:1", code=125)
    assert "runs nothing for" in said(capfd, "create", "--platform", there, "one:1", code=125)


def test_an_image_for_another_platform_than_is_asked_for(one, monkeypatch):
    """Both run here, and the store has the other one."""
    small = platforms.Platform("linux", "386" if platforms.host().architecture == "amd64" else "arm", "")
    monkeypatch.setattr(Image, "platform", platforms.host())
    with pytest.raises(NotRunnable, match="of the store is for") as caught:
        present("one:1", platform=str(small))
    assert f"dockless pull --platform {platforms.parse(str(small))}" in caught.value.hint


def test_a_daemon_of_somebody_else_has_another_store(one):
    others = DaemonInfo(pid=1, version="", owner_uid=os.geteuid() + 1, user="", admin=False, started=0.0, socket="/s")
    assert present_for(others, "nothing") == "nothing" and present_for(others, "host", "always") == "host"
    with pytest.raises(BadInput, match="cannot be kept") as caught:
        present_for(others, "one:1", "always")
    assert "dockless pull one:1" in caught.value.hint
    with pytest.raises(BadInput, match="cannot be chosen"):
        present_for(others, "one:1", platform="linux/amd64")
    with pytest.raises(UnknownImage) as unknown, told_whose_store(others, "x"):
        raise UnknownImage("there is no image", hint="pull it")
    assert "the store of" in unknown.value.hint


# -- progress


def _steps() -> list[Progress]:
    name, digest = "a:1", "sha256:" + "ab" * 32
    moving = [Progress(name, 1, 2, digest, done << 20, 4 << 20, "downloading") for done in range(5)]
    return [
        *moving,
        Progress(name, 1, 2, digest, 4 << 20, 4 << 20, "unpacking"),
        Progress(name, 1, 2, digest, 4 << 20, 4 << 20, "done"),
        Progress(name, 2, 2, digest, 0, 100, "shared"),
        Progress(name, 2, 2, digest, 0, 100, "shared"),
    ]


def test_progress_without_a_terminal_is_a_line_per_layer(capfd):
    with ProgressLine(False) as progress:
        assert progress is not None
        for step in _steps():
            progress(step)
    assert capfd.readouterr().err.splitlines() == [
        "a:1: layer 1/2 abababababab: done, 4 MiB read",
        "a:1: layer 2/2 abababababab: already there",
    ]


def test_progress_when_quiet_is_nothing(capfd):
    with ProgressLine(True) as progress:
        assert progress is None
    assert capfd.readouterr().err == ""


def test_progress_on_a_terminal_has_bars_and_leaves_no_line():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import time\n"
        "from dockless.cli.progress import ProgressLine; import test_cli_images as t\n"
        "with ProgressLine(False) as progress:\n    for step in t._steps()[:-4]: progress(step); time.sleep(0.06)\n"
        "    for step in t._steps()[-4:]: progress(step)\n    time.sleep(0.2)"
    )
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(COLUMNS="100", LINES="20", TERM="xterm", PYTHONPATH=os.pathsep.join([*sys.path, str(HERE.parent)]))
        os.execv(sys.executable, [sys.executable, "-c", code, str(HERE)])
    out = b""
    try:
        while piece := os.read(terminal, 4096):
            out += piece
    except OSError:
        pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, out.decode()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.decode())
    assert "all of it" in text and "1/2 abababababab" in text and "4.0/4.0 MiB" in text and "MiB/s" in text and "already there" in text


def test_the_first_line_is_the_sum_of_the_layers_that_have_to_come(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    from dockless.cli.bars import Bars

    bars = Bars()
    try:
        everything = bars._live.tasks[0]
        sums = []
        for layer, done, total, state in (
            (2, 1, None, "downloading"), (1, 3, 10, "downloading"), (2, 5, 20, "unpacking"), (3, 0, 99, "shared"), (1, 10, 10, "done"),
            (2, 2, 20, "downloading"),
        ):  # fmt: skip
            bars.step(Progress("a:1", layer, 3, "sha256:" + "ab" * 32, done, total, state))
            sums.append((everything.completed, everything.total))
    finally:
        bars.stop()
    assert sums == [(1, None), (4, None), (8, 30), (8, 30), (15, 30), (15, 30)]
