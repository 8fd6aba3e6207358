"""User namespaces with real maps: made in forked children, as root, as a user with ranges and without, and inside another namespace."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import tempfile
import threading
import traceback
from pathlib import Path

import pytest
from support.requires import requires

from dockless.base import idmaps
from dockless.base.idmaps import IdMap, Range
from dockless.errors import IdMapError
from dockless.native import userns

CLONE_NEWUSER, CLONE_NEWNS = 0x10000000, 0x20000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
NOBODY = 65534

libc = ctypes.CDLL(None, use_errno=True)

pytestmark = requires("userns")


def check(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def child(body):
    """What ``body()`` returns, run in a forked child, so that namespaces, ids and kept descriptors end with it."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            answer = [True, body()]
        except BaseException:
            answer = [False, traceback.format_exc()]
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    fine, value = json.loads(said)
    assert fine, value
    return value


def seen_inside(fd):
    """The maps that a process in the namespace sees, its ids as root of it, and whether it may set groups."""

    def body():
        check(libc.setns(fd, CLONE_NEWUSER))
        return [[[int(n) for n in line.split()] for line in open(f"/proc/self/{kind}_map")] for kind in ("uid", "gid")] + [
            open("/proc/self/setgroups").read().strip()
        ]

    return child(body)


def become(uid, gid):
    """An ordinary user. The memory holds nothing secret, so the process stays one its user may look at (newuidmap asks)."""
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    check(libc.prctl(4, 1, 0, 0, 0))  # PR_SET_DUMPABLE


def with_ranges(tmp_path, subuid, subgid=None):
    """/etc/subuid and /etc/subgid with these lines, for this process only."""
    check(libc.unshare(CLONE_NEWNS))
    check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    for name, text in (("subuid", subuid), ("subgid", subuid if subgid is None else subgid)):
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o644)
        check(libc.mount(str(path).encode(), f"/etc/{name}".encode(), None, MS_BIND, None))


def warm():
    """Load the extension and the launcher while this process may still read the checkout."""
    userns.namespace_fd(IdMap((Range(0, 5, 1),), (Range(0, 5, 1),)))
    import subprocess  # noqa: F401


@pytest.fixture
def open_place():
    """A directory that other users reach, unlike tmp_path."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        os.chmod(place, 0o755)
        yield Path(place)


@requires("root")
def test_roots_namespace():
    def body():
        idmap = idmaps.default_map()
        fd = userns.namespace_fd(idmap)
        assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        assert userns.namespace_fd(idmap) == fd
        assert userns.namespace_fd(IdMap(idmap.uids, (Range(0, 7, 2),))) != fd
        return seen_inside(fd)

    uids, gids, setgroups = child(body)
    assert uids == gids and uids[0][0] == 0 and sum(count for _, _, count in uids) >= 65536
    assert setgroups == "allow"


@requires("root")
def test_another_users_namespace(tmp_path):
    def body():
        idmaps.SUBUID = idmaps.SUBGID = str(tmp_path / "ranges")
        (tmp_path / "ranges").write_text("nobody:100000:1000\n65534:200000:5\n")
        return seen_inside(userns.namespace_fd(idmaps.default_map(NOBODY)))

    gid = idmaps._primary_gid(NOBODY)
    uids, gids, setgroups = child(body)
    assert uids == [[0, NOBODY, 1], [1, 100000, 1000], [1001, 200000, 5]]
    assert gids == [[0, gid, 1], [1, 100000, 1000], [1001, 200000, 5]]
    assert setgroups == "allow"


@requires("root", "program:newuidmap")
def test_a_user_with_ranges(tmp_path):
    gid = idmaps._primary_gid(NOBODY)

    def body():
        with_ranges(tmp_path, "nobody:100000:65536\nnobody:300000:10\n")
        warm()
        become(NOBODY, gid)
        idmap = idmaps.default_map()
        assert not idmap.single
        return seen_inside(userns.namespace_fd(idmap))

    uids, gids, setgroups = child(body)
    assert uids == [[0, NOBODY, 1], [1, 100000, 65536], [65537, 300000, 10]]
    assert gids[0] == [0, gid, 1] and gids[1:] == uids[1:]
    assert setgroups == "allow"


@requires("user", "subuid")
def test_my_own_namespace():
    """The same without any help from root."""
    uids, gids, setgroups = child(lambda: seen_inside(userns.namespace_fd(idmaps.default_map())))
    assert uids[0] == [0, os.geteuid(), 1] and len(uids) > 1 and len(gids) > 1
    assert setgroups == "allow"


@requires("root", "program:newuidmap")
def test_a_user_without_ranges(tmp_path):
    gid = idmaps._primary_gid(NOBODY)

    def body():
        with_ranges(tmp_path, "other:100000:65536\n")
        warm()
        become(NOBODY, gid)
        assert idmaps.default_map() == IdMap((Range(0, NOBODY, 1),), (Range(0, gid, 1),), single=True)
        try:
            userns.namespace_fd(IdMap((Range(0, NOBODY, 1), Range(1, 100000, 5)), (Range(0, gid, 1),)))
        except IdMapError as error:
            return [str(error), error.hint]
        return None

    message, hint = child(body)
    assert "refused the id map" in message
    assert "usermod --add-subuids 165536-231071 --add-subgids 165536-231071 nobody" in hint


@requires("root")
def test_the_environment_chooses_no_helper_and_reaches_none(open_place, monkeypatch):
    """A33, A34: a newuidmap in PATH is not run; the real one gets an empty environment and starts in /."""
    gid = idmaps._primary_gid(NOBODY)
    evil, good, told = open_place / "evil", open_place / "good", open_place / "told"
    for place in (evil, good, told):
        place.mkdir()
        place.chmod(0o777 if place == told else 0o755)
    for tool in ("newuidmap", "newgidmap"):
        (evil / tool).write_text(f"#!/bin/sh\ntouch {told}/evil\n")
        (good / tool).write_text(
            f"#!/bin/sh\ncat /proc/$$/environ > {told}/environ\nreadlink /proc/$$/cwd > {told}/cwd\necho no >&2\nexit 1\n"
        )
        for place in (evil, good):
            (place / tool).chmod(0o4755)
    monkeypatch.setattr(idmaps, "_TOOL_PLACES", (str(good),))

    def body():
        os.environ.update(PATH=f"{evil}:{os.environ['PATH']}", LD_PRELOAD="/nonexistent.so", GLIBC_TUNABLES="x", PYTHONPATH=str(evil))
        warm()
        os.chdir(open_place)
        become(NOBODY, gid)
        try:
            userns.namespace_fd(IdMap((Range(0, NOBODY, 1), Range(1, 100000, 5)), (Range(0, gid, 1),)))
        except IdMapError as error:
            return str(error)
        return None

    assert child(body) == f"{good}/newgidmap refused the id map: no"
    assert (told / "environ").read_bytes() == b""
    assert (told / "cwd").read_text() == "/\n"
    assert not (told / "evil").exists()


@requires("root")
def test_a_map_the_kernel_refuses():
    def body():
        found = []
        for uids in ((Range(0, 1, 5), Range(5, 3, 5)), (Range(0, 1, 2), Range(1, 10, 5))):
            try:
                userns.namespace_fd(IdMap(uids, (Range(0, 1, 1),)))
            except IdMapError as error:
                found.append([str(error), error.hint])
        return found

    found = child(body)
    assert len(found) == 2
    for message, hint in found:
        assert "Invalid argument" in message and hint


@requires("root")
def test_threads_share_one_namespace_and_a_fork_keeps_it():
    def body():
        idmap = idmaps.default_map()
        found = []
        start = threading.Barrier(8)

        def ask():
            start.wait()
            found.append(userns.namespace_fd(idmap))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(found) == 8 and len(set(found)) == 1
        with userns._lock:  # as if another thread held it at the moment of the fork
            return [found[0], child(lambda: [userns.namespace_fd(idmap), seen_inside(userns.namespace_fd(idmap))[0]])]

    fd, (again, uids) = child(body)
    assert again == fd
    assert uids[0][0] == 0


@requires("root")
def test_a_descriptor_that_someone_closed_is_made_anew():
    def body():
        idmap = idmaps.default_map()
        fd = userns.namespace_fd(idmap)
        os.dup2(os.open("/dev/null", os.O_RDONLY), fd)
        return seen_inside(userns.namespace_fd(idmap))[0][0][0]

    assert child(body) == 0


@requires("root")
def test_inside_another_user_namespace():
    def body():
        outer = userns.namespace_fd(IdMap((Range(0, 0x6FFF0000, 65536),), (Range(0, 0x6FFF0000, 65536),)))
        check(libc.setns(outer, CLONE_NEWUSER))
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        idmap = idmaps.default_map()
        assert idmap == IdMap((Range(0, 1, 65535),), (Range(0, 1, 65535),))
        return seen_inside(userns.namespace_fd(idmap))[:2]

    assert child(body) == [[[0, 1, 65535]], [[0, 1, 65535]]]


@requires("root")
def test_namespaces_switched_off():
    def body():
        outer = userns.namespace_fd(IdMap((Range(0, 0x6FFF0000, 65536),), (Range(0, 0x6FFF0000, 65536),)))
        check(libc.setns(outer, CLONE_NEWUSER))
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        with open("/proc/sys/user/max_user_namespaces", "w") as file:
            file.write("0")
        try:
            userns.namespace_fd(idmaps.default_map())
        except IdMapError as error:
            return [str(error), error.hint]
        return None

    message, hint = child(body)
    assert "cannot make a user namespace" in message
    assert "sysctl -w user.max_user_namespaces=" in hint
