"""Asking a user manager for a scope, over a real socket in the real protocol, with a small stand-in for systemd at the other end.

The stand-in does what systemd does for StartTransientUnit: it makes the group, moves the process in and signals the job's end. A test
against the real one runs where there is one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.requires import cgroup2_mount, requires

from dockless.cgroups import systemd

pytestmark = requires("module:jeepney")

MANAGER = "org.freedesktop.systemd1.Manager"
OnStart = Callable[[str, dict[str, object]], str]


class UserManager(threading.Thread):
    """One connection: authenticate, then answer Hello, AddMatch, Subscribe and StartTransientUnit. ``asked`` records what was asked."""

    def __init__(self, place: Path, on_start: OnStart, *, refuse: bool = False, silent: bool = False) -> None:
        super().__init__(daemon=True)
        self.address = f"unix:path={place}/bus"
        self.asked: list[str] = []
        self.name, self.on_start, self.refuse, self.silent = "manager", on_start, refuse, silent
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(f"{place}/bus")
        self.socket.listen(1)
        self.socket.settimeout(20)

    def run(self) -> None:
        with contextlib.suppress(OSError), self.socket.accept()[0] as connection:
            connection.settimeout(20)
            self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        from jeepney import DBusAddress, Parser, new_error, new_method_return, new_signal

        data = b""
        while not data.endswith(b"BEGIN\r\n"):
            data += (chunk := connection.recv(1))
            if not chunk:
                return
            if data.endswith(b"\r\n") and not data.endswith(b"BEGIN\r\n"):
                line = data.split(b"\r\n")[-2]
                if line.startswith((b"\0AUTH", b"AUTH")):
                    connection.sendall(b"OK 0123456789abcdef0123456789abcdef\r\n")
                elif line.startswith(b"NEGOTIATE_UNIX_FD"):
                    connection.sendall(b"AGREE_UNIX_FD\r\n")
        parser, serial = Parser(), 0

        def send(message: object) -> None:
            nonlocal serial
            serial += 1
            connection.sendall(message.serialise(serial=serial))

        while chunk := connection.recv(65536):
            parser.add_data(chunk)
            while (message := parser.get_next_message()) is not None:
                from jeepney import HeaderFields

                member = message.header.fields[HeaderFields.member]
                self.asked.append(member)
                if member == "Hello":
                    send(new_method_return(message, "s", (":1.7",)))
                elif member != "StartTransientUnit":
                    send(new_method_return(message))
                elif self.refuse:
                    send(new_error(message, "org.freedesktop.DBus.Error.AccessDenied", "s", ("not today",)))
                elif not self.silent:
                    name, mode, properties, _ = message.body
                    assert mode == "fail"
                    emitter = DBusAddress("/org/freedesktop/systemd1", interface=MANAGER)
                    result = self.on_start(name, {key: value for key, (_, value) in properties})
                    # another unit's job first: it must not be taken for ours; and ours before the answer
                    send(new_signal(emitter, "JobRemoved", "uoss", (1, "/org/freedesktop/systemd1/job/1", "other.scope", "failed")))
                    send(new_signal(emitter, "JobRemoved", "uoss", (2, "/org/freedesktop/systemd1/job/2", name, result)))
                    send(new_method_return(message, "o", ("/org/freedesktop/systemd1/job/2",)))


@pytest.fixture
def manager() -> Iterator[Callable[..., UserManager]]:
    made: list[UserManager] = []
    place = Path(tempfile.mkdtemp())  # not tmp_path: another user must reach the socket
    place.chmod(0o755)

    def make(on_start: OnStart = lambda name, properties: "done", **more: bool) -> UserManager:
        made.append(UserManager(place, on_start, **more))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.socket.close()
        one.join(5)
    shutil.rmtree(place)


def test_a_scope_is_asked_for(manager):
    seen: list[tuple[str, dict[str, object]]] = []
    stand_in = manager(lambda name, properties: seen.append((name, properties)) or "done")
    assert systemd.request_scope(5, stand_in.address, pid=4242) is None
    (name, properties) = seen[0]
    assert name.startswith("dockless-4242-") and name.endswith(".scope")
    assert properties["Delegate"] is True and properties["PIDs"] == [4242]
    assert stand_in.asked == ["Hello", "AddMatch", "Subscribe", "StartTransientUnit"]


def test_refusals_become_words(manager):
    assert "not today" in str(systemd.request_scope(5, manager(refuse=True).address))


def test_a_failed_job_becomes_words(manager):
    assert "could not be started (failed)" in str(systemd.request_scope(5, manager(lambda *_: "failed").address))


def test_a_silent_manager_is_not_waited_for_long(manager):
    assert "did not answer" in str(systemd.request_scope(0.2, manager(silent=True).address))


def test_no_bus(monkeypatch, tmp_path):
    assert "cannot be used" in str(systemd.request_scope(1, f"unix:path={tmp_path}/none"))
    assert "cannot be used" in str(systemd.request_scope(1, "nonsense"))
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(systemd.os, "geteuid", lambda: 987654)
    assert "no user bus" in str(systemd.request_scope(1))


CALLER = """
import os, sys
import jeepney.io.blocking, jeepney.bus_messages   # while the interpreter's files can still be read
from dockless.cgroups import Cgroup, Limits, find_delegation, systemd
os.setgroups([]); os.setgid(12345); os.setuid(12345)
place = find_delegation()
assert place.kind == "systemd", place
print(place.path)
limits = Limits.parse(memory="64M") if "memory" in place.controllers else Limits()
with Cgroup.create("job", limits) as group:
    if limits:
        print("memory.max", open(group.path / "memory.max").read().strip())
    pid = os.fork()
    if pid == 0:
        group.add(0)
        os.execvp("sleep", ["sleep", "1000"])
    with group.events() as watch:
        while not watch.state()["populated"]:
            watch.wait(5)
    group.freeze(); group.thaw()
    group.kill()
    os.waitpid(pid, 0)
assert find_delegation(fresh=True).path == place.path   # the scope is known again, and no other is asked for
print("done")
"""


@requires("root", "cgroup2")
def test_a_user_works_in_her_scope(manager):
    """The whole way: an ordinary user's process asks, is moved, makes, freezes, kills and removes a group in the scope."""
    mount = cgroup2_mount()
    assert mount is not None
    outer = mount / f"dockless-test-{os.getpid()}"
    outer.mkdir()
    limited = "memory" in (mount / "cgroup.controllers").read_text().split()
    for directory in (mount, outer) if limited else ():
        (directory / "cgroup.subtree_control").write_text("+memory +pids")
    made: list[Path] = []

    def on_start(name: str, properties: dict[str, object]) -> str:
        place = outer / name
        place.mkdir()
        made.append(place)
        (place / "cgroup.procs").write_text(str(properties["PIDs"][0]))
        for path in (place, *(place / f"cgroup.{file}" for file in ("procs", "threads", "subtree_control"))):
            os.chown(path, 12345, 12345)
        return "done"

    stand_in = manager(on_start)
    os.chmod(stand_in.address.removeprefix("unix:path="), 0o666)
    env = {**os.environ, "DBUS_SESSION_BUS_ADDRESS": stand_in.address, "PYTHONPATH": ":".join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run([sys.executable, "-c", CALLER], env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [str(made[0]), *(["memory.max 67108864"] if limited else []), "done"]
        assert stand_in.asked.count("StartTransientUnit") == 1
    finally:
        for root, _, _ in os.walk(outer, topdown=False):
            os.rmdir(root)


@requires("systemd-user")
def test_the_real_manager():
    code = "from dockless.cgroups import find_delegation, Cgroup\np = find_delegation()\nassert p.kind == 'systemd', p\n"
    code += "Cgroup.create('t').remove()"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
