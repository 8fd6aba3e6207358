"""Which of a kind's names are devices: by their nodes, which no two can have."""

from __future__ import annotations

import contextlib
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.requires import requires

from dockless._options import gpus_wanted
from dockless.base import paths
from dockless.errors import BadInput, GpuError
from dockless.sandbox.gpus import cdi, handed_out, own_nodes
from dockless.sandbox.gpus.handed_out import divide
from dockless.sandbox.gpus.request import parse_request
from dockless.sandbox.resolved import Device
from dockless.sandbox.spec import Spec

NAMED = st.dictionaries(st.sampled_from("abcdefg"), st.frozensets(st.sampled_from(["c1", "c2", "c3", "c4", "c5"])))


def named(**nodes: str) -> dict[str, frozenset[str]]:
    return {name: frozenset(text.split()) for name, text in nodes.items()}


@pytest.mark.parametrize(
    ("nodes", "devices", "names"),
    [
        (named(a="c0", b="c1", all="c0 c1"), {"a", "b"}, {"a": "a", "b": "b", "all": "ab"}),
        (named(all="c0 c1", a="c0", b="c1"), {"a", "b"}, {"a": "a", "b": "b", "all": "ab"}),
        (named(a="c0 r0", b="c1 r1", all="c0 r0 c1 r1"), {"a", "b"}, {"a": "a", "b": "b", "all": "ab"}),
        (named(a="c1 c2", b="c2 c3"), {"a"}, {"a": "a", "b": ""}),
        (named(b="c2 c3", a="c1 c2", all="c1 c2 c3"), {"b"}, {"a": "", "b": "b", "all": ""}),
        (named(a="c0 c1", all="c0 c1"), {"a"}, {"a": "a", "all": "a"}),
        (named(a="c0", b="c1", u="c0", w="c1"), {"a", "b"}, {"a": "a", "b": "b", "u": "a", "w": "b"}),
        (named(a="c0", b="c0 c1", c="c2"), {"a", "c"}, {"a": "a", "b": "", "c": "c"}),
        (named(a="", b="c0"), {"b"}, {"a": "", "b": "b"}),
        (named(control="k", a="k c0"), {"control"}, {"control": ["control"], "a": ""}),
    ],
)
def test_names_and_devices(nodes, devices, names):
    found = divide(nodes)
    assert set(found.devices) == devices
    assert {name: set(parts) for name, parts in found.names.items()} == {name: set(parts) for name, parts in names.items()}


@given(NAMED)
def test_no_node_is_in_two_devices_and_no_name_has_more_than_it_says(nodes):
    found = divide(nodes)
    all_nodes = [node for device in found.devices.values() for node in device]
    assert len(set(all_nodes)) == len(all_nodes)
    for name, parts in found.names.items():
        if parts:
            assert nodes[name] == frozenset().union(*(found.devices[part] for part in parts))
    assert found.overlaps.keys() == {name for name, parts in found.names.items() if nodes[name] and not parts}
    assert all(node in nodes[name] & found.devices[device] for name, (device, node) in found.overlaps.items())


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"devices": ["amd.com/gpu:2", "/dev/fuse"]}, "2,class=amd.com/gpu"),
        ({"devices": ["amd.com/gpu:all"]}, "all,class=amd.com/gpu"),
        ({"devices": ["nvidia.com/gpu:2"]}, "2"),
        ({"devices": ["/dev/a:/dev/b", "amd.com/gpu=0"]}, None),
    ],
)
def test_a_number_of_devices_is_a_number_of_gpus(options, wanted):
    assert gpus_wanted(options) == wanted


@pytest.mark.parametrize(
    "options",
    [
        {"devices": ["amd.com/gpu:1", "intel.com/gpu:1"]},
        {"devices": ["amd.com/gpu:1"], "gpus": 1},
        {"devices": ["amd.com/gpu:1"], "gpu_memory": "1G"},
    ],
)
def test_of_one_kind_alone(options):
    with pytest.raises(BadInput, match=r"^devices: 'amd.com/gpu:1' and .+ together$"):
        gpus_wanted(options)


def test_devices_by_name_in_a_request():
    for text in ("amd.com/gpu=0,amd.com/gpu=1", "device=amd.com/gpu=0,amd.com/gpu=1", '"device=amd.com/gpu=0,amd.com/gpu=1"'):
        request = parse_request(text)
        assert request.devices == ("amd.com/gpu=0", "amd.com/gpu=1") and request.of_devices
        assert str(request) == "device amd.com/gpu=0, amd.com/gpu=1"
    assert parse_request("3,class=amd.com/gpu").of_devices and not parse_request("3,class=H100").of_devices
    with pytest.raises(BadInput, match="devices of another kind"):
        parse_request("device=0,amd.com/gpu=0")


@pytest.mark.parametrize(
    ("own", "roots", "kinds", "directories"),
    [
        ("", "", (), cdi.DIRECTORIES),
        ("", 'devices = ["a.com/gpu"]\ncdi = ["/opt/cdi"]', ("a.com/gpu",), ("/opt/cdi",)),
        ('devices = ["b.com/gpu"]\ncdi = ["/mine"]', 'devices = ["a.com/gpu"]\ncdi = ["/opt/cdi"]', ("b.com/gpu", "a.com/gpu"), ("/mine",)),
        ('devices = ["b.com/gpu"]', "devices = 1", ("b.com/gpu",), cdi.DIRECTORIES),
    ],
)
def test_what_the_settings_of_root_say_counts_for_users(own, roots, kinds, directories, tmp_path, monkeypatch):
    monkeypatch.delenv("DOCKLESS_HOME")
    for name, text in (("own", own), ("roots", roots)):
        (tmp_path / name).write_text(f"[gpus]\n{text}\n")
    monkeypatch.setattr(paths, "config_file", lambda: paths.Path(tmp_path / "own"))
    monkeypatch.setattr(paths, "CONFIG_OF_ROOT", paths.Path(tmp_path / "roots"))
    assert (handed_out.kinds(), cdi.directories()) == (kinds, directories)


@pytest.mark.parametrize("name", ["a.com-/gpu=0", "a.com/gpu.=0", "1a/gpu=0", "a.com/gpu=0-", "a.com/gpu="])
def test_a_name_that_no_file_can_have_is_refused(name):
    with pytest.raises(BadInput, match="is not VENDOR/CLASS=NAME"):
        Spec(cdi=(name,))
    with pytest.raises(BadInput):
        parse_request(name)


@pytest.mark.parametrize("kind", ["a.com-/gpu", "a.com/gpu.", "1a/gpu"])
def test_of_a_kind_that_no_file_can_have_no_number_is_asked_for(kind):
    assert gpus_wanted({"devices": [f"{kind}:2"]}) is None
    assert gpus_wanted({"devices": ["a.com/gpu:2"]}) == "2,class=a.com/gpu"


@pytest.mark.parametrize("mode", [0o755, 0o710])
def test_nodes_are_made_in_no_directory_that_is_not_roots_alone(tmp_path, monkeypatch, mode):
    place = tmp_path / "place"
    place.mkdir()
    place.chmod(mode)
    monkeypatch.setattr(own_nodes, "PLACE", str(place))
    with contextlib.ExitStack() as opened, pytest.raises(GpuError, match="cannot make the node of a leased device"):
        own_nodes.make(Device("/dev/null", f"{place}/1", 1, 3, "rw"), opened)
    assert not list(place.iterdir())


def test_what_a_starter_left_goes_when_it_is_old(tmp_path, monkeypatch):
    left = tmp_path / "place" / "left"
    left.parent.mkdir()
    left.touch()
    with contextlib.ExitStack() as opened:
        place = os.open(left.parent, os.O_RDONLY)
        opened.callback(os.close, place)
        own_nodes._sweep(place)
        assert left.exists()
        monkeypatch.setattr(own_nodes, "_OLD", -1.0)
        own_nodes._sweep(place)
        assert not left.exists()


@requires("root")
def test_who_makes_a_node_removes_what_is_old(tmp_path, monkeypatch):
    place = tmp_path / "place"
    place.mkdir(0o700)
    (place / "left").touch()
    monkeypatch.setattr(own_nodes, "PLACE", str(place))
    monkeypatch.setattr(own_nodes, "_OLD", -1.0)
    with contextlib.ExitStack() as opened:
        own_nodes.make(Device("/dev/null", f"{place}/new", 1, 3, "rw"), opened)
        assert os.listdir(place) == ["new"] and stat.S_IMODE((place / "new").stat().st_mode) == 0o666
    assert not os.listdir(place)


@requires("root")
def test_a_node_whose_mode_cannot_be_set_is_not_left(tmp_path, monkeypatch):
    place = tmp_path / "place"
    place.mkdir(0o700)
    monkeypatch.setattr(own_nodes, "PLACE", str(place))
    monkeypatch.setattr(own_nodes.os, "chmod", lambda *_, **__: (_ for _ in ()).throw(OSError(5, "planted")))
    with contextlib.ExitStack() as opened, pytest.raises(GpuError, match="planted"):
        own_nodes.make(Device("/dev/null", f"{place}/new", 1, 3, "rw"), opened)
    assert not os.listdir(place)
