"""What in the record of a case is a finding."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hunt.canaries import Canaries
from hunt.cases import Case

PROC, SYSFS, TMPFS, DEVPTS = 0x9FA0, 0x62656572, 0x01021994, 0x1CD1
_EXPECTED = {"/proc": (PROC,), "/proc/sys": (PROC,), "/sys": (SYSFS,), "/dev": (TMPFS,), "/dev/shm": (TMPFS,), "/dev/pts": (DEVPTS,)}
_ADMIN = {"SYS_ADMIN", "ALL"}
"""With these a program may take off what masks the kernel's settings in its own namespaces: it asked for that."""
_NEEDS_ADMIN = ("mount", "unshare", "setns", "clone3", "sethostname", "bpf", "perf", "syslog", "swapon")
_LEFT_TO_SECCOMP = (
    "unshare user",
    "clone3 user",
    "keyctl",
    "add_key",
    "userfaultfd",
    "io_uring",
    "perf_event_open",
    "TIOCSTI",
    "socket",
    "bpf",
    "kcmp init",
)
_NEEDS_NETWORK = ("connect abstract", "connect loopback")
_OURS = re.compile(r"/(proc|sys)(/|$)|/dev(/pts|/mqueue|/shm|/null|/zero|/full|/random|/urandom|/tty)?$")
LOG_MAX = 80 << 20


@dataclass(frozen=True)
class Finding:
    """``kind`` and ``what`` name it: the same hole found twice has the same name."""

    kind: str
    what: str
    evidence: str

    @property
    def key(self) -> str:
        return f"{self.kind}: {self.what}"


def findings(case: Case, record: dict[str, Any], on: Canaries) -> list[Finding]:
    """Everything in a record that should not be, each thing once."""
    found = {finding.key: finding for finding in _all(case, record, on)}
    return list(found.values())


def _all(case: Case, record: dict[str, Any], on: Canaries) -> Iterator[Finding]:
    if record.get("hung"):
        yield Finding("hung", case["kind"], "the case did not come to its end")
    for what, how in record["changes"]:
        yield Finding("changed", _general(what), f"{what}: {how}")
    for line in record["left"]:
        yield Finding("left behind", _general(" ".join(line.split()[:1])), line)
    yield from _of_a_try(case, record, case["image"]["form"], on)
    for one, told in zip(case.get("tries", ()), record["tries"], strict=False):
        yield from _of_a_try(one, told, case["image"]["form"], on)


def _of_a_try(one: Case, told: dict[str, Any], form: str, on: Canaries) -> Iterator[Finding]:
    if told["crash"]:
        yield Finding("crash", told["crash"].strip().splitlines()[-1][:100], told["crash"])
    if told.get("log", 0) > LOG_MAX:
        yield Finding("left behind", "a log without a bound", str(told["log"]))
    for token, place in on.tokens.items():
        if token in told["out"] or token in told["error"]:
            yield Finding("disclosed", place, next((line for line in told["out"].splitlines() if token in line), told["error"]))
    if one.get("options", {}).get("profile") != "privileged":
        yield from _said(one.get("options", {}), told["out"], form, on)


def _general(text: str) -> str:
    """Without what differs from run to run."""
    return re.sub(r"^/dev/[\w-]+$", "a device node", re.sub(r"[0-9a-f]{32,}", "DIGEST", text))


def _said(options: dict[str, Any], out: str, form: str, on: Canaries) -> Iterator[Finding]:
    readonly = options.get("root") == "readonly" or (options.get("profile") == "untrusted" and options.get("root", "disk") == "disk")
    wanted = {posixpath.normpath(mount.split(":")[1]) for mount in options.get("mounts", ())}
    admin = not _ADMIN.isdisjoint(options.get("cap_add", ()))
    shares_ids = options.get("namespaces", {}).get("user") == "host"
    for line in out.splitlines():
        if '{"t":"flood"' in line:
            continue
        try:
            said = json.loads(line[line.index("{") :])  # a log has the time in front
            kind, what, data = said["t"], said["what"], said["data"]
        except (ValueError, KeyError, TypeError):
            continue  # the program's output is its own; two processes may write into one line
        if kind == "call" and not _allowed(what, options):
            yield Finding("call", what, line)
        elif (
            kind == "opened"
            and not admin
            and not (what.startswith("/dev/nvidia") and "gpus" in options)
            and not (what == "/proc/1/oom_score_adj" and shares_ids)
        ):
            yield Finding("opened", _below(what), line)
        elif kind == "changed":
            yield Finding("changed", _general(what), line)
        elif kind == "descriptor":
            yield Finding("descriptor", what, line)
        elif (kind in ("door", "own") and re.match(r"/proc/1/fd/", what) and "signals" not in what) or (
            kind == "door" and str(on.base) in data
        ):
            yield Finding("door", re.sub(r"\d+", "N", what), line)
        elif kind == "exe" and str(on.base) in what:
            yield Finding("exe", "a file of the host runs", line)
        elif kind == "cwd" and what.startswith("(unreachable)"):
            yield Finding("cwd", "outside of the root", line)
        elif kind == "statfs" and not admin and what not in wanted and what in _EXPECTED and int(data) not in _EXPECTED[what]:
            yield Finding("covered", what, line)
        elif kind == "made" and what == "/hunt-made" and readonly and form != "host":
            yield Finding("written", "a read-only root", line)
        elif kind == "mount":
            yield from _mounted(what, on, wanted)


def _below(path: str) -> str:
    """The part of the kernel's settings that a file belongs to."""
    return "/".join(path.split("/")[:4]) if path.startswith(("/proc/sys/", "/sys/")) else path


def _mounted(row: str, on: Canaries, wanted: set[str]) -> Iterator[Finding]:
    fields = row.split()
    if len(fields) > 6 and "-" in fields:
        target, kind = fields[4], fields[fields.index("-") + 1]
        if target in wanted or "/simulated-dev/" in fields[3]:
            return
        if _OURS.match(target) and (kind in ("ext4", "overlay", "erofs", "xfs", "btrfs") or str(on.base) in fields[3]):
            yield Finding("covered", target, row)


def _allowed(what: str, options: dict[str, Any]) -> bool:
    """Whether the caller's own options give this away."""
    added = options.get("cap_add", ())
    if options.get("network") == "host" and what in _NEEDS_NETWORK:
        return True
    if not _ADMIN.isdisjoint(added) and what.startswith(_NEEDS_ADMIN):
        return True
    if ("SYS_PTRACE" in added or "ALL" in added) and what in ("ptrace init", "process_vm_readv init", "pidfd_getfd init", "kcmp init"):
        return True
    if ("DAC_READ_SEARCH" in added or "ALL" in added) and what == "open_by_handle_at":
        return True
    return options.get("seccomp") == "unconfined" and what.startswith(_LEFT_TO_SECCOMP)
