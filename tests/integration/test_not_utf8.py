"""Arguments, environment and paths are bytes: what is not UTF-8 goes the whole way like everything else, from the command line to the job
and back out."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.scheduling import DaemonProcess

from dockless.errors import BadInput
from dockless.sandbox.run import detached
from dockless.sandbox.spec import Bind, Spec
from dockless.sched import JobSpec, State

pytestmark = pytest.mark.requires("userns")

PRINTS = b'printf "<%s>" "$1" "$STRANGE"; cat /m/*'
STRANGE, VALUE = b"a\xffb", b"\xfe\xfd"


@pytest.fixture
def daemon(home: Path) -> Iterator[DaemonProcess]:
    daemon = DaemonProcess(home).start()
    yield daemon
    daemon.stop()


@pytest.fixture
def folder(tmp_path: Path) -> bytes:
    place = os.fsencode(tmp_path) + b"/with-\xff"
    os.mkdir(place, 0o755)
    with open(place + b"/f\xfe", "wb") as file:
        file.write(b"content")
    os.chmod(tmp_path, 0o755)
    return place


def cli(*words: str | bytes, code: int = 0) -> bytes:
    ran = subprocess.run([sys.executable, "-m", "dockless", *words], capture_output=True, timeout=60)
    assert ran.returncode == code, ran
    return ran.stdout


def command(folder: bytes) -> list[bytes]:
    return [b"-e", b"STRANGE=" + VALUE, b"-v", folder + b":/m:ro", b"host", b"--", b"sh", b"-c", PRINTS, b"sh", STRANGE]


EXPECTED = b"<" + STRANGE + b"><" + VALUE + b">content"


def test_run(folder):
    assert cli(b"run", *command(folder)) == EXPECTED


def test_submit_queue_wait_logs(daemon, folder):
    number = json.loads(cli("submit", "--json", *command(folder)))["id"]
    cli("wait", str(number))
    assert cli("logs", str(number)) == EXPECTED
    (row,) = json.loads(cli("queue", "--json", str(number)))
    assert row["state"] == "COMPLETED" and "a\\xffb" in row["command"]
    lines = [json.loads(line)["text"] for line in cli("logs", "--json", str(number)).splitlines()]
    assert "".join(lines).encode(errors="surrogateescape") == EXPECTED
    for shown in (cli("queue", str(number)), cli("queue", "--all")):
        assert b"COMPLETED" in shown and b"\xff" not in shown


def test_detached(folder):
    cli("run", "-d", "--name", "strange", *command(folder))
    cli("wait", "strange")
    assert cli("logs", "strange") == EXPECTED
    (row,) = json.loads(cli("ps", "-a", "--json"))
    assert row["command"][-1].encode(errors="surrogateescape") == STRANGE
    (about,) = json.loads(cli("inspect", "--json", "strange"))
    assert about["command"] == row["command"]
    assert b"strange" in cli("ps", "-a")
    box = detached.find("strange")
    assert box.spec.mounts[0].source.encode(errors="surrogateescape") == folder
    cli("rm", "strange")


def test_a_job_that_cannot_start_has_an_end(daemon):
    """Why it did not start names a path that no database takes as text."""
    job = JobSpec(Spec(argv=("true\udcff",), mounts=(Bind("/nowhere/\udcff", "/m"),)))
    with daemon.client() as queue:
        done = queue.wait(queue.submit(job), timeout=30)
    assert done.state is State.FAILED and "not started" in done.reason


def test_a_surrogate_that_stands_for_no_byte_starts_nothing(daemon):
    with daemon.client() as queue:
        for spec in ({"argv": ["\ud800"]}, {"argv": ["true"], "env": [["A", "\udc7f"]]}):
            with contextlib.suppress(BadInput):
                (number,) = queue._call("submit", jobs=[{"spec": spec}])["ids"]
                assert queue.wait(number, timeout=30).state is State.FAILED
