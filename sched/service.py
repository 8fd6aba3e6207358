"""The daemon as a service of systemd: its unit, and whether the host is going down.

The unit ends and replaces the daemon alone (``KillMode=process``). Jobs go on, and with them their keepers, which stay in the service's
control group; the jobs' own groups are apart, as ``cgroups.delegation`` says. It confines nothing: whatever holds for a service (mount
namespaces, system call filters, no_new_privs) its children inherit, and a sandbox could not be made any more.

systemd.service(5), systemd.kill(5), systemd.exec(5)
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping

from dockless.base import paths
from dockless.base.path import Path
from dockless.errors import SchedError, Unsupported

NAME = "dockless.service"
_KEPT = ("DOCKLESS_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
"""What decides where the daemon keeps things."""
_PATIENCE = 660.0
"""Seconds for one call of systemctl: a little more than the service has to start."""
_SCOPE_PATIENCE = 60.0
"""Seconds for the manager's answer: at boot everything starts at once."""

_UNIT = """\
[Unit]
Description=dockless: the queue of jobs
After=network.target remote-fs.target nss-user-lookup.target
StartLimitIntervalSec=0

[Service]
Type=notify
{environment}ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
# Only the daemon: running jobs and their keepers go on when it is stopped, started again or replaced.
KillMode=process
OOMPolicy=continue
Restart=on-failure
RestartSec=1
# It takes up what runs and what waits before it answers.
TimeoutStartSec=10min
{delegate}# Jobs inherit what they do not set themselves.
LimitNOFILE=65536:524288
TasksMax=infinity

[Install]
WantedBy={target}
"""


def unit(socket: Path | None = None) -> str:
    """The text of the unit, for the user who asks: this Python, the directories of this environment. ``socket``: as ``daemon --socket``."""
    root = os.geteuid() == 0
    command = [sys.executable, "-P", "-m", "dockless", "daemon", *(("--socket", os.path.abspath(socket)) if socket else ())]
    kept = ("DOCKLESS_HOME",) if root else _KEPT
    given = ((name, os.environ[name]) for name in kept if os.environ.get(name))
    return _UNIT.format(
        environment="".join(f"Environment={_quoted(f'{name}={value}')}\n" for name, value in given),
        command=" ".join(_quoted(word, command=True) for word in command),
        # A user's daemon leaves the service's group: leave_group.
        delegate="Delegate=yes\n" if root else "",
        target="multi-user.target" if root else "default.target",
    )


def place() -> Path:
    """Where the unit is written."""
    if os.geteuid() == 0:
        return Path("/etc/systemd/system") / NAME
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base and os.path.isabs(base) else paths.user_home() / ".config") / "systemd" / "user" / NAME


def install(socket: Path | None = None) -> Path:
    """Write the unit, have it started at each boot, and start it now, in the place of the one that runs by it. ``Unsupported`` without
    systemd, ``Unwritable``, ``SchedError`` if the service does not start."""
    _ask_manager()
    text, file = unit(socket), place()
    with paths.writing("the unit of the service", file):
        os.makedirs(file.parent, exist_ok=True)
        new = file.parent / f".{file.name}.{os.getpid()}"
        try:
            with open(new, "x") as writing:
                writing.write(text)
                writing.flush()
                os.fsync(writing.fileno())
            os.replace(new, file)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(new)
            raise
    _systemctl("daemon-reload")
    _systemctl("enable", NAME)
    _systemctl("restart", NAME, hint=f"{_journal()}; a daemon that was started by hand has to end first: dockless info names its process")
    return file


def uninstall() -> Path | None:
    """Stop the service and remove its unit; running jobs go on. The unit's path, None where there was none. Errors as ``install``."""
    file = place()
    if not os.path.lexists(file):
        return None
    _ask_manager()
    _systemctl("disable", "--now", NAME)
    with paths.writing("the unit of the service", file):
        os.unlink(file)
    _systemctl("daemon-reload")
    return file


def host_goes_down(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether systemd is stopping the whole host, asked by a service of it."""
    if "INVOCATION_ID" not in environment:
        return False
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(["systemctl", "is-system-running"], stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
        return said.stdout.strip() == b"stopping"
    return False


def leave_group() -> None:
    """Where this user's manager runs the daemon as a service: into a scope of its own, beside it. In a group that has passed controllers on
    to groups of jobs the manager could not start the service again. ``SchedError`` if it gives none: it may at the next start."""
    uid = os.geteuid()
    with open("/proc/self/cgroup") as file:
        own = next((line[3:].strip() for line in file if line.startswith("0::")), "")
    if uid == 0 or f"/user@{uid}.service/" not in own or not own.endswith(".service"):
        return
    from dockless.cgroups.systemd import request_scope

    if why := request_scope(_SCOPE_PATIENCE):
        hint = "the user's bus must run: on Debian and Ubuntu, install dbus-user-session"
        raise SchedError(f"the daemon gets no control group outside of its service: {why}", subject=NAME, hint=hint)


def _ask_manager() -> None:
    """``Unsupported`` where no systemd answers this user."""
    hint = "dockless daemon --install --print shows the unit; `dockless daemon` can be started by anything else, too"
    if os.geteuid() != 0:
        hint = "log in through a session with a systemd user manager (loginctl enable-linger keeps it), or start `dockless daemon` yourself"
    try:
        said = subprocess.run(
            ["systemctl", *_whose(), "show", "--property=Version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE
        )
    except FileNotFoundError:
        raise Unsupported("this host has no systemd", subject="systemctl", hint=hint) from None
    except subprocess.TimeoutExpired:
        raise Unsupported(f"systemd did not answer in {_PATIENCE:g} s", subject="systemctl", hint=hint) from None
    if said.returncode:
        raise Unsupported(f"systemd does not answer: {_last_line(said.stderr)}", subject="systemctl", hint=hint)


def _systemctl(*words: str, hint: str = "") -> None:
    try:
        said = subprocess.run(["systemctl", *_whose(), "--quiet", *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE)
        problem = _last_line(said.stderr) if said.returncode else ""
    except subprocess.TimeoutExpired:
        problem = f"no answer in {_PATIENCE:g} s"
    if problem:
        raise SchedError(f"systemctl {' '.join(words)}: {problem}", subject=NAME, hint=hint or _journal())


def _journal() -> str:
    return f"see journalctl {'--user ' if _whose() else ''}-u {NAME} -n 20"


def _whose() -> tuple[str, ...]:
    return () if os.geteuid() == 0 else ("--user",)


def _last_line(said: bytes) -> str:
    lines = said.decode(errors="backslashreplace").strip().splitlines()
    return next((line for line in lines if line.startswith(("Job for", "Failed", "Error"))), lines[-1] if lines else "no reason given")


def _quoted(word: str, *, command: bool = False) -> str:
    """One word of a unit file: systemd.syntax(7), and of a command line: systemd.service(5)."""
    if any(ord(letter) < 32 for letter in word):
        raise Unsupported("a path with control characters cannot stand in a unit", subject=word[:80], hint="use another path")
    word = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    if command:
        word = word.replace("$", "$$")
    return f'"{word}"' if word != "".join(word.split()) or "\\" in word or ";" in word or "'" in word else word
