"""No wait for a registry is without end: deadlines that hold for all that a thread does with sockets, whatever library does it.

::

    with within(120.0, "the head of the answer", most=256 << 10):
        ...                                 every socket of ours in here gives up in time, with ``TooSlow``

Deadlines nest: a read has its own, the document that it belongs to has one for all its reads, tries and redirects, and the first that is
over counts. The sockets (``Timed``, below plain and TLS connections alike) look at the deadlines before each wait, so a server that keeps
a connection alive, one byte at a time, in heads, ``100 Continue``, chunk extensions or trailers, gains nothing. The time that sending
takes is added to the deadlines: it depends on what is sent, so a lowest rate holds for it instead (``Rate``).
"""

from __future__ import annotations

import _socket
import _thread
import contextlib
import math
import time
from collections.abc import Iterator

from dockless.base.typing import TYPE_CHECKING, Any

RESOLVING = 30.0
"""Seconds for a name, where no deadline is nearer."""
SLOWEST = 1024
"""Bytes per second, below which a transfer counts as stalled."""


class TooSlow(Exception):
    """A wait was given up. The message says which step it was. Not an ``OSError``, so that no library takes it for something else."""


class _Deadline:
    __slots__ = ("end", "left", "most", "seconds", "step")

    def __init__(self, seconds: float, step: str, most: float) -> None:
        self.seconds, self.step, self.most = seconds, step, most
        self.end = time.monotonic() + seconds
        self.left = most


class _Thread(_thread._local):
    def __init__(self) -> None:
        self.deadlines: list[_Deadline] = []


_mine = _Thread()


@contextlib.contextmanager
def within(seconds: float, step: str, *, most: float = math.inf) -> Iterator[None]:
    """Give all waits of this thread in the block ``seconds`` together, and all bytes received in it ``most``. ``step`` is for errors."""
    deadlines = _mine.deadlines
    deadlines.append(_Deadline(seconds, step, most))
    try:
        yield
    finally:
        deadlines.pop()


def remaining() -> float:
    """Seconds until the first deadline, infinite where there is none."""
    return min((one.end for one in _mine.deadlines), default=math.inf) - time.monotonic()


def check() -> None:
    """``TooSlow`` where a deadline is over."""
    now = time.monotonic()
    for one in _mine.deadlines:
        if now >= one.end:
            last = _mine.deadlines[-1]
            where = "" if last.step == one.step else f" (last: {last.step})"
            raise TooSlow(f"{one.step} is not complete after {one.seconds:g} s{where}")


def look_up(host: str, port: int | None) -> list[Any]:
    """getaddrinfo(3), for TCP, in the time that is left: ``TooSlow``.

    Nothing interrupts it, so a name is asked for in a thread of its own. Where there is no answer, that is left behind until the resolver
    gives up by itself: resolv.conf(5), ``timeout`` and ``attempts``."""
    answer: list[Any] = []

    def ask() -> None:
        try:
            # As bytes: for a text, Python imports the encoding of names that are not ASCII.
            answer.append(_socket.getaddrinfo(host.encode() if host.isascii() else host, port, type=_socket.SOCK_STREAM))
        except Exception as error:
            answer.append(error)

    check()
    if _is_address(host):
        return list(_socket.getaddrinfo(host.encode(), port, type=_socket.SOCK_STREAM))
    seconds = min(RESOLVING, remaining())
    import threading

    thread = threading.Thread(target=ask, name="dockless-resolve", daemon=True)
    thread.start()
    thread.join(max(0.0, seconds))
    if not answer:
        raise TooSlow(f"the resolver has not answered for {host} within {seconds:.3g} s")
    if isinstance(answer[0], Exception):
        raise answer[0]
    return list(answer[0])


def _is_address(host: str) -> bool:
    """Whether no resolver needs to be asked."""
    for family in (_socket.AF_INET, _socket.AF_INET6):
        with contextlib.suppress(OSError, UnicodeError, ValueError):
            _socket.inet_pton(family, host)
            return True
    return False


class Rate:
    """Progress that is slower than ``SLOWEST`` ends with ``TooSlow``. Only the time spent waiting counts."""

    def __init__(self, window: float, step: str) -> None:
        self._window, self._step = window, step
        self._seconds, self._count = 0.0, 0

    def moved(self, count: int, seconds: float) -> None:
        """``count`` bytes took ``seconds``."""
        self._seconds += seconds
        self._count += count
        if self._seconds >= self._window:
            if self._count < SLOWEST * self._seconds:
                raise TooSlow(f"{self._step} is too slow: {self._count} bytes in {self._seconds:.3g} s")
            self._seconds, self._count = 0.0, 0


if TYPE_CHECKING:
    _Socket = _socket.socket
else:
    _Socket = object


class Timed(_Socket):
    """What a socket class needs so that its waits keep the thread's deadlines. ``idle``: seconds that a single wait may take."""

    idle = 60.0
    sending: Rate | None = None

    def connect(self, address: Any) -> None:
        with self._waiting(self.idle, f"no connection within {self.idle:g} s"):
            super().connect(address)

    def do_handshake(self, block: bool = False) -> None:
        """The TLS handshake, in the time that connecting may take."""
        try:
            with self._waiting(self.gettimeout(), "the TLS handshake is not complete in time"):
                super().do_handshake(block)  # type: ignore[misc]
        except TooSlow:
            self.close()
            raise

    def recv(self, *args: Any, **options: Any) -> bytes:
        with self._waiting(self.idle, self._no_byte()):
            data = super().recv(*args, **options)
        _received(len(data))
        return data

    def recv_into(self, *args: Any, **options: Any) -> int:
        with self._waiting(self.idle, self._no_byte()):
            count = super().recv_into(*args, **options)
        _received(count)
        return count

    def sendall(self, data: Any, flags: int = 0) -> None:
        rate = self.sending = self.sending or Rate(self.idle, "the request")
        with memoryview(data) as view, view.cast("B") as left:
            at = 0
            while at < len(left):
                since = time.monotonic()
                with self._waiting(self.idle, f"the request has stalled: no byte of it was taken for {self.idle:g} s"):
                    count = super().send(left[at:], flags)
                passed = time.monotonic() - since
                for one in _mine.deadlines:
                    one.end += passed
                rate.moved(count, passed)
                at += count

    @contextlib.contextmanager
    def _waiting(self, seconds: float | None, late: str) -> Iterator[None]:
        """One wait, of ``seconds`` at most and within the thread's deadlines. ``TooSlow``: says which of these is over, or ``late``."""
        check()
        left = min(remaining(), math.inf if seconds is None else seconds)
        self.settimeout(max(0.001, left) if left < math.inf else None)
        try:
            yield
        except TimeoutError:
            check()
            raise TooSlow(late) from None

    def _no_byte(self) -> str:
        step = _mine.deadlines[-1].step if _mine.deadlines else "the transfer"
        return f"{step} has stalled: no byte came for {self.idle:g} s"


def _received(count: int) -> None:
    for one in _mine.deadlines:
        one.left -= count
        if one.left < 0:
            raise TooSlow(f"{one.step} is larger than {one.most:.0f} bytes")


class TimedSocket(Timed, _socket.socket):
    """A plain socket that keeps the thread's deadlines."""
