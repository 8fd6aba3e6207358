"""The program around the verbs: how a line becomes a verb, an error becomes two lines and an exit code, and what a process begins with."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import pytest

from dockless.base.paths import HINTS
from dockless.cli import GROUPS, STORY, VERBS, host, main, report
from dockless.cli.full_parser import _Help
from dockless.cli.parser import Parser, whole
from dockless.errors import BadImage, BadInput, CommandNotFound, DocklessError, NotFound


@pytest.fixture
def verb(monkeypatch):
    """``doctor`` does this instead."""
    return lambda does: monkeypatch.setattr(host, "doctor", does)


def fail(error):
    def does(options):
        raise error

    return does


# -- errors


def noted(error: Exception, *notes: str) -> Exception:
    for note in notes:
        error.add_note(note)
    return error


DOCTOR = "see `dockless doctor`"
SOUND = "give a sound OCI layout (directory or tar), or the output of `docker save`"


@pytest.mark.parametrize(
    ("error", "code", "said", "document"),
    [
        (DocklessError("no"), 125, "no", ("error", "no", "", "")),
        (BadInput("no", subject="s", hint="do"), 125, "no\n  hint: do", ("bad_input", "no", "s", "do")),
        (CommandNotFound("no", hint="do"), 127, "no\n  hint: do", ("command_not_found", "no", "", "do")),
        (BadImage("no"), 125, f"no\n  hint: {SOUND}", ("bad_image", "no", "", SOUND)),
        (BadImage("no", hint="do"), 125, "no\n  hint: do", ("bad_image", "no", "", "do")),
        (noted(NotFound("no"), "a", "b"), 125, "no\n  note: a\n  note: b", ("not_in_registry", "no", "", "", ["a", "b"])),
        (TimeoutError("late"), 124, "late\n  hint: the job or sandbox goes on", ("timeout", "late", "", "the job or sandbox goes on")),
        (
            OSError(errno.ENOSPC, "No space", "/x"), 125, f"/x: No space\n  hint: {HINTS[errno.ENOSPC]}",
            ("os", "/x: No space", "/x", HINTS[errno.ENOSPC]),
        ),
        (FileNotFoundError(2, "No such", "/x"), 125, f"/x: No such\n  hint: {DOCTOR}", ("os", "/x: No such", "/x", DOCTOR)),
        (OSError(5555, "odd"), 125, f"[Errno 5555] odd\n  hint: {DOCTOR}", ("os", "[Errno 5555] odd", "", DOCTOR)),
        (OSError("odd"), 125, f"odd\n  hint: {DOCTOR}", ("os", "odd", "", DOCTOR)),
        (OSError(2, "", "/x"), 125, f"[Errno 2] : '/x'\n  hint: {DOCTOR}", ("os", "[Errno 2] : '/x'", "/x", DOCTOR)),
        (
            ValueError("oh"), 125, "ValueError: oh\n  hint: this is a bug in dockless; DOCKLESS_TRACEBACK=1 shows where",
            ("bug", "ValueError: oh", "", "this is a bug in dockless; DOCKLESS_TRACEBACK=1 shows where"),
        ),
    ],
)  # fmt: skip
def test_errors(capfd, monkeypatch, error, code, said, document):
    monkeypatch.delenv("DOCKLESS_TRACEBACK", raising=False)
    assert report(error, as_json=False) == code and capfd.readouterr() == ("", f"dockless: {said}\n")
    assert report(error, as_json=True) == code
    kind, message, subject, hint, *notes = document
    about = {"error": kind, "message": message, "subject": subject, "hint": hint, "exit_code": code, "notes": notes[0] if notes else []}
    out, err = capfd.readouterr()
    assert out == "" and json.loads(err) == about


def test_the_place_of_a_bug_is_shown_to_who_wants_it(monkeypatch):
    monkeypatch.setenv("DOCKLESS_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        report(ZeroDivisionError(), as_json=False)
    assert report(BadInput("no"), as_json=False) == 125


@pytest.mark.parametrize(("done", "code"), [(SystemExit(3), 3), (SystemExit(), 0), (SystemExit("words"), 0), (KeyboardInterrupt(), 130)])
def test_verbs_that_end_the_program(verb, capfd, done, code):
    verb(fail(done))
    assert main(["doctor"]) == code and capfd.readouterr() == ("", "")


def test_an_exit_code_is_the_verbs(verb):
    for code in (0, 7):
        verb(lambda options, code=code: code)
        assert main(["doctor"]) == code


# -- lines


STORY_LINES = [
    *STORY.split("\n"),
    *(
        line
        for group, title in GROUPS.items()
        for line in (f"{title}:", *(f"  {name:<12}{verb.about}" for name, verb in VERBS.items() if verb.group == group), "")
    ),
    "`dockless VERB --help` has the options; `dockless doctor` says what this machine can do.",
]


@pytest.mark.parametrize("words", [[], ["help"], ["-h"], ["--help"], ["help", "help"], ["help", "--help"], ["--help", "-h"]])
def test_the_story(capfd, words):
    assert main(words) == 0
    out, err = capfd.readouterr()
    assert out.split("\n") == [*STORY_LINES, ""] and err == ""


def test_help_of_a_verb(capfd):
    assert main(["ps", "--help"]) == 0
    text = capfd.readouterr().out
    assert text.startswith("usage: dockless ps [-h]") and "\nList sandboxes.\n" in text
    assert main(["help", "ps"]) == 0 and capfd.readouterr().out == text
    assert main(["help", "pss"]) == 125 and "did you mean `dockless ps`?" in capfd.readouterr().err


BEHIND = "options stand behind the verb: dockless run --help lists those of run"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["array", "9"], "unknown verb 'array'\n  hint: many jobs of one kind: dockless submit --array 10 IMAGE -- COMMAND"),
        (
            ["history", "9"],
            "there is no image '9'\n  hint: dockless queue 9 tells of job 9; dockless queue --all lists those that have ended",
        ),
        (["zzz"], "unknown verb 'zzz'\n  hint: `dockless help` lists the verbs"),
        (["pss"], "unknown verb 'pss'\n  hint: did you mean `dockless ps`?"),
        (["--odd=5", "ps"], f"there is no option --odd before the verb\n  hint: {BEHIND}"),
        (["ps\0"], "the command line[0] contains a NUL byte\n  hint: leave the NUL byte out: for the kernel a text ends there"),
        (["ps", "--", "x"], "ps: takes no command after '--'\n  hint: `dockless ps --help` lists the options"),
        (["ps", "x"], "ps: 'x' is one argument too many\n  hint: `dockless ps --help` lists the options"),
        (["ps", "--al"], "ps: there is no option --al\n  hint: did you mean --all? `dockless ps --help` lists the options"),
        (["ps", "--xyzzy=5"], "ps: there is no option --xyzzy\n  hint: `dockless ps --help` lists the options"),
        (["ps", "x", "--al"], "ps: 'x' is one argument too many\n  hint: `dockless ps --help` lists the options"),
        (["stop"], "stop: the following arguments are required: ID\n  hint: `dockless stop --help` lists the options"),
        (["stop", "--grac"], "stop: there is no option --grac\n  hint: did you mean --grace? `dockless stop --help` lists the options"),
        (["completion", "csh"], "completion: shell cannot be 'csh'\n  hint: write one of bash, zsh, fish"),
        (["run", "--root", "x"], "run: --root cannot be 'x'\n  hint: write one of disk, tmpfs, readonly"),
        (["run", "-eXit", "--root", "x"], "run: --root cannot be 'x'\n  hint: write one of disk, tmpfs, readonly"),
        (["run", "--name=--", "x"], "run: '--' is no value of --id\n  hint: `dockless run --help` lists the options"),
        (["exec", "k", "ls"], "exec: 'ls' follows 'k'\n  hint: the command goes after '--': dockless exec k -- ls"),
        (["exec", "k", "sh", "-c", "a b"], "exec: 'sh' follows 'k'\n  hint: the command goes after '--': dockless exec k -- sh -c 'a b'"),
        (
            ["run", "--rm", "-it", "box", "sh", "-c", "a b"],
            "run: 'sh' follows 'box'\n  hint: the command goes after '--': dockless run --rm -it box -- sh -c 'a b'",
        ),
        (["run", "box", "ls", "-l"], "run: 'ls' follows 'box'\n  hint: the command goes after '--': dockless run box -- ls -l"),
        (
            ["update", "--timeout", "5", "a"],
            "update: there is no option --timeout\n"
            "  hint: it is fixed at the start; what can be moved while it runs is: dockless update --ttl 1h NAME",
        ),
        (["completion"], "completion: the following arguments are required: shell\n  hint: `dockless completion --help` lists the options"),
    ],
)
def test_lines_that_cannot_be_read(capfd, line, said):
    assert main(line) == 125
    out, err = capfd.readouterr()
    assert (out, err) == ("", f"dockless: {said}\n")


def test_a_long_option_before_the_verb_is_cut(capfd):
    assert main(["-" * 70]) == 125
    assert capfd.readouterr().err.startswith(f"dockless: there is no option {'-' * 60} before the verb\n")


@pytest.mark.parametrize(
    ("low", "text", "number"),
    [(0, "0", 0), (1, "1", 1), (1, "007", 7), (-5, "-5", -5), (0, "9" * 18, 10**18 - 1)]
    + [(0, text, None) for text in ("-1", "", " 5", "1_0", "5.0", "+5", "\u0663", "9" * 19)]
    + [(2, "1", None)],
)
def test_whole_numbers(low, text, number):
    if number is not None:
        assert whole(low)(text) == number
        return
    with pytest.raises(Exception, match=f"is not a whole number of {low} or more"):
        whole(low)(text)


@pytest.mark.parametrize(("columns", "width"), [("10", 80), ("80", 80), ("100", 100), ("1000", 120), ("", 110), (None, 110)])
def test_help_is_as_wide_as_the_terminal_within_reason(monkeypatch, columns, width):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    made = Parser("dockless x", "about it").full()._get_formatter()
    assert isinstance(made, _Help) and (made._width, made._max_help_position) == (width, 34)


# -- a process of its own


def program(script: str, *words: str, **how) -> subprocess.CompletedProcess[bytes]:
    """The whole program, of which ``doctor`` or ``run`` does this: the body of a function."""
    body = "".join(f"\n    {line}" for line in script.splitlines())
    imports = "import gc, os, sys\nimport dockless.cli\nfrom dockless.cli import host, run"
    code = f"{imports}\ndef does(options):{body}\nhost.doctor = run.run = does\ndockless.cli.main()"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *words], env=environment, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how}
    )


@pytest.mark.parametrize(("before", "after"), [(0o777, 0o077), (0o022, 0o022), (0, 0), (0o177, 0o077)])
def test_what_it_makes_is_its_own_to_read_and_write(before, after):
    assert program("print(os.umask(0))\nreturn 0", "doctor", umask=before).stdout == b"%d\n" % after


def test_garbage_is_not_looked_for_while_everything_is_imported():
    script = "print(gc.isenabled(), gc.get_threshold()[0] >= 50_000)\nreturn 0"
    assert [program(script, *words).stdout for words in (("run", "x"), ("doctor",))] == [b"True True\n"] * 2


def test_a_standard_input_that_was_closed_is_nowhere():
    """The next file that is opened would get its number."""
    close = {"preexec_fn": lambda: os.close(0)}
    assert program("print(os.readlink('/proc/self/fd/0'))\nreturn 0", "doctor", **close).stdout == b"/dev/null\n"


def test_nothing_that_was_written_is_lost():
    done = program("sys.stdout.write('text')\nraise SystemExit(3)", "doctor")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"text", b"")
    done = program("sys.stdout.buffer.write(b'text')\nreturn 4", "doctor")
    assert (done.returncode, done.stdout, done.stderr) == (4, b"text", b"")


def test_what_could_not_be_written_is_an_error():
    """Also if it was still in a buffer when the verb had ended."""
    with open("/dev/full", "wb") as full:
        done = program("return sys.stdout.write('x') * 0", "doctor", stdout=full)
    assert done.stderr.startswith(b"dockless: [Errno 28] No space left on device\n")


def test_after_its_reader_has_gone_standard_output_is_nowhere():
    script = "import os\nreader, writer = os.pipe()\nos.dup2(writer, 1)\nos.close(reader)\nfrom dockless.cli import main\n"
    check = "os.write(2, b'%d %s' % (main(['doctor']), os.readlink('/proc/self/fd/1').encode()))"
    assert subprocess.run([sys.executable, "-P", "-c", script + check], capture_output=True).stderr == b"141 /dev/null"


@pytest.mark.parametrize("closed", [(0,), (1,), (0, 1), (0, 2), (0, 1, 2), ()])
def test_standard_streams_that_were_closed_are_nowhere(closed):
    """And nothing else is left open."""
    reader, writer = os.pipe()
    code = (
        "import os, sys\nfrom dockless.cli import _fill_standard_streams\n"
        "before = {*os.listdir('/proc/self/fd')}\nfor fd in map(int, sys.argv[2:]): os.close(fd)\n"
        "_fill_standard_streams()\nopened = {*os.listdir('/proc/self/fd')}\n"
        "said = [os.readlink(f'/proc/self/fd/{fd}') for fd in sys.argv[2:]]\n"
        "os.write(int(sys.argv[1]), repr((opened == before, {*said} <= {'/dev/null'})).encode())"
    )
    with open(reader, "rb") as said:
        subprocess.run([sys.executable, "-P", "-c", code, str(writer), *map(str, closed)], pass_fds=[writer], capture_output=True)
        os.close(writer)
        assert said.read() == b"(True, True)"
