"""The host as Prometheus reads it: exposition formats, text, 0.0.4. What is not known is left out."""

from __future__ import annotations

from dockless.base.typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dockless.sched.wire.protocol import HostInfo
    from dockless.sched.wire.top import GpuUse, JobUse, Top

    Sample = tuple[str, dict[str, object], float | None]

KIND = "text/plain; version=0.0.4; charset=utf-8"
HELP = {
    "dockless_daemon_up": "Whether a daemon answers.",
    "dockless_jobs_waiting": "Jobs that wait; those that start together are one.",
    "dockless_jobs_running": "Jobs that have been started and have not ended, each of those that start together.",
    "dockless_cores": "Cores that jobs may have together.",
    "dockless_cores_asked": "Cores that running jobs have asked for.",
    "dockless_memory_bytes": "Memory that jobs may have together.",
    "dockless_memory_asked_bytes": "Memory that running jobs have asked for.",
    "dockless_quota_gpus_used": "GPUs that count in a quota.",
    "dockless_quota_gpus_limit": "GPUs that a quota allows.",
    "dockless_user_jobs_waiting": "Jobs of a user that wait; those that start together are one.",
    "dockless_user_jobs_running": "Jobs of a user that have been started and have not ended, each of those that start together.",
    "dockless_gpu_leased": "Whether a GPU is leased, and to whom.",
    "dockless_gpu_shared_bytes": "Memory of a shared GPU that is leased, by user.",
    "dockless_gpu_out_of_service": "Whether a GPU is not given to anybody, and why.",
    "dockless_gpu_xid_errors_total": "Xid errors that the daemon has heard, by number.",
    "dockless_gpu_ecc_corrected": "Corrected errors of its memory since its driver was loaded.",
    "dockless_gpu_ecc_uncorrected": "Uncorrected errors of its memory since its driver was loaded.",
    "dockless_gpu_busy_ratio": "Share of the last sample in which something computed.",
    "dockless_gpu_memory_used_bytes": "Memory in use.",
    "dockless_gpu_memory_bytes": "Memory.",
    "dockless_gpu_temperature_celsius": "Temperature.",
    "dockless_gpu_power_watts": "Power drawn.",
    "dockless_job_gpus": "GPUs that a running job has.",
    "dockless_job_gpu_busy_ratio": "The mean of dockless_gpu_busy_ratio of a job's GPUs.",
    "dockless_job_gpu_memory_used_bytes": "Memory of its GPUs that a job's processes have.",
}


def text(host: HostInfo | None, top: Top) -> str:
    """``host`` None: no daemon answers. Of jobs and users those that ``top`` has, which are bounded."""
    samples = [*_queue(host)]
    for gpu in top.gpus:
        samples += _gpu(gpu)
    for job in top.jobs:
        samples += _job(job)
    for user in top.users if host is not None else ():
        samples.append(("dockless_user_jobs_waiting", {"user": user.user}, user.waiting))
        samples.append(("dockless_user_jobs_running", {"user": user.user}, user.running))
    lines: list[str] = []
    for name, about in HELP.items():
        values = [(labels, value) for found, labels, value in samples if found == name and value is not None]
        if values:
            lines += (f"# HELP {name} {about}", f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}")
            lines += (f"{name}{_labels(labels)} {value:.15g}" for labels, value in values)
    return "".join(f"{line}\n" for line in lines)


def _queue(host: HostInfo | None) -> Iterable[Sample]:
    yield "dockless_daemon_up", {}, host is not None
    if host is None:
        return
    yield "dockless_jobs_waiting", {}, host.waiting
    yield "dockless_jobs_running", {}, host.running
    if host.cores:  # an older daemon does not say
        yield "dockless_cores", {}, host.cores
        yield "dockless_cores_asked", {}, host.cores_used
        yield "dockless_memory_bytes", {}, host.memory
        yield "dockless_memory_asked_bytes", {}, host.memory_used
    for kind, name, used, limit in host.quotas:
        yield "dockless_quota_gpus_used", {"kind": kind, "name": name}, used
        yield "dockless_quota_gpus_limit", {"kind": kind, "name": name}, limit


def _gpu(gpu: GpuUse) -> Iterable[Sample]:
    labels: dict[str, object] = {"gpu": gpu.index, "uuid": gpu.uuid, "model": gpu.model}
    if gpu.simulated:
        labels["simulated"] = "true"
    yield "dockless_gpu_leased", {**labels, "user": gpu.user}, bool(gpu.user)
    shares: dict[str, int] = {}
    for share in gpu.shares:
        shares[share.user] = shares.get(share.user, 0) + share.memory
    for user, memory in sorted(shares.items()):
        yield "dockless_gpu_shared_bytes", {**labels, "user": user}, memory
    yield "dockless_gpu_out_of_service", {**labels, "reason": gpu.trouble}, bool(gpu.trouble)
    for number, count in gpu.xids:
        yield "dockless_gpu_xid_errors_total", {**labels, "xid": number}, count
    yield "dockless_gpu_ecc_corrected", labels, gpu.ecc_corrected
    yield "dockless_gpu_ecc_uncorrected", labels, gpu.ecc_uncorrected
    yield "dockless_gpu_busy_ratio", labels, gpu.busy
    yield "dockless_gpu_memory_used_bytes", labels, gpu.used
    yield "dockless_gpu_memory_bytes", labels, gpu.memory
    yield "dockless_gpu_temperature_celsius", labels, gpu.temperature
    yield "dockless_gpu_power_watts", labels, gpu.power


def _job(job: JobUse) -> Iterable[Sample]:
    if not job.gpus:
        return
    labels: dict[str, object] = {"job": job.job, "user": job.user}
    yield "dockless_job_gpus", labels, len(job.gpus)
    yield "dockless_job_gpu_busy_ratio", labels, job.busy
    yield "dockless_job_gpu_memory_used_bytes", labels, job.used


def _labels(labels: dict[str, object]) -> str:
    def quoted(value: object) -> str:
        return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

    return "{" + ",".join(f"{name}={quoted(value)}" for name, value in labels.items()) + "}" if labels else ""
