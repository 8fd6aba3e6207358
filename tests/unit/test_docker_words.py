"""Whoever types what Docker or Podman would take gets one line: what to use here, or that it does not exist yet."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from dockless._options import make_spec
from dockless.cli import ALIASES, VERBS, main, parser_of, split
from dockless.cli.docker_words import BEFORE, FLAGS, HOST_NAME, VALUES, Word, value
from dockless.cli.docker_words import VERBS as ELSEWHERE
from dockless.cli.sandbox_options import image_and_command, keywords

TABLE = Path(__file__).resolve().parents[2] / "docs" / "docker-words.md"
ROWS = [*((f"verb {name}", word) for name, word in ELSEWHERE.items())]
for table in (FLAGS, VALUES):
    ROWS += [(f"{where} {names}", word) for where, rows in table.items() for names, word in rows.items()]
ROWS += [*BEFORE.items(), ("-h NAME", HOST_NAME)]

DOCKER_VERBS = """
ai app attach build builder buildx cloud commit compose config container context cp create debug desktop dev diff extension events
exec export history image images import info init inspect kill load login logout logs manifest mcp model network node offload
pause plugin port ps pull push rename restart rm rmi run sbom save scout search secret service stack start stats stop swarm system
tag top trust unpause update version volume wait
""".split()
DOCKER_BEFORE = "--config -c --context -D --debug -H --host -l --log-level --tls --tlscacert --tlscert --tlskey --tlsverify".split()
DOCKER_VALUES = {
    "--ipc": ("private", "shareable", "none", "container:web"),
    "--pid": ("container:web",),
    "--userns": ("keep-id", "auto"),
    "--cgroupns": ("private",),
    "--pull": ("true",),
}
DOCKER_RUN = """
--add-host --annotation -a --attach --blkio-weight --blkio-weight-device --cap-add --cap-drop --cgroup-parent --cgroupns
--cidfile --cpu-count --cpu-percent --cpu-period --cpu-quota --cpu-rt-period --cpu-rt-runtime -c --cpu-shares --cpus
--cpuset-cpus --cpuset-mems -d --detach --detach-keys --device --device-cgroup-rule --device-read-bps --device-read-iops
--device-write-bps --device-write-iops --disable-content-trust --dns --dns-option --dns-search --domainname --entrypoint
-e --env --env-file --expose --gpus --group-add --health-cmd --health-interval --health-retries --health-start-interval
--health-start-period --health-timeout --help -h --hostname --init -i --interactive --io-maxbandwidth --io-maxiops --ip
--ip6 --ipc --isolation --kernel-memory -l --label --label-file --link --link-local-ip --log-driver --log-opt
--mac-address -m --memory --memory-reservation --memory-swap --memory-swappiness --mount --name --network
--network-alias --no-healthcheck --oom-kill-disable --oom-score-adj --pid --pids-limit --platform --privileged -p
--publish -P --publish-all --pull -q --quiet --read-only --restart --rm --runtime --security-opt --shm-size --sig-proxy
--stop-signal --stop-timeout --storage-opt --sysctl --tmpfs -t --tty --ulimit --use-api-socket -u --user --userns --uts
-v --volume --volume-driver --volumes-from -w --workdir
""".split()
DOCKER_FLAGS = {
    "run": DOCKER_RUN,
    "ps": "-a --all -f --filter --format -n --last -l --latest --no-trunc -q --quiet -s --size".split(),
    "images": "-a --all --digests -f --filter --format --no-trunc -q --quiet --tree".split(),
    "logs": "--details -f --follow --since -n --tail -t --timestamps --until".split(),
    "stop": "-s --signal -t --timeout --time".split(),
    "kill": "-s --signal".split(),
    "rm": "-f --force -l --link -v --volumes".split(),
    "rmi": "-f --force --no-prune --platform".split(),
    "pull": "-a --all-tags --disable-content-trust --platform -q --quiet".split(),
    "push": "-a --all-tags --disable-content-trust --platform -q --quiet".split(),
    "save": "-o --output --platform".split(),
    "load": "-i --input --platform -q --quiet".split(),
    "export": "-o --output".split(),
    "import": "-c --change -m --message --platform".split(),
    "commit": "-a --author -c --change -m --message -p --pause".split(),
    "history": "--format -H --human --no-trunc -q --quiet --platform".split(),
    "inspect": "-f --format -s --size --type".split(),
    "search": "-f --filter --format --limit --no-trunc".split(),
    "info": "-f --format".split(),
    "version": "-f --format".split(),
    "start": "-a --attach --checkpoint --checkpoint-dir --detach-keys -i --interactive".split(),
    "restart": "-s --signal -t --timeout".split(),
    "exec": "-d --detach --detach-keys -e --env --env-file -i --interactive --privileged -t --tty -u --user -w --workdir".split(),
    "events": "-f --filter --format --since --until".split(),
    "wait": "--condition".split(),
    "attach": "--detach-keys --no-stdin --sig-proxy".split(),
    "cp": "-a --archive -L --follow-link -q --quiet".split(),
    "stats": "-a --all --format --no-stream --no-trunc".split(),
    "update": """--blkio-weight --cpu-period --cpu-quota --cpu-rt-period --cpu-rt-runtime -c --cpu-shares --cpus --cpuset-cpus --cpuset-mems
        -m --memory --memory-reservation --memory-swap --pids-limit --restart""".split(),
    "df": "--format -v --verbose".split(),
    "prune": "-a --all --filter -f --force --volumes".split(),
    "volume": "-d --driver --label -o --opt -f --filter -q --quiet --format -a --all".split(),
    "network": """--alias --ip --ip6 --link --link-local-ip --driver-opt --attachable --aux-address --config-from --config-only -d --driver
        --gateway --ingress --internal --ip-range --ipam-driver --ipam-opt --ipv4 --ipv6 --label -o --opt --scope --subnet -f --force
        --format -v --verbose --filter --no-trunc -q --quiet""".split(),
    "login": "-u --username -p --password --password-stdin".split(),
}


@pytest.mark.parametrize(("name", "word"), ROWS, ids=[name for name, _ in ROWS])
def test_what_is_suggested_is_taken(name, word):
    assert word.say and not word.say.endswith(".") and word.hint.isprintable()
    if not word.use:
        return
    verb, *rest = shlex.split(word.use)
    before, command = split(rest)
    if "--help" in rest:
        assert verb in VERBS
        return
    options = parser_of(verb).parse(before)
    if verb in ("run", "submit"):
        options.command = command
        image, arguments = image_and_command(options)
        wanted = keywords(options)
        wanted.pop("gpus", None)
        make_spec(image, arguments, **wanted)


@pytest.mark.parametrize("verb", DOCKER_VERBS)
def test_every_verb_of_docker(verb, capsys):
    if verb in VERBS or verb in ALIASES:
        assert verb not in ELSEWHERE
        return
    assert main([verb]) == 125
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"dockless: unknown verb '{verb}'", f"  hint: {ELSEWHERE[verb].hint}"]


@pytest.mark.parametrize(
    ("line", "said"),
    [("container mount web", "can be had as a tar"), ("image build .", "no Dockerfiles"), ("container exists web", "goes before"),
     ("system dial-stdio", "goes before")],
)  # fmt: skip
def test_a_second_word_that_is_docker_s(line, said, capsys):
    assert main(line.split()) == 125
    assert said in capsys.readouterr().err


def test_no_verb_of_ours_is_said_to_be_missing():
    assert not set(ELSEWHERE) & {*VERBS, *ALIASES}
    assert set(FLAGS) <= set(VERBS)


@pytest.mark.parametrize(("verb", "name"), [(verb, name) for verb, names in DOCKER_FLAGS.items() for name in names])
def test_every_option_of_docker(verb, name, capsys):
    """It is taken, or one line says what to use here."""
    known = parser_of(verb).full()._option_string_actions
    rows = {one: word for names, word in FLAGS.get(verb, {}).items() for one in names.split()}
    if name in known:
        return
    assert name in rows, f"{verb} {name} is neither served nor explained"
    assert main([verb, name, "x", "y"]) == 125
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"dockless: {verb}: there is no option {name}", f"  hint: {rows[name].hint}"]


@pytest.mark.parametrize(("verb", "name"), [(verb, name) for verb, table in FLAGS.items() for names in table for name in names.split()])
def test_every_word_answers_where_the_name_is_left_out(verb, name, capsys):
    rows = {one: word for names, word in FLAGS[verb].items() for one in names.split()}
    assert main([verb, name]) == 125
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"dockless: {verb}: there is no option {name}", f"  hint: {rows[name].hint}"]


@pytest.mark.parametrize(("verb", "names"), [(verb, names) for verb, table in FLAGS.items() for names in table])
def test_no_option_of_ours_is_said_to_be_missing(verb, names):
    assert not set(names.split()) & set(parser_of(verb).full()._option_string_actions)


@pytest.mark.parametrize(
    ("line", "letters"),
    [
        (["-itd"], "d"),
        (["-dP"], "dP"),
        (["--detach=true"], "d"),
        (["-Pd"], "dP"),
    ],
)
def test_letters_together(line, letters, capsys):
    """Each of them is answered; what follows a letter that takes a value is its value."""
    rows = {one: row for names, row in FLAGS["submit"].items() for one in names.split()}
    assert main(["submit", *line, "busybox"]) == 125
    said = capsys.readouterr().err
    assert [letter for letter in "dP" if rows[f"-{letter}"].say in said] == sorted(letters, key="dP".index)
    assert "did you mean" not in said and len(said.splitlines()) == 2


@pytest.mark.parametrize("name", DOCKER_BEFORE)
@pytest.mark.parametrize("line", ["{}", "{}=x"])
def test_every_option_before_the_verb(name, line, capsys):
    rows = {one: word for names, word in BEFORE.items() for one in names.split()}
    assert main([line.format(name), "ps"]) == 125
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"dockless: there is no option {name} before the verb", f"  hint: {rows[name].hint}"]


def test_options_before_the_verb_that_nobody_has(capsys):
    assert main(["-Htcp://somewhere", "ps"]) == 125
    assert "no engine" in capsys.readouterr().err
    assert main(["--memory", "1G", "run"]) == 125
    assert "behind the verb" in capsys.readouterr().err
    assert main(["-v"]) == main(["--version"]) == 0


@pytest.mark.parametrize(("option", "text"), [(option, text) for option, texts in DOCKER_VALUES.items() for text in texts])
def test_values_of_docker(option, text, capsys):
    assert main(["run", option, text, "busybox"]) == 125
    name = "--network" if option == "--net" else option
    word = value(name, text)
    assert isinstance(word, Word)
    assert capsys.readouterr().err.splitlines() == [f"dockless: run: {name} cannot be {text!r}", f"  hint: {word.hint}"]


def test_no_value_of_ours_is_said_to_be_missing(capsys):
    verbs = {"--condition": "wait", "--filter": "events"}
    for option, rows in VALUES.items():
        action = parser_of(verbs.get(option, "run")).full()._option_string_actions[option]
        assert not {one for names in rows for one in names.split()} & set(action.choices or ())
    assert main(["run", "--profile", "trusted", "x"]) == 125
    assert "default, untrusted, privileged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("wait --condition not-running web", ["dockless: wait: --condition cannot be 'not-running'", "ended is the default", "wait NAME"]),
        ("wait --condition stopped web", ["dockless: wait: --condition cannot be 'stopped'", "ended is the default", "wait NAME"]),
        ("wait --condition removed web", ["dockless: wait: --condition cannot be 'removed'", "ended, healthy"]),
        ("events --filter type=container", ["dockless: --filter 'type=container' cannot be read", "leave it out: dockless events"]),
        ("events --filter type=image", ["dockless: --filter 'type=image' cannot be read", "all events are of sandboxes: dockless events"]),
        ("events --filter scope=local", ["dockless: --filter 'scope=local' cannot be read", "keys are event, kind"]),
    ],
)
def test_values_of_docker_for_other_verbs(line, said, capsys):
    assert main(line.split()) == 125
    first, second = capsys.readouterr().err.splitlines()
    assert first == said[0] and all(text in second for text in said[1:])


@pytest.mark.parametrize("network", ["host", "none", "bridge", "my-net", "container:web"])
def test_the_short_name_of_network(network):
    assert keywords(parser_of("run").parse(["--net", network, "x"]))["network"] == network


@pytest.mark.parametrize("verb", ["run", "submit"])
def test_a_host_name_is_no_wish_for_help(verb, capsys):
    assert main([verb, "-h", "web", "busybox"]) == 125
    assert "--hostname" in capsys.readouterr().err
    assert main([verb, "-h", "web"]) == 125 and capsys.readouterr().out == ""
    assert main([verb, "-h"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: dockless {verb}")
    assert main(["ps", "-h", "web"]) == 0


@pytest.mark.parametrize("name", ["build", "nosuch", "--debug"])
def test_help_of_what_is_no_verb(name, capsys):
    assert main(["help", name]) == 125
    helped = capsys.readouterr()
    assert main([name]) == 125
    assert helped.err == capsys.readouterr().err and not helped.out


@pytest.mark.parametrize("verb", ["stop", "kill", "rm", "diff", "commit", "inspect", "export"])
def test_the_number_of_a_job_for_a_sandbox(verb, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKLESS_HOME", str(tmp_path))
    output = ["-o", str(tmp_path / "x")] if verb == "export" else []
    assert main([verb, "3", *output]) == 125
    lines = capsys.readouterr().err.splitlines()
    assert (
        lines[0] == "dockless: 3 is the number of a job, not a sandbox"
        and "dockless cancel 3" in lines[1]
        and "job-3-" in lines[1]
        and len(lines) == 2
    )


@pytest.mark.parametrize("verb", ["cancel", "queue"])
def test_the_name_of_a_sandbox_for_a_job(verb, capsys):
    assert main([verb, "web"]) == 125
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "dockless: 'web' is not the number of a job" and "dockless stop NAME" in lines[1]


@pytest.mark.parametrize(
    "line",
    ["submit --array 0 x", "submit --array 1_0 x", "queue --limit -1", "queue --limit 0", "logs --attempt 0 1", "prune --keep-last -1"],
)
def test_numbers_that_cannot_be_meant(line, capsys):
    """Before anybody asks a daemon."""
    assert main(line.split()) == 125
    lines = capsys.readouterr().err.splitlines()
    assert "is not a whole number of" in lines[0] and line.split()[1] in lines[0] and len(lines) == 2


@pytest.mark.parametrize("verb", ["run", "submit"])
def test_what_is_the_default_is_taken(verb, capsys):
    options = parser_of(verb).parse(["--rm", "--init", "busybox"])
    assert options.rm and options.init and options.image == ["busybox"]
    assert "--rm" not in FLAGS[verb] and "--init" not in FLAGS[verb]


def test_a_slip_of_the_pen_is_still_found(capsys):
    assert main(["run", "--memroy", "1G", "x"]) == 125
    assert "did you mean --memory?" in capsys.readouterr().err
    assert main(["ruN"]) == 125
    assert "did you mean `dockless run`?" in capsys.readouterr().err


def table_of_words():
    """What each word of docker's command line does here, as Markdown; pipes are not for columns."""

    def cell(word):
        return f"{word.say}: `dockless {word.use}`" if word.use else word.say

    lines = ["# Docker's words", "", "What the verbs and options of docker's command line (28.2) do here. A test keeps it true.", ""]
    lines += ["## Verbs", "", "| docker | here |", "|---|---|"]
    for verb in DOCKER_VERBS:
        if verb in ALIASES:
            lines += [f"| `{verb} {second}` | `{ours}` |" for second, ours in sorted(ALIASES[verb].items())]
        else:
            lines.append(f"| `{verb}` | {VERBS[verb].about if verb in VERBS else cell(ELSEWHERE[verb])} |")
    for verb, names in DOCKER_FLAGS.items():
        known = parser_of(verb).full()._option_string_actions
        rows = {one: word for words, word in FLAGS.get(verb, {}).items() for one in words.split()}
        taken = [name for name in names if name in known]
        lines += ["", f"## {verb}", "", "Taken: " + " ".join(f"`{name}`" for name in taken)]
        if others := [name for name in names if name not in known]:
            lines += ["", "| instead of | |", "|---|---|", *(f"| `{name}` | {cell(rows[name])} |" for name in others)]
    return "\n".join(lines) + "\n"


def test_the_table_of_words_is_true(request):
    if not TABLE.parent.is_dir():
        pytest.skip("only the installed package is here, not the sources")
    if request.config.getoption("--update-golden"):
        TABLE.write_text(table_of_words())
    assert TABLE.read_text() == table_of_words(), "if that is meant, run pytest --update-golden and review the change"
