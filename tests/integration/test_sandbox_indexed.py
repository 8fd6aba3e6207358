"""Sandboxes on layers that were never unpacked: the kernel reads them from an index and a tar."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support import boxes
from support import make_image as make
from support.requires import requires

from dockless.errors import ImageError, LaunchFailed, Unsupported
from dockless.images import Image, Store
from dockless.images.layers import erofs
from dockless.images.layers.layers import Layer
from dockless.sandbox import features
from dockless.sandbox.plan.explain import rows
from dockless.sandbox.run import prepared
from dockless.sandbox.run.start import explain
from dockless.sandbox.spec import Spec

pytestmark = requires("root", "userns", "overlay", "erofs")


def load(tmp_path: Path, *layers: list[make.Entry], name: str = "indexed:1", **config) -> Image:
    """An image with a shell at the bottom, every layer of it an index."""
    base = [make.directory("."), *make.rootfs_entries()]
    layout = make.make_oci_layout(tmp_path / "layout", [base, *layers], make.config(**config), name, compression="none")
    (image,) = Store(index=True).load(layout)
    assert all(layer.tar is not None for layer in image.layers)
    return image


def forget_clones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel before 6.15: a mount that is nowhere attached cannot be cloned."""
    now = features.probe()
    monkeypatch.setattr(features, "probe", lambda: replace(now, detached_clones=False))
    prepared._kept.clear()


def test_a_program_runs_from_a_tar(tmp_path):
    layer = [make.directory("data", 0o1777), make.file("data/big", bytes(range(256)) * 5000), make.file("data/gone", "x")]
    top = [make.directory("data", 0o755, uid=7), make.whiteout("data/gone"), make.directory("etc"), make.file("etc/os-release", "ID=top\n")]
    image = load(tmp_path, layer, top, env={"NAME": "value"})
    script = "cat /etc/os-release; ls /data; ls -dn /data | cut -d' ' -f1; wc -c < /data/big; echo $NAME; cat /etc/passwd | head -1"
    said = boxes.ok(script, image=image.name).splitlines()
    assert said == ["ID=top", "big", "drwxr-xr-x", "1280000", "value", "root:x:0:0:root:/root:/bin/sh"]


@pytest.mark.parametrize("mode", ["disk", "tmpfs"])
def test_writes_go_to_the_upper(tmp_path, mode):
    image = load(tmp_path, [make.directory("data"), make.file("data/a", "one", 0o640, uid=5)])
    before = [(layer.path.read_bytes(), layer.tar.read_bytes()) for layer in image.layers if layer.tar]
    script = "cat /data/a; echo two > /data/a; cat /data/a; stat -c %u:%a /data/a; rm /data/a"
    script += "; [ -e /data/a ] || echo gone; mv /data /moved && ls /"
    for _ in range(2):
        said = boxes.ok(script, image=image.name, root=mode).split()
        assert said[:4] == ["onetwo", "5:640", "gone", "bin"]
        assert "moved" in said
        assert "data" not in said
    assert [(layer.path.read_bytes(), layer.tar.read_bytes()) for layer in image.layers if layer.tar] == before


def test_owners_and_setuid_are_kept(tmp_path):
    """Shifted by the id map as written layers are; a setuid program works for the sandbox's own users."""
    image = load(tmp_path, [make.file("su", Path("/bin/true").read_bytes(), 0o4755), make.file("mine", "x", 0o600, uid=1000)], user="app")
    said = boxes.ok("stat -c '%u %g %a' /su /mine; cat /mine; cat /etc/shadow 2>&1; id -u", image=image.name).splitlines()
    assert said[:2] == ["0 0 4755", "1000 0 600"]
    assert said[2].startswith("x")
    assert said[-1] == "1000"


def test_devices_of_a_layer_are_inert(tmp_path):
    """A9: with a number that the sandbox may open by its own /dev, and one that it may not."""
    image = load(tmp_path, [make.directory("d"), make.device("d/null", 1, 3), make.device("d/sda", 8, 0, block=True)])
    ran = boxes.sh("stat -c %t:%T /d/null; echo x > /d/null; cat /d/sda", image=image.name)
    assert ran.out == "1:3\n"
    assert ran.exit.code != 0
    assert ran.err.count("ermission denied") == 2


def test_forty_layers(tmp_path):
    """And the base: one more than are held."""
    image = load(tmp_path, *([make.directory("many"), make.file(f"many/{n}", str(n))] for n in range(40)))
    assert boxes.ok("cat /many/* | wc -c; ls /many | wc -l", image=image.name).split() == ["70", "40"]


def test_nothing_is_left(tmp_path):
    image = load(tmp_path)
    boxes.ok("true", image=image.name)
    with pytest.raises(TimeoutError):
        boxes.run(Spec(argv=("sleep", "100"), image=image.name), timeout=0.2)
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def test_a_layer_that_is_gone_is_named(tmp_path):
    image = load(tmp_path)
    layer = image.layers[0]
    assert layer.tar is not None
    plan = Spec(argv=("true",), image=image.name)
    boxes.run(plan)  # prepared now: the next start looks at no store
    layer.tar.rename(layer.tar.with_suffix(".away"))
    with pytest.raises((ImageError, LaunchFailed)) as caught:
        boxes.run(plan)
    assert f"cannot mount the layer {layer.path}" in str(caught.value)
    assert "load or pull the image again" in (caught.value.hint or "")


def test_a_layer_that_is_gone_is_named_by_older_kernels(tmp_path, monkeypatch):
    forget_clones(monkeypatch)
    test_a_layer_that_is_gone_is_named(tmp_path)


def test_the_plan_says_what_happens(tmp_path):
    image = load(tmp_path)
    table = rows(explain(Spec(argv=("true",), image=image.name)).plan)
    (row,) = (row for row in table if "nothing was unpacked" in row.words)
    assert f"the tree of the index {image.layers[0].path}, its files' data in the tar {image.layers[0].tar}" in row.words
    assert re.search(f"erofs {image.layers[0].path} \\$[a-z_0-9]+ {image.layers[0].tar}$", row.shell)


def test_the_plan_says_what_happens_on_older_kernels(tmp_path, monkeypatch):
    forget_clones(monkeypatch)
    image = load(tmp_path)
    table = rows(explain(Spec(argv=("true",), image=image.name)).plan)
    said = [row.words for row in table]
    assert any("nothing was unpacked" in words for words in said)
    assert f"set its device to {image.layers[0].tar}" in said
    assert any(re.search(r"erofs \$source \$[a-z_0-9]+ \$device$", row.shell) for row in table)


@pytest.mark.parametrize(
    "old",
    [
        {"detached_clones": False},
        {"overlay_detached_layers": False},
        {"overlay_detached_layers": False, "detached_clones": False},
        {"overlay_detached_layers": False, "detached_clones": False, "overlay_lowerdir_plus": False},
    ],
)
def test_kernels_that_want_layers_attached(tmp_path, monkeypatch, old):
    """Before 6.15 an overlay takes no layer that is mounted nowhere: then each is mounted over its own place in the store, seen by the
    keeper alone."""
    image = load(tmp_path, [make.directory("data"), make.file("data/a", "one")])
    now = features.probe()
    monkeypatch.setattr(features, "probe", lambda: replace(now, **old))
    assert boxes.ok("cat /data/a", image=image.name) == "one"
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def test_a_user_cannot_mount_it(tmp_path):
    from dockless.sandbox.plan.builder import Builder
    from dockless.sandbox.rootfs import _layer

    class Rootless:
        rootful = False
        idmap = None

    image = load(tmp_path)
    builder = Builder()
    with pytest.raises(Unsupported, match="only root can mount it") as caught:
        _layer(builder, builder.keeper, Rootless(), image.layers[0], -1, False)  # type: ignore[arg-type]
    assert "load the image as this user" in (caught.value.hint or "")


def test_files_are_read_without_a_sandbox(tmp_path):
    image = load(tmp_path, [make.directory("etc"), make.symlink("etc/link", "../etc/name"), make.file("etc/name", "found")])
    assert image.read_file("/etc/link") == b"found"
    before = len(os.listdir("/proc/self/fd"))
    assert image.read_file("/etc/link") == b"found"
    assert image.read_file("/etc/none") is None
    assert len(os.listdir("/proc/self/fd")) == before
    for layer in image.layers:
        assert layer.tar is not None
        assert stat.S_IMODE(layer.tar.stat().st_mode) & 0o077 == 0 or stat.S_IMODE(layer.tar.parents[1].stat().st_mode) & 0o077 == 0, (
            "layers hold setuid programs (CVE-2021-41091)"
        )


# -- mounts that the process holds ---------------------------------------------------------------------------------------------------------

BIG = os.urandom(1 << 20) * 4


def cached(layer: Layer, name: str) -> float:
    """How much of a file is in the page cache of the mount that this process holds: 0.0 to 1.0. mincore(2)"""
    root = layer.open()
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=root)
    try:
        size = os.fstat(fd).st_size
        with mmap.mmap(fd, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as mapped:
            at = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
            pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
            assert ctypes.CDLL(None, use_errno=True).mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), pages) == 0
        return sum(page & 1 for page in pages) / len(pages)
    finally:
        os.close(fd)
        os.close(root)


needs_clones = pytest.mark.skipif(not features.probe().detached_clones, reason="this kernel clones no mount that is nowhere attached")


@needs_clones
def test_sandboxes_share_what_they_read(tmp_path):
    """One page cache: what a sandbox has read, this process and so every other sandbox finds there. Two at once do."""
    image = load(tmp_path, [make.file("big", BIG)])
    assert cached(image.layers[1], "big") == 0.0
    spec = Spec(argv=("/bin/sh", "-c", "cat /big > /dev/null; sleep 100"), image=image.name)
    with boxes.running(spec), boxes.running(spec):
        boxes.until(lambda: cached(image.layers[1], "big") == 1.0, "the whole file is in the page cache")
    assert cached(image.layers[1], "big") == 1.0


@needs_clones
def test_older_kernels_share_nothing(tmp_path, monkeypatch):
    """That the other test sees what it says."""
    forget_clones(monkeypatch)
    image = load(tmp_path, [make.file("big", BIG)])
    boxes.ok("cat /big > /dev/null", image=image.name)
    assert cached(image.layers[1], "big") == 0.0


def test_an_image_is_removed_and_loaded_again(tmp_path):
    """The same spec: the first time, from the cache of plans; after the removal of what is held, from layers that are new files."""
    for number in range(3):
        image = load(tmp_path / str(number), [make.file("a", "one")], name="again:1")
        assert image.read_file("/a") == b"one"
        for _ in range(2):
            assert boxes.ok("cat /a", image="again:1") == "one"
        assert Store().remove("again:1", force=True).size
        assert not [layer for layer in image.layers if layer.path.exists()]
        assert not erofs._held, "a mount keeps removed files on the disk"


def test_a_child_of_fork_starts_sandboxes(tmp_path):
    """On the mounts of its parent, though another thread was just at them."""
    load(tmp_path, [make.file("a", "one")], name="forked:1")
    script = """if True:
        import os
        from support import boxes
        from dockless.images.layers import erofs
        assert boxes.ok("cat /a", image="forked:1") == "one"
        erofs._lock.acquire()
        pid = os.fork()
        if not pid:
            held = lambda: {key: one[:2] for key, one in erofs._held.items()}
            before = held()
            assert boxes.ok("cat /a", image="forked:1") == "one"
            assert len(before) == 2 and held() == before
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    """
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, timeout=boxes.DEADLINE)
