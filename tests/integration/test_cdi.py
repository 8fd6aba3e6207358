"""Devices by the names of the Container Device Interface, in sandboxes: what their files bring, whose files are believed, and that no
hook runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support import boxes, glibc_images
from support.elf_files import library
from support.requires import requires

import dockless
from dockless.base import paths
from dockless.errors import BadInput, DocklessError, GpuError, Unsupported
from dockless.sandbox.features import probe
from dockless.sandbox.gpus import cdi, extra_layer
from dockless.sandbox.resolve import resolve
from dockless.sandbox.run.start import find_image
from dockless.sandbox.spec import Spec

pytestmark = requires("userns")
NULL = {"path": "/dev/example", "hostPath": "/dev/null", "type": "c", "major": 1, "minor": 3}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a file of devices; ``write.tree``: where those that the host's own directories stand for lie."""
    places = [tmp_path / "etc", tmp_path / "run"]
    for place in places:
        place.mkdir()
    monkeypatch.setattr(cdi, "DIRECTORIES", tuple(map(str, places)))

    def made(
        devices: dict[str, Any], common: dict[str, Any] | None = None, *, name: str = "etc/a.json", kind: str = "example.com/gpu"
    ) -> Path:
        listed = [{"name": device, "containerEdits": edits} for device, edits in devices.items()]
        said = {"cdiVersion": "1.1.0", "kind": kind, "devices": listed, "containerEdits": common or {}}
        (tmp_path / name).write_text(json.dumps(said, indent=1))
        return tmp_path / name

    return made


@pytest.fixture
def image(tmp_path):
    return boxes.load(tmp_path)


def output(script: str, *devices: str, image: str = "host", **options: Any) -> list[str]:
    result = dockless.run(image, ["sh", "-c", script], devices=devices, capture_output=True, text=True, check=True, **options)
    return result.stdout.splitlines()


def test_a_node_and_variables(write):
    write({"0": {"deviceNodes": [NULL], "env": ["WHICH=0", "NVIDIA_VISIBLE_DEVICES=all"]}, "1": {"env": ["WHICH=1"]}}, {"env": ["ALL=1"]})
    script = "[ -c /dev/example ] && echo node; echo $WHICH $ALL $NVIDIA_VISIBLE_DEVICES"
    assert output(script, "example.com/gpu=0", env={"WHICH": "user's"}) == ["node", "0 1 void"]
    assert output(script, "example.com/gpu=1") == ["1 1 void"]
    assert output(script) == ["void"]


def test_what_devices_of_a_file_have_in_common_comes_once(write):
    write({"0": {"deviceNodes": [NULL]}, "1": {"deviceNodes": [NULL]}}, {"deviceNodes": [NULL]})
    assert output("ls /dev/example", "example.com/gpu=0", "example.com/gpu=1") == ["/dev/example"]


@requires("overlay")
def test_files_directories_and_links_are_in_no_layer_of_the_image(write, tmp_path, image):
    (tmp_path / "file").write_text("of the host\n")
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "in").write_text("deep\n")
    mounts = [{"hostPath": f"{tmp_path}/file", "containerPath": "/opt/x/file", "options": ["ro"]},
              {"hostPath": f"{tmp_path}/dir", "containerPath": "/opt/x/dir", "options": ["ro", "rbind"]}]  # fmt: skip
    hook = {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": [
        "nvidia-cdi-hook", "create-symlinks", "--link", "file::/opt/x/link", "--link=../x::/opt/x/up"]}  # fmt: skip
    write({"0": {"mounts": mounts, "hooks": [hook]}})
    script = "cat /opt/x/file /opt/x/dir/in /opt/x/up/link; ( echo no > /opt/x/file ) 2>/dev/null || echo closed"
    assert output(script, "example.com/gpu=0", image=image) == ["of the host", "deep", "of the host", "closed"]
    assert (tmp_path / "file").read_text() == "of the host\n"
    box = dockless.start(image, ["touch", "/mine"], devices=["example.com/gpu=0"])
    box.wait()
    assert [change.path for change in dockless.diff(box)] == ["/mine"]
    box.rm()


def test_a_mount_that_may_be_written(write, tmp_path, image):
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir").chmod(0o755)
    if os.geteuid() == 0:
        from dockless.base.idmaps import default_map

        os.chown(tmp_path / "dir", *default_map().root())
    write({"0": {"mounts": [{"hostPath": f"{tmp_path}/dir", "containerPath": "/opt/dir"}]}})
    if os.geteuid() == 0:  # it is nobody's business to hand root's daemon a directory of another's
        with pytest.raises(GpuError, match="can be changed by others"):
            output("true", "example.com/gpu=0", image=image)
        os.chown(tmp_path / "dir", 0, 0)
        return
    output("echo written > /opt/dir/x", "example.com/gpu=0", image=image)
    assert (tmp_path / "dir/x").read_text() == "written\n"


@requires("overlay", "program:gcc")
def test_libraries_are_found_by_their_names(write, tmp_path):
    library(tmp_path / "lib/libexample.so.1.2", "libexample.so.1")
    library(tmp_path / "more/libother.so.3", "libother.so.3")
    mounts = [{"hostPath": f"{tmp_path}/lib/libexample.so.1.2", "containerPath": "/opt/v/libexample.so.1.2", "options": ["ro"]},
              {"hostPath": f"{tmp_path}/more", "containerPath": "/opt/w", "options": ["ro"]}]  # fmt: skip
    hook = {"hookName": "createContainer", "path": "/usr/bin/nvidia-ctk", "args": [
        "nvidia-ctk", "hook", "update-ldcache", "--folder", "/opt/v", "--folder", "/opt/w"]}  # fmt: skip
    write({"0": {"mounts": mounts, "hooks": [hook]}})
    image = glibc_images.load(tmp_path, "debian")
    found = output("ldconfig -p | grep -e example -e other; readlink /opt/v/libexample.so.1", "example.com/gpu=0", image=image)
    assert [line.split(" => ")[-1] for line in found] == ["/opt/w/libother.so.3", "/opt/v/libexample.so.1", "libexample.so.1.2"]


@pytest.mark.parametrize(
    "args",
    [["some-hook", "go"], ["nvidia-cdi-hook", "enable-cuda-compat"], []],
    ids=["a stranger's", "one of NVIDIA's", "without arguments"],
)
def test_no_hook_runs(args, write, tmp_path):
    program = tmp_path / (args[0] if args else "hook")
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    path = write({"0": {"hooks": [{"hookName": "createContainer", "path": str(program), "args": args}]}})
    with pytest.raises(Unsupported, match="is a program of the host, and dockless runs none") as caught:
        output("true", "example.com/gpu=0")
    assert str(caught.value).startswith(f"{path}:") and caught.value.hint and not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("edits", "why"),
    [
        ({"netDevices": [{"hostInterfaceName": "lo"}]}, "netDevices"),
        ({"intelRdt": {"closID": "x"}}, "intelRdt"),
        ({"deviceNodes": [{"path": "/dev/pipe", "type": "p"}]}, "a named pipe is no device"),
        ({"mounts": [{"hostPath": "tmpfs", "containerPath": "/scratch", "type": "tmpfs", "options": ["size=1m"]}]}, "of type 'tmpfs'"),
        ({"mounts": [{"hostPath": "/etc", "containerPath": "/scratch", "options": ["dev"]}]}, "option 'dev'"),
    ],
)
def test_what_cannot_be_given_is_refused(edits, why, write):
    write({"0": edits, "1": {}})
    with pytest.raises(Unsupported, match=why):
        output("true", "example.com/gpu=0")
    assert output("echo yes", "example.com/gpu=1") == ["yes"]


@requires("root", "cgroup2")
def test_a_node_without_permissions_is_there_and_cannot_be_opened(write, tmp_path):
    nodes = []
    for number, said in enumerate(("none", "", "rr")):
        os.mknod(tmp_path / f"n{number}", 0o020666, os.makedev(10, 200 + number))
        os.chmod(tmp_path / f"n{number}", 0o666)
        nodes.append({"path": f"/dev/n{number}", "hostPath": f"{tmp_path}/n{number}", "permissions": said})
    write({"0": {"deviceNodes": nodes}})
    script = "for n in 0 1 2; do [ -c /dev/n$n ] && ( exec 3< /dev/n$n ) 2>&1; done"
    # The filter lets the other two by, to a driver that this host need not have.
    told = dockless.run("host", ["sh", "-c", script], devices=["example.com/gpu=0"], capture_output=True, text=True).stdout
    assert "/dev/n0: Operation not permitted" in told and told.count("not permitted") == 1, told


def test_files_that_others_may_write_are_not_believed(write, tmp_path):
    path = write({"0": {}})
    path.chmod(0o666)
    with pytest.raises(GpuError, match=r"a\.json, a description of devices, can be changed by others than root"):
        output("true", "example.com/gpu=0")
    path.chmod(0o644)
    path.parent.chmod(0o777)
    with pytest.raises(GpuError, match="etc, a description of devices, can be changed"):
        output("true", "example.com/gpu=0")
    path.parent.chmod(0o755)
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(0o666)
    write({"0": {"mounts": [{"hostPath": f"{tmp_path}/file", "containerPath": "/run/file"}]}})
    with pytest.raises(GpuError, match="file, a file of a device, can be changed"):
        output("true", "example.com/gpu=0")


@requires("root")
def test_a_file_of_another_user_is_not_believed(write):
    path = write({"0": {}})
    os.chown(path, 1, 1)
    with pytest.raises(GpuError, match="can be changed by others"):
        output("true", "example.com/gpu=0")


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ({**NULL, "minor": 5}, "/dev/null is c 1:3, and not c device 1:5"),
        ({**NULL, "type": "b"}, "/dev/null is c 1:3, and not b device 1:3"),
        ({"path": "/dev/x", "hostPath": "/dev/nosuch"}, "/dev/nosuch: No such file"),
        ({"path": "/dev/x", "hostPath": "/etc/passwd"}, "is no device"),
        ({"path": "/opt/x", "hostPath": "/dev/null"}, "is not below /dev"),
        ({"path": "/dev/null", "hostPath": "/dev/null"}, "/dev/null is taken inside"),
    ],
)
def test_a_node_that_is_not_what_its_file_says(node, why, write):
    write({"0": {"deviceNodes": [node]}})
    with pytest.raises(BadInput, match=why) as caught:
        output("true", "example.com/gpu=0")
    assert caught.value.hint


@requires("root")
def test_a_node_where_others_may_write_is_not_believed(write, tmp_path):
    place = tmp_path / "nodes"
    place.mkdir()
    os.mknod(place / "x", 0o020666, os.makedev(1, 3))
    os.chmod(place / "x", 0o666)
    write({"0": {"deviceNodes": [{"path": "/dev/x", "hostPath": f"{place}/x"}]}})
    place.chmod(0o755)
    assert output("test -c /dev/x && echo there", "example.com/gpu=0") == ["there"]
    place.chmod(0o777)
    with pytest.raises(GpuError, match="can be changed by others"):
        output("true", "example.com/gpu=0")


@requires("root")
def test_gpus_are_leased_whatever_a_file_calls_them(write, tmp_path):
    os.mknod(tmp_path / "gpu", 0o020666, os.makedev(195, 0))
    write({"0": {"deviceNodes": [{"path": "/dev/dri/x", "hostPath": f"{tmp_path}/gpu"}]}})
    with pytest.raises(BadInput, match="is a GPU's, and GPUs are leased"):
        output("true", "example.com/gpu=0")
    with pytest.raises(BadInput, match="is a GPU, and GPUs are leased") as caught:
        output("true", "nvidia.com/gpu=0")
    assert "--gpus device=0" in caught.value.hint


def test_which_file_counts(write):
    write({"0": {"env": ["FROM=etc"]}, "1": {"env": ["FROM=etc"]}})
    write({"0": {"env": ["FROM=run"]}}, name="run/b.json")
    script = "echo $FROM"
    assert output(script, "example.com/gpu=0") == ["run"] and output(script, "example.com/gpu=1") == ["etc"]
    write({"1": {}}, name="etc/c.json")
    with pytest.raises(BadInput, match=r"device example.com/gpu=1 is in .*a\.json and .*c\.json"):
        output(script, "example.com/gpu=1")
    for wanted, said in (("example.com/gpu=7", "its devices are 0, 1"), ("example.com/nic=0", "no file in ")):
        with pytest.raises(BadInput, match="there is no device") as caught:
            output(script, wanted)
        assert said in caught.value.hint


def test_a_file_that_is_not_sound_is_told_of_where_no_other_has_the_device(write, tmp_path):
    (tmp_path / "etc/broken.json").write_text('{"cdiVersion": "9.0.0", "kind": "example.com/gpu", "devices": []}')
    (tmp_path / "etc/other.json").write_text("{")
    write({"0": {"env": ["FROM=etc"]}})
    assert output("echo $FROM", "example.com/gpu=0") == ["etc"]
    with pytest.raises(BadInput, match=r"broken\.json:1: cdiVersion '9.0.0' is not known"):
        output("true", "example.com/gpu=1")


@pytest.mark.parametrize("common", [{"env": [1]}, {"mounts": {}}, {"deviceNodes": [{"path": "dev/x"}]}, [], {"other": 1}], ids=str)
def test_a_file_whose_edits_for_all_devices_are_not_sound(common, write, tmp_path):
    """It is refused, with all of its devices; those of other files are there."""
    write({"0": {"env": ["FROM=sound"]}}, name="etc/sound.json")
    write({"1": {"env": ["FROM=broken"]}}, common or None, name="etc/broken.json")
    if not common:
        text = (tmp_path / "etc/broken.json").read_text()
        (tmp_path / "etc/broken.json").write_text(text.replace('"containerEdits": {}\n}', '"containerEdits": []\n}'))
    assert output("echo $FROM", "example.com/gpu=0") == ["sound"]
    with pytest.raises(BadInput, match=r"broken\.json:[0-9]+: "):
        output("true", "example.com/gpu=1")


def test_who_can_have_no_devices(write):
    write({"0": {}})
    with pytest.raises(BadInput, match="untrusted has no devices"):
        output("true", "example.com/gpu=0", profile="untrusted")
    with pytest.raises(DocklessError, match="a user's job"):
        resolve(Spec(argv=("true",), cdi=("example.com/gpu=0",)), find_image("host"), probe(), owner=os.geteuid() or 1)
    with pytest.raises(BadInput, match="is not VENDOR/CLASS=NAME"):
        output("true", "example.com/gpu=0:1=2")


@pytest.mark.parametrize("target", ["/proc/x", "/sys/x", "/dev/x", "/"])
def test_nothing_is_mounted_on_what_is_the_sandboxs_own(target, write):
    write({"0": {"mounts": [{"hostPath": "/etc/passwd", "containerPath": target}]}})
    with pytest.raises(Unsupported, match=f"nothing can be mounted at {target}"):
        output("true", "example.com/gpu=0")


@requires("overlay")
def test_a_layer_of_links_alone_stays_while_a_sandbox_has_it(write, image, monkeypatch):
    monkeypatch.setattr(extra_layer, "KEPT", 1)
    hooks = [[{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook",
               "args": ["nvidia-cdi-hook", "create-symlinks", "--link", f"{n}::/opt/link"]}] for n in range(3)]  # fmt: skip
    write({f"n{n}": {"hooks": hook} for n, hook in enumerate(hooks)})
    with dockless.Sandbox(image, ["sleep", "1000"], devices=["example.com/gpu=n0"]) as box:
        (held,) = (paths.store() / "driver").glob("*/driver-*")
        for other in ("n1", "n2"):
            output("true", f"example.com/gpu={other}", image=image)
        assert held.is_dir() and box.exec("readlink", "/opt/link", text=True).stdout == "0\n"
        box.kill()
