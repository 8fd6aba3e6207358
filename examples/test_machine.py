"""A pytest fixture: a machine for each test. The test may ruin it; the host never notices.

pytest examples/test_machine.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import dockless

INSTALLER = """#!/bin/sh
set -e
mkdir -p /opt/tool /etc/tool
echo "${GREETING:-hello}" > /etc/tool/greeting
printf '#!/bin/sh\\ncat /etc/tool/greeting\\n' > /usr/bin/tool
chmod 755 /usr/bin/tool
"""


@pytest.fixture
def machine() -> Iterator[dockless.Sandbox[bytes]]:
    with dockless.Sandbox("debian:12-slim", ["sleep", "infinity"], hostname="machine", timeout="5m") as box:
        yield box


@pytest.fixture
def installer(machine: dockless.Sandbox[bytes], tmp_path: Path) -> str:
    """Where the installer is, inside."""
    script = tmp_path / "install.sh"
    script.write_text(INSTALLER)
    script.chmod(0o755)
    machine.files.copy_in(script, "/root/install.sh")
    return "/root/install.sh"


def test_the_installer_makes_a_tool(machine: dockless.Sandbox[bytes], installer: str) -> None:
    machine.exec(installer, check=True)
    assert machine.exec("tool", text=True, check=True).stdout == "hello\n"
    assert machine.files.stat("/usr/bin/tool").mode == 0o755


@pytest.mark.parametrize("greeting", ["salut", "ol\xe1"])
def test_the_installer_takes_a_greeting(machine: dockless.Sandbox[bytes], installer: str, greeting: str) -> None:
    machine.exec(installer, env={"GREETING": greeting}, check=True)
    assert machine.files.read_text("/etc/tool/greeting") == f"{greeting}\n"


def test_the_installer_says_what_is_in_its_way(machine: dockless.Sandbox[bytes], installer: str) -> None:
    machine.files.write_text("/etc/tool", "a file of somebody else's")
    with pytest.raises(dockless.CheckFailed) as failed:
        machine.exec(installer, text=True, check=True)
    assert "/etc/tool" in failed.value.result.stderr


def test_every_machine_is_new(machine: dockless.Sandbox[bytes]) -> None:
    assert not machine.files.exists("/etc/tool")
    assert machine.exec("hostname", text=True).stdout == "machine\n"
