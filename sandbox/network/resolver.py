"""The resolver of a network: one small process, which is there as long as sandboxes are. docs/decisions/152-names-on-networks.md

::

    who starts a sandbox               resolver
     │ lock resolver.lock; held: done
     │ bind port 53 of the gateways
     │ start ──────────────────────────►│ has the lock, the sockets and nothing else of ours
     │ go on: questions wait in         │ answer them: name_server.py
     │ the sockets                      │ nobody lives for some seconds: give up the lock, look once more, end

Whoever writes a lease and then finds the lock held can rely on it: who gives it up looks at the leases after that, and takes it again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import socket
import stat
import sys
import time
from collections.abc import Sequence
from io import FileIO

from dockless.base import paths, records, signal
from dockless.base.json import dumps, loads
from dockless.base.path import Path
from dockless.base.pidfds import hold
from dockless.base.typing import TYPE_CHECKING, NoReturn
from dockless.base.waits import readable
from dockless.errors import NetworkError
from dockless.native import start_apart
from dockless.sandbox.network import netlink
from dockless.sandbox.network.host import Host
from dockless.sandbox.network.model import Lease, Network, Rule

if TYPE_CHECKING:
    from dockless.sandbox.network.name_server import Allow

LOCK, LOG = "resolver.lock", "resolver.log"
PORT = 53
_NULL, _LOG_FD, _LOCK_FD, _LEASES_FD, _ASKING_FD, _FIREWALL_FD, _RUNNING_FD, _LIFE_FD, _FIRST_FD = 0, 2, 3, 4, 5, 6, 7, 8, 9
_PATIENCE = 1.0
"""Seconds for one that is ending to let go of the port."""
_RCVBUFFORCE, _ROOM = 33, 1 << 19
"""So that a thousand questions can wait, as when hundreds start at once."""
_PID_SIZE = 16
_CODE = "import sys; sys.path += sys.argv[2:]\nfrom dockless.sandbox.network.resolver import main\nmain(sys.argv[1])"


def ensure(network: Network, directory: Path, host: Host, table: str) -> None:
    """The network has a resolver from now on. Its leases are below ``directory``, its gateways on a link of ``host``; its rules by name go
    to the table of that name. Who calls has written the lease, and does not wait for the process. Errors: ``NetworkError``,
    ``Unwritable``."""
    with contextlib.ExitStack() as opened:
        with paths.writing("the lock of a resolver", directory):
            lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            opened.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        _start(network, directory, host, table, lock, opened)


def _start(network: Network, directory: Path, host: Host, table: str, lock: int, opened: contextlib.ExitStack) -> None:
    from dockless.sandbox.network import records as networks  # not in the process, which has no use for all that it imports

    if not sys.executable:
        hint = "start the sandbox from a program whose sys.executable is Python, or by the command line"
        raise NetworkError(f"which Python could resolve names on network {network.name} is not known", subject=network.name, hint=hint)
    with paths.writing("the log of a resolver", directory):
        os.ftruncate(lock, 0)
        log = os.open(directory / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        opened.callback(os.close, log)
        leases = os.open(directory / "leases", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        opened.callback(os.close, leases)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    opened.callback(os.close, null)
    fds = {_NULL: null, 1: null, _LOG_FD: log, _LOCK_FD: lock, _LEASES_FD: leases, _LIFE_FD: host.life if host.life >= 0 else null}
    try:
        fds[_RUNNING_FD] = os.open(directory.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        opened.callback(os.close, fds[_RUNNING_FD])
        fds[_ASKING_FD] = opened.enter_context(host.open(socket.AF_INET, socket.SOCK_DGRAM)).fileno()
        fds[_FIREWALL_FD] = opened.enter_context(host.netlink(netlink.NETFILTER)).fileno()
        for number, bound in enumerate(_bound(network, host, opened)):
            fds[_FIRST_FD + number] = bound.fileno()
        said = dumps({"network": records.plain(network), "table": table, "home": str(networks.home())})
        start_apart(sys.executable, [sys.executable, "-I", "-S", "-c", _CODE, said, *_places()], fds)
    except OSError as error:
        hint = "look at the limits of this host: processes, open files, memory"
        what = f"cannot start the resolver of network {network.name}: {error.strerror}"
        raise NetworkError(what, subject=network.name, hint=hint) from error


def _places() -> list[str]:
    """Where it imports from, beside the standard library: no more than it needs, since it goes on when who started it is gone."""
    ours = __import__("dockless").__path__[0]
    return [os.path.dirname(os.path.abspath(ours)), os.path.dirname(os.path.abspath(str(__import__("_cffi_backend").__file__)))]


def _bound(network: Network, host: Host, opened: contextlib.ExitStack) -> list[socket.socket]:
    """Two sockets for each gateway: of datagrams, and of connections."""
    found = []
    for gateway in network.gateways:
        family = socket.AF_INET6 if ":" in gateway else socket.AF_INET
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            bound = opened.enter_context(host.open(family, kind))
            if kind == socket.SOCK_STREAM:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            with contextlib.suppress(PermissionError):
                bound.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, _ROOM)
            _bind(bound, gateway)
            if kind == socket.SOCK_STREAM:
                bound.listen(64)
            found.append(bound)
    return found


def _bind(bound: socket.socket, gateway: str) -> None:
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return bound.bind((gateway, PORT))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                hint = "dockless doctor checks what networks need"
            elif time.monotonic() < until:  # the one before us is ending
                time.sleep(0.005)
                continue
            else:
                hint = "another DNS server has it: have it listen on its own addresses alone (dnsmasq: bind-interfaces; named: listen-on)"
            what = f"cannot listen on port {PORT} of {gateway}, where names are asked for: {error.strerror}"
            raise NetworkError(what, subject=gateway, hint=hint) from error


def stop(directory: Path) -> None:
    """End the resolver of a network that is about to be removed. Nobody starts a sandbox on it meanwhile: the caller holds the lock of all
    networks, exclusive."""
    try:
        lock = os.open(directory / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        until = time.monotonic() + _PATIENCE
        while _is_held(lock) and time.monotonic() < until:
            if not _end(lock):  # it has not written its number yet
                time.sleep(0.005)
    finally:
        os.close(lock)


def _is_held(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(lock, fcntl.LOCK_UN)
    return False


def _end(lock: int) -> bool:
    """The number in the file is nobody else's as long as the one who wrote it holds the lock."""
    written = os.pread(lock, _PID_SIZE, 0)
    if not written.isdigit():
        return False
    try:
        process = hold(int(written))
    except (ProcessLookupError, OverflowError):
        return False
    try:
        if _is_held(lock):
            signal.pidfd_send_signal(process, signal.SIGKILL)
            readable(process, _PATIENCE)
    finally:
        os.close(process)
    return True


def main(said: str) -> NoReturn:
    """What the process does. ``said``: as ``ensure`` wrote it."""
    os.pwrite(_LOCK_FD, b"%d" % os.getpid(), 0)
    os.chdir("/")
    asked = loads(said)
    code = 0
    try:
        _serve(records.read(Network, asked["network"], "network"), str(asked["table"]), Path(asked["home"]))
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    os._exit(code)


def _serve(network: Network, table: str, home: Path) -> None:
    from dockless.sandbox.network.elsewhere import Elsewhere
    from dockless.sandbox.network.name_server import NameServer
    from dockless.sandbox.network.residents import Residents, Watches
    from dockless.sandbox.network.upstreams import NameServers

    asking = socket.socket(fileno=_ASKING_FD)
    watches = Watches()
    residents = Residents(network, _LEASES_FD, asking, watches)
    elsewhere = Elsewhere(_RUNNING_FD, home, network.name, asking, watches)
    server = NameServer(network, residents, elsewhere, watches, NameServers(), allow=_firewall(table), say=_say)
    for number in range(len(network.gateways)):
        datagrams, connections = (socket.socket(fileno=_FIRST_FD + 2 * number + each) for each in (0, 1))
        server.add(datagrams, connections)
    if stat.S_ISFIFO(os.fstat(_LIFE_FD).st_mode):  # the namespace that our sockets are in is nobody's any more
        server.watch(FileIO(_LIFE_FD), select.EPOLLIN, lambda events: os._exit(0))
    while True:
        server.run()
        fcntl.flock(_LOCK_FD, fcntl.LOCK_UN)
        watches.refresh()
        if not residents.anybody():
            return
        try:
            fcntl.flock(_LOCK_FD, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another one waits for our port
            return


def _firewall(table: str) -> Allow:
    asking = socket.socket(fileno=_FIREWALL_FD)

    def allow(lease: Lease, rules: Sequence[Rule], addresses: Sequence[str], seconds: int) -> None:
        from dockless.sandbox.network import nftables
        from dockless.sandbox.network.table import allow_address

        each = [allow_address(table, lease, rule, address, seconds) for rule in rules for address in addresses]
        nftables.carry_out(asking, [request for requests in each for request in requests])

    return allow


def _say(line: str) -> None:
    """To the kernel's log, where the packets are that were refused; where we may not, to our own."""
    try:
        fd = os.open("/dev/kmsg", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        fd = os.dup(_LOG_FD)
    try:
        os.write(fd, line[:900].encode() + b"\n")
    except OSError:
        pass
    finally:
        os.close(fd)
