"""The hunt itself: it finds nothing now, what it once found stays mended, and it would notice if a canary were touched.

``cases/`` holds one file for each hole that the hunt has found or could have found; run.py replays them. docs/hunt.md.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hunt import build, canaries, cases, judge, minimise, planted
from support.requires import requires

HERE = Path(__file__).resolve().parent
KEPT = sorted((HERE / "cases").glob("*.json"))
pytestmark = pytest.mark.timeout(300)


def _hunt(tmp_path, *arguments):
    command = [sys.executable, "-P", str(HERE / "run.py"), "--keep", str(tmp_path / "found"), "--whole", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@requires("userns", "overlay", "program:gcc")
def test_nothing_is_found(tmp_path):
    done = _hunt(tmp_path, "--seed", "suite", "--count", "12")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ": 12 cases" in done.stdout and " ran" in done.stdout


@requires("userns", "overlay", "program:gcc")
def test_what_was_found_stays_mended(tmp_path):
    done = _hunt(tmp_path, "--replay", *map(str, KEPT))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f": {len([path for path in KEPT if _for_us(path)])} cases" in done.stdout


def _for_us(path: Path) -> bool:
    return os.geteuid() == 0 or not json.loads(path.read_text())["root"]


@pytest.mark.parametrize("root", [True, False])
def test_a_case_is_its_seed(root):
    drawn = [cases.draw("seed", number, root=root) for number in range(200)]
    assert drawn == [cases.draw("seed", number, root=root) for number in range(200)]
    assert json.loads(json.dumps(drawn)) == drawn
    assert {case["kind"] for case in drawn} == ({"run", "race", "owner", "replace"} if root else {"run", "race"})
    for case in drawn:
        for one in case.get("tries", ()):
            options = one["options"]
            shared = options.get("namespaces", {}).get("user") == "host"
            assert not (shared and "cap_add" in options), "a sandbox with all rights and the host's own user namespace is the host"
            assert root or (not shared and options.get("profile") != "privileged")


@pytest.mark.parametrize("name", planted.PLANTED)
def test_a_planted_hole_has_its_place_in_the_tree(name):
    for file, old, _ in planted.PLANTED[name].edits:
        assert (planted.TOP / file).read_text().count(old) == 1, old


@requires("program:gcc")
def test_a_touched_canary_is_seen(tmp_path):
    on = canaries.make(tmp_path / "base", with_own_mounts=False, port=1, abstract="none")
    before = canaries.picture(on)
    assert not canaries.differences(before, canaries.picture(on))
    notes = on.base / "home/notes"
    for touch in (
        lambda: notes.write_text(notes.read_text() + "x"),
        lambda: notes.chmod(0o666),
        lambda: os.utime(notes, (0, 0)),
        lambda: os.link(notes, on.base / "home/other"),
        lambda: (on.base / "fixed/new").write_text(""),
        lambda: os.setxattr(notes, "user.x", b"y"),
        lambda: (on.base / "home/secret").unlink(),
    ):
        before = canaries.picture(on)
        touch()
        assert canaries.differences(before, canaries.picture(on))


@requires("program:gcc")
def test_what_counts_as_a_finding(tmp_path):
    on = canaries.make(tmp_path / "base", with_own_mounts=False, port=1, abstract="none")

    def keys(out="", options=None, **more):
        record = {"out": "", "error": "", "crash": "", "changes": [], "left": [], **more}
        told = {"out": out, "error": "", "crash": "", "log": 0}
        case = {"kind": "run", "image": {"form": "written"}, "tries": [{"options": options or {}}]}
        return [finding.key for finding in judge.findings(case, {**record, "tries": [told]}, on)]

    def line(kind, what, data=""):
        return json.dumps({"t": kind, "what": what, "data": data}, separators=(",", ":"))

    assert not keys(line("exe", "/bin/probe") + "\nnot ours\n" + line("statfs", "/proc", str(judge.PROC)))
    assert keys(canaries.token_of(on, "home/secret")) == ["disclosed: home/secret"]
    assert keys("2026-01-01T00:00:00Z stdout F " + line("call", "mount tmpfs")) == ["call: mount tmpfs"]
    assert not keys(line("call", "mount tmpfs"), {"cap_add": ["SYS_ADMIN"]})
    assert keys(line("statfs", "/proc", str(judge.TMPFS))) == ["covered: /proc"]
    assert keys(line("exe", f"{on.base}/home/bin/tool")) == ["exe: a file of the host runs"]
    assert keys(line("opened", "/proc/sys/kernel/core_pattern")) == ["opened: /proc/sys/kernel"]
    assert keys(line("made", "/hunt-made"), {"root": "readonly"}) == ["written: a read-only root"]
    assert keys(line("descriptor", "/proc/self/fd/16")) and keys(line("door", "/proc/1/fd/16", "/x"))
    assert keys(line("door", "/proc/2/cwd", f"{on.base}/home")) and not keys(line("own", "/proc/2/cwd", f"{on.base}/home"))
    assert keys(changes=[("home/notes", "a -> b")]) == ["changed: home/notes"]
    assert keys(left=["mount /x (tmpfs)"]) and keys(crash="Traceback\nTypeError: x") and keys(hung=True)


def test_the_smallest_case():
    case = {
        "kind": "run",
        "image": {"form": "written", "layers": [[["link", "a", "b"], ["link", "data", "/proc"]], [["opaque", "x"]]]},
        "tries": [{"options": {"root": "disk"}}, {}],
    }

    def judged(case):
        entries = [entry for layer in case["image"].get("layers", ()) for entry in layer]
        return [judge.Finding("covered", "/proc", "")] if ["link", "data", "/proc"] in entries else []

    small = minimise.smallest(case, "covered: /proc", judged)
    assert small["image"] == {"form": "written", "layers": [[["link", "data", "/proc"]]]} and not small.get("tries")


@requires("program:gcc")
def test_the_interpreter_of_a_made_program_is_run(tmp_path):
    programs = build.compiled(tmp_path)
    static = tmp_path / "told"
    static.write_bytes(build.configured(programs["static"], [("s", "HUNT-CANARY-00")]))
    made = tmp_path / "made"
    made.write_bytes(build.with_interpreter(str(static)))
    for path in (static, made):
        path.chmod(0o755)
    script = tmp_path / "script"
    script.write_text(f"#!{static}\n")
    script.chmod(0o755)
    for path in (static, made, script):
        assert "HUNT-CANARY-00" in subprocess.run([path], capture_output=True, text=True, check=True).stdout
