"""What the doctor says about machines that are not this one."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dockless import DEVNULL, doctor, native, sched
from dockless.base import idmaps
from dockless.cgroups import Delegation
from dockless.errors import BadInput, DaemonUnavailable, GpuError
from dockless.images import registry
from dockless.images.layers import erofs
from dockless.native import userns
from dockless.sandbox import features
from dockless.sandbox.features import Features
from dockless.sandbox.gpus import gpu
from dockless.sched import DaemonInfo

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


@pytest.mark.parametrize(("value", "status"), [("0", "ok"), ("1", "note"), ("2", "ok")])
def test_a_setting_that_lets_programs_trace_what_changes_its_ids(monkeypatch, tmp_path, value, status):
    setting = tmp_path / "suid_dumpable"
    setting.write_text(value + "\n")
    monkeypatch.setattr(doctor, "open", lambda path: setting.open(), raising=False)
    it = examined(doctor._tracing)
    assert it.status == status and f"fs.suid_dumpable={value}" in it.what and bool(it.next_step) == (status == "note")


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
    monkeypatch.setattr(idmaps, "default_map", lambda: SimpleNamespace(uids=(piece, piece), single=False))
    it = examined(doctor._ids)
    assert (it.status, it.what) == ("ok", "131072 user ids in a sandbox")
    monkeypatch.setattr(idmaps, "default_map", lambda: SimpleNamespace(uids=(SimpleNamespace(count=1),), single=True))
    for problem in ("no line in /etc/subuid", ""):
        monkeypatch.setattr(idmaps, "range_problem", lambda uid, problem=problem: problem)
        it = examined(doctor._ids)
        assert it.status == "note" and it.next_step == (problem or "see /etc/subuid and /etc/subgid")


def test_control_groups(monkeypatch, tmp_path):
    import dockless.cgroups

    def there(place: Delegation) -> doctor.Finding:
        asked: list[object] = []
        monkeypatch.setattr(dockless.cgroups, "find_delegation", lambda **how: asked.append(how) or place)
        it = examined(doctor._cgroups)
        assert asked == [{"ask_systemd": True}]
        return it

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
    to_all = "every user may open their nodes without a lease (docs/security.md says how to close them)"
    assert (it.status, it.what) == ("ok", f"2 (H100, 80 GiB), driver 570.1; {to_all}")


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


def test_the_extension(monkeypatch):
    monkeypatch.setattr(native, "operations", lambda: ("A", "B"))
    assert examined(doctor._extension) == doctor.Finding("extension", "ok", "native extension with 2 operations")

    def broken():
        raise ImportError("no such symbol")

    monkeypatch.setattr(native, "operations", broken)
    it = examined(doctor._extension)
    assert it.status == "fail" and it.what.endswith("no such symbol") and "pip install" in it.next_step


def test_the_daemon(monkeypatch):
    asked = []
    info = DaemonInfo(pid=7, version="", owner_uid=0, user="me", admin=False, started=0.0, socket="/s")

    def connect(*, timeout):
        asked.append(timeout)
        return contextlib.nullcontext(SimpleNamespace(ping=lambda: info))

    monkeypatch.setattr(sched, "connect", connect)
    assert examined(doctor._daemon) == doctor.Finding("daemon", "ok", "process 7 at /s")
    info = replace(info, simulated=True)
    assert examined(doctor._daemon) == doctor.Finding("daemon", "ok", "process 7 at /s, GPUs simulated")
    info = replace(info, outage="the disk is full")
    assert examined(doctor._daemon) == doctor.Finding(
        "daemon", "note", "the disk is full", "make room on the disk of the daemon's directory"
    )
    assert all(0 < timeout <= 10 for timeout in asked)

    def unavailable(*, timeout):
        raise DaemonUnavailable("nobody answers", hint="start it")

    monkeypatch.setattr(sched, "connect", unavailable)
    assert examined(doctor._daemon) == doctor.Finding("daemon", "note", "nobody answers (only the queue needs it)", "start it")


@pytest.mark.parametrize(
    ("uid", "why", "status", "said"),
    [
        (1000, "", "ok", "written as files: only root"),
        (0, "", "ok", "indexed, not unpacked"),
        (0, "no EROFS", "note", "not indexed: no EROFS"),
    ],
)
def test_layers(machine, monkeypatch, uid, why, status, said):
    machine(uid)
    monkeypatch.setattr(erofs, "why_not", lambda place: why)
    it = examined(doctor._layers)
    assert it.status == status and said in it.what and bool(it.next_step) == (status == "note")


def test_names_that_the_settings_have_in_vain(home):
    (home / "dockless.toml").write_text("[quota.users]\nnobody-here = 1\nnor-here = 1\n")
    it = examined(doctor._settings)
    assert it.status == "note" and it.what.count("there is no user") == 2 and "; " in it.what and "no effect" in it.next_step


@pytest.mark.parametrize("allowed", [os.R_OK, os.R_OK | os.W_OK, os.R_OK | os.X_OK])
def test_a_store_that_cannot_be_written(home, monkeypatch, allowed):
    """Nor entered; the nearest directory that is there is the one that counts."""
    monkeypatch.setattr(doctor.os, "access", lambda place, wanted: wanted & allowed == wanted)
    assert examined(doctor._store) == doctor.Finding(
        "image store", "fail", f"{home} cannot be written", "set DOCKLESS_HOME to a directory of yours"
    )


def test_registries(monkeypatch, tmp_path):
    logins = [tmp_path / "auth.json", tmp_path / "none.json", tmp_path / "more.json"]
    for path in (logins[0], logins[2]):
        path.write_text("{}")
        path.chmod(0o600)
    configured = SimpleNamespace(files=(), search=None, warnings=())
    monkeypatch.setattr(registry.Configuration, "load", lambda: configured)
    monkeypatch.setattr(registry.Credentials, "load", lambda: SimpleNamespace(files=logins))
    monkeypatch.setattr(registry.credentials, "read", lambda path: {} if path.exists() else None)
    there = f"logins in {logins[0]}, {logins[2]}"
    assert examined(doctor._registries) == doctor.Finding("registries", "ok", f"no registries.conf; short names mean docker.io; {there}")
    configured.files, configured.search = ("/etc/a", "/etc/b"), ("quay.io", "ghcr.io")
    what = f"/etc/a, /etc/b; short names mean quay.io ghcr.io; {there}"
    assert examined(doctor._registries) == doctor.Finding("registries", "ok", what)
    logins[2].chmod(0o604)
    assert examined(doctor._registries) == doctor.Finding(
        "registries", "note", what, f"others can read the passwords in it: chmod 600 {logins[2]}"
    )
    logins[0].chmod(0o640)
    assert examined(doctor._registries).next_step.endswith(f"chmod 600 {logins[0]}")
    configured.warnings = ("w1", "w2", "w3", "w4")
    it = examined(doctor._registries)
    assert (it.status, it.what) == ("note", f"{what}; w1; w2; w3") and "no effect" in it.next_step
    configured.warnings, configured.search = (), ()
    logins.clear()
    it = examined(doctor._registries)
    assert (it.status, it.what) == ("ok", "/etc/a, /etc/b; short names mean none; logins in no file")

    def broken():
        raise BadInput("line 3 is odd", hint="mend it")

    monkeypatch.setattr(registry.Configuration, "load", broken)
    assert examined(doctor._registries) == doctor.Finding("registries", "note", "no pull and no push: line 3 is odd", "mend it")


@pytest.mark.parametrize(
    ("removed", "what"),
    [
        ([], "nothing lies about of runs that were killed"),
        (["a"], "removed what 1 killed runs had left: a"),
        (["dockless"], "wrote the nftables table dockless anew, which another program had changed"),
        (
            ["a", "dockless"],
            "wrote the nftables table dockless anew, which another program had changed; removed what 1 killed runs had left: a",
        ),
        (list("abcde"), "removed what 5 killed runs had left: a, b, c, d, e"),
        (list("abcdef"), "removed what 6 killed runs had left: a, b, c, d, e, …"),
    ],
)
def test_leftovers(monkeypatch, removed, what):
    monkeypatch.setattr("dockless.sandbox.run.reconcile.reconcile", lambda: removed)
    monkeypatch.setattr("dockless.sandbox.network.records.table_name", lambda: "dockless")
    assert examined(doctor._leftovers) == doctor.Finding("leftovers", "ok", what)


def test_a_trial(monkeypatch):
    asked = []
    result = SimpleNamespace(returncode=0, duration=0.0123, why="")
    monkeypatch.setattr("dockless._call.run", lambda *words, **how: asked.append((words, how)) or result)
    assert examined(doctor._trial) == doctor.Finding("a sandbox", "ok", "`true` ran in 12.3 ms")
    assert asked == [((["true"],), {"stdin": DEVNULL, "stdout": DEVNULL, "stderr": DEVNULL, "timeout": 20})]
    result = SimpleNamespace(returncode=1, duration=0.0, why="exit code 1")
    it = examined(doctor._trial)
    assert (it.status, it.what) == ("fail", "`true` failed in a sandbox: exit code 1") and "--explain" in it.next_step
