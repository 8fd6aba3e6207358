"""The daemon as a service: the text of its unit, and what systemctl is asked, by a stand-in that writes it down. A real systemd has it
in the guest: tests/vm/service_life.py."""

from __future__ import annotations

import json
import os
import shlex
import sys

import pytest

from dockless.base.path import Path
from dockless.errors import BadInput, SchedError, Unsupported
from dockless.sched import daemon, service

ROOT = os.geteuid() == 0
WHOSE = "" if ROOT else "--user "


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch):
    for name in (*service._KEPT, "INVOCATION_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def place(tmp_path, monkeypatch):
    place = Path(tmp_path / "units" / service.NAME)
    monkeypatch.setattr(service, "place", lambda: place)
    return place


@pytest.fixture
def systemctl(tmp_path, monkeypatch):
    """``systemctl(script)``: what it does besides; gives back what it has been asked."""
    asked = tmp_path / "asked"
    asked.touch()
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")

    def systemctl(script: str = ""):
        program = directory / "systemctl"
        program.write_text(f'#!/bin/sh\necho "$*" >> {asked}\n{script}\n')
        program.chmod(0o755)
        return lambda: asked.read_text().splitlines()

    return systemctl


def lines(text: str, key: str) -> list[str]:
    return [line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{key}=")]


def test_the_unit():
    text = service.unit()
    assert lines(text, "ExecStart") == [f"{sys.executable} -P -m dockless daemon"]
    assert lines(text, "KillMode") == ["process"] and lines(text, "Type") == ["notify"] and lines(text, "Restart") == ["on-failure"]
    assert lines(text, "Delegate") == (["yes"] if ROOT else [])
    assert lines(text, "WantedBy") == ["multi-user.target" if ROOT else "default.target"]
    assert not lines(text, "Environment")
    inherited = ("ProtectSystem", "PrivateTmp", "NoNewPrivileges", "SystemCallFilter", "PrivateDevices", "DeviceAllow")
    assert not [key for key in inherited if lines(text, key)], "no sandbox could be made below it"


def test_where_it_keeps_things(monkeypatch):
    monkeypatch.setenv("DOCKLESS_HOME", '/srv/a "b" 100% $HOME')
    text = service.unit(Path("/run/my $sock%et"))
    assert lines(text, "Environment") == [r'"DOCKLESS_HOME=/srv/a \"b\" 100%% $HOME"']
    assert lines(text, "ExecStart") == [f'{sys.executable} -P -m dockless daemon --socket "/run/my $$sock%%et"']


def test_a_line_cannot_be_smuggled_in():
    with pytest.raises(Unsupported, match="control characters"):
        service.unit(Path("/run/x\nExecStartPre=/bin/evil"))


def test_installed(place, systemctl):
    asked = systemctl()
    assert service.install() == place
    assert place.read_text() == service.unit() and os.listdir(place.parent) == [service.NAME]
    assert asked() == [
        f"{WHOSE}show --property=Version",
        *(f"{WHOSE}--quiet {words}" for words in ("daemon-reload", f"enable {service.NAME}", f"restart {service.NAME}")),
    ]


def test_uninstalled(place, systemctl):
    asked = systemctl()
    assert service.uninstall() is None and asked() == []
    service.install()
    assert service.uninstall() == place
    assert not place.exists() and asked()[-2:] == [f"{WHOSE}--quiet disable --now {service.NAME}", f"{WHOSE}--quiet daemon-reload"]


def test_no_systemd(place, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unsupported, match="no systemd"):
        service.install()
    assert not place.exists()


def test_systemd_that_does_not_answer(place, systemctl):
    systemctl("echo 'Failed to connect to bus: No medium found' >&2; exit 1")
    with pytest.raises(Unsupported, match="No medium found") as caught:
        service.install()
    assert ("--print" if ROOT else "linger") in caught.value.hint and not place.exists()


def test_a_service_that_does_not_start(place, systemctl):
    systemctl(f'case "$*" in *restart*) echo "Job for {service.NAME} failed because of this." >&2; echo "See that." >&2; exit 1;; esac')
    with pytest.raises(SchedError, match=r"restart dockless\.service: Job for dockless\.service failed") as caught:
        service.install()
    assert "started by hand" in caught.value.hint and "journalctl" in caught.value.hint


@pytest.mark.parametrize(
    ("service_of_systemd", "says", "down"),
    [(True, "stopping", True), (True, "running", False), (True, "", False), (False, "stopping", False)],
)
def test_whether_the_host_goes_down(systemctl, service_of_systemd, says, down):
    systemctl(f"echo {shlex.quote(says)}; exit 1")
    assert service.host_goes_down({"INVOCATION_ID": "1"} if service_of_systemd else {}) is down


def test_where_there_is_nobody_to_ask(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert service.host_goes_down({"INVOCATION_ID": "1"}) is False


def test_on_the_command_line(place, systemctl, say):
    asked = systemctl()
    status, out, _ = say("daemon", "--install", "--print")
    assert (status, out) == (0, service.unit()) and asked() == []
    status, out, _ = say("daemon", "--install", "--print", "--json", "--socket", "/run/s")
    assert json.loads(out) == {"unit": str(place), "text": service.unit(Path("/run/s"))}
    status, out, _ = say("daemon", "--install", "--json")
    assert (status, json.loads(out)) == (0, {"unit": str(place), "installed": True}) and place.exists()
    status, out, _ = say("daemon", "--install")
    assert status == 0 and str(place) in out and ("enable-linger" in out) is not ROOT
    status, out, _ = say("daemon", "--uninstall")
    assert status == 0 and "Running jobs go on" in out and not place.exists()
    status, out, _ = say("daemon", "--uninstall", "--json")
    assert (status, json.loads(out)) == (0, {"unit": None, "installed": False})


@pytest.mark.parametrize(("words", "what"), [(("--print",), "belongs to --install"), (("--install", "--uninstall"), "exclude each other")])
def test_words_that_do_not_go_together(words, what, say, monkeypatch):
    monkeypatch.setattr(daemon, "main", lambda *_: pytest.fail("it serves"))
    try:
        status, _, err = say("daemon", *words)
    except BadInput as error:
        status, err = error.exit_code, str(error)
    assert status == 125 and what in err


@pytest.mark.parametrize(
    ("group", "leaves"),
    [
        ("/user.slice/user-7.slice/user@7.service/app.slice/dockless.service", True),
        ("/user.slice/user-7.slice/user@7.service/app.slice/dockless-1-a.scope", False),
        ("/user.slice/user-7.slice/user@8.service/app.slice/dockless.service", False),
        ("/system.slice/dockless.service", False),
        ("/user.slice/user-7.slice/session-1.scope", False),
    ],
)
@pytest.mark.parametrize("why", [None, "there is no user bus"])
def test_the_group_of_a_users_service_is_left(tmp_path, monkeypatch, group, leaves, why):
    asked = []
    (tmp_path / "cgroup").write_text(f"1:name=systemd:/x\n0::{group}\n")
    monkeypatch.setattr("builtins.open", lambda path, real=open: real(tmp_path / "cgroup") if path == "/proc/self/cgroup" else real(path))
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    monkeypatch.setattr("dockless.cgroups.systemd.request_scope", lambda timeout: asked.append(timeout) or why)
    if leaves and why:
        with pytest.raises(SchedError, match="no control group outside of its service: there is no user bus"):
            service.leave_group()
    else:
        service.leave_group()
    assert bool(asked) is leaves
