"""``config``: what it says of a file of settings, and of each setting."""

from __future__ import annotations

import json
import os

import pytest

from dockless import cgroups, doctor
from dockless.base.settings import DEFAULTS, SETTINGS
from dockless.cli import main


@pytest.fixture
def say(home, capfd):
    def say(*words: str) -> tuple[int, str, str]:
        code = main(["config", *words])
        out, err = capfd.readouterr()
        return code, out.replace(str(home), "HOME"), err.replace(str(home), "HOME")

    return say


def test_where_there_is_no_file(say):
    assert say("check") == (0, "HOME/dockless.toml is not there: the defaults hold.\n", "")
    assert say("check", "--json") == (0, '{"file": "HOME/dockless.toml", "there": false, "unknown": []}\n', "")


def test_one_that_is_right(say, home, tmp_path):
    (home / "dockless.toml").write_text("[quota]\ndefault = 2\n")
    assert say("check") == (0, "HOME/dockless.toml is right.\n", "")
    other = tmp_path / "other.toml"
    other.write_text("[quota.users]\nnobody-here = 1\n")
    code, out, err = say("check", str(other))
    assert (code, err) == (1, "")
    assert out == f"{other}:2: quota.users.nobody-here: there is no user 'nobody-here'\nWhat is said of these has no effect.\n"
    code, out, err = say("check", "--json", str(other))
    assert (code, err) == (1, "") and len(json.loads(out)["unknown"]) == 1


def test_classes_of_which_there_is_no_gpu(say, home, monkeypatch):
    """A slip in one would be a limit that nobody meets."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")
    text = "[quota]\ndefault = { classes = { whole = 2 } }\n[quota.users]\n# the boss\nroot = { classes = { H10O = { guarantee = 2 } } }\n"
    (home / "dockless.toml").write_text(text)
    code, out, _ = say("check")
    line = "HOME/dockless.toml:5: quota.users.root.classes.H10O: no GPU of this host is of class H10O"
    assert (code, out.splitlines()[0]) == (1, line)
    assert doctor._settings()[:2] == ("note", line.replace("HOME", str(home)))
    (home / "dockless.toml").write_text(text.replace("H10O", '"amd.com/gpu"'))
    assert "is of class amd.com/gpu" in say("check")[1]
    (home / "dockless.toml").write_text(text.replace("H10O", "whole"))
    assert say("check")[0] == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[quota]\ndefalt = 2\n", "HOME/dockless.toml:2: there is no setting quota.defalt\n  hint: did you mean quota.default?"),
        ("[quota]\n\ndefault = 'two'\n", "HOME/dockless.toml:3: quota.default"),
        ("[quota\n", "is not TOML"),
    ],
)
def test_one_that_is_wrong(say, home, text, said):
    """Line and key, and the nearest key."""
    (home / "dockless.toml").write_text(text)
    for action in ("check", "show"):
        code, out, err = say(action)
        assert (code, out) == (125, "") and said in err and "\n  hint: " in err


@pytest.mark.parametrize("text", ["[disk]\nper_user = '1G'\n", "[volumes]\n'/mnt/$GROUP' = '/srv/$GROUP'\n"])
def test_what_only_roots_daemon_can_do(say, home, tmp_path, monkeypatch, text):
    """Of the file that is in use, also by its name: a user may look at root's, too."""
    (home / "dockless.toml").write_text(text)
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    code, out, err = say("check")
    assert (code, out) == (125, "") and err.startswith("dockless: only root's daemon can") and "\n  hint: leave " in err
    named = tmp_path / "named.toml"
    named.symlink_to(home / "dockless.toml")
    for name in (home / "dockless.toml", named):
        assert say("check", str(name)) == (code, out, err)
    (tmp_path / "roots.toml").write_text(text)
    assert say("check", str(tmp_path / "roots.toml")) == (0, f"{tmp_path}/roots.toml is right.\n", "")
    assert say("show")[0] == 0


def test_what_this_host_cannot_do(say, home, tmp_path, monkeypatch):
    """A daemon of root's refuses it, too. Of other files nothing is said of that."""
    monkeypatch.setattr(cgroups, "find_delegation", lambda: cgroups.Delegation(None, frozenset(), frozenset(), "none", "a test"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (home / "dockless.toml").write_text('[host]\nown_cores = "yes"\n')
    code, out, err = say("check")
    assert (code, out) == (125, "") and "host.own_cores: cpuset.cpus cannot be limited: a test" in err
    assert "hint: leave host.own_cores out" in err
    status, what, step = doctor._settings()
    assert (status, step) == ("note", "leave host.own_cores out") and what.endswith("a test (the daemon does not start with it)")
    (tmp_path / "other.toml").write_text('[host]\nown_cores = "yes"\n')
    assert say("check", str(tmp_path / "other.toml"))[0] == 0


def test_a_driver_that_is_not_there(say, home):
    """Has an effect: there are no GPUs."""
    (home / "dockless.toml").write_text('[gpus]\ndriver_root = "/no-such"\n')
    line = "HOME/dockless.toml:2: gpus.driver_root: there is no directory /no-such, so no GPU of NVIDIA is found"
    assert say("check") == (1, f"{line}\n", "")
    assert json.loads(say("check", "--json")[1])["unknown"] == [line]
    step = "name the directory where the driver is installed, or leave gpus.driver_root out"
    assert doctor._settings() == ("note", line.replace("HOME", str(home)), step)
    with (home / "dockless.toml").open("a") as file:
        file.write("[quota.users]\nnobody-here = 1\n")
    assert say("check")[1].splitlines()[1:] == ["What is said of these has no effect.", line]
    status, what, said = doctor._settings()
    assert (status, said) == ("note", f"{step}; correct or remove the others: they have no effect") and "; " in what


def test_a_file_that_is_not_there(say):
    code, out, err = say("check", "/nowhere/x.toml")
    assert (code, out) == (125, "") and err.startswith("dockless: /nowhere/x.toml is not there\n")


def test_every_setting(say, home):
    (home / "dockless.toml").write_text('[quota.users]\nanna = 4\nbob = 0\n[images]\nmax_size = "200G"\n[host]\nadmins = ["anna", "eve"]\n')
    code, out, err = say("show")
    rows = {line.split()[0]: line for line in out.splitlines()[1:]}
    assert (code, err) == (0, "") and list(rows) == [setting.key for setting in SETTINGS]
    assert "  anna 4, bob 0  " in rows["quota.users.*"] and "  200 GiB  " in rows["images.max_size"]
    assert "  anna eve  " in rows["host.admins"] and "  -  " in rows["host.cpu_jobs"] + "  " and "  10000  " in rows["queue.per_user"]
    found = {row["key"]: row for row in json.loads(say("show", "--json")[1])}
    assert found["quota.users.*"]["value"] == {"anna": 4, "bob": 0} and found["host.admins"]["value"] == ["anna", "eve"]
    assert found["logs.size"]["value"] == found["logs.size"]["default"] == DEFAULTS["logs.size"]
