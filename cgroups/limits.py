"""What a group may use, as data: a ``Limits`` becomes a list of ``Write`` before anything is written.

``None`` (or an empty tuple) means "no limit of ours": nothing is written and the kernel's default stays. Impossible values (no cores, no
memory, a processor the host does not have) are ``BadInput`` before any cgroup exists. What the values mean is in the kernel's
Documentation/admin-guide/cgroup-v2.rst; sizes are bytes, times are seconds, processors are cores.

The kernel rounds: memory to whole pages, huge pages to whole huge pages, cpu time to microseconds per period. ``rounding`` compares what
was written with what the file then says, so that the difference is told and not hidden.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterable, Mapping

from dockless.base.checks import check_record
from dockless.base.dataclass import dataclass, replace
from dockless.base.fields import Keyword, as_it_is, filled
from dockless.base.later import re
from dockless.base.units import format_size, parse_cores, parse_count, parse_duration, parse_rate, parse_size
from dockless.errors import BadInput

PAGE = os.sysconf("SC_PAGE_SIZE")
PERIOD = 100_000  # microseconds; the kernel's default for cpu.max
LONG_PERIOD = 1_000_000  # its maximum, for less than a hundredth of a core
SMALLEST_QUOTA = 1_000  # the kernel refuses less than a millisecond per period
MOST_CORES = 1 << 20
MOST_PIDS = 4_194_304  # PID_MAX_LIMIT on 64 bit

_IO_KEYS = {
    "rbps": "rbps", "read": "rbps", "wbps": "wbps", "write": "wbps",
    "riops": "riops", "read_iops": "riops", "wiops": "wiops", "write_iops": "wiops",
}  # fmt: skip
_IO_TEXT = r"(?P<target>.+?)[: ](?P<settings>[a-z_]+=[^,= ]+(?:[, ][a-z_]+=[^,= ]+)*)"
_IO_HINT = "write a path or device and what it may do: /data:read=50MB/s,write=20MB/s,read_iops=1000"
_DEVICE = r"[0-9]{1,4}:[0-9]{1,7}"
_REGION = r"[\x21-\x7e]{1,256}"


@dataclass(frozen=True, slots=True)
class Write:
    """One value for one file of the group. ``asked`` is the same in human words where the value already lost something."""

    file: str
    value: str
    controller: str
    asked: str = ""


@dataclass(frozen=True, slots=True)
class Rounding:
    """The kernel kept another value than the one asked for."""

    file: str
    asked: str
    kept: str

    def __str__(self) -> str:
        return f"{self.file}: asked for {self.asked}, the kernel keeps {self.kept}"


@dataclass(frozen=True, slots=True)
class IoMax:
    """Ceilings for one disk: bytes and operations per second. ``target``: ``MAJOR:MINOR``, a block device, or any path on the disk."""

    target: str
    rbps: int | None = None
    wbps: int | None = None
    riops: int | None = None
    wiops: int | None = None

    def __post_init__(self) -> None:
        check_record(self)
        if not self.target:
            raise BadInput("io limit without a disk", hint=_IO_HINT)
        given = self.settings()
        if not given:
            raise BadInput(f"io limit for {self.target} limits nothing", subject=self.target, hint=_IO_HINT)
        for key, value in given.items():
            if value < 1:
                raise BadInput(f"io limit {key}={value} for {self.target}: must be at least 1", subject=self.target, hint=_IO_HINT)

    def settings(self) -> dict[str, int]:
        """The ceilings that are set, by the kernel's names."""
        pairs = (("rbps", self.rbps), ("wbps", self.wbps), ("riops", self.riops), ("wiops", self.wiops))
        return {key: value for key, value in pairs if value is not None}

    @classmethod
    def parse(cls, text: str) -> IoMax:
        """``TARGET:KEY=VALUE[,KEY=VALUE…]`` with the keys read, write, read_iops, write_iops (or the kernel's rbps, wbps, riops, wiops)."""
        match = re.fullmatch(_IO_TEXT, text)
        if match is None:
            raise BadInput(f"io limit {text[:80]!r} cannot be read", subject=text[:80], hint=_IO_HINT)
        values: dict[str, int] = {}
        for setting in re.split("[, ]", match["settings"]):
            name, _, amount = setting.partition("=")
            key = _IO_KEYS.get(name)
            if key is None or key in values:
                raise BadInput(f"io limit {text[:80]!r}: {name!r} is {'given twice' if key else 'unknown'}", subject=name, hint=_IO_HINT)
            values[key] = parse_rate(amount, "io rate") if key.endswith("bps") else parse_count(amount, "io operations")
        return cls(match["target"], **values)


@dataclass(frozen=True, slots=True)
class Limits:
    """All limits of one group. ``Limits()`` limits nothing.

    cpu_max: cores; cpu_weight, io_weight: shares 1..10000, the default is 100; cpu_burst: seconds of unused time that may be saved
    up (needs cpu_max); cpuset_cpus, cpuset_mems: ``0-3,8``; memory_*: bytes; memory_oom_group: one process out of memory takes the
    whole group; hugetlb: (page size, bytes) as ``("2MB", 1073741824)``; dmem: (region of dmem.capacity, bytes).
    """

    cpu_max: float | None = None
    cpu_weight: int | None = None
    cpu_burst: float | None = None
    cpuset_cpus: str | None = None
    cpuset_mems: str | None = None
    memory_max: int | None = None
    memory_high: int | None = None
    memory_low: int | None = None
    memory_min: int | None = None
    memory_swap_max: int | None = None
    memory_oom_group: bool | None = None
    io_max: tuple[IoMax, ...] = ()
    io_weight: int | None = None
    pids_max: int | None = None
    hugetlb: tuple[tuple[str, int], ...] = ()
    dmem: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        check_record(self)
        _check_cpu(self)
        _check_memory(self)
        _check_rest(self)

    def __bool__(self) -> bool:
        return self != _NOTHING

    @classmethod
    def parse(
        cls,
        *,
        cpus: str | float | None = None,
        cpu_weight: str | int | None = None,
        cpu_burst: str | float | None = None,
        cpuset: str | None = None,
        mems: str | None = None,
        memory: str | int | None = None,
        memory_high: str | int | None = None,
        memory_low: str | int | None = None,
        memory_min: str | int | None = None,
        swap: str | int | None = None,
        oom_group: bool | None = None,
        io: str | Iterable[str | IoMax] = (),
        io_weight: str | int | None = None,
        pids: str | int | None = None,
        hugetlb: str | Mapping[str, str | int] = "",
        dmem: str | Mapping[str, str | int] = "",
    ) -> Limits:
        """Limits from human units: ``cpus="1.5", memory="4G", io="/data:write=50MB/s", hugetlb="2MB=1G"``. Raises ``BadInput``."""
        return cls(**filled(KEYWORDS, locals()))

    def check_host(self) -> None:
        """``BadInput`` for what this host cannot have: processors, memory nodes, huge page sizes, disks. Reads only."""
        for name, value, place in (
            ("cpuset", self.cpuset_cpus, "/sys/devices/system/cpu/online"),
            ("memory nodes", self.cpuset_mems, "/sys/devices/system/node/online"),
        ):
            if value is None:
                continue
            there = parse_list(_read(place) or "0", name)
            extra = parse_list(value, name) - there
            if extra:
                raise BadInput(
                    f"{name} {value}: this host has no {format_list(extra)}", subject=value, hint=f"it has {format_list(there)} online"
                )
        for page_size, _ in self.hugetlb:
            size = parse_size(page_size)
            if not os.path.isdir(f"/sys/kernel/mm/hugepages/hugepages-{size >> 10}kB"):
                raise BadInput(
                    f"this host has no huge pages of {page_size}", subject=page_size, hint="see /sys/kernel/mm/hugepages for its sizes"
                )
        for disk in self.io_max:
            find_device(disk.target)

    def by_number(self) -> Limits:
        """The same limits with each disk named ``MAJOR:MINOR``, so that whoever enforces them follows no path. Raises ``BadInput``."""
        return replace(self, io_max=tuple(replace(disk, target=find_device(disk.target)) for disk in self.io_max)) if self.io_max else self

    def writes(self) -> tuple[Write, ...]:
        """What to write, in the order in which the kernel accepts it. Paths in io_max are looked up (stat only). Raises ``BadInput``."""
        out: list[Write] = []
        if self.cpu_max is not None:
            quota, period = _quota(self.cpu_max)
            exact = math.isclose(quota / period, self.cpu_max)
            out.append(Write("cpu.max", f"{quota} {period}", "cpu", "" if exact else f"{self.cpu_max:.10g} cores"))
        if self.cpu_burst is not None:
            out.append(Write("cpu.max.burst", str(round(self.cpu_burst * 1e6)), "cpu"))
        for name, controller, value in (
            ("cpu.weight", "cpu", self.cpu_weight),
            ("cpuset.cpus", "cpuset", None if self.cpuset_cpus is None else format_list(parse_list(self.cpuset_cpus, "cpuset"))),
            ("cpuset.mems", "cpuset", None if self.cpuset_mems is None else format_list(parse_list(self.cpuset_mems, "memory nodes"))),
            ("memory.max", "memory", self.memory_max),
            ("memory.high", "memory", self.memory_high),
            ("memory.low", "memory", self.memory_low),
            ("memory.min", "memory", self.memory_min),
            ("memory.swap.max", "memory", self.memory_swap_max),
            ("memory.oom.group", "memory", None if self.memory_oom_group is None else int(self.memory_oom_group)),
            ("io.weight", "io", None if self.io_weight is None else f"default {self.io_weight}"),
            ("pids.max", "pids", self.pids_max),
        ):
            if value is not None:
                out.append(Write(name, str(value), controller))
        for disk in self.io_max:
            settings = " ".join(f"{key}={value}" for key, value in disk.settings().items())
            out.append(Write("io.max", f"{find_device(disk.target)} {settings}", "io"))
        for page_size, value in self.hugetlb:
            # rsvd as well: without it mmap succeeds beyond the limit and the program dies later by SIGBUS (cgroup-v1/hugetlb.rst).
            name = hugetlb_name(page_size)
            out.append(Write(f"hugetlb.{name}.max", str(value), "hugetlb"))
            out.append(Write(f"hugetlb.{name}.rsvd.max", str(value), "hugetlb"))
        for region, value in self.dmem:
            out.append(Write("dmem.max", f"{region} {value}", "dmem"))
        return tuple(out)

    def controllers(self) -> frozenset[str]:
        """The controllers these limits need."""
        return frozenset(write.controller for write in self.writes())


def rounding(write: Write, text: str) -> Rounding | None:
    """What the kernel kept (``text``: the file's content after the write) if it differs from what was asked, else None."""
    kept = _kept(write, text)
    if kept == write.value and not write.asked:
        return None
    if write.file == "cpu.max":
        quota, _, period = kept.partition(" ")
        shown = f"{int(quota) / int(period):.10g} cores" if quota.isdigit() and period.isdigit() else kept
        return Rounding(write.file, write.asked or write.value, shown)
    return Rounding(write.file, write.asked or write.value, kept)


def _kept(write: Write, text: str) -> str:
    """The part of a file that answers to the write: one device's line and only the keys written, or the whole."""
    if write.file == "io.weight":
        lines = text.splitlines()
        first = lines[0].strip() if lines else ""
        return first if first.startswith("default ") else f"default {first}"
    if write.file not in ("io.max", "dmem.max"):
        return text.strip()
    subject, _, rest = write.value.partition(" ")
    for line in text.splitlines():
        words = line.split()
        if words[:1] != [subject]:
            continue
        if write.file == "dmem.max":
            return " ".join(words)
        there = dict(word.partition("=")[::2] for word in words[1:])
        wanted = [word.partition("=")[0] for word in rest.split()]
        return " ".join([subject, *(f"{key}={there.get(key, 'max')}" for key in wanted)])
    return "nothing"


def hugetlb_name(page_size: str) -> str:
    """The kernel's spelling of a huge page size in file names: ``64KB``, ``2MB``, ``1GB``."""
    size = parse_size(page_size, "huge page size")
    for unit, name in ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{name}"
    raise BadInput(f"{page_size!r} is not a huge page size", subject=page_size, hint="the usual ones are 2MB and 1GB")


def parse_list(text: str, what: str = "list") -> frozenset[int]:
    """``0-3,8`` as a set, the kernel's cpulist format. Raises ``BadInput``; also for an empty list."""
    out: set[int] = set()
    for part in text.strip().split(","):
        match = re.fullmatch(r" *([0-9]{1,5})(?:-([0-9]{1,5}))? *", part)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise BadInput(f"{what} {text[:80]!r} cannot be read", subject=text[:80], hint="write numbers and ranges: 0-3,8")
        out.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(out)


def format_list(numbers: Iterable[int]) -> str:
    """A set of numbers as the kernel prints it: ``0-3,8``."""
    parts: list[str] = []
    ordered = sorted(numbers)
    start = 0
    for index, number in enumerate(ordered):
        if index + 1 == len(ordered) or ordered[index + 1] != number + 1:
            parts.append(str(number) if ordered[start] == number else f"{ordered[start]}-{number}")
            start = index + 1
    return ",".join(parts)


def find_device(target: str) -> str:
    """``MAJOR:MINOR`` of the whole disk behind a device node, a number or any path: io.max knows no partitions. Raises ``BadInput``."""
    if re.fullmatch(_DEVICE, target):
        number = target
    else:
        try:
            info = os.stat(target)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            hint = "name a block device, or any path on the disk; `lsblk` lists them"
            raise BadInput(f"io limit for {target}: {reason}", subject=target, hint=hint) from error
        block = stat.S_ISBLK(info.st_mode)
        device = info.st_rdev if block else info.st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        if not block and os.major(device) == 0:
            number = _mounted_device(number) or number
    place = f"/sys/dev/block/{number}"
    if not os.path.isdir(place):
        raise BadInput(
            f"io limit for {target}: there is no disk behind it that the kernel could slow down ({number})",
            subject=target,
            hint="name the block device itself (see lsblk), for example /dev/vda",
        )
    if os.path.exists(f"{place}/partition"):
        whole = _read(os.path.join(os.path.realpath(place), "..", "dev"))
        number = whole.strip() if whole else number
    return number


def _mounted_device(number: str) -> str | None:
    """btrfs and friends show an anonymous st_dev; the mount's source names the disk."""
    for line in (_read("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        if left.split()[2] == number and right.split()[1].startswith("/"):
            try:
                info = os.stat(right.split()[1])
            except OSError:
                continue
            if stat.S_ISBLK(info.st_mode):
                return f"{os.major(info.st_rdev)}:{os.minor(info.st_rdev)}"
    return None


def _quota(cores: float) -> tuple[int, int]:
    period = PERIOD if round(cores * PERIOD) >= SMALLEST_QUOTA else LONG_PERIOD
    return round(cores * period), period


def _check_cpu(limits: Limits) -> None:
    cores, burst = limits.cpu_max, limits.cpu_burst
    if cores is not None:
        if _quota(cores)[0] < SMALLEST_QUOTA:
            raise BadInput(f"cpus {cores:g}: the kernel gives no less than 0.001 core", subject=str(cores), hint="ask for at least 0.001")
        if cores > MOST_CORES:
            raise BadInput(f"cpus {cores:g}: no host has so many", subject=str(cores), hint="leave the limit out for no limit")
    if burst is not None:
        if cores is None:
            raise BadInput("cpu burst without a cpu limit has no meaning", hint="give cpus as well")
        quota, period = _quota(cores)
        if not 0 <= burst * 1e6 <= quota:
            raise BadInput(
                f"cpu burst {burst:g} s: must be between 0 and the quota of one period ({quota / 1e6:g} s of {period / 1e6:g} s)",
                subject=str(burst),
                hint="the kernel saves up at most one period's quota",
            )
    for name, weight in (("cpu_weight", limits.cpu_weight), ("io_weight", limits.io_weight)):
        if weight is not None and not 1 <= weight <= 10000:
            raise BadInput(f"{name} {weight} is not between 1 and 10000", subject=str(weight), hint="the default is 100")
    if limits.cpuset_cpus is not None:
        parse_list(limits.cpuset_cpus, "cpuset")
    if limits.cpuset_mems is not None:
        parse_list(limits.cpuset_mems, "memory nodes")


def _check_memory(limits: Limits) -> None:
    for name, value in (("memory", limits.memory_max), ("memory_high", limits.memory_high)):
        if value is not None and value < PAGE:
            raise BadInput(f"{name} {value}: less than one page ({PAGE} bytes) runs nothing", subject=str(value), hint="give at least 1M")
    for name, value in (("memory_low", limits.memory_low), ("memory_min", limits.memory_min), ("swap", limits.memory_swap_max)):
        if value is not None and value < 0:
            raise BadInput(f"{name} {value} is negative", subject=str(value), hint="leave it out for the kernel's default")
    for name, value in (("memory_low", limits.memory_low), ("memory_min", limits.memory_min)):
        if value is not None and limits.memory_max is not None and value > limits.memory_max:
            raise BadInput(
                f"{name} {format_size(value)} is more than the limit {format_size(limits.memory_max)}: it could never be kept",
                subject=name,
                hint="protect at most what the limit allows",
            )


def _check_rest(limits: Limits) -> None:
    if limits.pids_max is not None and not 1 <= limits.pids_max <= MOST_PIDS:
        raise BadInput(
            f"pids {limits.pids_max} is not between 1 and {MOST_PIDS}", subject=str(limits.pids_max), hint="a sandbox has one at least"
        )
    for page_size, value in limits.hugetlb:
        hugetlb_name(page_size)
        if value < 0:
            raise BadInput(f"hugetlb {page_size}={value} is negative", subject=page_size, hint="write bytes, or 0 for none at all")
    for region, value in limits.dmem:
        if not re.fullmatch(_REGION, region) or value < 0:
            raise BadInput(f"dmem {region[:80]!r}={value} is not valid", subject=region[:80], hint="regions are listed in dmem.capacity")
    for name, keys in (("huge page size", [hugetlb_name(k) for k, _ in limits.hugetlb]), ("dmem region", [k for k, _ in limits.dmem])):
        if len(set(keys)) != len(keys):
            raise BadInput(f"a {name} is limited twice", subject=",".join(keys)[:80], hint="give each once")


def _io(value: str | Iterable[str | IoMax], name: str) -> tuple[IoMax, ...]:
    return tuple(disk if isinstance(disk, IoMax) else IoMax.parse(disk) for disk in ([value] if isinstance(value, str) else value))


def _pairs(value: str | Mapping[str, str | int], name: str) -> tuple[tuple[str, int], ...]:
    if not isinstance(value, str):
        return tuple((key, parse_size(amount, name)) for key, amount in value.items())
    pairs = []
    for part in value.split(",") if value else ():
        key, equals, amount = part.partition("=")
        if not equals or not key:
            raise BadInput(f"{name} {value[:80]!r} cannot be read", subject=value[:80], hint=f"write {name}=NAME=SIZE[,NAME=SIZE]")
        pairs.append((key, parse_size(amount, name)))
    return tuple(pairs)


def _read(path: str) -> str | None:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return None


_NOTHING = Limits()

KEYWORDS = (
    Keyword("cpus", "cpu_max", parse_cores),
    Keyword("cpu_weight", "cpu_weight", parse_count),
    Keyword("cpu_burst", "cpu_burst", parse_duration),
    Keyword("cpuset", "cpuset_cpus", as_it_is),
    Keyword("mems", "cpuset_mems", as_it_is),
    Keyword("memory", "memory_max", parse_size),
    Keyword("memory_high", "memory_high", parse_size),
    Keyword("memory_low", "memory_low", parse_size),
    Keyword("memory_min", "memory_min", parse_size),
    Keyword("swap", "memory_swap_max", parse_size),
    Keyword("oom_group", "memory_oom_group", as_it_is),
    Keyword("io", "io_max", _io),
    Keyword("io_weight", "io_weight", parse_count),
    Keyword("pids", "pids_max", parse_count),
    Keyword("hugetlb", "hugetlb", _pairs),
    Keyword("dmem", "dmem", _pairs),
)
"""What ``Limits.parse`` takes, and the field of ``Limits`` that each fills."""
