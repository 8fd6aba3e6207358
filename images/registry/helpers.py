"""docker-credential-*: other people's programs that keep secrets, run with little and for a short time.

The program is found by PATH (absolute directories only) before it is started, gets an environment of a few names that keyrings and clouds'
helpers need, ``/`` as its directory, and 30 seconds. The protocol: ``get``, ``store`` or ``erase`` as the argument, JSON or a server's name
on stdin, JSON on stdout.

https://github.com/docker/docker-credential-helpers
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping

from dockless.base import json, signal
from dockless.base.later import re
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import RegistryError
from dockless.images.registry.errors import printable

if TYPE_CHECKING:
    import subprocess

TIMEOUT = 30.0
OUTPUT_MAX = 64 << 10
INPUT_MAX = 32 << 10
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z"
_PASSED = (
    r"(PATH|HOME|USER|LOGNAME|LANG|LC_\w+|TERM|DISPLAY|WAYLAND_DISPLAY|XAUTHORITY|DBUS_SESSION_BUS_ADDRESS|XDG_\w+|GNUPGHOME|GPG_TTY"
    r"|PASSWORD_STORE_\w+|DOCKER_CONFIG|AWS_\w+|AZURE_\w+|GOOGLE_\w+|CLOUDSDK_\w+|SSL_CERT_\w+|https?_proxy|HTTPS?_PROXY|no_proxy|NO_PROXY)\Z"
)
_ABSENT = ("credentials not found", "no credentials", "not found in native keychain")


def get(name: str, server: str, env: Mapping[str, str]) -> tuple[str, str] | None:
    """(user name, secret) that the helper has for ``server``, None for none."""
    code, output = _run(name, "get", server.encode(), env)
    text = output.decode(errors="replace")
    if code != 0:
        if any(words in text.lower() for words in _ABSENT):
            return None
        raise _failed(name, f"exit code {code}: {printable(text, 200)}")
    try:
        document = json.loads(output)
        username, secret = document["Username"], document["Secret"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _failed(name, "its answer holds no Username and Secret") from None
    if not isinstance(username, str) or not isinstance(secret, str):
        raise _failed(name, "its answer holds no Username and Secret")
    return (username, secret) if username or secret else None


def store(name: str, server: str, username: str, secret: str, env: Mapping[str, str]) -> None:
    document = {"ServerURL": server, "Username": username, "Secret": secret}
    code, output = _run(name, "store", json.dumps(document).encode(), env)
    if code != 0:
        raise _failed(name, f"exit code {code}: {printable(output.decode(errors='replace'), 200)}")


def erase(name: str, server: str, env: Mapping[str, str]) -> bool:
    """Was there something to erase?"""
    code, output = _run(name, "erase", server.encode(), env)
    if code != 0 and not any(words in output.decode(errors="replace").lower() for words in _ABSENT):
        raise _failed(name, f"exit code {code}: {printable(output.decode(errors='replace'), 200)}")
    return code == 0


def find(name: str, env: Mapping[str, str]) -> str:
    """The absolute path of a helper's program."""
    import shutil

    program = f"docker-credential-{name}"
    if not re.match(_NAME, name):
        raise _failed(printable(name, 80), "this is no name of a helper")
    # Never a program of the working directory: an empty or relative entry of PATH would be one.
    path = os.pathsep.join(part for part in env.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(part))
    found = shutil.which(program, path=path)
    if found is None:
        raise _failed(name, "there is no such program", f"install {program}, or take the helper out of the configuration")
    return found


def _run(name: str, verb: str, data: bytes, env: Mapping[str, str]) -> tuple[int, bytes]:
    """(exit code, stdout). Too much or too late, and the whole process group is killed."""
    import subprocess

    program = find(name, env)
    if len(data) > INPUT_MAX:
        raise _failed(name, f"more than {INPUT_MAX} bytes to tell it")
    try:
        child = subprocess.Popen(
            [program, verb],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={key: value for key, value in env.items() if re.match(_PASSED, key)},
            cwd="/",
            start_new_session=True,
            bufsize=0,
        )
    except OSError as error:
        raise _failed(name, error.strerror or str(error)) from None
    with child:
        try:
            end = time.monotonic() + TIMEOUT
            output = _talk(name, child, data, end)
            return child.wait(max(0.0, end - time.monotonic())), output
        except BaseException as error:
            # Not after a success: an agent that a helper started (gpg's) may stay.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise _late(name) from None
            raise


def _talk(name: str, child: subprocess.Popen[bytes], data: bytes, end: float) -> bytes:
    """Say ``data`` and hear all that comes until the writer closes, within the bounds. Neither side can make the other wait for ever."""
    import select

    assert child.stdin is not None and child.stdout is not None
    say, hear = child.stdin.fileno(), child.stdout.fileno()
    os.set_blocking(say, False)
    output, left = b"", memoryview(data)
    poll = select.poll()
    poll.register(hear, select.POLLIN)
    poll.register(say, select.POLLOUT)
    while True:
        ready = dict(poll.poll(max(0.0, end - time.monotonic()) * 1000))
        if not ready:
            raise _late(name)
        if say in ready:
            try:
                left = left[os.write(say, left) :] if left else left
            except BrokenPipeError:  # it may know the answer without the question
                left = left[:0]
            if not left:
                poll.unregister(say)
                child.stdin.close()
        if hear in ready:
            piece = os.read(hear, OUTPUT_MAX)
            output += piece
            if not piece:
                return output
            if len(output) > OUTPUT_MAX:
                raise _failed(name, f"it answers with more than {OUTPUT_MAX} bytes")


def _late(name: str) -> RegistryError:
    return _failed(name, f"no answer within {TIMEOUT:.0f} s")


def _failed(name: str, why: str, hint: str = "try the helper by hand: docker-credential-NAME get") -> RegistryError:
    return RegistryError(f"docker-credential-{name}: {why}", subject=name, hint=hint)
