"""The host's GPUs as the daemon keeps them in mind: read once, their processes read again when that matters, by threads (``asking``).
Whoever only wants to know has what was read last.

A host without GPUs, or without a driver, is no error here: it runs jobs that ask for none, and says why there are none to others.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property, partial

from dockless.base.dataclass import dataclass, field, replace
from dockless.base.device_names import is_device
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import DocklessError, NotEnoughGpus
from dockless.sched.engine.faults import say
from dockless.sched.engine.gpus import numa, seats
from dockless.sched.engine.gpus.asking import NO_ANSWER, Asker, begun
from dockless.sched.engine.gpus.kept_out import KeptOut
from dockless.sched.policy import classes

if TYPE_CHECKING:
    from dockless.sandbox.gpus.gpu import Gpu
    from dockless.sandbox.gpus.lease import Share

FRESH = 2.0
"""Seconds for which the list of processes on the GPUs is believed."""
MOST_HOLDERS = 64
"""Users of one GPU that are told apart among those who share it without the queue."""
HOST = "host"
"""What is drained where nothing at all is started."""
SILENT = "its driver does not answer"
_HANGS = "the NVIDIA driver does not answer: nvidia-smi and the kernel's log say why"
MOST_CLASSES = 100_000
"""Classes whose GPUs are remembered: users name any number of them, ``memory=`` with each number of bytes."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Leases that are not this daemon's. ``whole``: GPUs that are leased whole, and the user ids of their holders; ``shares``: shares of
    GPUs, all that one user has of a GPU as one; ``out``: GPUs that another daemon of root's keeps out of service, and why."""

    whole: Mapping[str, int] = field(default_factory=dict)
    shares: Sequence[Share] = ()
    out: Mapping[str, str] = field(default_factory=dict)


class HostGpus:
    """``uuids`` in index order, ``distances`` between them, and which are in use by something else. ``devices``: those of other ``kinds``,
    which are leased as GPUs are, by their names. ``not_whole``: UUIDs of slices and names of devices, which nobody gets who asks for
    some number of GPUs. ``changed``: called when more or fewer may be usable than at the last look; ``settle``: when ``reasons`` may
    have changed. ``ours``: the GPUs that our jobs have, and their shares as ``sharing.leased``, None where jobs share none."""

    def __init__(self) -> None:
        self.changed: Callable[[], None] = lambda: None
        self.asker = Asker(self._changed)
        self._lister = Asker(self._changed)
        self._looking: asyncio.Future[None] | None = None
        self._listing: asyncio.Future[None] | None = None
        self._elsewhere = Elsewhere()
        self.ours: Callable[[], tuple[Collection[str], Collection[tuple[str, int, str]] | None]] = lambda: ((), None)
        self._stack = ExitStack()
        self.error = ""
        self.gpus: tuple[Gpu, ...] = ()
        self.devices: tuple[Gpu, ...] = ()
        self.kinds: tuple[str, ...] = ()
        self.unleased: Mapping[str, str] = {}
        self._nodes: dict[str, list[str]] = {}
        self.kept = 0
        self._seen: tuple[Gpu, ...] = ()  # as the driver says, without what else keeps them out of service
        self._capacity: Mapping[str, int] = {}
        self._opened = begun(self._open)
        try:
            self._seen, self._capacity = self._opened.result(NO_ANSWER)
        except TimeoutError:
            self.error = _HANGS
        except DocklessError as error:
            self.error = str(error)
        self._failed: dict[str, str] = {}
        self._drained: Mapping[str, str] = {}
        self._theirs: Mapping[str, str] = {}
        self.kept_out = KeptOut()
        self.settle: Callable[[], None] = lambda: None
        self._list(self._seen)
        self._read = dict.fromkeys(self.whole, time.monotonic())

    def _open(self) -> tuple[tuple[Gpu, ...], Mapping[str, int]]:
        from dockless.sandbox.gpus import gpu

        # One session for the daemon's life: opening the driver anew for each look can take tens of milliseconds.
        self._stack.enter_context(gpu.session())
        return _there()

    async def opened(self) -> bool:
        """Wait until the driver has answered for the first time; false where it had before."""
        if self._opened.done():
            return False
        await asyncio.gather(asyncio.wrap_future(self._opened), return_exceptions=True)
        return True

    def _list(self, gpus: tuple[Gpu, ...]) -> None:
        self.gpus = gpus
        self._classes: dict[str, tuple[str, ...]] = {}
        self.__dict__.pop("shareable", None)
        self.uuids = tuple(unit.uuid for unit in self.everything)
        self.not_whole = frozenset(unit.uuid for unit in gpus if unit.parent).union(unit.uuid for unit in self.devices)
        self.distances = {(unit.uuid, link.peer): link.rank - 0.01 * min(link.width, 50) for unit in gpus for link in unit.links}
        self.memory_nodes = numa.nodes(gpus)

    @property
    def everything(self) -> tuple[Gpu, ...]:
        return self.gpus + self.devices

    def hand_out(self, kinds: tuple[str, ...]) -> None:
        """The devices of these kinds, too, as their files say now. The log is told of a kind that has none."""
        if not kinds and not self.kinds:
            return
        from dockless.sandbox.gpus import handed_out, lease

        self.kinds = kinds
        self.devices = handed_out.inventory(kinds, handed_out.number_after(self.gpus))
        if self.devices and not self.gpus:
            self.error = ""  # it is a host without NVIDIA's driver
        self.unleased = handed_out.unleased(kinds)
        for line in (*handed_out.missing(kinds, self.devices), *handed_out.in_words(self.unleased)):
            say(line)
        self._nodes = lease.names_of_nodes([unit.uuid for unit in self.devices])
        self._list(self.gpus)
        self._show()

    async def list_again(self) -> None:
        """Which GPUs and slices there are now. What is known of their failures and of maintenance stays; all stays as it was where the
        driver does not answer."""
        try:
            answers = await self.asker.ask({"": _there}, NO_ANSWER)
        except DocklessError as error:
            self.error = str(error)
            return
        if not answers:
            self.error = _HANGS
            say(f"the GPUs are not listed again: {self.error}")
            return
        (now, self._capacity), self.error = answers[""], ""
        before = {unit.uuid: unit.trouble for unit in self.gpus}
        for uuid in sorted(before.keys() ^ {unit.uuid for unit in now}):
            say(f"GPU {uuid} is gone" if uuid in before else f"GPU {uuid} is new")
        self._list(tuple(replace(unit, trouble=before.get(unit.uuid, "")) for unit in now))
        self._seen = now
        self._read = dict.fromkeys(self.whole, time.monotonic())
        self._show()

    @property
    def whole(self) -> tuple[str, ...]:
        """UUIDs of GPUs, also of those that are divided."""
        return tuple(dict.fromkeys(unit.parent or unit.uuid for unit in self.gpus))

    @property
    def units(self) -> int:
        """How many whole GPUs there are, without those that are divided."""
        return len(self.uuids) - len(self.not_whole)

    @property
    def simulated(self) -> bool:
        return any(unit.simulated for unit in self.gpus)

    @property
    def in_words(self) -> str:
        """``8 simulated GPUs, 2 other devices``"""
        kinds = [("simulated GPU" if self.simulated else "GPU", len(self.gpus)), ("other device", len(self.devices))]
        return ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for what, count in kinds if count) or "no GPUs"

    def resolve(self, text: str) -> tuple[int, tuple[str, ...]]:
        """What ``--gpus`` stands for here: how many, and which ones if it names them. ``""`` is none.

        Errors: BadInput, UnknownGpu, NotEnoughGpus (more than the host has)."""
        if not text:
            return 0, ()
        from dockless.sandbox.gpus import gpu

        request, there = gpu.parse_request(text), self.gpus
        if request.of_devices:
            from dockless.sandbox.gpus import handed_out

            request, there = handed_out.meant(request, self.kinds), self.devices
        elif not self.gpus:
            raise NotEnoughGpus(
                f"{request} asked for, this host has none" + (f" ({self.error})" if self.error else ""),
                subject=text,
                hint="leave out the GPUs, or see `dockless doctor`",
            )
        count = gpu.possible(request, there)
        if not request.devices and (request.gpu_class or request.count != gpu.ALL or not self.not_whole):
            return count, ()
        idle = tuple(replace(unit, processes=(), trouble="") for unit in there)  # else it waits for them
        return count, tuple(unit.uuid for unit in gpu.choose(request, idle))

    def class_of(self, text: str) -> str:
        """What the policy calls the GPUs that ``text`` may get: ``1g.10gb``, ``H100,memory=60G``, "" for any whole ones. ``BadInput``"""
        from dockless.sandbox.gpus import gpu

        request = gpu.parse_request(text) if text else gpu.GpuRequest()
        if request.devices or not (request.gpu_class or request.memory):
            return ""
        name = request.gpu_class or (gpu.WHOLE if request.count != 1 else "")
        return classes.named(name, request.memory)

    def may_have(self, gpu_class: str) -> tuple[str, ...]:
        """The UUIDs of the GPUs of which a job of that class may get any; of "" the whole ones."""
        return self.of_classes([gpu_class])[gpu_class] if gpu_class else tuple(unit.uuid for unit in self.gpus if not unit.parent)

    def of_classes(self, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """The UUIDs of each class that ``class_of`` names, slices first and of them the smallest."""
        if len(self._classes) > MOST_CLASSES:
            self._classes.clear()
        for name in names:
            if name not in self._classes:
                self._classes[name] = self._of_class(name)
        return {name: self._classes[name] for name in names}

    def _of_class(self, name: str) -> tuple[str, ...]:
        return in_order_of_class(name, self.devices if "/" in name else self.gpus)

    @cached_property
    def shareable(self) -> Mapping[str, int]:
        """The MiB of each GPU that several jobs can have together; of none where the driver does not tell what a process has."""
        return {uuid: max(0, memory - self.kept) for uuid, memory in self._capacity.items()}

    def keep_back(self, memory: int) -> None:
        """So many MiB of each GPU that jobs share are not theirs."""
        self.kept = memory
        self.__dict__.pop("shareable", None)

    def share_of(self, text: str) -> int:
        """The MiB that a job with such a wish has of a GPU where others have the rest; 0 where it has GPUs of its own."""
        from dockless.sandbox.gpus import gpu

        request = gpu.parse_request(text) if text else gpu.GpuRequest()
        return seats.share_of(request.memory, self.room(self.class_of(text))) if request.memory and request.count == 1 else 0

    def room(self, gpu_class: str) -> list[int]:
        """The MiB of each whole GPU of that class that several jobs can have together."""
        return seats.room_of(self.may_have(gpu_class), self.shareable, self.not_whole)

    def memory_of(self, text: str) -> int:
        """The bytes that each GPU of such a wish has at least; 0 where it does not say."""
        from dockless.sandbox.gpus import gpu

        return gpu.parse_request(text).memory if text else 0

    @property
    def is_old(self) -> bool:
        """Whether the last look that has come is too old for GPUs to be given to anybody by it."""
        return self._looking is not None or any(self._is_old(whole) for whole in self.whole)

    def _is_old(self, whole: str) -> bool:
        """Whether it is to be asked again. Nothing is asked about what hangs, and nobody gets it."""
        return not self.asker.hangs(whole) and time.monotonic() - self._read.get(whole, -math.inf) > FRESH

    @property
    def by_whole(self) -> dict[str, tuple[Gpu, ...]]:
        """GPUs and slices by the UUID of the whole GPU."""
        found: dict[str, tuple[Gpu, ...]] = {}
        for unit in self.gpus:
            whole = unit.parent or unit.uuid
            found[whole] = (*found.get(whole, ()), unit)
        return found

    async def look(self) -> None:
        """Read again what others lease; and what their processes are, and whether they are fit for use, where the last look is too old.
        Returns within a second or so: what does not answer meanwhile is not usable. The log is told of each that goes out of service or
        comes back."""
        if self._looking is None and self.is_old:
            self._looking = asyncio.ensure_future(self._look())
        if self._listing is None and self.uuids:
            self._listing = asyncio.ensure_future(self._list_leases())
        for one in (self._looking, self._listing):
            if one is not None:
                await asyncio.shield(one)  # who asked may go away, and others wait for it, too

    async def see_leases(self) -> None:
        """Read again what others lease. The reading begins after this call; where it takes too long, the result of the last one stays."""
        if self._listing is not None:
            await asyncio.shield(self._listing)
        if self._listing is None and self.uuids:
            self._listing = asyncio.ensure_future(self._list_leases())
        if self._listing is not None:
            await asyncio.shield(self._listing)

    async def _look(self) -> None:
        from dockless.sandbox.gpus import gpu

        asked = {whole: partial(gpu.refresh, units) for whole, units in self.by_whole.items() if self._is_old(whole)}
        self._read |= dict.fromkeys(asked, time.monotonic())
        try:
            answers, self.error = await self.asker.ask(asked, late=self._came_late), ""
        except DocklessError as error:
            answers, self.error = {}, str(error)
        finally:
            self._looking = None
        self._see(unit for units in answers.values() for unit in units)
        self._show()

    def _came_late(self, whole: str, units: tuple[Gpu, ...]) -> None:
        """It is as good as one in time: a driver that is always slow keeps nobody from its GPUs."""
        self._read[whole] = time.monotonic()
        self._see(units)

    def _see(self, units: Iterable[Gpu]) -> None:
        found = {unit.uuid: unit for unit in units}
        self._seen = tuple(found.get(unit.uuid, unit) for unit in self._seen)

    def _changed(self) -> None:
        """A GPU has been out of reach for too long, or is in reach again."""
        self._show()
        self.changed()

    def failed(self, uuid: str, why: str) -> None:
        """The driver has reported a failure of a GPU, or (``""``) of one that it does not name: until the daemon is started again nobody
        gets the GPU, nor a slice of it."""
        if not uuid:
            self._read = {}
            if self.gpus and self._looking is None:
                self._looking = asyncio.ensure_future(self._look())
            return
        self._failed.setdefault(uuid, f"{why} ({time.strftime('%Y-%m-%d %H:%M')})")
        self._show()

    def met(self, uuid: str, gi: int | None) -> tuple[Gpu, ...]:
        """What can be leased of a whole GPU that has met something: itself, or its slices in that MIG GPU instance, all for None."""
        found = (unit for unit in self.gpus if uuid and uuid == (unit.parent or unit.uuid))
        return tuple(unit for unit in found if gi is None or not unit.parent or unit.mig[0].gi == gi)

    def drain(self, drained: Mapping[str, str]) -> None:
        """These are out of service, by their UUIDs, and why; all others are not, as far as that goes."""
        self._drained = drained
        self._show()

    def _show(self) -> None:
        before = self.everything
        self.gpus, self.devices = (
            tuple(replace(unit, trouble=self._why(unit) or self._theirs.get(unit.uuid, "")) for unit in units) for units in self._as_seen()
        )
        self.settle()
        for old, new in zip(before, self.everything, strict=True):
            if old.trouble != new.trouble:
                name = f"device {new.uuid}" if is_device(new.uuid) else f"GPU {new.uuid}"
                say(f"{name} is out of service: {new.trouble}" if new.trouble else f"{name} is in service again")

    def _as_seen(self) -> tuple[tuple[Gpu, ...], tuple[Gpu, ...]]:
        """GPUs and devices as their drivers say, whatever else keeps them out of service."""
        return self._seen, tuple(replace(unit, trouble="") for unit in self.devices)

    @property
    def reasons(self) -> dict[str, str]:
        """Why this daemon has those out of service that it has, by their UUIDs."""
        all_of_them = dict.fromkeys(self.uuids, self._drained[HOST]) if HOST in self._drained else {}
        return all_of_them | {unit.uuid: why for units in self._as_seen() for unit in units if (why := self._why(unit))}

    def _why(self, unit: Gpu) -> str:
        """Empty for one that this daemon leaves in service."""
        names = (unit.uuid, unit.parent or unit.uuid)
        own = SILENT if self.asker.silent(names[1]) else unit.trouble
        return next((all[name] for all in (self._failed, self._drained) for name in names if name in all), own)

    @property
    def out_of_service(self) -> frozenset[str]:
        """As of the last look."""
        return frozenset(unit.uuid for unit in self.everything if unit.trouble)

    def unusable(self, leased: Collection[str]) -> frozenset[str]:
        """GPUs that nobody has leased, and on which something computes all the same, or that are out of service or do not answer; as of the
        last look."""
        found = {unit.uuid for unit in self.everything if unit.used_by or unit.trouble}
        found |= {unit.uuid for unit in self.gpus if self.asker.hangs(unit.parent or unit.uuid)}
        return frozenset(found.difference(leased))

    async def _list_leases(self) -> None:
        """In a thread, as the kernel lists every name that is bound, and a user can bind a million. Where it takes too long, the result of
        the last reading stays."""
        leased, shares = self.ours()
        free = set(self.uuids).difference(leased, self.kept_out.uuids)
        asked = partial(leased_elsewhere, free, self._nodes, self.uuids, shares, self.shareable)
        try:
            answers = await self._lister.ask({"": asked}, late=lambda _, found: self._listed(found))
        except DocklessError as error:
            if self._looking is not None:
                await asyncio.shield(self._looking)
            self.error, self._elsewhere = str(error), Elsewhere()
            return
        finally:
            self._listing = None
        for found in answers.values():
            self._listed(found)

    def _listed(self, found: Elsewhere) -> None:
        self._elsewhere = found
        if found.out != self._theirs:
            self._theirs = found.out
            self._show()

    def leased_by_others(self, leased: Collection[str]) -> dict[str, int]:
        """The GPUs that a `dockless run` or another daemon has, as of the last look, and the user ids of those. None where that cannot be
        seen: a start that wants them fails then, and its job waits on. Those that another daemon of root's keeps out of service are that
        here, too."""
        return {uuid: uid for uuid, uid in self._elsewhere.whole.items() if uuid not in leased}

    @property
    def shares_of_others(self) -> Sequence[Share]:
        """Shares of GPUs that are not ``ours``, as of the last look, those of one user of a GPU as one; none where that cannot be seen. Who
        has a GPU whole beside a share has all of its memory."""
        return self._elsewhere.shares

    def close(self) -> None:
        self.kept_out.close()
        self.asker.close()
        self._lister.close()
        if self.asker.idle and self._opened.done():  # else the end of the session might wait for the driver, too
            self._stack.close()


def _there() -> tuple[tuple[Gpu, ...], Mapping[str, int]]:
    """The GPUs and slices, and the MiB of each GPU that can be shared. Blocking. ``GpuError`` where others lease them in another network
    namespace."""
    from dockless.sandbox.gpus import gpu, lease

    found = gpu.units(gpu.inventory())
    if found:
        lease.check_table([unit.uuid for unit in found])
    return found, gpu.shareable(found) if found else {}


def leased_elsewhere(
    free: Collection[str],
    nodes: Mapping[str, Sequence[str]],
    uuids: Collection[str],
    ours: Collection[tuple[str, int, str]] | None,
    shareable: Mapping[str, int],
) -> Elsewhere:
    """Of the GPUs ``free`` of our jobs, whose devices have these ``nodes``, and the shares of all, ``uuids``, that are not ``ours``: GPU,
    MiB and number of each. ``GpuError`` where the kernel does not tell. Blocking."""
    from dockless.sandbox.gpus import lease

    shares: list[Share] = []
    if ours is not None:
        there = lease.shares(uuids)
        beside = lease.whole({uuid for uuid, _, _ in ours}.union(share.uuid for share in there))
        # Anybody may bind a name with a number of ours, and where the kernel does not tell whose one is, the same with another company.
        own, found, missing = (os.geteuid(), lease.NOBODY), [], set(ours)
        for one in there:
            if one.uid in own and (one.uuid, one.memory, one.number) in missing:
                missing.remove((one.uuid, one.memory, one.number))
            else:
                found.append(one)
        found += [lease.Share(uuid, shareable.get(uuid, 0), "user", "", uid) for uuid, uid in beside.items()]
        shares = together(found, lease.NOBODY)
    # Of this host's GPUs alone: a name of no GPU would count in the quota of a whole group.
    wanted = set(free).difference(share.uuid for share in shares)
    device = {name: uuid for uuid, names in nodes.items() if uuid in wanted for name in names}
    having, out = lease.standing(wanted.union(device))
    return Elsewhere(
        {device.get(name, name): uid for name, uid in having.items()}, shares, {device.get(name, name): why for name, why in out.items()}
    )


def together(shares: Iterable[Share], nobody: int) -> list[Share]:
    """Those of one user of a GPU as one. Anybody may bind a million names, each as another of her subordinate ids: of a GPU's users all but
    the first ``MOST_HOLDERS`` count as one, as ``nobody``."""
    found: dict[tuple[str, int], Share] = {}
    users: Counter[str] = Counter()
    for share in shares:
        if (share.uuid, share.uid) not in found:
            if users[share.uuid] >= MOST_HOLDERS:
                share = replace(share, uid=nobody)
            users[share.uuid] += 1
        key = share.uuid, share.uid
        found[key] = replace(share, memory=found[key].memory + share.memory) if key in found else share
    return [*found.values()]


def in_order_of_class(name: str, units: Iterable[Gpu]) -> tuple[str, ...]:
    """Those of the class, slices first and of them the smallest. ``BadInput`` where that is none."""
    from dockless.sandbox.gpus import gpu

    there = gpu.candidates(gpu.parse_request(classes.request(name)), units)
    return tuple(unit.uuid for unit in sorted(there, key=lambda unit: (not unit.parent, unit.memory if unit.parent else 0)))
