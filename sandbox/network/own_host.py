"""The network namespace in which the networks of an ordinary user are, and the process that holds it: the holder.

::

    sandbox's keeper ── connection ──► holder ── the network namespace with the bridges, and the user namespace that it belongs to
                                         │        the leash of the pasta that leads out of it
                                         │        of each sandbox its network namespace, for those who join it
                                         └── the last connection has ended: it ends, and all of that with it

The holder is in none of these namespaces; it runs as the user and gives descriptors to processes of hers. A connection is held by a
sandbox's keeper, so that nobody has to say when a sandbox has ended. Who is connected has been given the descriptors, or the holder was
just ending and there is none.

A bind mount that shows the runtime directory inside a sandbox, even a read-only one, lets a program in there connect, too, and its root is
the user. So who connects sends a descriptor of the user namespace that it is in, and only that of the holder counts: it is not open
to who is in one below it, as at a sandbox's door (native/launcher/door.c). docs/decisions/158-user-networks-without-root.md
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
from collections.abc import Iterator

from dockless.base import paths
from dockless.base.dataclass import dataclass
from dockless.base.descriptors import peer, received
from dockless.base.path import Path
from dockless.base.typing import NoReturn
from dockless.errors import NetworkError
from dockless.sandbox.network.host import Host

SOCKET, LOCK = ".holder", ".holder.lock"
NULL_FD, LISTENING_FD, NETWORK_FD, USER_FD = 0, 3, 4, 5
_CODE = "import sys; sys.path += sys.argv[1:]\nfrom dockless.sandbox.network.own_host import main\nmain()"
_OUTSIDE, _HERE, _STRANGER = b"outside", b"here", b"stranger"
_MINE, _TOLD, _FIND, _KEEP, _FOUND, _NONE = b"mine %d", b"told", b"find %d", b"keep", b"found", b"none"
_OWN = "/proc/self/ns/user"
_ANSWERS_WITHIN = 10.0
"""Seconds."""
_MOST = 64
"""Bytes of a message."""


@dataclass(frozen=True, slots=True)
class OwnHost:
    """``host``: where her bridges are. ``connection``: by which the holder lives."""

    host: Host
    connection: socket.socket


def place() -> Path:
    """The directory with the holder's socket and the lock of those who start it."""
    return paths.runtime() / "networks"


def connected(opened: contextlib.ExitStack) -> OwnHost | None:
    """That of this user, closed with ``opened``; None while nobody holds one. ``NetworkError``"""
    try:
        return answered(connecting(opened), opened)
    except OSError:  # there is none, or it is ending
        return None


def connecting(opened: contextlib.ExitStack) -> socket.socket:
    """A connection that the holder may not have taken yet. ``OSError``; ``NetworkError`` where it is another user's."""
    client = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC))
    client.settimeout(_ANSWERS_WITHIN)
    with _reached() as path:
        client.connect(path)
    if peer(client) != os.geteuid():
        hint = "choose another DOCKLESS_HOME: another user has made this one"
        raise NetworkError("another user's process listens where this user's networks are held", subject=str(place()), hint=hint)
    return client


def answered(client: socket.socket, opened: contextlib.ExitStack) -> OwnHost:
    """What the holder gives. ``OSError`` where it is ending; ``NetworkError``"""
    try:
        own = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
        try:
            socket.send_fds(client, [_OUTSIDE], [own])
        finally:
            os.close(own)
        said, fds = received(client, _MOST, 3)
    except TimeoutError as error:
        hint = "it was stopped, or the host is busy: end the sandboxes that are on networks, and start them again"
        raise NetworkError("the process that holds this user's networks does not answer", subject="network", hint=hint) from error
    for fd in fds:
        opened.callback(os.close, fd)
    if said == _STRANGER:
        hint = "run dockless where her other sandboxes were started, or with another DOCKLESS_HOME"
        raise NetworkError("this user's networks are held by a process of another user namespace", subject="network", hint=hint)
    if said != _HERE or len(fds) != 3:
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
    return OwnHost(Host(*fds), client)


@contextlib.contextmanager
def looking() -> Iterator[Host]:
    """Where the bridges of the caller are: root's own network namespace, or a user's. While nobody holds that it is the one that she is
    in: no link there has the name of a lease."""
    if os.geteuid() == 0:
        yield Host()
        return
    with contextlib.ExitStack() as opened:
        found = connected(opened)
        yield found.host if found is not None else Host()


def tell(connection: socket.socket, inode: int, network: int, user: int) -> None:
    """Say which namespaces the sandbox has whose directory has that number, and whose keeper gets the connection. ``OSError``"""
    connection.settimeout(_ANSWERS_WITHIN)
    socket.send_fds(connection, [_MINE % inode], [network, user])
    if connection.recv(_MOST) != _TOLD:
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))


def find(connection: socket.socket, inode: int, opened: contextlib.ExitStack) -> tuple[int, int] | None:
    """What was told of a sandbox that lives, closed with ``opened``. ``OSError``"""
    connection.send(_FIND % inode)
    said, fds = received(connection, _MOST, 2)
    for fd in fds:
        opened.callback(os.close, fd)
    return (fds[0], fds[1]) if said == _FOUND and len(fds) == 2 else None


def keep(connection: socket.socket, leash: int) -> None:
    """Have the holder keep a descriptor until it ends. ``OSError``"""
    socket.send_fds(connection, [_KEEP], [leash])


def bound() -> socket.socket:
    """The socket of a new holder; the caller holds the lock, and nobody listens on an earlier one. ``OSError``"""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        with _reached() as path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            listening.bind(path)
        listening.listen(128)
    except BaseException:
        listening.close()
        raise
    return listening


@contextlib.contextmanager
def _reached() -> Iterator[str]:
    """The socket's path, short enough for unix(7) wherever it is."""
    fd = os.open(place(), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET}"
    finally:
        os.close(fd)


# ---- the holder ------------------------------------------------------------------------------------------------------------------------


class _Client:
    """``outside``: whether it has proved to be in no sandbox. ``inode``: of the directory of the sandbox whose namespaces ``fds`` are."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.outside, self.inode, self.fds = connection, False, 0, list[int]()

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.connection.close()


class Holder:
    """``given``: what each who is connected gets."""

    def __init__(self, listening: socket.socket, given: list[int]) -> None:
        self._listening, self._given = listening, given
        self._clients: dict[int, _Client] = {}
        self._kept: list[int] = []
        self._polled = select.poll()
        self._polled.register(listening, select.POLLIN)
        self._own = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
        listening.setblocking(False)

    def run(self) -> None:
        """Until nobody is connected."""
        while True:
            while self._accept():
                pass
            if not self._clients:
                return
            for fd, _ in self._polled.poll():
                if fd in self._clients and not self._message(self._clients[fd]):
                    self._polled.unregister(fd)
                    self._clients.pop(fd).close()

    def _accept(self) -> bool:
        """Whether somebody has come."""
        try:
            connection, _ = self._listening.accept()
        except OSError:  # nobody, or who is gone again
            return False
        connection.setblocking(False)
        if peer(connection) != os.getuid():
            connection.close()
            return True
        self._clients[connection.fileno()] = _Client(connection)
        self._polled.register(connection, select.POLLIN)
        return True

    def _message(self, client: _Client) -> bool:
        """Whether it goes on."""
        try:
            said, fds = received(client.connection, _MOST, 2)
        except BlockingIOError:
            return True
        except OSError:
            return False
        word, _, number = said.partition(b" ")
        if not client.outside:
            client.outside = word == _OUTSIDE and len(fds) == 1 and os.path.sameopenfile(fds[0], self._own)
            for fd in fds:
                os.close(fd)
            if client.outside:
                return self._say(client, _HERE, self._given)
            self._say(client, _STRANGER, [])
            return False
        if word == b"keep":
            self._kept += fds
            return True
        if word == b"mine" and number.isdigit() and len(fds) == 2 and not client.fds:
            client.inode, client.fds = int(number), fds
            return self._say(client, _TOLD, [])
        for fd in fds:
            os.close(fd)
        return word == b"find" and number.isdigit() and self._answer(client, int(number))

    def _answer(self, client: _Client, inode: int) -> bool:
        found = next((one for one in self._clients.values() if one.fds and one.inode == inode), None)
        return self._say(client, _FOUND, found.fds) if found is not None else self._say(client, _NONE, [])

    def _say(self, client: _Client, said: bytes, fds: list[int]) -> bool:
        try:
            socket.send_fds(client.connection, [said], fds)
        except OSError:
            return False
        return True


def command(python: str) -> list[str]:
    """What the holder is started with. It imports what is beside this package and the standard library alone."""
    ours = __import__("dockless").__path__[0]
    return [python, "-I", "-S", "-c", _CODE, os.path.dirname(os.path.abspath(ours))]


def main() -> NoReturn:
    """What the holder does."""
    import resource

    os.chdir("/")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    reader, _ = os.pipe2(os.O_CLOEXEC)  # its other end is ours alone: whoever has this one sees that we are gone
    listening = socket.socket(fileno=LISTENING_FD)
    Holder(listening, [NETWORK_FD, USER_FD, reader]).run()
    listening.close()  # who came at the last moment is told so, and starts another one
    os._exit(0)
