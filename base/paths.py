"""Where dockless keeps things: one function per place, as root under /var/lib and /run, as a user under XDG.

``DOCKLESS_HOME`` moves all of them below one directory (tests, labs, a second instance).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from dockless.base.path import Path
from dockless.errors import BadInput, Unwritable

StrPath = str | os.PathLike[str]
Argument = str | bytes | os.PathLike[str] | os.PathLike[bytes]
"""An argument of a command, as ``subprocess`` takes them."""
_LONGEST_PATH, _LONGEST_NAME = 2048, 255
"""Bytes: half of what the kernel takes, so that what lies below has room; limits.h(0p)."""


SANDBOXS_OWN = "/, /proc, /sys and /dev"


def is_the_sandboxs(path: str) -> bool:
    """Whether a whole, normal path inside is a place of the kernel's file systems, where a mount uncovers or replaces what is masked."""
    return path in ("/", "/dev") or any(path == top or path.startswith(top + "/") for top in ("/proc", "/sys"))


def _home() -> Path | None:
    value = os.environ.get("DOCKLESS_HOME")
    if not value:
        return None
    name = os.fsencode(value)
    if len(name) > _LONGEST_PATH or any(len(part) > _LONGEST_NAME for part in name.split(b"/")):
        raise BadInput(f"DOCKLESS_HOME is too long a path: {len(name)} bytes", subject="DOCKLESS_HOME", hint="set it to a shorter one")
    if not os.path.isabs(value):
        hint = "write the whole path: what runs later is in another directory"
        raise BadInput(f"DOCKLESS_HOME is a relative path: {value[:80]}", subject="DOCKLESS_HOME", hint=hint)
    return Path(value)


def user_home() -> Path:
    """The user's own directory. ``BadInput`` where neither HOME nor the system's list of users knows one."""
    home = os.path.expanduser("~")
    if home.startswith("~"):
        hint = "set HOME, or DOCKLESS_HOME for all that dockless keeps"
        raise BadInput(f"user {os.getuid()} has no home directory", subject="HOME", hint=hint)
    return Path(home)


def _place(name: str, as_root: str, xdg: str, fallback: str) -> Path:
    home = _home()
    if home is not None:
        return home / name
    if os.geteuid() == 0:
        return Path(as_root)
    base = os.environ.get(xdg)
    return (Path(base) if base and os.path.isabs(base) else user_home() / fallback) / "dockless"


def store() -> Path:
    """The image store: blobs by digest, unpacked layers by chain id."""
    return _place("store", "/var/lib/dockless/store", "XDG_DATA_HOME", ".local/share")


def shared_store() -> Path:
    """Root's image store, whose list and blobs everybody may read."""
    return Path("/var/lib/dockless/store")


def runtime() -> Path:
    """What a reboot may lose: sockets, locks. A user without ``XDG_RUNTIME_DIR`` gets a directory below the state."""
    home = _home()
    if home is not None:
        return home / "run"
    if os.geteuid() == 0:
        return Path("/run/dockless")
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "dockless" if base and os.path.isabs(base) else state() / "run"


def state() -> Path:
    """What a reboot must not lose: jobs.db, one directory per sandbox, named volumes."""
    return _place("state", "/var/lib/dockless", "XDG_STATE_HOME", ".local/state")


SOCKET_OF_ROOT = Path("/run/dockless/daemon.sock")
CONFIG_OF_ROOT = Path("/etc/dockless/dockless.toml")


def config_file() -> Path:
    """``dockless.toml``."""
    home = _home()
    if home is not None:
        return home / "dockless.toml"
    if os.geteuid() == 0:
        return CONFIG_OF_ROOT
    return _place("", "", "XDG_CONFIG_HOME", ".config") / "dockless.toml"


def absolute(path: str, what: str) -> str:
    """A path of the host as people write it: relative to the current directory, or with ``~``. ``BadInput`` where there is none."""
    try:
        return os.path.abspath(os.path.expanduser(path))
    except FileNotFoundError:
        hint = "go to a directory that exists, or write the whole path"
        raise BadInput(f"{what}: {path[:80]!r} is relative, and the current directory is gone", subject=what, hint=hint) from None


def make(directory: Path, mode: int = 0o700, parents: int = 0o711) -> Path:
    """Make a directory and what is missing above it with exactly these modes, whatever the umask is. What is there stays as it is.
    ``Unwritable`` where that cannot be."""
    with writing("a directory of dockless", directory):
        _make(directory, mode, parents)
    return directory


def make_new(directory: Path, mode: int = 0o700, parents: int = 0o711) -> bool:
    """The same for a directory that nobody else may have made: False, with nothing changed, where it is there."""
    with writing("a directory of dockless", directory):
        try:
            return _make_one(directory, mode)
        except FileNotFoundError:
            _make(directory.parent, parents, parents)
            return _make_one(directory, mode)


def _make(directory: Path, mode: int, parents: int) -> None:
    missing = [directory]
    while not missing[-1].parent.is_dir():
        missing.append(missing[-1].parent)
    for path in reversed(missing):
        _make_one(path, mode if path == directory else parents)


def _make_one(path: Path, mode: int) -> bool:
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return False
    # Not by its name: the directory above may be somebody else's, who puts a link there.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # no descriptor to be had
        with contextlib.suppress(OSError):
            path.rmdir()
        raise
    try:
        os.fchmod(fd, mode)
    finally:
        os.close(fd)
    return True


@contextlib.contextmanager
def writing(what: str, place: Path) -> Iterator[None]:
    """An ``OSError`` inside becomes ``Unwritable``: ``what`` could not be written at ``place``."""
    try:
        yield
    except OSError as error:
        raise unwritable(what, place, error) from error


def unwritable(what: str, place: Path, cause: OSError | None = None) -> Unwritable:
    """The error of a file of ours that could not be written, with the next step for each cause."""
    number = (cause.errno if cause else 0) or 0
    error = Unwritable(
        f"cannot write {what}: {cause.strerror if cause else 'it was refused'}",
        subject=str(place),
        hint=HINTS.get(number, f"look at the file system of {place}"),
    )
    error.errno = number
    return error


HINTS = {
    errno.ENOSPC: "the disk is full: make room (dockless prune), or move DOCKLESS_HOME",
    errno.EDQUOT: "your quota on this disk is used up: make room (dockless prune), or move DOCKLESS_HOME",
    errno.EROFS: "the file system is read-only: look at the kernel's log, or move DOCKLESS_HOME",
    errno.EIO: "the disk reports errors: look at the kernel's log (dmesg) before trying again",
    errno.EACCES: "this user may not do that there: see `dockless doctor`, or move DOCKLESS_HOME",
    errno.EMFILE: "too many open files: raise ulimit -n, or start fewer at once",
    errno.ENFILE: "the host has too many open files: raise sysctl fs.file-max",
    errno.ENOMEM: "the host is out of memory",
    errno.EFBIG: "no file may be that large: raise ulimit -f",
    errno.EAGAIN: "too many processes: raise ulimit -u or pids.max, or start fewer at once",
}
"""What to do next about an error of the operating system, by its errno."""
