"""Device nodes of the host that a caller gives to a sandbox: which, with whose rights, and no more than was asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.boxes import ok, sh
from support.requires import requires

import dockless
from dockless.base.idmaps import default_map
from dockless.errors import BadInput, DocklessError, Unsupported
from dockless.sandbox import devices
from dockless.sandbox.features import probe
from dockless.sandbox.resolve import resolve
from dockless.sandbox.run.start import find_image
from dockless.sandbox.spec import HostDevice, Namespaces, Spec

pytestmark = requires("userns")
TUN = (10, 200)


def node(path: Path, mode: int, kind: int = 0o020000, number: tuple[int, int] = TUN) -> str:
    os.mknod(path, kind | mode, os.makedev(*number))
    path.chmod(mode)
    return str(path)


def tried(given: HostDevice, **fields: object) -> list[str]:
    """What could be done with it inside."""
    script = f"( exec 3< {given.target} ) && echo read; ( exec 3> {given.target} ) && echo written"
    return sh(script, devices=(given,), **fields).out.split()


@requires("root", "cgroup2")
@pytest.mark.parametrize(("access", "done"), [("rw", ["read", "written"]), ("r", ["read"]), ("w", ["written"])])
def test_no_more_than_was_asked_for(tmp_path, access, done):
    assert tried(HostDevice(node(tmp_path / "n", 0o666), "/dev/tun", access)) == done


@requires("root")
def test_the_mode_of_the_node_decides_inside_too(tmp_path):
    given = HostDevice(node(tmp_path / "n", 0o600), "/dev/tun")
    with pytest.raises(Unsupported, match="nobody inside could open it") as caught:
        ok("true", devices=(given,))
    assert "--userns host" in caught.value.hint
    assert tried(given, namespaces=Namespaces(user="host")) == ["read", "written"]
    os.chown(given.source, *default_map().root())
    assert tried(given) == ["read", "written"]
    os.chown(given.source, 0, default_map().root()[1])
    os.chmod(given.source, 0o640)
    with pytest.raises(Unsupported, match="for 'w'"):  # its group may read alone
        ok("true", devices=(given,))
    assert tried(HostDevice(given.source, given.target, "r")) == ["read"]


@requires("root", "cgroup2")
def test_block_devices(tmp_path):
    given = HostDevice(node(tmp_path / "n", 0o644, 0o060000, (7, 0)), "/dev/disk", "r")
    assert ok("[ -b /dev/disk ] && stat -c %Hr:%Lr /dev/disk", devices=(given,)) == "7:0\n"
    assert sh("dd if=/dev/zero of=/dev/disk count=1 conv=notrunc", devices=(given,), namespaces=Namespaces(user="host")).exit.code


@requires("root")
def test_a_directory_of_nodes(tmp_path):
    (tmp_path / "deep").mkdir()
    node(tmp_path / "a", 0o666)
    node(tmp_path / "deep" / "b", 0o666, 0o060000, (7, 1))
    (tmp_path / "file").write_text("no device")
    (tmp_path / "link").symlink_to("/dev/mem")
    assert ok("cd /dev/all; find . | sort", devices=(HostDevice(str(tmp_path), "/dev/all"),)).split() == [".", "./a", "./deep", "./deep/b"]


@requires("root")
def test_what_is_given_nobody(tmp_path):
    soft = node(tmp_path / "n", 0o666)
    for given, why in (
        ((HostDevice("/dev/nosuch", "/dev/x"),), "No such file"),
        ((HostDevice("/etc/passwd", "/dev/x"),), "is not a device"),
        ((HostDevice(node(tmp_path / "g", 0o666, number=(195, 0)), "/dev/x"),), "a GPU's"),
        ((HostDevice(soft, "/dev/null"),), "is taken inside"),
        ((HostDevice(soft, "/dev/pts/0"),), "is taken inside"),
        ((HostDevice(soft, "/dev/x"), HostDevice(soft, "/dev/x")), "is taken inside"),
        ((HostDevice(soft, "/dev/x"), HostDevice(soft, "/dev/y", "r")), "given twice"),
        ((HostDevice("/dev/null", "/dev/x", "r"),), "given twice"),
        ((HostDevice(soft, "/dev/x", "rwm"),), "can make nodes"),
    ):
        with pytest.raises(BadInput, match=why) as caught:
            ok("true", devices=given)
        assert caught.value.hint
    for profile, access, why in (("untrusted", "rw", "has no devices"), ("privileged", "r", "without a device filter")):
        with pytest.raises(DocklessError, match=why):
            ok("true", devices=(HostDevice(soft, "/dev/x", access),), profile=profile)
    with pytest.raises(Unsupported, match="a user's job"):
        resolve(Spec(argv=("true",), devices=(HostDevice(soft, "/dev/x"),)), find_image("host"), probe(), owner=1)


@requires("root", "cgroup2")
def test_nodes_can_be_made_where_that_was_asked_for(tmp_path):
    script = "rm -f /tmp/n; mknod /tmp/n c 10 200 && echo made"
    fields = {"namespaces": Namespaces(user="host"), "cap_add": ("MKNOD",)}
    soft = node(tmp_path / "n", 0o666)
    assert sh(script, devices=(HostDevice(soft, "/dev/x", "rwm"),), **fields).out == "made\n"
    assert sh(script, devices=(HostDevice(soft, "/dev/x"),), **fields).out == ""


@requires("root", "cgroup2")
def test_the_node_that_comes_is_the_one_that_was_looked_at(tmp_path, monkeypatch):
    """Whoever exchanges it meanwhile gets an error, and no other device with the same number in the other kind."""
    place = tmp_path / "n"
    given = devices.given

    def exchanged(*args, **how):
        found = given(*args, **how)
        place.unlink()
        node(place, 0o666, 0o060000)
        return found

    node(place, 0o666)
    monkeypatch.setattr(devices, "given", exchanged)
    with pytest.raises(DocklessError, match="check that"):
        ok("true", devices=(HostDevice(str(place), "/dev/x"),))


@requires("user")
def test_a_user_gives_what_she_may_open_herself():
    """/dev/kmsg may be read by everybody, and a disk by root alone."""
    disk = next((str(path) for path in Path("/dev").glob("loop[0-9]*") if path.is_block_device()), None)
    for path, access in (("/dev/kmsg", "rw"), *([(disk, "r"), (disk, "rw")] if disk else [])):
        with pytest.raises(Unsupported, match="nobody inside could open it") as caught:
            ok("true", devices=(HostDevice(path, "/dev/x", access),))
        assert "yourself" in caught.value.hint
    if os.access("/dev/kmsg", os.R_OK):
        assert ok("[ -c /dev/kmsg ] && [ ! -w /dev/kmsg ] && echo there", devices=(HostDevice("/dev/kmsg", "/dev/kmsg", "r"),)) == "there\n"
    with pytest.raises(Unsupported, match="without a device filter"):
        ok("true", devices=(HostDevice("/dev/zero", "/dev/x", "r"),))


@pytest.mark.parametrize(
    "text", ["", ":", "dev/x", "/dev/x:/tmp/x", "/dev/x:/dev/../tmp/x", "/dev/x:/dev/a:/dev/b", "/dev/x:/dev/a:x", "/dev/x:m"]
)
def test_devices_that_cannot_be_meant(text):
    with pytest.raises(BadInput) as caught:
        dockless.Sandbox(["true"], devices=[text])
    assert caught.value.subject == "devices" and caught.value.hint


@requires("root")
def test_one_that_is_asked_for_goes_before_that_of_a_leased_gpu(own_host):
    own_host("1x80G")
    look = ["stat", "-c", "%t:%T", "/dev/dri/renderD128"]
    ran = dockless.run(
        "host", look, gpus="capabilities=graphics", devices=["/dev/zero:/dev/dri/renderD128"], capture_output=True, text=True
    )
    assert ran.stdout == "1:5\n", ran
