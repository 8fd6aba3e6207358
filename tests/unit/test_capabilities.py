"""Capability names, numbers and sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from dockless.errors import BadInput
from dockless.sandbox import capabilities as caps


def test_the_table_is_the_kernels():
    assert len(caps.CAPS) == 41
    for name, number in (
        ("CHOWN", 0),
        ("KILL", 5),
        ("SETPCAP", 8),
        ("NET_RAW", 13),
        ("SYS_ADMIN", 21),
        ("MKNOD", 27),
        ("SETFCAP", 31),
        ("BPF", 39),
    ):
        assert caps.CAPS[f"CAP_{name}"] == number
    assert caps.CAPS["CAP_CHECKPOINT_RESTORE"] == 40


def test_the_table_is_not_behind_the_running_kernel():
    assert int(Path("/proc/sys/kernel/cap_last_cap").read_text()) <= 40, "a newer kernel has a capability that the table lacks"


def test_profiles():
    assert caps.resolve("default") == caps.DEFAULT
    assert len(caps.DEFAULT) == 11
    assert not caps.DEFAULT & {"CAP_NET_RAW", "CAP_MKNOD", "CAP_AUDIT_WRITE", "CAP_SYS_ADMIN"}
    assert caps.resolve("untrusted") == frozenset()
    assert caps.resolve("privileged") == caps.ALL


@pytest.mark.parametrize("name", ["NET_RAW", "net_raw", "CAP_NET_RAW", "cap_net_raw", "Cap_Net_Raw"])
def test_names_in_any_spelling(name):
    assert caps.parse(name) == "CAP_NET_RAW"


def test_add_and_drop():
    assert caps.resolve("default", add=["net_raw"]) == caps.DEFAULT | {"CAP_NET_RAW"}
    assert caps.resolve("default", drop=["CHOWN", "NET_RAW"]) == caps.DEFAULT - {"CAP_CHOWN"}
    assert caps.resolve("default", drop=["all"], add=["chown"]) == {"CAP_CHOWN"}
    assert caps.resolve("default", add=["ALL"], drop=["SYS_ADMIN"]) == caps.ALL - {"CAP_SYS_ADMIN"}
    assert caps.resolve("default", drop=["ALL", "KILL"]) == frozenset()
    assert caps.resolve("untrusted", add=["kill"]) == {"CAP_KILL"}


@pytest.mark.parametrize("name", ["", "CAP_", "NET RAW", "NET_RAW ", "21", "CAP_CAP_KILL", "ＫＩＬＬ", "x" * 5000])
def test_unknown_names_are_refused(name):
    for kind in ("add", "drop"):
        with pytest.raises(BadInput) as raised:
            caps.resolve("default", **{kind: [name]})
        assert raised.value.hint
        assert len(str(raised.value)) < 100


def test_a_near_miss_is_named():
    with pytest.raises(BadInput) as raised:
        caps.parse("SYSADMIN")
    assert "CAP_SYS_ADMIN" in raised.value.hint


def test_contradictions_are_refused():
    for add, drop in ((["KILL"], ["cap_kill"]), (["ALL"], ["ALL"])):
        with pytest.raises(BadInput, match="both added and dropped"):
            caps.resolve("default", add, drop)
    with pytest.raises(BadInput, match="unknown profile"):
        caps.resolve("nope")


def test_masks():
    assert caps.mask([]) == 0
    assert caps.mask(["chown", "CAP_CHECKPOINT_RESTORE"]) == 1 | 1 << 40
    assert caps.mask(caps.ALL) == 2**41 - 1
    assert f"{caps.mask(caps.DEFAULT):016x}" == "00000000800405fb"  # CapBnd of a Podman container
    assert caps.from_mask(2**64 - 1) == caps.ALL
    assert caps.from_mask(caps.mask(caps.DEFAULT)) == caps.DEFAULT
    assert caps.ordered({"CAP_KILL", "CAP_CHOWN"}) == ["CAP_CHOWN", "CAP_KILL"]
