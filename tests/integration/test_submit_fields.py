"""What is asked for at submit is what the queue then says of the job: from the command line and from Python, through a real daemon."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.requires import requires
from support.scheduling import DaemonProcess

import dockless
from dockless.cli import main
from dockless.sandbox import binds
from dockless.sandbox.spec import Bind, Spec

pytestmark = requires("userns")


@pytest.fixture(autouse=True)
def daemon(home, monkeypatch):
    monkeypatch.delenv("DOCKLESS_SOCKET", raising=False)
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")
    made = DaemonProcess(home, gpus="2x80G").start()
    yield made
    made.end()


def listed(capfd) -> dict[int, dict]:
    capfd.readouterr()
    assert main(["queue", "-a", "--json"]) == 0
    return {row["id"]: row for row in json.loads(capfd.readouterr().out)}


FIELDS = ("priority", "time_limit", "name", "on_reboot", "gpu_count", "command", "image")


def test_the_same_words_on_the_command_line_and_in_python(capfd):
    line = ["--priority", "-3", "--time-limit", "90", "--name", "n", "--on-reboot", "requeue", "--gpus", "1", "--", "sleep", "300"]
    assert main(["submit", "-q", *line]) == 0
    first = int(capfd.readouterr().out)
    second = dockless.submit(["sleep", "300"], priority=-3, time_limit=90, name="n", on_reboot="requeue", gpus=1)
    rows = listed(capfd)
    for number in (first, second.id):
        assert tuple(rows[number][name] for name in FIELDS) == (-3, 90.0, "n", "requeue", 1, "sleep 300", "host")
    for number in (first, second.id):
        assert main(["cancel", "--grace", "0", str(number)]) == 0


def test_arrays_and_job_files_from_python(tmp_path):
    jobs = dockless.submit(["sh", "-c", "exit $DOCKLESS_ARRAY_INDEX"], array="0-2%1")
    assert [job.wait(60).exit_code for job in jobs] == [0, 1, 2]
    path = tmp_path / "job.toml"
    path.write_text("name = 'n'\n[roles.a]\ncount = 2\nscript = 'exit 0'\n[roles.chief]\nscript = 'test $WORLD_SIZE = 3'\n")
    jobs = dockless.submit_file(path, name="m")
    assert jobs[0].wait(60).state == "COMPLETED"
    assert [(found.name, found.options.role) for found in (job.wait(60) for job in jobs)] == [("m", "chief"), ("m", "a"), ("m", "a")]
    (job,) = dockless.submit_file(text="#!/bin/sh\ntest $1 = b\n", arguments=["b"])
    assert job.wait(60).exit_code == 0


def test_a_secret_reaches_the_program_and_nothing_else(tmp_path, monkeypatch, capfd):
    """The queue's answers, clones and what is edited have its place alone; a clone runs with the job's own."""
    path, out, editor = tmp_path / "job.toml", tmp_path / "out", tmp_path / "editor"
    path.write_text(
        f"script = \"echo '<% $secrets.token %>' $B >> /mnt/out\"\nmounts = ['{tmp_path}:/mnt']\n"
        "env = { B = 'b<% $secrets.token %>' }\narray = 2\n[secrets]\ntoken = 'hunter2'\n"
    )
    jobs = dockless.submit_file(path)
    codes = [job.wait(60).exit_code for job in jobs]
    assert codes == [0, 0], (*jobs[0].logs(), binds.grants(Spec(("true",), mounts=(Bind(str(tmp_path), "/mnt"),)), None))
    assert out.read_text() == "hunter2 bhunter2\n" * 2
    first = str(jobs[0].id)
    shown = []
    for words in (
        ["queue", "-a", "--json"],
        ["queue", first],
        ["queue", first, "--events"],
        ["info", "--json"],
        ["clone", "--print", first],
    ):
        assert main(words) == 0
        shown.append(capfd.readouterr().out)
    assert "hunter2" not in "".join(shown) and "echo '<% $secrets.token %>'" in shown[-1]
    assert main(["clone", "-q", "--wait", first]) == 0
    editor.write_text("#!/bin/sh\n! grep -q hunter2 $1\n")
    editor.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.delenv("SECRET_TOKEN", raising=False)
    assert main(["clone", "-q", "--wait", "--edit", first]) == 0
    monkeypatch.setenv("SECRET_TOKEN", "other")
    assert main(["clone", "-q", "--wait", "--edit", first]) == 0
    monkeypatch.delenv("SECRET_TOKEN")
    editor.write_text("#!/bin/sh\nsed -i 's/^token = .*/token = \"written\"/' $1\n")
    assert main(["clone", "-q", "--wait", "--edit", first]) == 0
    editor.write_text("#!/bin/sh\necho 'cpus = [' >> $1\n")
    capfd.readouterr()
    assert main(["clone", "--edit", first]) == 125
    hint = r"your text is kept: correct (\S+), then VISUAL='(.*)' dockless clone --edit"
    kept, command = re.search(hint, capfd.readouterr().err).groups()
    text = Path(kept).read_text()
    Path(kept).write_text(text.removesuffix("cpus = [\n"))
    monkeypatch.setenv("VISUAL", command)
    assert main(["clone", "-q", "--wait", "--edit", first]) == 0
    Path(kept).unlink()
    capfd.readouterr()
    for words in (["-e", "W=<% $secrets.nope %>", first], [first, "--", "echo", "<% $secrets.nope %>"]):
        assert main(["clone", *words]) == 125
        err = capfd.readouterr().err
        assert "refers to the secret 'nope', which the job does not have" in err and f"hint: dockless clone --edit {first}, and" in err
    with dockless.sched.connect() as queue:
        (again,) = queue.requeue(int(first))
        queue.wait(again.id, timeout=60)
    own = "hunter2 bhunter2"
    assert out.read_text().splitlines()[2:] == [own, own, "other bother", "written bwritten", own, own]


def test_a_group_is_kept(daemon, capfd):
    import grp
    import os

    group = grp.getgrgid(os.getegid()).gr_name
    assert dockless.submit(["true"], group=group).status().group == group
    assert main(["submit", "-q", "--group", group, "--", "true"]) == 0
    assert listed(capfd)[2]["group"] == group


def test_only_jobs_with_gpus_are_called_simulated(capfd):
    plain = dockless.submit(["true"])
    leased = dockless.submit(["true"], gpus=1)
    plain.wait(30), leased.wait(30)
    rows = listed(capfd)
    assert rows[leased.id]["simulated"] is True and rows[plain.id]["simulated"] is False


def test_a_signal_shows_in_the_exit_code_of_a_result(capfd):
    assert main(["run", "--json", "--", "sh", "-c", "kill -9 $$"]) == 137
    document = json.loads(capfd.readouterr().err)
    assert (document["exit_code"], document["code"], document["signal"]) == (137, None, 9)


def test_what_only_looks_like_a_secret_is_cloned(monkeypatch):
    """A job without a file may say such words, and means them."""
    job = dockless.submit(["test", "<% $secrets.x %>", "=", "<% $secrets.x %>"])
    assert job.wait(60).exit_code == 0
    monkeypatch.setenv("VISUAL", "true")
    for words in (["clone", "-q", "--wait", str(job.id)], ["clone", "-q", "--wait", "--edit", str(job.id)]):
        assert main(words) == 0
