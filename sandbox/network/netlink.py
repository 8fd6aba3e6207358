"""Requests to the kernel by netlink: many in one call, each with its answer, and each with the command that does the same in a shell.

pyroute2 opens a socket and waits for an answer for each request, and takes a quarter of a second to import: docs/decisions/150. Its tables
are the witness in the tests that ours say what they mean. netlink(7)
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence

from dockless.base.dataclass import dataclass
from dockless.errors import NetworkError

ROUTE, NETFILTER = 0, 12
REQUEST, ACK, ROOT_AND_MATCH, EXCL, CREATE, REPLACE, APPEND = 0x1, 0x4, 0x300, 0x200, 0x400, 0x100, 0x800
NESTED = 0x8000
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_SOL_NETLINK, _CAP_ACK, _EXT_ACK = 270, 10, 11
_SNDBUFFORCE = 32
"""SO_SNDBUFFORCE: beyond net.core.wmem_max, for root."""
_MESSAGE_TEXT = 1
"""NLMSGERR_ATTR_MSG: the kernel's own words about what it refused."""
_MOST = 1 << 20
_BUFFER = 4 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """``kind``, ``flags``: of the header, without REQUEST and ACK. ``body``: the fixed part and the attributes. ``command``: what does the
    same in a shell; empty where nothing does."""

    kind: int
    flags: int
    body: bytes
    command: str = ""


def attribute(kind: int, value: bytes | int | str) -> bytes:
    """One attribute: bytes as they are, a number as 32 bits of this machine, a text with its NUL."""
    if isinstance(value, int):
        value = value.to_bytes(4, "little" if _LITTLE else "big")
    elif isinstance(value, str):
        value = value.encode() + b"\0"
    size = 4 + len(value)
    return _ATTRIBUTE.pack(size, kind) + value + bytes(-size % 4)


_LITTLE = struct.pack("=H", 1) == b"\1\0"


def nested(kind: int, *attributes: bytes) -> bytes:
    """An attribute that has attributes."""
    return attribute(kind | NESTED, b"".join(attributes))


def attributes_of(raw: bytes, at: int = 0) -> dict[int, bytes]:
    """By their kind, without the flag of those that are nested; of several of one kind the last. What is torn ends it."""
    return dict(each_attribute(raw, at))


def each_attribute(raw: bytes, at: int = 0) -> Iterator[tuple[int, bytes]]:
    """All of them, in order."""
    while at + 4 <= len(raw):
        size, kind = _ATTRIBUTE.unpack_from(raw, at)
        if not 4 <= size <= len(raw) - at:
            return
        yield kind & 0x3FFF, raw[at + 4 : at + size]
        at += size + -size % 4


def prepare(opened: socket.socket) -> socket.socket:
    """One that was opened elsewhere, for ``carry_out`` and ``dump``."""
    opened.setsockopt(_SOL_NETLINK, _CAP_ACK, 1)  # answers without the request
    opened.setsockopt(_SOL_NETLINK, _EXT_ACK, 1)  # and with the kernel's words
    return opened


def carry_out(opened: socket.socket, requests: Sequence[Request], *, known: Sequence[int] = ()) -> None:
    """All of them in one call, one after the other; when one is refused the rest is still tried. ``known``: errors that are none, such as
    EEXIST. ``NetworkError`` of the first that was refused, with ``__cause__`` the ``OSError``."""
    _send(opened, [_message(request, number, ACK) for number, request in enumerate(requests, 1)])
    waiting, refused = len(requests), None
    while waiting:
        for kind, number, payload in _received(opened):
            if kind != _ERROR or not 1 <= number <= len(requests):
                continue
            waiting -= 1
            code = -struct.unpack_from("=i", payload)[0]
            if code and code not in known and refused is None:
                refused = refusal(requests[number - 1], code, payload)
    if refused is not None:
        raise refused


def carry_out_together(opened: socket.socket, requests: Sequence[Request]) -> None:
    """A transaction of nfnetlink: all of them or none. The first request begins it and the last ends it; neither is answered, unless
    nothing of it can be done. ``NetworkError`` of the first that was refused."""
    asked = len(requests) - 1  # answered last, and of the others only those that are refused: hundreds of answers would find no room
    _send(opened, [_message(request, number, ACK if number == asked else 0) for number, request in enumerate(requests, 1)])
    refused: NetworkError | None = None
    done = False
    try:
        while not done or refused is not None:
            for kind, number, payload in _received(opened, socket.MSG_DONTWAIT):  # the kernel answers before _send returns
                if kind != _ERROR or not 1 <= number <= len(requests):
                    continue
                done = done or number == asked
                code = -struct.unpack_from("=i", payload)[0]
                if code and refused is None:
                    refused = refusal(requests[number - 1], code, payload)
    except BlockingIOError:
        pass
    except OSError as error:
        refused = refused or refusal(requests[0], error.errno or errno.EIO)
    if refused is None and not done:
        refused = refusal(requests[0], errno.EIO)
    if refused is not None:
        raise refused


def ask(opened: socket.socket, requests: Sequence[Request]) -> list[bytes | None]:
    """Of each request for one thing the payload of its answer, None where the kernel has no such thing. ``OSError``"""
    _send(opened, [_message(request, number, 0) for number, request in enumerate(requests, 1)])
    found: dict[int, bytes | None] = {}
    while len(found) < len(requests):
        for kind, number, payload in _received(opened):
            code = -struct.unpack_from("=i", payload)[0] if kind == _ERROR else 0
            if code not in (0, errno.ENOENT):
                raise OSError(code, os.strerror(code))
            found[number] = None if code else payload
    return [found[number] for number in range(1, len(requests) + 1)]


def dump(opened: socket.socket, request: Request) -> list[bytes]:
    """What the kernel has of a kind: the payload of each answer. ``OSError``"""
    _send(opened, [_message(request, 1, ROOT_AND_MATCH)])
    found: list[bytes] = []
    while True:
        for kind, _, payload in _received(opened):
            if kind == _DONE:
                return found
            if kind == _ERROR:
                code = -struct.unpack_from("=i", payload)[0]
                raise OSError(code, os.strerror(code))
            found.append(payload)


def refusal(request: Request, code: int, payload: bytes = b"") -> NetworkError:
    """The error of a request that the kernel refused. ``payload``: its answer."""
    said = attributes_of(payload, 20).get(_MESSAGE_TEXT, b"").rstrip(b"\0").decode("utf-8", "replace")
    why = os.strerror(code) + (f" ({said})" if said else "")
    hint = "run it as root" if code in (errno.EPERM, errno.EACCES) else "dockless doctor checks what networks need"
    error = NetworkError(
        f"the kernel refused `{request.command or f'netlink request {request.kind}'}`: {why}", subject="network", hint=hint
    )
    error.__cause__ = OSError(code, os.strerror(code))
    return error


def _message(request: Request, number: int, flags: int) -> bytes:
    size = 16 + len(request.body)
    return _HEADER.pack(size, request.kind, request.flags | REQUEST | flags, number, 0) + request.body + bytes(-size % 4)


def _send(opened: socket.socket, messages: list[bytes]) -> None:
    whole = b"".join(messages)
    if len(whole) > 100_000:
        try:
            opened.setsockopt(socket.SOL_SOCKET, _SNDBUFFORCE, _BUFFER)
        except PermissionError:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    opened.sendto(whole, (0, 0))


def _received(opened: socket.socket, flags: int = 0) -> Iterator[tuple[int, int, bytes]]:
    raw, at = opened.recv(_MOST, flags), 0
    while at + 16 <= len(raw):
        size, kind, _, number, _ = _HEADER.unpack_from(raw, at)
        if size < 16:
            return
        yield kind, number, raw[at + 16 : at + size]
        at += size + -size % 4
