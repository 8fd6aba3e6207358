"""A scope of the user's systemd, over a made-up bus: where the bus is, what is asked of the manager, and how long it is waited for. A real
bus: test_cgroup_systemd."""

from __future__ import annotations

import contextlib
import os
import sys
from types import SimpleNamespace

import pytest
from support.requires import requires

from dockless.cgroups import systemd


@pytest.mark.parametrize(
    ("given", "runtime", "there", "address"),
    [
        ("unix:path=/given", "/x", ["/x/bus"], "unix:path=/given"),
        (None, "/x", ["/x/bus", "/run/user/1000/bus"], "unix:path=/x/bus"),
        (None, "/x", ["/run/user/1000/bus"], "unix:path=/run/user/1000/bus"),
        (None, None, ["/run/user/1000/bus", "None/bus"], "unix:path=/run/user/1000/bus"),
        ("", "", ["/bus"], None),
        (None, "/x", [], None),
    ],
)
def test_where_the_users_bus_is(monkeypatch, given, runtime, there, address):
    monkeypatch.setattr(systemd.os, "geteuid", lambda: 1000)
    for name, value in (("DBUS_SESSION_BUS_ADDRESS", given), ("XDG_RUNTIME_DIR", runtime)):
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    with monkeypatch.context() as patch:
        patch.setattr(systemd.os.path, "exists", there.__contains__)
        found = systemd.bus_address()
    assert found == address


def test_a_name_that_no_other_scope_has(monkeypatch):
    monkeypatch.setattr(systemd.time, "monotonic_ns", lambda: 0x123_4567_89AB_CDEF)
    assert systemd.scope_name(7) == "dockless-7-89abcdef.scope"


@pytest.fixture
def asked(monkeypatch):
    """What ``request_scope`` asks whom; ``answer`` in it: what comes of it."""
    blocking = pytest.importorskip("jeepney.io.blocking")
    asked = SimpleNamespace(calls=[], answer=None)

    @contextlib.contextmanager
    def bus(address):
        asked.calls.append(address)
        yield "the connection"

    def ask(*how):
        asked.calls.append(how)
        if isinstance(asked.answer, Exception):
            raise asked.answer
        return asked.answer

    monkeypatch.setattr(blocking, "open_dbus_connection", bus)
    monkeypatch.setattr(systemd, "_ask", ask)
    monkeypatch.setattr(systemd, "bus_address", lambda: "the user's bus")
    return asked


def test_who_is_moved_and_by_whom(asked):
    assert systemd.request_scope() is None
    asked.answer = "in words"
    assert systemd.request_scope(2.5, "another bus", 7) == "in words"
    assert asked.calls == ["the user's bus", ("the connection", os.getpid(), 10.0), "another bus", ("the connection", 7, 2.5)]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TimeoutError(), "the systemd user manager did not answer in 10 s"),
        (OSError(2, "gone"), "the user bus cannot be used ([Errno 2] gone)"),
        (ValueError("odd"), "the user bus cannot be used (odd)"),
        (RuntimeError("odd"), "the user bus cannot be used (odd)"),
        (KeyError("odd"), "the user bus cannot be used (KeyError: 'odd')"),
    ],
)
def test_what_goes_wrong_is_said_in_words(asked, error, words):
    asked.answer = error
    assert systemd.request_scope() == words


def test_nobody_to_ask(asked, monkeypatch):
    monkeypatch.setitem(sys.modules, "jeepney.io.blocking", None)
    assert systemd.request_scope() == "the jeepney package is not installed"
    monkeypatch.setattr(systemd, "bus_address", lambda: None)
    assert systemd.request_scope() == "there is no user bus (no login session: try loginctl enable-linger, or machinectl shell)"
    assert asked.calls == []


class Bus:
    """A connection. Each question takes a second of ``clock``."""

    def __init__(self, answer, signals, clock):
        self.answer, self.signals, self.clock = answer, signals, clock
        self.asked, self.listening = [], False

    @contextlib.contextmanager
    def filter(self, rule, bufsize):
        assert bufsize >= 2
        self.rule, self.listening = rule, True
        yield "signals"
        self.listening = False

    def send_and_get_reply(self, message, timeout):
        from jeepney import HeaderFields

        assert self.listening
        fields = message.header.fields
        self.asked.append((fields[HeaderFields.destination], fields[HeaderFields.member], message.body, round(timeout, 3)))
        self.clock[0] += 1.0
        return self.answer

    def recv_until_filtered(self, signals, timeout):
        assert signals == "signals" and self.listening
        self.asked.append(round(timeout, 3))
        self.clock[0] += 1.0
        return SimpleNamespace(body=self.signals.pop(0))


@requires("module:jeepney")
@pytest.mark.parametrize(
    ("answer", "signals", "words"),
    [
        ("job", [(1, "/other", "x.scope", "failed"), (2, "/ours", "", "done")], None),
        ("job", [(2, "/ours", "", "failed")], "the scope {} could not be started (failed)"),
        ("error", ("not today",), "the systemd user manager refuses a scope (not today)"),
        ("error", (), "the systemd user manager refuses a scope (no reason given)"),
    ],
)
@pytest.mark.parametrize("patience", [10.0, 0.5])
def test_what_is_asked_of_the_manager(monkeypatch, answer, signals, words, patience):
    """It is listened to before it is asked; all of it together is waited for so long, and each answer a moment at least."""
    from jeepney import MessageType

    clock = [100.0]
    monkeypatch.setattr(systemd, "time", SimpleNamespace(monotonic=lambda: clock[0], monotonic_ns=lambda: 0xAB))
    kind = MessageType.error if answer == "error" else MessageType.method_return
    body = signals if answer == "error" else ("/ours",)
    bus = Bus(SimpleNamespace(header=SimpleNamespace(message_type=kind), body=body), list(signals), clock)
    name = "dockless-7-ab.scope"
    assert systemd._ask(bus, 7, patience) == (None if words is None else words.format(name))
    properties = [
        ("Description", ("s", "dockless sandboxes")), ("PIDs", ("au", [7])), ("Delegate", ("b", True)),
        ("CollectMode", ("s", "inactive-or-failed")),
    ]  # fmt: skip
    manager, match = "org.freedesktop.systemd1", "org.freedesktop.DBus"
    left = [max(0.1, patience - spent) for spent in range(1, 5)]
    assert [one[:2] if isinstance(one, tuple) else one for one in bus.asked] == [
        (match, "AddMatch"), (manager, "Subscribe"), (manager, "StartTransientUnit"),
        *([] if answer == "error" else left[2:][: len(signals)]),
    ]  # fmt: skip
    assert [one[3] for one in bus.asked[:3]] == [patience, *left[:2]]
    assert bus.asked[2][2] == (name, "fail", properties, []) and bus.asked[0][2] == (bus.rule.serialise(),)
    rule = "type='signal',interface='org.freedesktop.systemd1.Manager',member='JobRemoved',path='/org/freedesktop/systemd1'"
    assert sorted(bus.rule.serialise().split(",")) == sorted(rule.split(","))
