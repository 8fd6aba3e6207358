"""The command line up to the point where something would happen: verbs, options, help, completion, errors."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dockless
from dockless._options import make_spec
from dockless.base.typing import get_args
from dockless.cli import VERBS, main, parser_of, split
from dockless.cli.completion import bash, fish, flags, zsh
from dockless.cli.output import cut, span, table
from dockless.cli.sandbox_options import image_and_command, keywords
from dockless.errors import BadInput
from dockless.sched import formats, used
from dockless.sched.policy import replay


def parse(verb: str, *arguments: str):
    before, command = split(list(arguments))
    options = parser_of(verb).parse(before)
    options.command = command
    return options


def spec(*arguments: str):
    options = parse("run", *arguments)
    image, command = image_and_command(options)
    wanted = keywords(options)
    wanted.pop("gpus", None)
    return make_spec(image, command, **wanted)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["--", "ls", "-l"], ("host", ["ls", "-l"])),
        (["busybox"], ("busybox", [])),
        (["busybox", "--", "ls", "--", "-l"], ("busybox", ["ls", "--", "-l"])),
        (["-m", "1G", "busybox", "--cpus", "2", "--", "x"], ("busybox", ["x"])),
    ],
)
def test_image_and_command(line, expected):
    assert image_and_command(parse("run", *line)) == expected


@pytest.mark.parametrize("line", [[], ["--"], ["busybox", "ls"], ["busybox", "--"], ["-m", "1G"]])
def test_lines_that_cannot_be_meant(line):
    with pytest.raises(BadInput) as caught:
        image_and_command(parse("run", *line))
    assert caught.value.hint


def test_options_mean_the_same_as_keywords(tmp_path, monkeypatch):
    file = tmp_path / "env"
    file.write_text("# a comment\nA=from the file\n\nB=b=c\nFROM_US\nNOT_SET\n")
    monkeypatch.setenv("FROM_US", "ours")
    found = spec(
        "--env-file", str(file), "-e", "A=1", "-w", "/w", "-u", "app:5", "--group-add", "7", "-v", "/a:/b:ro", "--tmpfs",
        "/t:size=1M", "--mount", "type=bind,src=/c,dst=/d,readonly", "--mount", "type=volume,source=v,target=/v",
        "--mount", "type=tmpfs,target=/m,tmpfs-size=2M",
        "--read-only", "--cpus", "1.5", "--cpuset-cpus", "0", "--cpu-weight", "50", "--cpu-burst", "10ms", "-m", "1G", "--memory-swap",
        "3G", "--pids-limit", "64", "--device-read-bps", "/:1M", "--device-write-iops", "/:100", "--io", "/:riops=5", "--io-weight", "10",
        "--shm-size", "2G", "--network", "host", "--userns", "host", "--time-offset", "60", "--cap-add", "SYS_PTRACE", "--cap-drop", "ALL",
        "--security-opt", "seccomp=unconfined", "--security-opt", "no-new-privileges", "--profile", "default", "--ulimit", "nofile=1:2",
        "--umask", "022", "--oom-score-adj", "100", "--cpu-affinity", "0", "--hostname", "h", "--entrypoint", "", "--timeout", "5m",
        "--grace", "3", "--stop-signal", "INT", "--best-effort", "img", "--", "cmd",
    )  # fmt: skip
    expected = make_spec(
        "img", ["cmd"], env={"A": "1", "B": "b=c", "FROM_US": "ours"}, workdir="/w", user="app:5", group_add=[7],
        mounts=["/a:/b:ro", "/c:/d:ro", "v:/v"], tmpfs=[], root="readonly", cpus=1.5, cpuset="0", cpu_weight=50, cpu_burst=0.01,
        memory="1G", swap="2G", pids=64, io=["/:rbps=1M,wiops=100,riops=5"], io_weight=10, shm_size="2G", network="host",
        namespaces={"user": "host", "time": "new"}, time_offset=60, cap_add=["SYS_PTRACE"], cap_drop=["ALL"], seccomp="unconfined",
        profile="default", ulimits=["nofile=1:2"], umask="022", oom_score_adj=100, cpu_affinity="0", hostname="h", entrypoint="",
        timeout=300, grace=3, stop_signal=2, best_effort=True,
    )  # fmt: skip
    assert found.limits.io_max[0].settings() == {"rbps": 1 << 20, "riops": 5, "wiops": 100}
    assert [m.target for m in found.mounts] == ["/b", "/d", "/v", "/m", "/t"]
    from dataclasses import replace

    assert replace(found, mounts=(), limits=replace(found.limits, io_max=())) == replace(
        expected, mounts=(), limits=replace(expected.limits, io_max=())
    )


@pytest.mark.parametrize(
    "line",
    [
        ["--memory-swap", "1G"], ["-m", "2G", "--memory-swap", "1G"], ["--read-only", "--root", "tmpfs"],
        ["--mount", "type=bind,target=/x"],
        ["--mount", "source=/x,target=/y"], ["--mount", "target=/x,target=/y"], ["--mount", "type=odd,target=/x"],
        ["--security-opt", "label=disable"], ["--env-file", "/nonexistent"], ["--device-read-bps", "1M"], ["--ulimit", "x"],
    ],
)  # fmt: skip
def test_options_that_cannot_be_meant(line):
    with pytest.raises(BadInput) as caught:
        spec(*line, "--", "true")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("type=bnd,source=/a,target=/b", "type 'bnd' is unknown"),
        ("type=bind,target=/b", "there is no source"),
        ("type=bind,source=/a", "there is no target"),
        ("type=bind,source=,target=/b", "'source=' is not KEY=VALUE"),
        ("type=bind,source=/a,target=/b,ro=no", "neither true nor false"),
        ("type=bind,source=/a,target=/b,ro,rw", "ro and rw"),
        ("type=bind,source=/a,src=/c,target=/b", "source is given twice"),
        ("type=volume,source=v,target=/b,idmap", "'idmap' is no setting of a volume"),
        ("type=tmpfs,target=/b,ro", "'ro' is no setting of a tmpfs"),
        ("source=/a,target=/b", "a volume has a name"),
        ("/a:/b", "'/a:/b' is not KEY=VALUE"),
    ],
)
def test_what_is_wrong_with_a_mount_is_said(text, why):
    with pytest.raises(BadInput, match="--mount") as caught:
        spec("--mount", text, "--", "true")
    assert why in str(caught.value) and caught.value.hint


def test_a_zero_in_a_mount_is_a_number_where_one_is_meant():
    (mount,) = spec("--mount", "type=tmpfs,target=/m,size=1M,mode=0", "--", "true").mounts
    assert (mount.size, mount.mode) == (1 << 20, 0)
    with pytest.raises(BadInput, match="size 0"):
        spec("--mount", "type=tmpfs,target=/m,size=0", "--", "true")
    (mount,) = spec("--mount", "type=bind,source=/a:b,target=/c,ro=0,bind-nonrecursive", "--", "true").mounts
    assert (mount.source, mount.readonly, mount.recursive) == ("/a:b", False, False)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"A=1\nB\0=2\n", "line 2 contains a NUL byte"),
        (b"\x7fELF\0\0", "line 1 contains a NUL byte"),
        (b"# ours\n\nexport A=1\n", "line 3: the name 'export A' has a blank in it"),
        (b"A=1\n=2\n", "line 2: there is no name"),
        (b"A" * (5 << 20), "longer than any environment"),
    ],
)
def test_what_is_wrong_with_a_file_of_variables_is_said(tmp_path, content, said):
    file = tmp_path / "env"
    file.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        spec("--env-file", str(file), "--", "true")
    assert f"--env-file {file}" in str(caught.value) and said in str(caught.value) and caught.value.hint


def test_a_file_of_variables_may_have_odd_bytes(tmp_path):
    file = tmp_path / "env"
    file.write_bytes(b"\xef\xbb\xbfA=\xff \r\nB=x\x0by\n")
    assert dict(spec("--env-file", str(file), "--", "true").env) == {"A": "\udcff ", "B": "x\x0by"}


@pytest.mark.parametrize("entry", ["", "=", "=x"])
def test_a_variable_has_a_name(entry):
    with pytest.raises(BadInput, match="there is no name") as caught:
        spec("-e", entry, "--", "true")
    assert caught.value.hint


@pytest.mark.parametrize("text", ["/tmp", "", "rbps=1"])
def test_a_limit_of_a_disk_is_shown_as_it_was_written(text):
    with pytest.raises(BadInput) as caught:
        spec("--io", text, "--", "true")
    assert repr(text) in str(caught.value) and caught.value.hint


def test_a_misspelt_option_is_told_the_right_one(capsys):
    assert main(["run", "--memori", "1G", "--", "true"]) == 125
    assert "did you mean --memory?" in capsys.readouterr().err


def test_memory_swap_of_minus_one_is_any_swap():
    assert spec("-m", "1G", "--memory-swap", "-1", "--", "true").limits.memory_swap_max is None


# -- errors and exit codes


def test_errors_are_two_lines_and_125(capsys):
    assert main(["run", "--nope", "--", "true"]) == 125
    out, err = capsys.readouterr()
    assert out == "" and re.fullmatch(r"dockless: .*--nope\n  hint: .*\n", err)


def test_errors_as_json(capsys):
    assert main(["run", "--json", "--nope"]) == 125
    document = json.loads(capsys.readouterr().err)
    assert document["error"] == "bad_input" and document["exit_code"] == 125 and document["hint"]


def test_json_after_the_dashes_is_the_commands(capsys):
    assert main(["run", "--nope", "--", "x", "--json"]) == 125
    assert capsys.readouterr().err.startswith("dockless: ")


def test_a_misspelt_verb_is_told_the_right_one(capsys):
    assert main(["quue"]) == 125
    assert "`dockless queue`" in capsys.readouterr().err


def test_a_bug_is_not_a_traceback(capsys, monkeypatch):
    monkeypatch.setattr("dockless.cli.images.images", lambda options: 1 / 0)
    assert main(["images"]) == 125
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_verbs_without_commands_refuse_one(capsys):
    assert main(["images", "--", "x"]) == 125


# -- every option


def kind_of(action: argparse.Action) -> str:
    """What an option's value may be: any text, a whole number and the smallest one, or one of some words."""
    if action.choices is not None:
        return "|".join(action.choices)
    if action.type is None or action.nargs == 0:
        return ""
    for number in (-1000, -1, 0, 1, 2):
        try:
            assert callable(action.type) and action.type(str(number)) == number
        except argparse.ArgumentTypeError:
            continue
        return f"from {number}" if number > -1000 else "any whole number"
    raise AssertionError(action)


def lines_of(verb: str) -> list[str]:
    """Every option of a verb: its names, how many values it has, which ones, what it is without being given, and where that is kept."""
    parser = parser_of(verb)
    lines = [f"{verb}{' [-- COMMAND …]' if parser.takes_command else ''}"]
    for action in parser.full().actions:
        if action.dest != "help":
            values = {None: 1}.get(action.nargs, action.nargs)
            collected = " all" if isinstance(action, argparse._AppendAction) else ""
            facts = [f"{values}{collected}", kind_of(action), repr(action.default), action.dest]
            lines.append("    " + " ".join(action.option_strings or [action.dest.upper()]) + ": " + ", ".join(filter(None, facts)))
    return lines


def test_every_option_of_every_verb(golden):
    """Scripts rely on them: none goes or changes its meaning unseen."""
    golden("options.txt", "\n".join(line for verb in VERBS for line in lines_of(verb)) + "\n")


@pytest.mark.parametrize(
    ("verb", "flag", "library"),
    [
        ("submit", "--format", formats.FORMATS),
        ("convert", "--format", formats.FORMATS),
        ("usage", "--by", used.BY),
        ("simulate", "--policy", get_args(replay.Policy)),
    ],
)
def test_choices_are_the_library_s(verb, flag, library):
    """Written out again, so that a command line is read without what it will need."""
    (action,) = (action for action in parser_of(verb).full().actions if flag in action.option_strings)
    assert action.choices == library


def words_of(verb: str) -> st.SearchStrategy[list[str]]:
    """Lines that name the options of a verb, and some that do so wrongly."""
    flags = [flag for action in parser_of(verb).full().actions for flag in action.option_strings if flag not in ("-h", "--help")]
    values = st.sampled_from(["x", "", "4", "-", "-5", "a=b", "=", "new", "host", "none", "missing", "gzip", "bash", "--", "-x", "ü y"])
    flag = st.sampled_from(flags) if flags else st.just("-q")
    word = st.one_of(
        flag,
        flag,
        values,
        st.builds("{}={}".format, flag, values),
        st.builds("{}{}".format, flag, values),
        st.sampled_from(["-it", "-dq", "--a"]),
    )
    return st.lists(word, max_size=6).filter(lambda line: "--" not in line)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_plain_line_means_what_argparse_makes_of_it(data):
    """What is read without argparse is what that reads, and what that refuses is not read without it."""
    verb = data.draw(st.sampled_from(sorted(VERBS)))
    parser, line = parser_of(verb), data.draw(words_of(verb))
    quick = parser.quick(line)
    if quick is not None:
        assert vars(quick) == vars(parser.full().parse(line))


@pytest.mark.parametrize(
    ("verb", "line"),
    [
        ("run", "-m 1G --cpus=2 -e A=1 -e B --rm img"), ("run", ""), ("run", "--network host img"), ("rename", "a b -q"),
        ("tag", "img a b c"), ("push", "img"), ("images", "--json a b"), ("logs", "-n 5 -f web"), ("volume", "ls"), ("exec", "-t web"),
    ],
)  # fmt: skip
def test_a_plain_line_is_read_without_argparse(verb, line):
    parser = parser_of(verb)
    quick = parser.quick(line.split())
    assert quick is not None and vars(quick) == vars(parser.full().parse(line.split()))


@pytest.mark.parametrize("line", ["--memry 1G x", "--memory", "-ditP x", "--profile bridge x", "--time-offset x", "-m"])
def test_what_is_wrong_with_a_line_is_said_with_all_options_in_mind(line, capsys):
    with pytest.raises(BadInput) as caught:
        parser_of("run").parse(line.split())
    main(["run", *line.split()])
    assert capsys.readouterr().err == f"dockless: {caught.value}\n  hint: {caught.value.hint}\n"


# -- help and completion


def test_dockless_alone_tells_the_story_and_every_verb(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(re.search(rf"^  {verb} ", out, re.MULTILINE) for verb in VERBS)
    assert max(map(len, out.splitlines())) < 120


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_help(verb, capsys):
    assert main([verb, "--help"]) == 0
    assert f"usage: dockless {verb}" in capsys.readouterr().out


def test_help_of_run_comes_in_groups(capsys):
    assert main(["help", "run"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n{title}:\n" in out for title in ("the command", "files", "limits", "isolation", "GPUs"))


def test_the_readme_uses_only_verbs_that_exist():
    readme = Path(__file__).resolve().parents[2] / "README.md"
    if not readme.exists():
        pytest.skip("only the installed package is here, not the sources")
    used = set(re.findall(r"dockless ([a-z]+)\b(?! or)", "\n".join(re.findall(r"```sh\n(.*?)```", readme.read_text(), re.DOTALL))))
    assert used and used <= set(VERBS)


@pytest.mark.parametrize(("script", "shell"), [(bash, "bash"), (zsh, "zsh"), (fish, "fish")])
def test_completion_knows_every_verb_and_option(script, shell):
    text = script()
    for verb in VERBS:
        for flag in flags(verb):
            assert all((name if shell != "fish" else name.lstrip("-")) in text for name in flag.names)
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=text, text=True, capture_output=True)
        assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(("script", "shell"), [(bash, "bash"), (zsh, "zsh"), (fish, "fish")])
def test_completion_is_printed(script, shell, capsys):
    assert main(["completion", shell]) == 0
    assert capsys.readouterr().out.splitlines() == script().splitlines()


def test_what_completion_knows_of_an_option():
    about = {flag.names: (flag.choices, flag.takes_value, flag.about) for flag in flags("run")}
    assert about["-d", "--detach"][:2] == ((), False) and about["--name", "--id"] == ((), True, "call the sandbox that")
    assert about["--root",] == (("disk", "tmpfs", "readonly"), True, "where changes to the image go (default: disk, thrown away)")
    assert all(names for names in about) and not any("%%" in one for *_, one in about.values())


def test_bash_completes():
    if not shutil.which("bash"):
        pytest.skip("no bash")
    script = (
        bash()
        + """
try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _dockless; echo "${COMPREPLY[*]}"; }
try dockless r
try dockless run --root ""
try dockless run --cpus
"""
    )
    out = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()
    assert sorted(out[0].split()) == ["release", "rename", "requeue", "restart", "rm", "rmi", "run"]
    assert out[1].split() == ["disk", "tmpfs", "readonly"]
    assert sorted(out[2].split()) == ["--cpus", "--cpuset-cpus", "--cpuset-mems"]


@pytest.mark.parametrize("word", ["version", "--version", "-V", "-v"])
def test_the_version_imports_nothing(word):
    place = str(Path(dockless.__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {place!r}); had = set(sys.modules); from dockless.cli import main; main([{word!r}])"
    code += "; print(*set(sys.modules) - had)"
    said = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True).stdout
    line, modules = said.splitlines()
    assert line == f"dockless {dockless.__version__}" and {"dockless", "dockless.cli", "dockless._version"} <= set(modules.split())
    assert not {"typing", "re", "dataclasses", "argparse", "dockless.cli.output"} & set(modules.split())


def test_the_version_is_that_of_the_package():
    assert dockless.__version__ == importlib.metadata.version("dockless")


def test_only_the_verbs_module_is_imported():
    code = "import sys; from dockless.cli import main; main(['version', '--json']); print(*sys.modules)"
    said = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout
    assert "dockless.cli.jobs" not in said and "dockless.cli.run" not in said


# -- tables


def test_tables_are_aligned_and_free_of_control_characters(capsys):
    table(("A", "LONG"), [("x\x1b[31m", 1), ("yy", "\n[red]")])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["A          LONG", "x\\x1b[31m  1", "yy         \\n[red]"]


def test_small_helpers():
    assert cut("abcdef", 4) == "abc…" and cut("ab", 4) == "ab"
    assert cut("a\x1b\x1b", 4) == "a\\x…"
    assert span(59.7) == "1m" and span(3725) == "1h2m" and span(90061) == "1d1h"
