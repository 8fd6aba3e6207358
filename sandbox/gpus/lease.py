"""Who has which GPU: one table for the whole host, kept by the kernel.

A lease of a GPU is a socket bound to its name in the abstract namespace of the host, ``@dockless-gpu/<uuid>``. The kernel gives a name to
one socket only, whoever asks: the daemon, a ``dockless run``, another user's daemon. It takes it back when the last process that has the
socket ends, however that ends: no file stays behind, and nobody has to tidy up. Everybody sees all names and whose they are: unix(7),
sock_diag(7).

::

    lease(request) ──► GpuLease        free GPUs, chosen and held
    take(uuids) ──► sockets            these very GPUs
    holders(uuids) ──► {uuid: uid}     whose they are now

The sandbox's keeper gets the sockets, so a GPU is leased for as long as its keeper lives, and no daemon has to. What none of this sees,
programs that compute without dockless, shows as processes on the GPU, which ``choose`` respects.

Nothing can be sent to such a socket, for nobody listens. Who is in a network namespace of their own has a table of their own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
import struct
import time
from collections.abc import Collection, Iterable

from dockless.base import paths
from dockless.base.dataclass import dataclass
from dockless.base.idmaps import user_name
from dockless.base.path import Path
from dockless.errors import GpuError, NotEnoughGpus
from dockless.sandbox.gpus.gpu import Gpu, GpuRequest, choose, inventory, simulated_host, units

_TRIES = 50
"""How often GPUs are chosen anew because others were faster."""
_KIND = socket.SOCK_SEQPACKET
NOBODY = 65534
"""Who has what is leased, as far as a kernel without unix_diag tells."""
_UNKNOWN = (errno.ENOENT, errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT)
_DIAG, _BY_FAMILY, _DUMP, _DONE, _ERROR = 4, 20, 0x301, 3, 2
_HEADER, _REQUEST, _ANSWER, _ATTRIBUTE = (
    struct.Struct("=IHHII"),
    struct.Struct("=BBHIIIII"),
    struct.Struct("=BBBBIII"),
    struct.Struct("=HH"),
)
_BEGIN = struct.Struct("=IH")
_SHOW_NAME, _SHOW_UID, _UID = 1, 64, 7
"""netlink(7); linux/sock_diag.h, linux/unix_diag.h."""


@dataclass(slots=True)
class GpuLease:
    """``gpus`` are leased until ``close``, or for as long as a keeper lives that got the ``sockets``. A context manager."""

    gpus: tuple[Gpu, ...]
    sockets: list[socket.socket]

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(gpu.uuid for gpu in self.gpus)

    @property
    def simulated(self) -> bool:
        return any(gpu.simulated for gpu in self.gpus)

    def close(self) -> None:
        while self.sockets:
            self.sockets.pop().close()

    def __enter__(self) -> GpuLease:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def lease(request: GpuRequest) -> GpuLease:
    """Choose free GPUs for a request and hold them. Errors: ``UnknownGpu``, ``NotEnoughGpus``, ``GpuDriverMissing``, ``GpuError`` where the
    kernel does not tell what is leased."""
    gpus = inventory()
    known = {gpu.uuid for gpu in (*gpus, *units(gpus))}
    for attempt in range(_TRIES):
        chosen = choose(request, gpus, holders(known))
        with contextlib.suppress(_Taken):
            return GpuLease(chosen, _bind_all(gpu.uuid for gpu in chosen))
        time.sleep(random.random() * 0.001 * (attempt + 1))
    raise NotEnoughGpus(f"{request} asked for, and others were faster each time", subject=str(request), hint="try again")


def take(uuids: Collection[str]) -> list[socket.socket]:
    """Hold these very GPUs until the sockets are closed. ``NotEnoughGpus`` if one is leased."""
    try:
        return _bind_all(uuids)
    except _Taken as taken:
        raise NotEnoughGpus(f"GPU {taken.uuid} is leased", subject=taken.uuid, hint="wait for it, or ask for another") from None


def holders(uuids: Collection[str] | None = None) -> dict[str, int]:
    """Those of these GPUs that are leased now, and the user ids of who leased them. Without ``uuids`` every name that somebody has bound,
    also one of no GPU. ``GpuError`` where the kernel does not tell."""
    prefix = _name("").encode()
    wanted = None if uuids is None else {prefix + uuid.encode() for uuid in uuids}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _DIAG) as asked:
            body = _REQUEST.pack(socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW_NAME | _SHOW_UID, 0, 0)
            asked.send(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _DUMP, 1, 0) + body)
            # Anybody binds any bytes.
            return {name[len(prefix) :].decode(errors="backslashreplace"): uid for name, uid in _answers(asked, prefix, wanted)}
    except OSError as error:
        if error.errno in _UNKNOWN:
            return dict.fromkeys(_names(prefix, wanted), NOBODY)
        hint = paths.HINTS.get(error.errno or 0, "see `dockless doctor`")
        raise GpuError(f"cannot see which GPUs are leased: {error.strerror}", subject="sock_diag", hint=hint) from error


def users(uuids: Collection[str]) -> dict[str, str]:
    """As ``holders``, with the names of users; the number of one who has none."""
    found = holders(uuids) if uuids else {}
    return {uuid: user_name(uid) or str(uid) for uuid, uid in found.items()}


def _answers(asked: socket.socket, prefix: bytes, wanted: Collection[bytes] | None) -> Iterable[tuple[bytes, int]]:
    """Names with this prefix of sockets of the kind that leases are (each kind has names of its own), and the user ids of who made them. A
    user can bind a million names: little is done for one that is not wanted."""
    while True:
        data, at = asked.recv(1 << 16), 0
        while at < len(data):
            length, kind = _BEGIN.unpack_from(data, at)
            if kind == _DONE:
                return
            if kind == _ERROR:
                number = -struct.unpack_from("=i", data, at + _HEADER.size)[0]
                raise OSError(number, os.strerror(number))
            first = at + _HEADER.size + _ANSWER.size  # of the attributes; a name is always the first
            if data.startswith(prefix, first + _ATTRIBUTE.size) and data[at + _HEADER.size + 1] == _KIND:
                name = data[first + _ATTRIBUTE.size : first + _ATTRIBUTE.unpack_from(data, first)[0]]
                if wanted is None or name in wanted:
                    attributes = dict(_attributes(memoryview(data)[first : at + length]))
                    yield name, struct.unpack("=I", attributes[_UID])[0]
            at += (length + 3) & ~3


def _names(prefix: bytes, wanted: Collection[bytes] | None) -> Iterable[str]:
    """The same names as everybody may read them, without whose they are. proc_net(5)"""
    with open("/proc/net/unix", "rb") as lines:
        for line in lines:
            fields = line.rstrip(b"\n").split(None, 7)  # one without a name has seven
            kind, name = fields[4], fields[-1].replace(b"@", b"\0", 1)
            if kind == b"%04X" % _KIND and name.startswith(prefix) and (wanted is None or name in wanted):
                yield name[len(prefix) :].decode(errors="backslashreplace")


def _attributes(data: memoryview) -> Iterable[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        yield kind, bytes(data[_ATTRIBUTE.size : length])
        data = data[(length + 3) & ~3 :]


class _Taken(Exception):
    def __init__(self, uuid: str) -> None:
        super().__init__(uuid)
        self.uuid = uuid


def _bind_all(uuids: Iterable[str]) -> list[socket.socket]:
    """All of them or none; in the same order whoever asks, so that one of two who want the same gets on. ``_Taken``, ``Unwritable``"""
    with contextlib.ExitStack() as opened:
        bound = []
        for uuid in sorted(uuids):
            try:
                bound.append(opened.enter_context(socket.socket(socket.AF_UNIX, _KIND | socket.SOCK_CLOEXEC)))
                bound[-1].bind(_name(uuid))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise _Taken(uuid) from None
                raise paths.unwritable("the lease of a GPU", Path("@dockless-gpu"), error) from error
        opened.pop_all()
        return bound


def _name(uuid: str) -> str:
    return f"\0dockless-gpu/{simulated_host()}{uuid}"
