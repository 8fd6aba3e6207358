"""Specs × kernels × id maps made out of thin air, for plans that are the same on any machine."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

from dockless.base.idmaps import IdMap, Range
from dockless.images.layers.layers import Layer
from dockless.sandbox.accounts import Account
from dockless.sandbox.features import Features
from dockless.sandbox.plan.plan import Command
from dockless.sandbox.resolved import STANDARD_DEVICES, Device, HostEntry, HostFile, Owner, Resolved
from dockless.sandbox.spec import Bind, Namespaces, Rlimit, Spec, Tmpfs

NEW = Features("6.18.0", "x86_64")
USER = replace(NEW, sys_admin=False, overlay_detached_layers=False, detached_clones=False, idmapped_mounts=False, capabilities=0)
OLD = Features("5.14.0", "x86_64", overlay_lowerdir_plus=False, overlay_detached_layers=False, detached_clones=False)
RANGE = IdMap((Range(0, 100000, 65536),), (Range(0, 100000, 65536),))
OWNER = IdMap((Range(0, 1000, 1), Range(1, 200000, 65536)), (Range(0, 1000, 1), Range(1, 200000, 65536)))
SINGLE = IdMap((Range(0, 1000, 1),), (Range(0, 1000, 1),), single=True)
LAYERS = (Layer(Path("/store/layers/aaaaaaaaaaaa")), Layer(Path("/store/layers/bbbbbbbbbbbb")))
INDEXED = Layer(Path("/store/layers/sha256/cccccccccccccccc/index.erofs"), Path("/store/tars/sha256/dddddddd"))
HOST = (HostEntry("/usr"), HostEntry("/bin", "usr/bin"), HostEntry("/etc"))
FILTER = struct.pack("<HBBI", 6, 0, 0, 0x7FFF0000)
BASE = Resolved(
    spec=Spec(argv=("sh", "-c", "true")),
    features=NEW,
    account=Account(0, 0),
    command=Command(("/usr/bin/sh", "/bin/sh"), ("sh", "-c", "true"), ("PATH=/usr/bin:/bin",)),
    layers=LAYERS,
    idmap=RANGE,
    capabilities=0x800405FB,
    seccomp=FILTER,
    files=(("/etc/hostname", "dockless\n"), ("/etc/hosts", "127.0.0.1 localhost\n"), ("/etc/resolv.conf", "")),
    has_cgroup=True,
)


def _with(spec: Spec | None = None, **changes) -> Resolved:
    return replace(BASE, **({"spec": spec} if spec else {}), **changes)


def _spec(**fields) -> Spec:
    return replace(BASE.spec, **fields)


MOUNTS = (
    Bind("/data", "/data", readonly=True),
    Bind("/scratch", "/scratch", recursive=False),
    Tmpfs("/tmp", size=1 << 20, mode=0o700, noexec=True),
)
GPUS = tuple(Device(f"/dev/{name}", f"/dev/{name}", major, minor) for name, major, minor in
             (("nvidiactl", 195, 255), ("nvidia2", 195, 2), ("nvidia-uvm", 511, 0), ("nvidia-caps/nvidia-cap21", 236, 21)))  # fmt: skip
DRIVER = {
    "layers": (*LAYERS, Layer(Path("/store/driver/boot/driver-eeeeeeee/fs"))),
    "driver_files": (
        HostFile("/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.535.261.03", "/usr/lib64/libcuda.so.535.261.03"),
        HostFile("/run/nvidia-persistenced/socket", "/run/nvidia-persistenced/socket", readonly=False, noexec=True),
    ),
    "driver_proc": (("nvidia/params", "ModifyDeviceFiles: 0\n"),),
    "driver_proc_files": (HostFile("/proc/driver/nvidia/gpus/0000:3b:00.0", "nvidia/gpus/0000:3b:00.0"),),
}
EVERYTHING = _spec(
    rlimits=(Rlimit("nofile", 1024, 4096), Rlimit("core", 0, -1)), umask=0o27, oom_score_adj=500, cpus=(0, 1, 65), shm_size=1 << 20,
    hostname="box", domainname="example.org", sysctls=(("net.ipv4.ip_forward", "1"), ("kernel.sem", "250 32000 100 128")),
    timeout=60.0, grace=5.0,
)  # fmt: skip

CASES = {
    "root": BASE,
    "root-indexed": _with(layers=(LAYERS[0], INDEXED)),
    "root-indexed-many": _with(layers=(LAYERS[0], *(INDEXED,) * 42)),
    "root-indexed-old-kernel": _with(layers=(LAYERS[0], INDEXED), features=OLD),
    "root-tmpfs": _with(_spec(root="tmpfs", root_size=1 << 30)),
    "root-readonly": _with(_spec(root="readonly")),
    "root-host-image": _with(layers=(), host_entries=HOST),
    "root-no-cgroup": _with(has_cgroup=False),
    "root-old-kernel": _with(features=OLD),
    "root-old-kernel-tmpfs": _with(_spec(root="tmpfs"), features=OLD),
    "root-mounts": _with(_spec(mounts=MOUNTS), mounts=MOUNTS, workdir="/work/here"),
    "root-idmapped-bind": _with(mounts=(Bind("/data", "/data", idmap=True),)),
    "root-binds-with-rights": _with(mounts=MOUNTS, bind_maps={0: RANGE, 1: IdMap((Range(1000, 100000, 1),), (Range(1000, 100000, 1),))}),
    "root-everything": _with(EVERYTHING, account=Account(1000, 100, (5, 44)), hostname="box", workdir="/work"),
    "root-network-host": _with(_spec(network="host")),
    "root-for-an-owner": _with(idmap=OWNER, owner=Owner(1000, 1000, (27, 44)), mounts=MOUNTS),
    "root-gpu": _with(devices=(*STANDARD_DEVICES, Device("/dev/disk", "/dev/loop0", 7, 0, True, "r"), *GPUS)),
    "root-gpu-driver": _with(devices=(*STANDARD_DEVICES, *GPUS), **DRIVER),
    "root-untrusted": _with(_spec(profile="untrusted", root="readonly"), capabilities=0),
    "root-privileged": _with(_spec(profile="privileged"), idmap=None, capabilities=(1 << 41) - 1, seccomp=None),
    "root-shared-user": _with(_spec(namespaces=Namespaces(user="host")), idmap=None, layers=(), host_entries=HOST),
    "root-shared-namespaces": _with(_spec(namespaces=Namespaces(pid="host", uts="host", ipc="host", cgroup="host"), network="host")),
    "root-terminal": _with(_spec(tty=True), account=Account(1000, 100)),
    "root-waiting": _with(_spec(tty=True), account=Account(1000, 100), waits=600.0),
    "root-waiting-shared-user": _with(_spec(namespaces=Namespaces(user="host")), idmap=None, layers=(), host_entries=HOST, waits=0.0),
    "user-lending": _with(features=USER, rootful=False, idmap=OWNER, has_cgroup=False, waits=0.0, lends_root=True),
    "root-for-a-call": _with(waits=0.0, hands_over=True, below=True),
    "root-time": _with(_spec(namespaces=Namespaces(time="new"), time_offset=3600)),
    "user": _with(features=USER, rootful=False, idmap=OWNER, has_cgroup=False),
    "user-waiting": _with(features=USER, rootful=False, idmap=OWNER, has_cgroup=False, account=Account(5, 6), waits=0.0),
    "user-with-cgroup": _with(features=USER, rootful=False, idmap=OWNER),
    "user-tmpfs": _with(_spec(root="tmpfs"), features=USER, rootful=False, idmap=OWNER, has_cgroup=False),
    "user-mounts": _with(mounts=MOUNTS, features=USER, rootful=False, idmap=OWNER, has_cgroup=False),
    "user-gpu-driver": _with(devices=(*STANDARD_DEVICES, *GPUS), features=USER, rootful=False, idmap=OWNER, has_cgroup=False, **DRIVER),
    "user-host-image": _with(layers=(), host_entries=HOST, features=USER, rootful=False, idmap=OWNER, has_cgroup=False),
    "user-old-kernel": _with(
        features=replace(OLD, sys_admin=False, idmapped_mounts=False, capabilities=0), rootful=False, idmap=OWNER, has_cgroup=False
    ),
    "single-id": _with(features=USER, rootful=False, idmap=SINGLE, has_cgroup=False),
    "single-id-host-image": _with(layers=(), host_entries=HOST, features=USER, rootful=False, idmap=SINGLE, has_cgroup=False),
}
