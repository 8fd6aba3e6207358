"""The canaries: files, a store, a neighbour's sandbox, devices, kernel settings, each known to the last bit, and how to see a change.

::

    BASE/home       the caller's own: a secret, notes, programs; each says a token of its own
    BASE/foreign    another user's
    BASE/fixed      bound into sandboxes read-only
    BASE/loose      bound into sandboxes to write: emptied before each case
    BASE/h          the DOCKLESS_HOME, with a neighbour that runs and has a volume
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hunt import build, own_mounts
from support import residue
from support.boxes import own_children
from support.requires import cgroup2_mount

from dockless.images.layers import erofs

NEIGHBOUR = "neighbour"
FOREIGN = 54321
_WATCHED = ("home", "foreign", "fixed", "h/store", f"h/state/sandboxes/{NEIGHBOUR}")
_RESTLESS = (
    "random/",
    "ns_last_pid",
    "pty/nr",
    "inode-",
    "dentry-",
    "file-nr",
    "aio-nr",
    "rss-",
    "stat_refresh",
    "compact_memory",
    "fs/quota/",
)
_OURS_TO_CHANGE = ("index.json", "pins", "locks", "images.json")


@dataclass(frozen=True)
class Canaries:
    """``tokens``: what each secret text means. ``programs``: without a configuration."""

    base: Path
    tokens: Mapping[str, str]
    programs: Mapping[str, bytes]
    settings: tuple[tuple[str, str], ...]
    with_own_mounts: bool

    @property
    def home(self) -> Path:
        return self.base / "h"

    def probe(self, *more: tuple[str, str]) -> bytes:
        return build.configured(self.programs["probe"], (*self.settings, *more))


def make(base: Path, *, with_own_mounts: bool, port: int, abstract: str) -> Canaries:
    """All canaries but the neighbour. ``with_own_mounts``: /etc, /opt and /dev are the hunt's own."""
    for name in ("home/bin", "fixed", "loose", "h", "tmp", "work", "programs", "foreign"):
        (base / name).mkdir(parents=True, exist_ok=True)
    os.chmod(base / "h", 0o711)
    tokens: dict[str, str] = {}

    def token(place: str) -> str:
        text = f"HUNT-CANARY-{secrets.token_hex(12)}"
        tokens[text] = place
        return text

    programs = build.compiled(base / "work")
    plain = Path("/bin/true").read_bytes()
    for name, content, mode in (
        ("home/secret", token("home/secret"), 0o600),
        ("home/notes", token("home/notes"), 0o644),
        ("home/bin/tool", plain + token("home/bin/tool").encode(), 0o755),
        ("home/bin/script", f"#!/bin/sh\n# {token('home/bin/script')}\n", 0o755),
        ("home/bin/static", build.configured(programs["static"], [("s", token("home/bin/static"))]), 0o755),
        ("foreign/secret", token("foreign/secret"), 0o600),
        ("foreign/open", token("foreign/open"), 0o644),
        ("fixed/text", "HUNT- bound read-only\n", 0o666),
        ("fixed/.hunt", "HUNT-\n", 0o666),
        ("home/.hunt", "HUNT-\n", 0o666),
        ("home/bin/.hunt", "HUNT-\n", 0o666),
    ):
        path = base / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(mode)
        if name.startswith("foreign/") and os.geteuid() == 0:
            os.chown(path, FOREIGN, FOREIGN)
    (base / "fixed").chmod(0o777)
    if with_own_mounts:
        for place in own_mounts.SECRETS:
            own_mounts.put_secret(place, token(place))
    names = ["home/secret", "home/notes", "home/bin/tool", "home/bin/script", "foreign/secret", "foreign/open", "home/.hunt", "fixed/.hunt"]
    volume = f"h/state/volumes/{os.geteuid()}/{NEIGHBOUR}"
    names += [f"{volume}/secret", f"h/state/sandboxes/{NEIGHBOUR}/upper/secret", f"h/state/sandboxes/{NEIGHBOUR}/spec.json", "h/.hunt"]
    names += own_mounts.SECRETS
    for name in ("neighbour's image", "neighbour's volume", "neighbour's environment", "the hunt's environment"):
        token(name)
    settings = (("b", str(base)), *(("n", name) for name in names), ("a", abstract), ("p", str(port)), ("w", own_mounts.SECRETS[0]))
    return Canaries(base, tokens, programs, settings, with_own_mounts)


def token_of(canaries: Canaries, place: str) -> str:
    return next(text for text, where in canaries.tokens.items() if where == place)


def loosen(canaries: Canaries) -> None:
    """An empty directory to bind for writing."""
    shutil.rmtree(canaries.base / "loose", ignore_errors=True)
    (canaries.base / "loose").mkdir()
    (canaries.base / "loose").chmod(0o777)
    (canaries.base / "loose/.hunt").write_text("HUNT-\n")


# -- what stays behind -------------------------------------------------------------------------------------------------------------------


def traces(id: str) -> set[str]:
    """What this process holds, and what on the machine is called after a sandbox: mounts, descriptors, children, cgroups. Other programs
    run here, too: theirs do not count."""
    erofs.release(everything=True)
    found = set()
    with open("/proc/self/mountinfo") as stream:
        found.update(f"mount {' '.join(line.split()[3:5])}" for line in stream)
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
        if not residue.KEPT.match(target):
            found.add(f"descriptor {fd} {target}")
    found.update(f"process {pid}" for pid in own_children())
    top = cgroup2_mount()
    for directory, names, _ in os.walk(top) if top else ():
        found.update(f"cgroup {directory}/{name}" for name in names if id in name)
    return found


def left(before: set[str], id: str, seconds: float = 3.0) -> list[str]:
    """What is there that was not there before, once everything that was ending had its time."""
    end = time.monotonic() + seconds
    found = traces(id) - before
    while found and time.monotonic() < end:
        time.sleep(0.02)
        found &= traces(id) - before
    return sorted(found)


# -- what is there ---------------------------------------------------------------------------------------------------------------------


def _file(path: str) -> str:
    found = os.lstat(path)
    kind = stat.S_IFMT(found.st_mode)
    words = [oct(found.st_mode), f"{found.st_uid}:{found.st_gid}"]
    if kind == stat.S_IFREG:
        words += [f"links {found.st_nlink}", f"inode {found.st_ino}", f"size {found.st_size}", f"mtime {found.st_mtime_ns}"]
        try:
            with open(path, "rb") as stream:
                words.append(hashlib.file_digest(stream, "sha256").hexdigest()[:16])
        except PermissionError:
            words.append("unreadable")
    elif kind == stat.S_IFLNK:
        words.append(os.readlink(path))
    elif kind in (stat.S_IFCHR, stat.S_IFBLK):
        words.append(f"device {found.st_rdev:x} mtime {found.st_mtime_ns}")
    try:
        words += [
            f"{name}={os.getxattr(path, name, follow_symlinks=False).hex()}" for name in sorted(os.listxattr(path, follow_symlinks=False))
        ]
    except OSError:
        pass
    return " ".join(words)


def tree(top: Path) -> Iterator[tuple[str, str]]:
    if not os.path.lexists(top):
        return
    yield str(top), _file(str(top))
    for directory, folders, files in os.walk(top):
        folders[:] = [name for name in folders if name not in _OURS_TO_CHANGE]
        for name in (*folders, *files):
            path = os.path.join(directory, name)
            try:
                yield path, _file(path)
            except FileNotFoundError:
                continue


def _kernel_settings() -> Iterator[tuple[str, str]]:
    for top in ("kernel", "vm", "fs", "user"):
        for directory, _, files in os.walk(f"/proc/sys/{top}"):
            for name in files:
                path = os.path.join(directory, name)
                if any(part in path for part in _RESTLESS):
                    continue
                try:
                    with open(path, "rb") as stream:
                        yield path, repr(stream.read(4096))
                except OSError:
                    continue


def _host(canaries: Canaries) -> Iterator[tuple[str, str]]:
    yield "the host's name", socket.gethostname()
    with open("/proc/self/mountinfo") as stream:
        # The kernel numbers mounts anew; what is mounted where, and how, is what counts.
        yield "the host's mounts", "\n".join(sorted(" ".join(line.split()[3:]) for line in stream))
    yield "the host's network", " ".join(sorted(name for _, name in socket.if_nameindex()))
    if canaries.with_own_mounts:
        for place in own_mounts.SECRETS:
            # A case replaces them: another inode, the same words and rights.
            found = os.lstat(place)
            yield place, f"{found.st_mode:o} {found.st_uid}:{found.st_gid} size {found.st_size} links {found.st_nlink}"
    for name in os.listdir("/dev"):
        path = f"/dev/{name}"
        if stat.S_IFMT(os.lstat(path).st_mode) in (stat.S_IFCHR, stat.S_IFBLK):
            found = os.lstat(path)
            yield path, f"{found.st_mode:o} {found.st_uid}:{found.st_gid} {found.st_rdev:x} links {found.st_nlink}"


def picture(canaries: Canaries) -> dict[str, str]:
    """Everything that a case must not change."""
    found: dict[str, str] = {}
    for name in _WATCHED:
        found.update(tree(canaries.base / name))
    for place in (canaries.home / "state/volumes").rglob(NEIGHBOUR):
        found.update(tree(place))
    found.update(_kernel_settings())
    found.update(_host(canaries))
    return {
        (key.replace(f"{canaries.base}/", "", 1)): value for key, value in found.items() if os.path.basename(key) not in _OURS_TO_CHANGE
    }


def listing(canaries: Canaries) -> set[str]:
    """The names of everything below the base but where a case may write."""
    found = set()
    for directory, folders, files in os.walk(canaries.base):
        if directory == str(canaries.base):
            folders[:] = [name for name in folders if name not in ("loose", "work", "over", "dev")]
        found.update(os.path.relpath(os.path.join(directory, name), canaries.base) for name in (*folders, *files))
    return found


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[tuple[str, str]]:
    """(what, how it changed), sorted."""
    return sorted(
        (key, f"{before.get(key, 'was not there')[:300]} -> {after.get(key, 'is gone')[:300]}")
        for key in before.keys() | after.keys()
        if before.get(key) != after.get(key)
    )
