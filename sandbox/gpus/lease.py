"""Who has which GPU: one table for the whole host, kept by the kernel.

A lease of a GPU is a socket bound to its name in the abstract namespace of the host, ``@dockless-gpu/<uuid>``. The kernel gives a name to
one socket only, whoever asks: the daemon, a ``dockless run``, another user's daemon. It takes it back when the last process that has the
socket ends, however that ends: no file stays behind, and nobody has to tidy up. Everybody sees all names and whose they are: unix(7),
sock_diag(7).

::

    lease(request) ──► GpuLease        free GPUs, chosen and held
    take(uuids) ──► sockets            these very GPUs
    take_share(uuid, …) ──► sockets    a part of one GPU's memory
    holders(uuids) ──► {uuid: uid}     whose they are now
    shares(uuids) ──► Share …          the parts that are leased now
    keep_out(uuid) ──► sockets         nobody gets this GPU, which is out of service
    say_why(uuid, why) ──► sockets     and all are told why
    out_of_service(uuids) ──► {uuid: why}

The sandbox's keeper gets the sockets, so a GPU is leased for as long as its keeper lives, and no daemon has to. What none of this sees,
programs that compute without dockless, shows as processes on the GPU, which ``choose`` respects.

A share of a GPU is a name below the GPU's, ``…/share/<company>/<MiB>/<number>``. Who takes a GPU, whole or in part, binds the name first
and then looks at all names of that GPU: whole and shared exclude each other, and shares go on a GPU only as far as its memory lasts. Of two
at the same time both may see the other and step back, but never neither.

A GPU that is out of service has its name bound by root's daemon, and another below it, ``…/out/<why>``: no lease, so it counts in no quota.

Nothing can be sent to such a socket, for nobody listens. Who is in a network namespace of their own has a table of their own: ``tables``.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import re
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator

from dockless.base import paths
from dockless.base.dataclass import dataclass, replace
from dockless.base.descriptors import received
from dockless.base.device_names import is_device
from dockless.base.idmaps import user_name
from dockless.base.path import Path
from dockless.base.typing import Literal
from dockless.errors import GpuError, NotEnoughGpus
from dockless.sandbox.gpus import tables
from dockless.sandbox.gpus.gpu import Gpu, GpuRequest, choose, inventory, simulated_host, units

Company = Literal["user", "all"]
"""Who may share a GPU with one who has a share of it: the same user, or all."""

Ours = Collection[tuple[str, int, str]]
"""GPU, MiB and number of each share that the caller has."""

_NR_PIDFD_GETFD = 438
_MOST_HELD = 253
"""Descriptors of one message. unix(7)"""
_TRIES = 50
"""How often GPUs are chosen anew because others were faster."""
_LOOKS = 5
"""How often one who was faster is believed to step back as well."""
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
_SHARE, _OUT = b"/share/", b"/out/"
_LONGEST = 108
"""Bytes of a name. unix(7)"""
_SHARED = re.compile(rb"(user|all)/([1-9][0-9]{0,7})/([0-9a-f]{1,8})")


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a GPU that is leased. ``memory``: MiB. ``company``: whom its holder lets share the rest. ``number``: of this share, any
    that the GPU's others do not have. ``uid``: who leased it."""

    uuid: str
    memory: int
    company: Company
    number: str
    uid: int = -1

    @property
    def name(self) -> str:
        return f"{self.uuid}{_SHARE.decode()}{self.company}/{self.memory}/{self.number}"


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
    kernel does not tell what is leased, and as ``check_table``."""
    if request.of_devices:
        from dockless.sandbox.gpus import handed_out

        known_kinds = handed_out.kinds()
        request, gpus = handed_out.meant(request, known_kinds), handed_out.inventory(known_kinds)
    else:
        gpus = inventory()
    known = {gpu.uuid for gpu in (*gpus, *units(gpus))}
    nodes = {name: uuid for uuid, names in names_of_nodes(known).items() for name in names}
    check_table({*known, *nodes})
    for attempt in range(_TRIES):
        having, out = standing({*known, *nodes})
        having, out = (
            {nodes.get(name, name): uid for name, uid in having.items()},
            {nodes.get(name, name): why for name, why in out.items()},
        )
        chosen = choose(request, gpus, having, out)
        with contextlib.suppress(_Taken):
            return GpuLease(chosen, _bind_all(gpu.uuid for gpu in chosen))
        time.sleep(random.random() * 0.001 * (attempt + 1))
    raise NotEnoughGpus(f"{request} asked for, and others were faster each time", subject=str(request), hint="try again")


def check_table(uuids: Collection[str]) -> None:
    """``GpuError`` where others lease these GPUs in a table of another network namespace."""
    tables.check_daemons()
    names = tables.of_first_process()
    wanted = {uuid.encode() for uuid in uuids}
    if names and any(True for _ in _names(_name("").encode(), wanted, names)):
        raise GpuError(
            "GPUs of this host are leased in the network namespace of process 1, and this program is in another",
            subject="network namespace",
            hint="start it in that one (ip netns, PrivateNetwork=, unshare), or ask root's daemon: dockless submit",
        )


def take(uuids: Collection[str]) -> list[socket.socket]:
    """Hold these very GPUs until the sockets are closed. ``NotEnoughGpus`` if one is leased, also in part, or out of service."""
    with _told():
        return _patiently(lambda: _bind_all(uuids))


def take_share(wanted: Share, capacity: int, ours: Ours = ()) -> list[socket.socket]:
    """Hold a part of a GPU that has ``capacity`` MiB for all who share it, until the sockets are closed. ``ours``: a kernel without
    unix_diag does not tell which of the others are the caller's. ``NotEnoughGpus`` if it is leased whole, if too little of it is left, or
    if others share it who do not want that company."""
    with _told():
        return _patiently(lambda: _bind_share(wanted, capacity, ours))


def keep_out(uuid: str) -> list[socket.socket]:
    """Hold a GPU that is out of service until the sockets are closed, so that nobody leases it; none where somebody has it now.
    ``Unwritable``, ``GpuError``"""
    try:
        return _bind_all([uuid])
    except _Taken:
        return []


def copied(keeper: int, uuid: str) -> list[socket.socket]:
    """The sockets of a whole GPU that the sandbox of this keeper (a pidfd) has: with them it stays leased when the keeper has ended. None
    where they cannot be had. pidfd_getfd(2)"""
    from dockless import native
    from dockless.sandbox.plan.plan import SLOT_HELD

    fd = native.syscall(_NR_PIDFD_GETFD, keeper, SLOT_HELD, 0)
    if fd < 0:
        return []
    fds = [fd]
    # Of several it holds a message that nobody takes away: ``start.held_open``.
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as held:
        fds += received(held, 16, _MOST_HELD, socket.MSG_PEEK | socket.MSG_DONTWAIT)[1]
    wanted = {_name(name) for name in (uuid, *names_of_nodes([uuid]).get(uuid, ()))}
    found = {}
    for fd in fds:
        try:
            one = socket.socket(fileno=fd)
        except OSError:  # the pin of an image
            os.close(fd)
            continue
        name = one.getsockname()
        if one.family == socket.AF_UNIX and name and os.fsdecode(name) in wanted:
            found[name] = one
        else:
            one.close()
    if len(found) == len(wanted):
        return [*found.values()]
    for one in found.values():
        one.close()
    return []


def say_why(uuid: str, why: str) -> list[socket.socket]:
    """Tell all why a GPU is kept out, until the sockets are closed; root alone is believed. What is too long for a name is cut.
    ``Unwritable``"""
    with contextlib.ExitStack() as opened:
        said = []
        for name in (uuid, *names_of_nodes([uuid]).get(uuid, ())):
            below = f"{name}{_OUT.decode()}"
            with contextlib.suppress(_Taken):
                said.append(_bind(uuid, below + _cut(why, _LONGEST - len(_name(below).encode())), opened))
        opened.pop_all()
        return said


def _cut(text: str, room: int) -> str:
    """To so many bytes."""
    said, dots = text.encode(), "…"
    if len(said) <= room:
        return text
    return said[: max(0, room - len(dots.encode()))].decode(errors="ignore") + dots if room >= len(dots.encode()) else ""


def share_number(text: str) -> str:
    """The number of a share that its holder finds again by ``text``."""
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def names_of_nodes(uuids: Collection[str]) -> dict[str, list[str]]:
    """The names that are bound beside that of each device: of its nodes, for another name may have the same ones by another's settings."""
    devices = [uuid for uuid in uuids if is_device(uuid)]
    if not devices:
        return {}
    from dockless.sandbox.gpus import handed_out

    return {uuid: sorted(f"node/{number}" for number in numbers) for uuid, numbers in handed_out.nodes(devices).items()}


def holders(uuids: Collection[str] | None = None) -> dict[str, int]:
    """Those of these GPUs that are leased now, whole or in part, and the user ids of who leased them, of several the least. Without
    ``uuids`` every name that somebody has bound, also one of no GPU. None that is out of service. ``GpuError`` where the kernel does not
    tell."""
    return standing(uuids)[0]


def out_of_service(uuids: Collection[str]) -> dict[str, str]:
    """Those of these GPUs that root's daemon keeps out of service now, and why; a long reason is cut. ``GpuError``"""
    return standing(uuids)[1]


def standing(uuids: Collection[str] | None = None) -> tuple[dict[str, int], dict[str, str]]:
    """``holders`` and ``out_of_service`` as of one moment."""
    bound = _bound(uuids)
    out, found = _reasons(bound), dict[str, int]()
    for name, uid in bound:
        # Anybody binds any bytes.
        gpu = name.split(_SHARE, 1)[0] if _share(name) else name
        if _gpu(name) in out:
            continue
        text = gpu.decode(errors="backslashreplace")
        found[text] = min(uid, found.get(text, uid))
    return found, {name.decode(errors="backslashreplace"): why for name, why in out.items()}


def told(units: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """The same, with why root's daemon keeps them out of service where their driver finds nothing wrong. ``GpuError``"""
    there = tuple(units)
    out = out_of_service([unit.uuid for unit in there]) if there else {}
    return tuple(replace(unit, trouble=unit.trouble or out.get(unit.uuid, "")) for unit in there)


def whole(uuids: Collection[str]) -> dict[str, int]:
    """As ``holders``, those alone whose own name is bound: also beside shares, where somebody did not look first."""
    bound = _bound(uuids)
    out = _reasons(bound)
    return {name.decode(): uid for name, uid in bound if _gpu(name) == name and name not in out}


def shares(uuids: Collection[str]) -> tuple[Share, ...]:
    """Of these GPUs. ``GpuError`` where the kernel does not tell."""
    return tuple(share for name, uid in _bound(uuids) if (share := _share(name, uid)) is not None)


def _share(name: bytes, uid: int = -1) -> Share | None:
    """None for the name of a whole GPU, for a reason, and for what is no name of ours."""
    gpu, cut, rest = name.partition(_SHARE)
    found = _SHARED.fullmatch(rest) if cut and _OUT not in gpu else None
    if found is None:
        return None
    company: Company = "all" if found[1] == b"all" else "user"
    return Share(gpu.decode(errors="backslashreplace"), int(found[2]), company, found[3].decode(), uid)


def _gpu(name: bytes) -> bytes:
    """That a name is below, or the name itself."""
    return name.partition(_SHARE)[0].partition(_OUT)[0]


def _reasons(bound: Iterable[tuple[bytes, int]]) -> dict[bytes, str]:
    """Why these are out of service. Only root's word for it is believed, and only of what root has bound."""
    roots = [name for name, uid in bound if uid == 0]
    said = {_gpu(name): name.partition(_OUT)[2] for name in roots if _OUT in name and _share(name) is None}
    whole = said.keys() & set(roots)
    return {gpu: why.decode(errors="backslashreplace") or "root's daemon says so" for gpu, why in said.items() if gpu in whole}


def _bound(uuids: Collection[str] | None) -> list[tuple[bytes, int]]:
    """The names of these GPUs and those below them, without their prefix, and who bound them. ``GpuError``"""
    prefix = _name("").encode()
    wanted = None if uuids is None else {uuid.encode() for uuid in uuids}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _DIAG) as asked:
            body = _REQUEST.pack(socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW_NAME | _SHOW_UID, 0, 0)
            asked.send(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _DUMP, 1, 0) + body)
            found = [*_answers(asked, prefix, wanted)]
    except OSError as error:
        if error.errno not in _UNKNOWN:
            hint = paths.HINTS.get(error.errno or 0, "see `dockless doctor`")
            raise GpuError(f"cannot see which GPUs are leased: {error.strerror}", subject="sock_diag", hint=hint) from error
        found = [(name, NOBODY) for name in _names(prefix, wanted)]
    names = [(name[len(prefix) :], uid) for name, uid in found]
    return [(name, uid) for name, uid in names if wanted is None or name in wanted or _OUT in name or _share(name) is not None]


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
                if wanted is None or _gpu(name[len(prefix) :]) in wanted:
                    attributes = dict(_attributes(memoryview(data)[first : at + length]))
                    yield name, struct.unpack("=I", attributes[_UID])[0]
            at += (length + 3) & ~3


def _names(prefix: bytes, wanted: Collection[bytes] | None, file: str = "/proc/net/unix") -> Iterable[bytes]:
    """The same names as everybody may read them, without whose they are. proc_net(5)"""
    with open(file, "rb") as lines:
        for line in lines:
            fields = line.rstrip(b"\n").split(None, 7)  # one without a name has seven
            kind, name = fields[4], fields[-1].replace(b"@", b"\0", 1)
            if kind == b"%04X" % _KIND and name.startswith(prefix) and (wanted is None or _gpu(name[len(prefix) :]) in wanted):
                yield name


def _attributes(data: memoryview) -> Iterable[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        yield kind, bytes(data[_ATTRIBUTE.size : length])
        data = data[(length + 3) & ~3 :]


class _Taken(Exception):
    """``seen``: by a look after our own name was bound, so the other may be stepping back as we do."""

    def __init__(self, uuid: str, how: str = "", seen: bool = False) -> None:
        super().__init__(uuid)
        self.uuid, self.how, self.seen = uuid, how, seen


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """``NotEnoughGpus`` instead of ``_Taken``"""
    try:
        yield
    except _Taken as taken:
        what, how = "device" if is_device(taken.uuid) else "GPU", f"is leased{taken.how}"
        with contextlib.suppress(GpuError):
            how = "".join(f"is out of service: {why}" for why in out_of_service([taken.uuid]).values()) or how
        raise NotEnoughGpus(f"{what} {taken.uuid} {how}", subject=taken.uuid, hint="wait for it, or ask for another") from None


def _patiently(bind: Callable[[], list[socket.socket]]) -> list[socket.socket]:
    """``bind``, again where somebody was seen who may have stepped back by now. ``_Taken``, ``Unwritable``"""
    for look in range(1, _LOOKS + 1):
        try:
            return bind()
        except _Taken as taken:
            if not taken.seen or look == _LOOKS:
                raise
        time.sleep(random.random() * 0.001 * look)
    raise AssertionError


def _bind_all(uuids: Iterable[str]) -> list[socket.socket]:
    """All of them or none; in the same order whoever asks, so that one of two who want the same gets on. ``_Taken``, ``Unwritable``"""
    wanted = sorted(uuids)
    with contextlib.ExitStack() as opened:
        nodes = names_of_nodes(wanted)
        bound = [_bind(uuid, name, opened) for uuid in wanted for name in (uuid, *nodes.get(uuid, ()))]
        for share in shares(wanted):
            raise _Taken(share.uuid, " in part", seen=True)
        opened.pop_all()
        return bound


def _bind_share(wanted: Share, capacity: int, ours: Ours) -> list[socket.socket]:
    """``_Taken``, ``Unwritable``"""
    with contextlib.ExitStack() as opened:
        bound = [_bind(wanted.uuid, wanted.name, opened)]
        leased = _bound([wanted.uuid])
        if any(name == wanted.uuid.encode() for name, _ in leased):
            raise _Taken(wanted.uuid, seen=True)
        there = [share for name, uid in leased if (share := _share(name, uid)) is not None]
        if sum(share.memory for share in there) > capacity:
            raise _Taken(wanted.uuid, ", too little of its memory is left", seen=True)
        known = {Share(uuid, memory, wanted.company, number).name for uuid, memory, number in ours} | {wanted.name}
        strangers = any(share.name not in known if share.uid == NOBODY else share.uid != os.geteuid() for share in there)
        if strangers and any(share.company == "user" for share in there):
            raise _Taken(wanted.uuid, " in part, by another user", seen=True)
        opened.pop_all()
        return bound


def _bind(uuid: str, name: str, opened: contextlib.ExitStack) -> socket.socket:
    """``_Taken``, ``Unwritable``"""
    try:
        bound = opened.enter_context(socket.socket(socket.AF_UNIX, _KIND | socket.SOCK_CLOEXEC))
        bound.bind(_name(name))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _Taken(uuid) from None
        raise paths.unwritable("the lease of a GPU", Path("@dockless-gpu"), error) from error
    return bound


def _name(uuid: str) -> str:
    return f"\0dockless-gpu/{simulated_host()}{uuid}"
