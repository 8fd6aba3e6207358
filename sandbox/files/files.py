"""``box.files``: the files of a sandbox, with the names and the errors of Python's own functions."""

from __future__ import annotations

import contextlib
import errno
import os
import stat as modes
import threading
from collections.abc import Callable
from types import TracebackType

from dockless.base.checks import checked
from dockless.base.dataclass import dataclass
from dockless.base.pickling import Unpicklable
from dockless.base.typing import IO, TYPE_CHECKING, Any, Literal
from dockless.base.units import parse_size
from dockless.errors import BadInput
from dockless.sandbox.files import calls, host, inside, wire
from dockless.sandbox.files.agent import Agent
from dockless.sandbox.files.tree import Copied, Tally, below, landing
from dockless.sandbox.files.wire import About

if TYPE_CHECKING:
    from dockless.sandbox.files.watching import Watch

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]
"""A path inside: absolute, or relative to ``/``."""
FileType = Literal["file", "directory", "link", "fifo", "socket", "character device", "block device"]
_TYPES: dict[int, FileType] = {
    modes.S_IFREG: "file", modes.S_IFDIR: "directory", modes.S_IFLNK: "link", modes.S_IFIFO: "fifo", modes.S_IFSOCK: "socket",
    modes.S_IFCHR: "character device", modes.S_IFBLK: "block device",
}  # fmt: skip
_LARGEST_READ, _LARGEST_COPY, _MOST_FILES = "256M", "16G", 1_000_000


@dataclass(frozen=True, slots=True)
class FileInfo:
    """What stat(2) says inside. ``mode``: the permission bits. ``uid``, ``gid``: as the sandbox numbers them. ``size``: bytes;
    ``modified``: seconds since 1970. ``target``: where a link leads, None for what is no link, or in ``list``."""

    path: str
    type: FileType
    size: int
    mode: int
    uid: int
    gid: int
    modified: float
    target: str | None = None

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def is_file(self) -> bool:
        return self.type == "file"

    @property
    def is_directory(self) -> bool:
        return self.type == "directory"


class Files(Unpicklable):
    """The files of a sandbox that runs, or of a detached one that keeps them, as its own user or the one of ``as_user`` sees them: her
    rights, the sandbox's ids, its mounts.

    Nothing of the image runs for it, and no path leads out: a process of ours inside does what is asked, with the sandbox's rights alone.
    It is started with the first request and ends with ``close``, with the sandbox or with this program. While it runs the sandbox sees it,
    and who has the right to may stop it or lie in its place: what is read is never more to be trusted than the sandbox.

    Paths are absolute or relative to ``/``. Links are followed as inside. Errors are those of the same functions of Python, with the path
    inside: ``FileNotFoundError``, ``PermissionError``, ``IsADirectoryError`` and other ``OSError``. A FIFO, a socket or a device is never
    opened: ``OSError`` (ENOTSUP). ``SandboxGone`` where the sandbox has ended; ``TimeoutError`` where it has not answered for a minute,
    since it is paused or stops our process; ``SandboxError`` for an answer that makes no sense. Safe to use from several threads.
    """

    def __init__(self, connect: Callable[[str | None], Agent], user: str | None = None) -> None:
        self._connect, self._user = connect, user
        self._lock = threading.Lock()
        self._running: Agent | None = None
        self._owner = os.getpid()
        self._others: dict[str, Files] = {}

    @checked
    def as_user(self, user: str) -> Files:
        """The same files with the rights of another user: a name of the sandbox's ``/etc/passwd`` or a number, ``USER[:GROUP]``."""
        with self._lock:
            return self._others.setdefault(user, Files(self._connect, user))

    @property
    def _agent(self) -> Agent:
        with self._lock:
            if self._running is None or self._running.closed or self._owner != os.getpid():  # a fork's parent has its own
                self._running, self._owner = self._connect(self._user), os.getpid()
            return self._running

    def close(self) -> None:
        """End what acts inside, also for other users. Open files of it are lost; a later request starts it again."""
        with self._lock:
            if self._running is not None and self._owner == os.getpid():
                self._running.close()
            for other in self._others.values():
                other.close()

    def __enter__(self) -> Files:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- contents

    @checked
    def read_bytes(self, path: AnyPath, *, max_size: int | str = _LARGEST_READ) -> bytes:
        """A whole file. ``OSError`` (EFBIG) where it has more than ``max_size`` bytes."""
        raw, limit = inner(path), parse_size(max_size, "max_size")
        found = bytearray()
        with contextlib.closing(calls.content(self._agent, raw, 0)) as chunks:
            for chunk in chunks:
                found += chunk
                if len(found) > limit:
                    error = calls.failed(errno.EFBIG, raw)
                    error.add_note("raise max_size, or use copy_out or open")
                    raise error
        return bytes(found)

    @checked
    def read_text(self, path: AnyPath, encoding: str = "utf-8", errors: str = "strict", *, max_size: int | str = _LARGEST_READ) -> str:
        """A whole file as text, newlines as they are. ``UnicodeDecodeError``"""
        return self.read_bytes(path, max_size=max_size).decode(encoding, errors)

    @checked
    def write_bytes(self, path: AnyPath, data: bytes | bytearray | memoryview) -> int:
        """Make a file or replace its contents; a new one gets mode 0666 less the sandbox's umask. The number of bytes."""
        raw, agent = inner(path), self._agent
        flags = wire.WITH_WRITE | wire.WITH_CREATE | wire.WITH_TRUNCATE
        if len(data) > wire.CHUNK:
            handle, _ = calls.opened(agent, raw, flags, mode=0o666)
            try:
                calls.written(agent, raw, handle, 0, memoryview(data))
            finally:
                agent.let_go(handle)
        else:
            write, close = wire.Request(wire.WRITE, bytes(data), handle=wire.LAST), wire.Request(wire.CLOSE, handle=wire.LAST)
            for answer in agent.ask(calls.named(wire.OPEN, raw, flags=flags, mode=0o666), write, close):
                calls.checked(answer, raw)
        return len(data)

    @checked
    def write_text(self, path: AnyPath, text: str, encoding: str = "utf-8", errors: str = "strict") -> int:
        """The same with text, newlines as they are. The number of characters."""
        self.write_bytes(path, text.encode(encoding, errors))
        return len(text)

    @checked
    def open(
        self, path: AnyPath, mode: str = "r", encoding: str | None = None, errors: str | None = None, newline: str | None = None
    ) -> IO[Any]:
        """A file object as of the built-in ``open``, buffered; text is UTF-8 unless ``encoding`` says otherwise. Close it."""
        from dockless.sandbox.files.opened import open_file

        return open_file(self._agent, inner(path), mode, encoding, errors, newline)

    # -- names

    @checked
    def stat(self, path: AnyPath, *, follow_symlinks: bool = True) -> FileInfo:
        """What is known of a file, or of a link itself with ``follow_symlinks=False``."""
        raw = inner(path)
        about, target = calls.look(self._agent, raw, follow=follow_symlinks)
        return _info(raw, about, target)

    @checked
    def exists(self, path: AnyPath) -> bool:
        """Whether there is something; False for a link that leads nowhere. ``PermissionError`` where this user may not know."""
        return calls.look_or_none(self._agent, inner(path)) is not None

    @checked
    def list(self, path: AnyPath = "/") -> tuple[FileInfo, ...]:
        """What is in a directory, sorted by name; links themselves. ``OSError`` (EFBIG) beyond 100,000 entries."""
        raw = inner(path)
        return tuple(_info(raw.rstrip(b"/") + b"/" + name, about) for name, about in calls.listing(self._agent, raw))

    @checked
    def mkdir(self, path: AnyPath, mode: int = 0o777, *, parents: bool = False, exist_ok: bool = False) -> None:
        """A new directory, with this mode less the sandbox's umask. ``parents``: and what is missing above it, with the default mode.
        ``exist_ok``: one that is there is no error."""
        raw = inner(path)
        agent = self._agent
        error = agent.ask(calls.named(wire.MKDIR, raw, mode=mode))[0].error
        if error == errno.ENOENT and parents and raw.strip(b"/"):
            self.mkdir(os.path.dirname(raw.rstrip(b"/")), parents=True, exist_ok=True)
            error = agent.ask(calls.named(wire.MKDIR, raw, mode=mode))[0].error
        if error == errno.EEXIST and exist_ok:
            found = calls.look_or_none(agent, raw)
            if found is not None and calls.is_directory(found[0]):
                return
        if error:
            raise calls.failed(error, raw)

    @checked
    def remove(self, path: AnyPath, *, recursive: bool = False) -> None:
        """Remove a file, a link itself or an empty directory; with ``recursive`` a directory and everything in it. Nothing is followed."""
        raw = inner(path)
        name = raw.rstrip(b"/")
        if not name or os.path.basename(name) in (b".", b".."):
            raise calls.failed(errno.EBUSY, raw)
        request = calls.named(wire.REMOVE, name, flags=wire.WITH_TREE if recursive else 0)
        calls.checked(self._agent.ask(request, patience=calls.REMOVAL)[0], raw)

    @checked
    def rename(self, old: AnyPath, new: AnyPath) -> None:
        """Give a file or directory another name; a file that has the new name is replaced, at once. rename(2)"""
        raw, other = inner(old), inner(new)
        error = self._agent.ask(calls.named(wire.RENAME, raw, more=other))[0].error
        if error:
            raise OSError(error, os.strerror(error), os.fsdecode(raw), None, os.fsdecode(other))

    @checked
    def watch(self, path: AnyPath, *, recursive: bool = False) -> Watch:
        """What happens to a file, or to what is in a directory, from now on; with ``recursive`` also below it. Use it in a ``with``.

        Links below the path are not followed. ``OSError`` (ENOSPC) where the kernel has no room for more watches: one is needed for each
        directory, and those of all sandboxes of a user count together (sysctl fs.inotify.max_user_watches). inotify(7)
        """
        from dockless.sandbox.files.watching import Watch

        return Watch(self._connect(self._user), inner(path), recursive)

    # -- copies

    @checked
    def copy_in(self, source: AnyPath, target: AnyPath, *, progress: Callable[[int, int], None] | None = None) -> Copied:
        """Copy a file or a directory of the host into the sandbox, with modes and times; its owner inside is the user.

        Where it arrives follows ``docker cp``: in a directory that is there, by its own name, or its contents alone for ``DIR/.``; else it
        gets the name of the target, whose parent is there. Directories are merged, files and links replaced. Links below the source are
        copied as they are; the source itself is followed. FIFOs, sockets and devices are skipped, and listed. ``progress``: called with the
        files and bytes so far.
        """
        with below(os.getcwdb()):
            return self._copy_in(os.fsencode(source), inner(target), Tally(1 << 63, 1 << 63, progress))

    def _copy_in(self, source: bytes, target: bytes, tally: Tally) -> Copied:
        is_directory = _is_directory(os.stat(source).st_mode, source)
        agent = self._agent
        found = calls.look_or_none(agent, target)
        name = source if source.endswith(b"/.") or source == b"." else os.path.abspath(source) + b"/" * source.endswith(b"/")
        place = landing(name, is_directory, target, _what(None if found is None else found[0].mode))
        with contextlib.closing(host.items(source)) as items:
            inside.put(agent, _at(target, place.name), items, tally, merged=place.merged)
        return tally.copied()

    @checked
    def copy_out(
        self,
        source: AnyPath,
        target: AnyPath,
        *,
        max_size: int | str = _LARGEST_COPY,
        max_files: int = _MOST_FILES,
        progress: Callable[[int, int], None] | None = None,
    ) -> Copied:
        """Copy a file or a directory of the sandbox to the host, with modes and times; its owner is the caller.

        Where it arrives: see ``copy_in``. Nothing inside can lead it elsewhere: below the target no link is followed, and files and links
        that are there are replaced. The source itself is followed, inside. Links below it are copied as links, but those that could lead
        out of what was copied (absolute ones, and with too many ``..``) are skipped and listed; so are FIFOs, sockets and devices. What the
        kernel shows in procfs, sysfs, devpts, mqueue and cgroups mounted below the source is left out, for it is nobody's files.
        Set-user-id, set-group-id and sticky bits are not copied. ``OSError`` (EFBIG) beyond ``max_size`` bytes or ``max_files`` files,
        links and directories.
        """
        with below(os.getcwdb()):
            return self._copy_out(inner(source), os.fsencode(target), Tally(parse_size(max_size, "max_size"), max_files, progress))

    def _copy_out(self, source: bytes, target: bytes, tally: Tally) -> Copied:
        agent = self._agent
        about, _ = calls.look(agent, source)
        if inside.kind_of(about.mode) == "special":
            raise calls.failed(errno.ENOTSUP, source)
        try:
            there = os.stat(target).st_mode
        except FileNotFoundError:
            there = None
        place = landing(source, calls.is_directory(about), target, _what(there))
        with contextlib.closing(inside.items(agent, source, about)) as items:
            host.put(_at(target, place.name), items, tally, merged=place.merged)
        return tally.copied()

    @checked
    def tar_in(
        self,
        stream: IO[bytes],
        target: AnyPath,
        *,
        max_size: int | str = _LARGEST_COPY,
        max_files: int = _MOST_FILES,
        progress: Callable[[int, int], None] | None = None,
    ) -> Copied:
        """Unpack a tar into a directory that is there. ``stream``: the tar, plain or compressed (gzip, zstd, xz, bzip2); it is read to its
        end.

        As ``copy_in``: modes and times are those of the tar, the owner is the user, files and links that are there are replaced, no link is
        followed. Directories without an entry are made. ``BadInput`` for a tar that is damaged or has names with ``..``; ``OSError``
        (EFBIG) beyond ``max_size`` bytes of contents or ``max_files`` files, links and directories; what was unpacked until then stays.
        """
        from dockless.sandbox.files.archive import Archive

        raw, tally = inner(target), Tally(parse_size(max_size, "max_size"), max_files, progress)
        agent = self._agent
        if not calls.is_directory(calls.look(agent, raw)[0]):
            raise calls.failed(errno.ENOTDIR, raw)
        with contextlib.closing(Archive(stream, "the tar").items()) as items:
            inside.put(agent, raw, items, tally, merged=True)
        return tally.copied()

    @checked
    def tar_out(
        self,
        source: AnyPath,
        stream: IO[bytes],
        *,
        max_size: int | str = _LARGEST_COPY,
        max_files: int = _MOST_FILES,
        progress: Callable[[int, int], None] | None = None,
    ) -> Copied:
        """A file or a directory as an uncompressed tar, below its own name, or without it for ``DIR/.``.

        As ``copy_out``: what is no file, directory or link is skipped and listed, there are no set-user-id bits, and who unpacks it owns
        it. Links are in it as they are inside. ``OSError`` (EFBIG) beyond ``max_size`` bytes or ``max_files`` files, links and directories;
        the tar then lacks its end.
        """
        from dockless.sandbox.files.archive import write

        raw, tally = inner(source), Tally(parse_size(max_size, "max_size"), max_files, progress)
        agent = self._agent
        about, _ = calls.look(agent, raw)
        name = os.path.basename(raw.rstrip(b"/"))
        if inside.kind_of(about.mode) == "special":
            raise calls.failed(errno.ENOTSUP, raw)
        with contextlib.closing(inside.items(agent, raw, about)) as items, below(raw):
            write(stream, items, tally, b"" if name in (b".", b"..") else name)
        return tally.copied()


def inner(path: AnyPath) -> bytes:
    """A path inside as bytes, absolute. ``BadInput``"""
    raw = os.fsencode(path)
    if not raw or b"\0" in raw:
        raise BadInput("a path is empty or has a NUL in it", subject="path", hint="give the path of a file inside")
    if len(raw) > 4095:
        raise calls.failed(errno.ENAMETOOLONG, raw[:80])
    return raw if raw.startswith(b"/") else b"/" + raw


def _at(target: bytes, name: bytes) -> bytes:
    return os.path.join(target, name) if name else target.rstrip(b"/") or target[:1]


def _what(mode: int | None) -> Literal["missing", "file", "directory"]:
    return "missing" if mode is None else "directory" if modes.S_ISDIR(mode) else "file"


def _is_directory(mode: int, path: bytes) -> bool:
    """Of something on the host. ``OSError`` for what cannot be copied."""
    if inside.kind_of(mode) == "special":
        raise OSError(errno.ENOTSUP, "Not a regular file: a FIFO, a socket or a device", path)
    return modes.S_ISDIR(mode)


def _info(path: bytes, about: About, target: bytes = b"") -> FileInfo:
    return FileInfo(
        os.fsdecode(path),
        _TYPES.get(modes.S_IFMT(about.mode), "file"),
        about.size,
        modes.S_IMODE(about.mode),
        about.uid,
        about.gid,
        about.modified / 1e9,
        os.fsdecode(target) if target else None,
    )
