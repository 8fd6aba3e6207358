"""What comes back of a call: read without a thread, bounded, and never trusted. It is JSON of untrusted code: nothing but numbers, texts,
bytes and containers is made of it."""

from __future__ import annotations

import json
import math
import os
import select
import time
from collections.abc import Mapping

from dockless.base.dataclass import dataclass
from dockless.base.interrupts import waiting
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.errors import BadAnswer

if TYPE_CHECKING:
    from socket import socket

_CHUNK = 1 << 16
_STATUS = 4096
_HEADER = 8
_MOST_AT_ONCE = 1 << 10


@dataclass(frozen=True, slots=True)
class Said:
    """All of it. ``outcome``: what the call's process answered, None for nothing. ``status``: what the zygote says of its end, None where
    the zygote has ended; empty where it was not asked. ``late``: it was given up."""

    outcome: Mapping[str, Any] | None
    status: Mapping[str, Any] | None
    stdout: bytes
    stderr: bytes
    late: bool = False


class Conversation:
    """A request to a call's process, and what comes of it. ``limit``: bytes of an answer; ``most``: of each of its two streams, the rest is
    read and dropped. The descriptors are the caller's."""

    def __init__(self, channel: socket, status: int, output: tuple[int, int], request: bytes, *, limit: int, most: int) -> None:
        self._channel, self._status, self._output = channel.fileno(), status, output
        self._unsent = memoryview(len(request).to_bytes(_HEADER, "big") + request)
        self._limit, self._most = limit, most
        self._came = {fd: bytearray() for fd in (self._channel, status, *output)}
        self._open = {*self._came}
        for fd in self._came:
            os.set_blocking(fd, False)

    def run(self, timeout: float) -> Said:
        """Until it has answered, or has ended, or the time is up; seconds, ``math.inf`` for ever."""
        deadline = time.monotonic() + timeout
        poller = select.poll()
        for fd in self._came:
            poller.register(fd, select.POLLIN | (select.POLLOUT if fd == self._channel else 0))
        while not self._whole and self._status in self._open:
            left = deadline - time.monotonic()
            if left <= 0:
                return self._said(late=True)
            with waiting():
                ready = poller.poll(None if left == math.inf else math.ceil(left * 1000))
            for fd, events in ready:
                if fd == self._channel and self._unsent and events & (select.POLLOUT | select.POLLERR | select.POLLHUP):
                    self._send()
                if fd == self._channel and not self._unsent:
                    poller.modify(fd, select.POLLIN)
                if events & ~select.POLLOUT and not self._read(fd) and fd not in self._open:
                    poller.unregister(fd)
        for fd in (self._channel, *self._output):  # what is there by now, and no more: others inside may write for ever
            for _ in range(_MOST_AT_ONCE):
                if not self._read(fd):
                    break
        return self._said()

    @property
    def _wanted(self) -> int:
        """Bytes of the whole answer with its header, as far as that is known."""
        came = self._came[self._channel]
        return _HEADER + int.from_bytes(came[:_HEADER], "big") if len(came) >= _HEADER else _HEADER

    @property
    def _whole(self) -> bool:
        return len(self._came[self._channel]) >= self._wanted > _HEADER

    def _send(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._channel, self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:  # it has ended
            self._unsent = memoryview(b"")

    def _read(self, fd: int) -> bool:
        """Whether more may come."""
        if fd not in self._open:
            return False
        try:
            part = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            part = b""
        if not part:
            self._open.discard(fd)
            return False
        came = self._came[fd]
        if fd == self._channel:
            came += part
            if self._wanted > self._limit + _HEADER or len(came) > self._wanted > _HEADER:
                raise _nonsense("more than was asked for")
        else:
            came += part[: max(0, (_STATUS if fd == self._status else self._most) - len(came))]
        return True

    def _said(self, *, late: bool = False) -> Said:
        outcome = _object(self._came[self._channel][_HEADER:]) if self._whole else None
        said = self._came[self._status]
        status = _object(said) if said else None if self._status not in self._open else {}
        out, err = (bytes(self._came[fd]) for fd in self._output)
        return Said(outcome, status, out, err, late)


def _object(raw: bytes | bytearray) -> Mapping[str, Any]:
    try:
        found = json.loads(raw, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise _nonsense("no JSON") from None
    if not isinstance(found, dict):
        raise _nonsense("no object")
    return found


def _no_number(name: str) -> float:
    raise ValueError(name)


def value_of(outcome: Mapping[str, Any]) -> object:
    """The value of a call that has returned. ``BadAnswer``"""
    from dockless.sandbox.zygote.values import decode

    try:
        return decode(outcome["value"])
    except (ValueError, OverflowError, RecursionError) as error:
        raise _nonsense(str(error)) from None


def texts(record: object, *names: str) -> list[str]:
    """The texts of these names in what is said of an exception. ``BadAnswer``"""
    if not isinstance(record, dict) or not all(isinstance(record.get(name), str) for name in names):
        raise _nonsense("no record of an exception")
    return [record[name] for name in names]


def names(listed: object) -> str:
    """For an error's message. ``BadAnswer``"""
    if not isinstance(listed, list):
        raise _nonsense("no list")
    return ", ".join(map(str, listed[:20]))[:300]


def _nonsense(what: str) -> BadAnswer:
    return BadAnswer(f"the answer of a call makes no sense: {what}", subject="call", hint="its code has written to the zygote's socket")
