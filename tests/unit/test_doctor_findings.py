"""What the doctor says about machines that are not this one."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest

from dockless import doctor, native
from dockless.cgroups import Delegation
from dockless.errors import GpuError
from dockless.native import userns
from dockless.sandbox import features, gpu
from dockless.sandbox.features import Features

CONTROLLERS = frozenset(("cpu", "memory", "io", "pids", "cpuset"))


@pytest.fixture
def machine(monkeypatch):
    """``machine(uid, field=value…)``: its user, and what its kernel can do."""

    def make(uid: int = 0, **fields) -> None:
        monkeypatch.setattr(doctor.os, "geteuid", lambda: uid)
        there = {"release": "6.99", "machine": "x86_64", **fields}
        monkeypatch.setattr(features, "probe", lambda: Features(**there))

    return make


def examined(check) -> doctor.Finding:
    (name,) = (name for name, its in doctor.CHECKS if its is check)
    return doctor._checked(name, check)


def test_a_kernel_that_lacks_the_floor_fails(machine):
    machine(missing=(("openat2", "5.6"),))
    it = examined(doctor._kernel)
    assert it.status == "fail" and "lacks openat2" in it.what and "5.14" in it.next_step
    machine(machine="mips")
    assert examined(doctor._kernel).status == "fail"


def test_what_overlay_can(machine):
    for plus, detached, said in ((False, False, ""), (True, False, "(6.7)"), (True, True, "(6.7) and layers by fd (6.15)")):
        machine(overlay_lowerdir_plus=plus, overlay_detached_layers=detached)
        it = examined(doctor._kernel)
        assert it.status == "ok" and it.what.endswith(said or "x86_64")


def test_user_namespaces(machine, monkeypatch):
    machine(1000)
    assert examined(doctor._user_namespaces) == doctor.Finding("user namespaces", "ok", "can be made")
    machine(1000, user_namespaces=False)
    for problem in ("sysctl says no", ""):
        monkeypatch.setattr(userns, "namespace_problem", lambda problem=problem: problem)
        it = examined(doctor._user_namespaces)
        assert it.status == "fail" and (it.next_step == problem if problem else "outside" in it.next_step)


@pytest.mark.parametrize(
    ("restricted", "uid", "able", "status", "said"),
    [
        (None, 1000, True, "ok", "does not restrict"), ("0", 1000, True, "ok", "lets everybody"),
        ("1", 0, True, "ok", "root is not concerned"), ("1", 1000, True, "ok", "has a rule"), ("1", 1000, False, "fail", "no rule"),
    ],
)  # fmt: skip
def test_apparmor(machine, monkeypatch, tmp_path, restricted, uid, able, status, said):
    machine(uid, user_namespaces=able)
    setting = tmp_path / "apparmor_restrict_unprivileged_userns"
    if restricted is not None:
        setting.write_text(restricted + "\n")
    monkeypatch.setattr(doctor, "open", lambda path: setting.open(), raising=False)
    it = examined(doctor._apparmor)
    assert it.status == status and said in it.what and ("apparmor_parser" in it.next_step) == (status == "fail")


@pytest.mark.parametrize(("uid", "told"), [(0, "modprobe overlay"), (1000, "5.11")])
def test_overlay(machine, uid, told):
    machine(uid, overlay=False)
    it = examined(doctor._overlay)
    assert it.status == "note" and it.next_step.endswith("modprobe overlay") == (uid == 0) and told in it.next_step
    machine(uid)
    assert examined(doctor._overlay).status == "ok"


@pytest.mark.parametrize(("uid", "able", "status"), [(0, True, "ok"), (0, False, "note"), (1000, False, "ok")])
def test_idmapped_mounts(machine, uid, able, status):
    machine(uid, idmapped_mounts=able)
    it = examined(doctor._idmapped)
    assert it.status == status and ("layers belong to them" in it.what) == (uid != 0) and bool(it.next_step) == (status == "note")


def test_ids(monkeypatch):
    piece = SimpleNamespace(count=65536)
    monkeypatch.setattr(userns, "default_map", lambda: SimpleNamespace(uids=(piece, piece), single=False))
    it = examined(doctor._ids)
    assert (it.status, it.what) == ("ok", "131072 user ids in a sandbox")
    monkeypatch.setattr(userns, "default_map", lambda: SimpleNamespace(uids=(SimpleNamespace(count=1),), single=True))
    for problem in ("no line in /etc/subuid", ""):
        monkeypatch.setattr(userns, "range_problem", lambda uid, problem=problem: problem)
        it = examined(doctor._ids)
        assert it.status == "note" and it.next_step == (problem or "see /etc/subuid and /etc/subgid")


def test_control_groups(monkeypatch, tmp_path):
    import dockless.cgroups

    def there(place: Delegation) -> doctor.Finding:
        monkeypatch.setattr(dockless.cgroups, "find_delegation", lambda **_: place)
        return examined(doctor._cgroups)

    it = there(Delegation(None, frozenset(), frozenset(), "none", "no mount", hint="mount it"))
    assert (it.status, it.next_step) == ("note", "mount it") and "no mount" in it.what
    it = there(Delegation(tmp_path, CONTROLLERS, CONTROLLERS, "root", ""))
    assert it.status == "ok" and f"root at {tmp_path}" in it.what and "missing" not in it.what
    it = there(Delegation(tmp_path, CONTROLLERS - {"io"}, CONTROLLERS, "subtree", ""))
    assert it.status == "note" and it.what.endswith("missing: io") and "Delegate=" in it.next_step


def test_the_device_filter(machine, monkeypatch, tmp_path):
    import dockless.cgroups

    place = Delegation(tmp_path, CONTROLLERS, CONTROLLERS, "root", "")
    monkeypatch.setattr(dockless.cgroups, "find_delegation", lambda **_: place)

    def refused(program: bytes) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(native, "bpf_prog_load_cgroup_device", refused)
    machine(1000)
    assert examined(doctor._device_filter).status == "ok"
    machine(0)
    it = examined(doctor._device_filter)
    assert it.status == "note" and "Operation not permitted" in it.what
    place = Delegation(None, frozenset(), frozenset(), "none", "")
    assert "no control group" in examined(doctor._device_filter).what


def test_gpus(monkeypatch):
    def broken(**_):
        raise GpuError("no driver", hint="load it")

    monkeypatch.setattr(gpu, "inventory", broken)
    it = examined(doctor._gpus)
    assert (it.status, it.what, it.next_step) == ("note", "no driver", "load it")
    monkeypatch.setattr(gpu, "inventory", lambda **_: ())
    assert examined(doctor._gpus).status == "note"
    real = SimpleNamespace(model="H100", memory=80 << 30, simulated=False)
    monkeypatch.setattr(gpu, "inventory", lambda **_: (real, real))
    monkeypatch.setattr(gpu, "device_nodes", lambda gpus: ())
    monkeypatch.setattr(gpu, "driver", lambda: SimpleNamespace(version="570.1"))
    it = examined(doctor._gpus)
    assert (it.status, it.what) == ("ok", "2 (H100, 80 GiB), driver 570.1")


@pytest.mark.parametrize(("free", "status"), [(doctor.ROOM_WANTED - 1, "note"), (doctor.ROOM_WANTED, "ok")])
def test_room_for_images(monkeypatch, home, free, status):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=free))
    it = examined(doctor._store)
    assert it.status == status and str(home) in it.what and ("DOCKLESS_HOME" in it.next_step) == (status == "note")


def test_a_mistake_in_the_settings(home):
    it = examined(doctor._settings)
    assert it.status == "ok" and "is not there" in it.what
    (home / "dockless.toml").write_text("[queue]\n")
    it = examined(doctor._settings)
    assert it.status == "ok" and it.what == str(home / "dockless.toml")
    (home / "dockless.toml").write_text("[qutoa]\n")
    assert examined(doctor._settings).status == "fail"


def test_lines():
    good, bad = doctor.Finding("one", "ok", "fine"), doctor.Finding("second", "fail", "broken", "do this\nand that")
    assert doctor.lines([good, bad])[:4] == [
        "ok    one     fine", "fail  second  broken", "              next: do this", "                    and that",
    ]  # fmt: skip
    assert doctor.lines([good, bad], only_problems=True)[0].startswith("fail  second") and not doctor.can_run([good, bad])
    assert "cannot run" in doctor.lines([good, bad])[-1] and doctor.lines([good])[-1].endswith("can run sandboxes.")
