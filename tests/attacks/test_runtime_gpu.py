"""GPUs that were not granted: rows A51, A53, A54 of the list of attacks, on stand-in devices with the real numbers.

A granted node answers ENXIO (there is no driver behind it), one that was not granted is not there and, made with mknod, answers EPERM.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

import pytest
from support.boxes import load, ok, sh
from support.make_image import directory, file, symlink
from support.requires import requires

from dockless.sandbox.gpus import gpu
from dockless.sandbox.spec import Namespaces, Spec

pytestmark = requires("userns")


@pytest.fixture(autouse=True)
def gpus(monkeypatch):
    """Four simulated GPUs."""
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("a real NVIDIA driver owns the numbers here")
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "4x80G")
    return gpu.inventory()


OPEN = 'for d in /dev/nvidia*; do head -c 1 $d 2>&1 >/dev/null | sed "s|^.*: |$d: |"; done'


def _nodes(text: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in text.splitlines() if line.startswith("/dev/nvidia") and ": " in line)


@requires("root", "cgroup2", "device-filter")
@pytest.mark.parametrize("fields", [{}, {"namespaces": Namespaces(user="host"), "cap_add": ("MKNOD",)}], ids=["userns", "with-mknod"])
def test_granted_nodes_open_and_no_others(gpus, fields):
    """A54: the filter is the gate, whatever the nodes' permissions say (CVE-2021-1056)."""
    said = _nodes(ok(OPEN, gpus=(gpus[1].uuid,), **fields))
    assert f"/dev/nvidia{gpus[1].minor}" in said and "/dev/nvidiactl" in said
    assert not any(f"/dev/nvidia{g.minor}" in said for g in gpus if g is not gpus[1])
    for path, words in said.items():
        assert "No such device or address" in words, (path, words)


@requires("root", "cgroup2", "device-filter")
def test_nodes_made_by_the_program_do_not_open(gpus):
    """A53, A54: mknod c 195 N as root with CAP_MKNOD: EPERM at the open (or already at the mknod)."""
    script = "; ".join(
        f"python3 -c 'import os; os.mknod(\"/dev/mine{g.minor}\", 0o020666, os.makedev(195, {g.minor}))' 2>/dev/null; head -c1 "
        f"/dev/mine{g.minor} 2>&1 >/dev/null"
        for g in gpus
    )
    text = sh(script, gpus=(gpus[0].uuid,), namespaces=Namespaces(user="host"), cap_add=("MKNOD",)).out
    assert text.count("not permitted") + text.count("No such file") == len(gpus), text


GRAPHICS = (("NVIDIA_DRIVER_CAPABILITIES", "utility,display"),)


@requires("root", "cgroup2", "device-filter")
def test_no_other_gpus_node_for_graphics(gpus):
    """A54: who has one GPU gets its nodes of /dev/dri and no other's, and opens none that a program has made."""
    mine, other = gpus[0].minor, gpus[1].minor
    look = 'cd /dev/dri; for d in * by-path/*; do [ -d $d ] || head -c 1 $d 2>&1 >/dev/null | sed "s|^.*: |$d: |"; done; '
    make = "import os; os.mknod('/dev/made', 0o020666, os.makedev(226, OTHER)); os.open('/dev/made', os.O_RDWR)"
    text = sh(
        f'{look} python3 -c "{make.replace("OTHER", str(128 + other))}" 2>&1 | tail -n 1',
        gpus=(gpus[0].uuid,),
        env=GRAPHICS,
        namespaces=Namespaces(user="host"),
        cap_add=("MKNOD",),
    ).out
    *shown, made = text.splitlines()
    place = f"by-path/pci-{gpus[0].pci_bus_id}"
    assert {line.partition(": ")[0] for line in shown} == {f"card{mine}", f"renderD{128 + mine}", f"{place}-card", f"{place}-render"}
    assert all("No such device or address" in line for line in shown), text
    assert "not permitted" in made.lower(), text


def test_no_node_for_graphics_that_is_not_asked_for(gpus):
    assert ok("ls /dev | grep -c dri || true", gpus=(gpus[0].uuid,)).strip() == "0"
    assert ok("ls /dev | grep -c dri || true", env=GRAPHICS).strip() == "0"


def test_without_a_lease_no_node_is_there():
    assert ok("ls /dev | grep -c nvidia || true").strip() == "0"


@requires("overlay")
@pytest.mark.parametrize("wish", ["NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"])
def test_a_wish_grants_nothing(gpus, tmp_path, wish):
    """A53: neither an image's environment nor the caller's; only the lease."""
    ref = load(tmp_path, env={wish: "all"})
    assert ok("ls /dev | grep -c nvidia || true", image=ref).strip() == "0"
    text = ok("env", image=ref, env=((wish, "all"),), gpus=(gpus[2].uuid,))
    assert "VISIBLE_DEVICES=all" not in text


@requires("overlay")
@pytest.mark.parametrize("name", ["dev", "dev/nvidiaN", "dev/nvidiactl", "dev/nvidia-caps"])
def test_image_has_something_where_a_node_goes(gpus, tmp_path, name):
    """A51: CVE-2024-0132's shape: what the image has at the node's place is not followed."""
    victim = tmp_path / "victim"
    victim.mkdir()
    victim.chmod(0o777)
    if name == "dev":
        return  # refused as a whole: test_runtime_image.py
    node = f"/dev/nvidia{gpus[0].minor}"
    ref = load(tmp_path, [directory("dev"), symlink(name.replace("/nvidiaN", node[4:]), f"../../../../../..{victim}/made")])
    ran = sh(f"stat -c '%F %t' {node}", image=ref, gpus=(gpus[0].uuid,))
    assert ran.out.startswith("character"), ran
    assert os.listdir(victim) == []


@requires("root")
def test_a_source_that_was_swapped_for_a_link(gpus, tmp_path, monkeypatch):
    """A51: between the look at /dev/nvidia0 and the mount somebody puts another device there: the number is checked on what is mounted."""
    from dockless.errors import LaunchFailed
    from dockless.images import host_image
    from dockless.sandbox import features
    from dockless.sandbox.resolve import resolve
    from dockless.sandbox.resolved import Device
    from dockless.sandbox.run.prepared import Prepared
    from dockless.sandbox.run.process import start

    swapped = tmp_path / "nvidia0"
    swapped.symlink_to("/dev/zero")
    from dataclasses import replace

    resolved = resolve(Spec(argv=("true",), namespaces=Namespaces(user="host")), host_image(), features.probe())
    resolved = replace(resolved, devices=(*resolved.devices, Device("/dev/nvidia0", str(swapped), 195, 0)), has_cgroup=False)
    ready = Prepared(resolved)
    with open(os.devnull, "r+b") as null, contextlib.ExitStack() as opened:
        fds = ready.slots(None, opened) | dict.fromkeys((0, 1, 2), null.fileno())
        with pytest.raises(LaunchFailed) as caught:
            start(ready.plan, ready.raw(), fds).close()
    assert caught.value.errno == 19 and "195:0" in str(caught.value)


@requires("overlay")
def test_no_host_tool_reads_the_images_loader_files(tmp_path, gpus):
    """A52: ld.so.cache and ld.so.conf.d of an image are read by the image's own programs or not at all: no ldconfig of ours runs."""
    evil = [file("etc/ld.so.conf", "/evil\n"), symlink("etc/ld.so.cache", "/proc/1/root/etc/shadow"), symlink("sbin", "/evil")]
    ref = load(tmp_path, evil)
    before = Path("/etc/ld.so.cache").stat() if os.path.exists("/etc/ld.so.cache") else None
    assert ok("echo fine", image=ref, gpus=(gpus[0].uuid,)) == "fine\n"
    after = Path("/etc/ld.so.cache").stat() if os.path.exists("/etc/ld.so.cache") else None
    assert (before and (before.st_mtime_ns, before.st_ino)) == (after and (after.st_mtime_ns, after.st_ino))


def test_the_stand_ins_are_not_for_everybody(gpus, home):
    """The stand-in nodes lie below our own state, not in the host's /dev."""
    for node in gpu.device_nodes(gpus[:1]):
        assert not node.source.startswith("/dev/nvidia")
        found = os.stat(node.source)
        assert stat.S_ISCHR(found.st_mode)
