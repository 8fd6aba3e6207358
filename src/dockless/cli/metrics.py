"""``metrics``: the host as Prometheus reads it. Exposition formats, text, 0.0.4."""

from __future__ import annotations

from dockless.base.typing import TYPE_CHECKING
from dockless.cli.output import out
from dockless.cli.parser import Namespace, Parser
from dockless.errors import DaemonUnavailable, GpuDriverMissing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dockless.sandbox.gpus.gpu import Gpu
    from dockless.sandbox.gpus.watch import Reading
    from dockless.sched import HostInfo

    Sample = tuple[str, dict[str, object], float | None]

_HELP = {
    "dockless_daemon_up": "Whether a daemon answers.",
    "dockless_jobs_waiting": "Jobs that wait.",
    "dockless_jobs_running": "Jobs that have been started and have not ended.",
    "dockless_quota_gpus_used": "GPUs that count in a quota.",
    "dockless_quota_gpus_limit": "GPUs that a quota allows.",
    "dockless_gpu_leased": "Whether a GPU is leased, and to whom.",
    "dockless_gpu_out_of_service": "Whether a GPU is not given to anybody, and why.",
    "dockless_gpu_busy_ratio": "Share of the last sample in which something computed.",
    "dockless_gpu_memory_used_bytes": "Memory in use.",
    "dockless_gpu_memory_bytes": "Memory.",
    "dockless_gpu_temperature_celsius": "Temperature.",
    "dockless_gpu_power_watts": "Power drawn.",
}


def metrics_options(parser: Parser) -> None:
    del parser


def metrics(options: Namespace) -> int:
    """What is not known is left out."""
    del options
    from dockless.sched import connect

    try:
        with connect() as queue:
            samples = [*_queue(queue.info())]
    except DaemonUnavailable:
        samples = [("dockless_daemon_up", {}, 0)]
    try:
        samples += _gpus()
    except GpuDriverMissing:
        pass
    for name, about in _HELP.items():
        values = [(labels, value) for found, labels, value in samples if found == name and value is not None]
        if values:
            out(f"# HELP {name} {about}", f"# TYPE {name} gauge", *(f"{name}{_labels(labels)} {value:.15g}" for labels, value in values))
    return 0


def _queue(host: HostInfo) -> Iterable[Sample]:
    yield "dockless_daemon_up", {}, 1
    yield "dockless_jobs_waiting", {}, host.waiting
    yield "dockless_jobs_running", {}, host.running
    for kind, name, used, limit in host.quotas:
        yield "dockless_quota_gpus_used", {"kind": kind, "name": name}, used
        yield "dockless_quota_gpus_limit", {"kind": kind, "name": name}, limit


def _gpus() -> Iterable[Sample]:
    from dockless.base.idmaps import user_name
    from dockless.sandbox.gpus import gpu, lease
    from dockless.sandbox.gpus.watch import readings

    with gpu.session() as nvml:
        units = gpu.units(gpu.inventory(links=False))
        found = readings(nvml, [unit.uuid for unit in units])
    holders = lease.holders([unit.uuid for unit in units])
    for unit, reading in zip(units, found, strict=True):
        holder = holders.get(unit.uuid)
        yield from _gpu(unit, reading, "" if holder is None else user_name(holder) or str(holder))


def _gpu(unit: Gpu, reading: Reading, user: str) -> Iterable[Sample]:
    labels: dict[str, object] = {"gpu": unit.index, "uuid": unit.uuid, "model": unit.model}
    if unit.simulated:
        labels["simulated"] = "true"
    trouble = unit.trouble or reading.trouble
    yield "dockless_gpu_leased", {**labels, "user": user}, bool(user)
    yield "dockless_gpu_out_of_service", {**labels, "reason": trouble}, bool(trouble)
    yield "dockless_gpu_busy_ratio", labels, reading.busy
    yield "dockless_gpu_memory_used_bytes", labels, reading.used
    yield "dockless_gpu_memory_bytes", labels, unit.memory
    yield "dockless_gpu_temperature_celsius", labels, reading.temperature
    yield "dockless_gpu_power_watts", labels, reading.power


def _labels(labels: dict[str, object]) -> str:
    def quoted(value: object) -> str:
        return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

    return "{" + ",".join(f"{name}={quoted(value)}" for name, value in labels.items()) + "}" if labels else ""
