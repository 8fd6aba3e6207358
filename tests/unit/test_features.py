"""What is asked of kernels that are not this one, and that nothing stays open afterwards."""

from __future__ import annotations

import errno
import os

import pytest

from dockless import native
from dockless.errors import Unsupported
from dockless.sandbox import features


class Kernel:
    """Answers system calls. ``overlay``: ``""`` for none, ``old`` for one that accepts everything, else the keys that it knows."""

    def __init__(self, *, overlay="lowerdir+", layers_by_fd=True, clones=True, idmap=True, missing=()) -> None:
        self.overlay, self.layers_by_fd, self.clones, self.idmap, self.missing = overlay, layers_by_fd, clones, idmap, missing

    def syscall(self, number, *args):
        if number in self.missing:
            return -errno.ENOSYS
        if number == features._NR_FSOPEN:
            return os.open("/dev/null", os.O_RDONLY) if self.overlay else -errno.ENODEV
        if number == features._NR_FSCONFIG:
            _, command, key, *_ = args
            if command == 6:
                return 0 if self.layers_by_fd else -errno.EINVAL
            return 0 if self.overlay == "old" or key.decode() in self.overlay.split() else -errno.EINVAL
        if number == features._NR_OPEN_TREE:
            return os.open("/dev/null", os.O_RDONLY) if args[0] == -100 or self.clones else -errno.EINVAL
        if number == features._NR_MOUNT_SETATTR and args[2:3] == (0x1000,):
            return -errno.EBADF if self.idmap else -errno.EINVAL
        return -errno.EBADF


@pytest.fixture
def probe(monkeypatch):
    """``probe(kernel)`` as root, ``probe(kernel, root=False)``."""

    def ask(kernel: Kernel, *, root: bool = True, inside=(True, True), user_namespaces: bool = True) -> features.Features:
        monkeypatch.setattr(native, "syscall", kernel.syscall)
        monkeypatch.setattr(features, "_capabilities", lambda: 1 << 21 if root else 0)
        monkeypatch.setattr(features, "_ask_inside", lambda: inside)
        monkeypatch.setattr(features, "_user_namespaces_work", lambda: user_namespaces)
        before = os.listdir("/proc/self/fd")
        found = features.probe.__wrapped__()
        assert os.listdir("/proc/self/fd") == before
        return found

    return ask


def mounts(found: features.Features) -> tuple[bool, ...]:
    return found.overlay, found.overlay_lowerdir_plus, found.overlay_detached_layers, found.detached_clones, found.idmapped_mounts


@pytest.mark.parametrize(
    ("kernel", "able"),
    [
        (Kernel(), (True, True, True, True, True)),
        (Kernel(layers_by_fd=False), (True, True, False, True, True)),
        (Kernel(overlay="lowerdir"), (True, False, False, True, True)),
        (Kernel(overlay="old"), (True, False, False, True, True)),
        (Kernel(overlay=""), (False, True, False, True, True)),
        (Kernel(clones=False), (True, True, True, False, True)),
        (Kernel(idmap=False), (True, True, True, True, False)),
        (Kernel(missing=(features._NR_MOUNT_SETATTR,)), (True, True, True, False, False)),
        (Kernel(missing=(features._NR_OPEN_TREE,)), (True, True, False, False, True)),
        (Kernel(missing=(features._NR_OPEN_TREE, features._NR_FSOPEN)), (True, True, False, False, True)),
    ],
)
def test_root_asks_the_kernel(probe, kernel, able):
    assert mounts(probe(kernel)) == able


@pytest.mark.parametrize("inside", [(False, False), (True, False), (True, True)])
def test_a_user_asks_in_a_namespace(probe, inside):
    """And has none of what only root can do; where there are no user namespaces there is no overlay either."""
    assert mounts(probe(Kernel(), root=False, inside=inside)) == (*inside, False, False, False)
    assert mounts(probe(Kernel(), root=False, inside=inside, user_namespaces=False)) == (False,) * 5


@pytest.mark.parametrize(("number", "name", "since"), features._FLOOR)
def test_what_every_sandbox_needs(probe, number, name, since):
    found = probe(Kernel(missing=(number,)))
    assert found.missing == ((name, since),)
    with pytest.raises(Unsupported, match=rf"{name} \(Linux {since}\)"):
        found.require_floor()
    probe(Kernel()).require_floor()


@pytest.mark.parametrize(
    ("knows", "answer"),
    [((), (False, False)), (("overlay",), (True, False)), (("overlay", "lowerdir+"), (True, True)), (None, (True, False))],
)
def test_the_questions_in_a_namespace(monkeypatch, knows, answer):
    """``None``: a kernel that accepts any key."""

    def fails_at(operations):
        for at, op in enumerate(operations):
            if knows is not None and op.a not in knows:
                return at
        return len(operations)

    monkeypatch.setattr(features, "_fails_at", fails_at)
    assert features._ask_inside() == answer


def test_too_few_files(probe, monkeypatch):
    for allowed, enough in ((features._FILES - 1, False), (features._FILES, True), (-1, True)):
        monkeypatch.setattr(features.os, "sysconf", lambda name, allowed=allowed: allowed)
        if enough:
            probe(Kernel())
            continue
        with pytest.raises(Unsupported, match="files may be open"):
            features.probe.__wrapped__()
