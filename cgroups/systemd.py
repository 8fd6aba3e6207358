"""A place of our own from the systemd user manager: a transient scope with ``Delegate=yes``.

A user's shell usually lives in a session scope that root owns, where she may make no groups. Her own manager (user@UID.service) has a
delegated subtree and gives parts of it away on request, by D-Bus::

    we                                             the user's systemd
     │  StartTransientUnit("dockless-PID-N.scope", PIDs=[us], Delegate=yes)   │
     │ ─────────────────────────────────────────────────────────────────────► │
     │                                         a job object path              │  makes the group, moves us in,
     │ ◄───────────────────────────────────────────────────────────────────── │  chowns it to the user
     │                    JobRemoved(that path, result "done")                │
     │ ◄───────────────────────────────────────────────────────────────────── │

The scope lives as long as a process is in it, so detached sandboxes survive the caller. systemd removes it afterwards.
org.freedesktop.systemd1(5); systemd.io/CGROUP_DELEGATION
"""

from __future__ import annotations

import os
import time

from dockless.base.typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jeepney.io.blocking import DBusConnection  # type: ignore[import-untyped]

_BUS, _PATH, _MANAGER = "org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"


def bus_address() -> str | None:
    """The user's bus, if there is one: from the environment, or where logind puts it."""
    given = os.environ.get("DBUS_SESSION_BUS_ADDRESS")
    if given:
        return given
    for base in (os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{os.geteuid()}"):
        if base and os.path.exists(f"{base}/bus"):
            return f"unix:path={base}/bus"
    return None


def request_scope(timeout: float = 10.0, address: str | None = None, pid: int | None = None) -> str | None:
    """Move ``pid`` (this process) into a new delegated scope. None when done, else what went wrong, in words. Raises nothing."""
    address = address or bus_address()
    if address is None:
        return "there is no user bus (no login session: try loginctl enable-linger, or machinectl shell)"
    try:
        from jeepney.io.blocking import open_dbus_connection
    except ImportError:
        return "the jeepney package is not installed"
    try:
        with open_dbus_connection(address) as connection:
            return _ask(connection, os.getpid() if pid is None else pid, timeout)
    except TimeoutError:
        return f"the systemd user manager did not answer in {timeout:g} s"
    except (OSError, ValueError, RuntimeError) as error:
        return f"the user bus cannot be used ({error})"
    except Exception as error:  # jeepney's own errors (authentication, routing) share no base class
        return f"the user bus cannot be used ({type(error).__name__}: {error})"


def scope_name(pid: int) -> str:
    """A name that no other scope has: one process may ask twice, and pids come again."""
    return f"dockless-{pid}-{time.monotonic_ns() & 0xFFFFFFFF:x}.scope"


def _ask(connection: DBusConnection, pid: int, timeout: float) -> str | None:
    from jeepney import DBusAddress, MatchRule, MessageType, new_method_call  # type: ignore[import-untyped]
    from jeepney.bus_messages import message_bus  # type: ignore[import-untyped]

    deadline = time.monotonic() + timeout
    manager = DBusAddress(_PATH, _BUS, _MANAGER)
    rule = MatchRule(type="signal", interface=_MANAGER, member="JobRemoved", path=_PATH)
    name = scope_name(pid)
    properties: list[tuple[str, tuple[str, Any]]] = [
        ("Description", ("s", "dockless sandboxes")),
        ("PIDs", ("au", [pid])),
        ("Delegate", ("b", True)),
        ("CollectMode", ("s", "inactive-or-failed")),
    ]
    start = new_method_call(manager, "StartTransientUnit", "ssa(sv)a(sa(sv))", (name, "fail", properties, []))
    with connection.filter(rule, bufsize=64) as signals:
        # Listen first: the job may be done before the answer to the request is read.
        connection.send_and_get_reply(message_bus.AddMatch(rule), timeout=timeout)
        # Without a subscriber the manager sends no signals at all.
        connection.send_and_get_reply(new_method_call(manager, "Subscribe"), timeout=max(0.1, deadline - time.monotonic()))
        reply = connection.send_and_get_reply(start, timeout=max(0.1, deadline - time.monotonic()))
        if reply.header.message_type is MessageType.error:
            return f"the systemd user manager refuses a scope ({reply.body[0] if reply.body else 'no reason given'})"
        job = reply.body[0]
        while True:
            # JobRemoved(u id, o job, s unit, s result)
            signal = connection.recv_until_filtered(signals, timeout=max(0.1, deadline - time.monotonic()))
            if signal.body[1] == job:
                return None if signal.body[3] == "done" else f"the scope {name} could not be started ({signal.body[3]})"
