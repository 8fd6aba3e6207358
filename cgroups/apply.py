"""Writing limits into a group's files, and looking at what the kernel made of them.

Each value is written and read back through one fd. A limit that has no effect is not in force, whatever the kernel says about the
write: sets of processors are checked against ``*.effective``, weights for disks against a disk that shares by weight.
"""

from __future__ import annotations

import os

from dockless.cgroups.delegation import Delegation
from dockless.cgroups.limits import Rounding, Write, format_list, parse_list, rounding
from dockless.errors import LimitUnavailable


def apply(
    fd: int, writes: tuple[Write, ...], have: frozenset[str], place: Delegation, best_effort: bool
) -> tuple[list[str], list[Rounding]]:
    """Write all; the warnings (``best_effort``) and the values that the kernel changed. Raises ``LimitUnavailable``."""
    warnings: list[str] = []
    readback: list[Rounding] = []
    for write in writes:
        try:
            if write.controller not in have:
                raise place.missing(write.controller, write.file)
            kept = _write_limit(fd, write)
            if kept is not None:
                readback.append(kept)
        except LimitUnavailable as error:
            if not best_effort:
                raise
            warnings.append(str(error))
    return warnings, readback


def _write_limit(fd: int, write: Write) -> Rounding | None:
    if write.file == "io.weight":
        return _write_io_weight(fd, write)
    kept = rounding(write, _write_and_read(fd, write.file, write))
    if write.file in ("cpuset.cpus", "cpuset.mems"):
        return _effective(fd, write)
    return kept


def _write_and_read(fd: int, name: str, write: Write) -> str:
    try:
        file = os.open(name, os.O_RDWR | os.O_CLOEXEC, dir_fd=fd)
    except FileNotFoundError as error:
        raise LimitUnavailable(
            f"{name} cannot be limited: this kernel's {write.controller} controller has no such file",
            controller=write.controller,
            subject=name,
            hint="it is newer than this kernel, or was left out of its configuration",
        ) from error
    except OSError as error:
        raise _refused(write, error) from error
    try:
        os.write(file, write.value.encode())
        return os.pread(file, 65536, 0).decode()
    except OSError as error:
        raise _refused(write, error) from error
    finally:
        os.close(file)


def _refused(write: Write, error: OSError) -> LimitUnavailable:
    return LimitUnavailable(
        f"{write.file} cannot be limited: the kernel refuses {write.value!r}: {error.strerror}",
        controller=write.controller,
        subject=write.file,
        hint=f"see {write.file} in Documentation/admin-guide/cgroup-v2.rst, and the limits of the groups above",
    )


def _effective(fd: int, write: Write) -> Rounding | None:
    """A set outside the parent's is accepted by the kernel and then ignored: look at what is in force."""
    text = _read(fd, f"{write.file}.effective").strip()
    asked, kept = parse_list(write.value), parse_list(text) if text else frozenset()
    if not kept <= asked:
        raise LimitUnavailable(
            f"{write.file} cannot be limited to {write.value}: the groups above allow {format_list(kept)} only",
            controller=write.controller,
            subject=write.file,
            hint=f"choose from {format_list(kept)}",
        )
    return None if kept == asked else Rounding(write.file, write.value, format_list(kept))


def _write_io_weight(fd: int, write: Write) -> Rounding | None:
    """io.cost reads io.weight; the bfq scheduler reads io.bfq.weight. Where neither is at work a weight is a silent nothing."""
    weight = int(write.value.split()[-1])
    kept = None
    written = []
    if present(fd, "io.weight"):
        kept = rounding(write, _write_and_read(fd, "io.weight", write))
        written.append(_io_cost_on())
    if present(fd, "io.bfq.weight"):
        # bfq's scale ends at 1000; 100 is the middle of both. The same mapping as systemd's.
        bfq = weight if weight <= 100 else 100 + (weight - 100) * 900 // 9900
        _write_and_read(fd, "io.bfq.weight", Write("io.bfq.weight", str(bfq), "io"))
        written.append(_bfq_on())
    if not any(written):
        raise LimitUnavailable(
            "io.weight cannot be enforced: no disk of this host shares by weight",
            controller="io",
            subject="io.weight",
            hint="as root: echo 'MAJ:MIN enable=1' > /sys/fs/cgroup/io.cost.qos, or choose the bfq scheduler for the disk",
        )
    return kept


def _io_cost_on() -> bool:
    try:
        with open("/sys/fs/cgroup/io.cost.qos") as file:
            return "enable=1" in file.read()
    except OSError:
        return True  # not the host's own root: cannot tell, so believe the file


def _bfq_on() -> bool:
    try:
        disks = os.listdir("/sys/block")
    except OSError:
        return True
    for disk in disks:
        try:
            with open(f"/sys/block/{disk}/queue/scheduler") as file:
                if "[bfq]" in file.read():
                    return True
        except OSError:
            continue
    return False


def present(fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=fd)
    except OSError:
        return False
    return True


def _read(fd: int, name: str) -> str:
    file = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=fd)
    try:
        return os.read(file, 65536).decode()
    finally:
        os.close(file)
