"""What programs find by name inside of a sandbox: glibc, busybox and Python, over a bridge, with the host's name server behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.requires import requires

pytestmark = requires("root", "netns", "program:getent", "program:busybox", "program:nsenter", "program:nft")
TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    place = tmp_path_factory.mktemp("inside") / "web"
    command = ["unshare", "-n", "-m", sys.executable, "-P", "-m", "support.dns_inside", place]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(TESTS)}, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def addresses(text: str) -> list[str]:
    return sorted({line.split()[0] for line in text.splitlines()})


def test_glibc_finds_neighbours(said):
    assert addresses(said["getent"][1]) == ["10.77.0.6", "fd77::6"]
    assert addresses(said["getent of itself"][1]) == ["10.77.0.5", "fd77::5"]
    assert "two.web" in said["getent with the network"][1]
    assert said["getent of an address"][1].split() == ["10.77.0.6", "two"]


def test_glibc_finds_others(said):
    assert addresses(said["getent of another"][1]) == ["203.0.113.9"]
    assert len(addresses(said["getent of many"][1])) == 100  # by a connection
    assert said["getent of nobody"][:2] == [2, ""]


def test_busybox_finds_both(said):
    assert "Address: 10.77.0.6" in said["busybox"][1] and "Address: fd77::6" in said["busybox"][1]
    assert "Address: 203.0.113.9" in said["busybox of another"][1]
    assert "name = two" in said["busybox of an address"][1]


def test_python_finds_both(said):
    assert said["python"][1].strip() == "['10.77.0.6', 'fd77::6']"
    assert said["python of another"][1].strip() == "['2001:db8::9', '203.0.113.9']"


def test_only_others_are_asked_of_the_host(said):
    assert said["asked"][1] == "tcp:many.example udp:a.example udp:many.example"
    assert said["log"][1] == ""


def test_what_a_rule_allows_is_let_through_with_its_ports(said):
    assert addresses(said["two of another"][1]) == ["2001:db8::9", "203.0.113.9"] and "203.0.113.10" in said["two of one below"][1]
    sets = [words for words in said["rules"][1].split("set ") if "timeout" in words]
    by_address = {address: sum(address in words for words in sets) for address in ("203.0.113.9 ", "203.0.113.10 ", "2001:db8::9 ")}
    assert by_address == {"203.0.113.9 ": 2, "203.0.113.10 ": 1, "2001:db8::9 ": 2}  # two rules allow a.example, with ports of their own


def test_nothing_else_is_told_or_let_through(said):
    assert said["two of a private one"][1] == said["two of a stranger"][1] == ""
    assert addresses(said["two of a neighbour"][1]) == [
        "10.77.0.5",
        "fd77::5",
    ]  # one.corp, which is asked for first, is not
    assert "Name or service not known" in said["two of a stranger, told"][2]
    for address in ("169.254.169.254 timeout", "10.77.0.5 timeout", "203.0.113.66"):
        assert address not in said["rules"][1]
