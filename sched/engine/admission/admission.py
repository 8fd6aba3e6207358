"""What is refused at submit: whatever could never start, and whatever the caller may not have.

A job that passes here waits only for others to end. Everything is judged by the daemon with its own eyes: its inventory, its store, its
settings, the caller's uid from the kernel.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence

from dockless.base.dataclass import replace
from dockless.base.records import differences
from dockless.base.units import exact_size, format_size
from dockless.errors import BadInput, NotPermitted, Refused
from dockless.sched.callers import Caller, Callers, default_group
from dockless.sched.config import Config
from dockless.sched.engine.admission import networks
from dockless.sched.engine.admission.per_user import PerUser
from dockless.sched.engine.gpus.hostgpus import HostGpus
from dockless.sched.engine.host.disk import smallest
from dockless.sched.engine.notices import check_address
from dockless.sched.jobs import JobOptions, JobSpec, options_of
from dockless.sched.policy.supplies import CORES, MEMORY, Supply, amount, bare
from dockless.sched.store.queue import NewJob
from dockless.sched.store.schema import storable

LEAST_SHARE = 256
"""MiB of a GPU that a job has at least: else thousands could run on one, whatever the host's limit of jobs."""
_NUMBER = re.compile(r"[0-9]{1,4}:[0-9]{1,7}")


class Admission:
    """``check_image``: raises UnknownImage; injected because the store belongs to another package."""

    def __init__(
        self,
        config: Config,
        gpus: HostGpus,
        callers: Callers,
        check_image: Callable[[str], None],
        supplies: Mapping[str, Supply] | None = None,
    ) -> None:
        self.config = config
        self.gpus = gpus
        self.callers = callers
        self.check_image = check_image
        self.supplies = supplies or {}

    def refuse_too_many(self, caller: Caller, queued: PerUser, more: int) -> None:
        """Refused: more jobs than one user, or a group that she is in, may have in the queue."""
        own = self.config.quotas.of("user", caller.user).queued
        limits = [("user", caller.user, self.config.per_user if own is None else own, "queue.per_user" if own is None else "the quota")]
        for name in self.callers.quota_groups(caller):
            if (most := self.config.quotas.of("group", name).queued) is not None:
                limits.append(("group", name, most, "the quota"))
        for kind, name, most, setting in limits:
            have = queued.jobs[caller.uid] if kind == "user" else self._queued_of(name, queued)
            if have + more > most:
                raise Refused(
                    f"{kind} {name} has {have} jobs in the queue; {more} more would pass the limit of {most}",
                    subject=name,
                    hint=f"wait for some to end, or ask the administrator to raise {setting}",
                )

    def _queued_of(self, group: str, queued: PerUser) -> int:
        return sum(count for uid, count in queued.jobs.items() if group in self.callers.quota_of(uid)[1])

    def refuse_too_large(self, caller: Caller, queued: PerUser, more: int) -> None:
        """Refused: specs of more bytes than one user may have in the queue."""
        have, most = queued.size[caller.uid], self.config.per_user_size
        if have + more > most:
            raise Refused(
                f"user {caller.user} has {format_size(have)} of jobs in the queue;"
                f" {format_size(more)} more would pass the limit of {format_size(most)}",
                subject=caller.user,
                hint="put what is large into a file that the job reads, or wait for some to end (the setting is queue.per_user_size)",
            )

    def admit(self, caller: Caller, job: JobSpec, array: bool = False) -> NewJob:
        """The job, or all of an array, as it will be queued. Raises what is wrong with it."""
        job = self._devices(job)
        self._rights(caller, job)
        networks.check(caller, job.spec)
        if job.array_limit and not array:
            raise BadInput("a limit of how many run at once is for arrays", subject="array_limit", hint="submit an array")
        if job.retry_on and not job.retries:
            raise BadInput("'retry_on' without 'retries'", subject="retry_on", hint="say how often: retries = 3")
        count, wanted = self.gpus.resolve(job.gpus)
        gpu_class = self.gpus.class_of(job.gpus)
        gpu_share = self.gpus.share_of(job.gpus) if self.config.share != "no" else 0
        if self.config.share != "no" and not self.gpus.not_whole.issuperset(wanted) and self.gpus.memory_of(job.gpus):
            raise Refused(
                "some memory of GPUs that are named is asked for, and they are given whole",
                subject="gpu_memory",
                hint="leave --gpu-memory out, or ask for the memory without names: any GPU that has so much left is shared",
            )
        if 0 < gpu_share < LEAST_SHARE:
            raise Refused(
                f"{gpu_share} MiB of a GPU are less than any program needs there",
                subject=job.gpus,
                hint=f"CUDA itself takes some hundred MiB of it: ask for {LEAST_SHARE}M or more",
            )
        if job.spec.log_size > self.config.log_size_limit:
            raise Refused(
                f"log_size {exact_size(job.spec.log_size)} is more than the limit of {exact_size(self.config.log_size_limit)}",
                subject="log_size",
                hint="ask for less, or write to a file; the setting is logs.size_limit",
            )
        if job.spec.disk and os.geteuid() != 0 and not job.spec.best_effort:
            raise Refused("only root's daemon can limit what jobs write to their disk", subject="disk", hint="leave --disk out")
        self._disk(job)
        if job.notify and not self.config.notify.any:
            raise Refused("this host sends no notices", subject="notify", hint="leave it out; the settings are notify.sendmail and others")
        if job.notify_to:
            check_address(job.notify_to, self.config.notify.domains)
        groups = self.callers.quota_groups(caller)
        options = options_of(job, caller.user, gpu_class, gpu_share)
        self.check_quota(caller, job.gpus, count, groups)
        self._class_quota(caller, job, count, wanted, gpu_class, groups)
        self.check_supplies(options, count, wanted)
        self._limits(job)
        self.check_image(job.spec.image)
        argv = (*(job.spec.entrypoint or ()), *job.spec.argv)
        return NewJob(
            uid=caller.uid,
            user=caller.user,
            name=job.name,
            group=job.group or default_group(groups),
            image=job.spec.image,
            command=storable(shlex.join(arg[:200] for arg in argv[:40])[:200]),
            gpus=job.gpus,
            gpu_count=count,
            wanted=wanted,
            quota_groups=groups,
            priority=job.priority,
            time_limit=job.time_limit,
            on_reboot=job.on_reboot,
            spec=json.dumps(differences(job), separators=(",", ":")),
            options=options,
        )

    def _disk(self, job: JobSpec) -> None:
        """Refused: a larger limit of what it writes than the settings let it have."""
        most = smallest(self.config.disk_per_job, self.config.disk_per_user)
        if most and job.spec.disk > most:
            key = "per_job" if most == self.config.disk_per_job else "per_user"
            raise Refused(
                f"the disk limit {exact_size(job.spec.disk)} is more than the {exact_size(most)} that a job may write",
                subject="disk",
                hint=f"ask for {exact_size(most)} or less, or leave --disk out; the setting is disk.{key}",
            )

    def _devices(self, job: JobSpec) -> JobSpec:
        """The job, in which named devices that are leased here are asked for as GPUs are. ``BadInput`` where it asks for others, too."""
        if not job.spec.cdi:
            return job
        from dockless.sandbox.gpus import handed_out

        spec, leased = handed_out.taken_out(job.spec, self.config.devices, bool(job.gpus))
        return replace(job, spec=spec, gpus=leased) if leased else job

    def _rights(self, caller: Caller, job: JobSpec) -> None:
        spec = job.spec
        if job.priority > 0 and not caller.admin:
            raise NotPermitted(
                f"priority {job.priority} is for administrators", subject="priority", hint="use 0, or less to let others go first"
            )
        if job.group and not caller.admin and not self.callers.member(caller, job.group):
            raise NotPermitted(
                f"user {caller.user} is not in group {job.group}", subject=job.group, hint="leave the group out, or ask to be added"
            )
        if caller.root:
            return
        if not caller.account:
            raise NotPermitted(
                f"uid {caller.uid} has no account on this host, so nothing can run as it", subject=caller.user, hint="see `getent passwd`"
            )
        unleased = (*spec.cdi, *(device.source for device in spec.devices))
        for wrong, what in (
            (spec.profile == "privileged", "the profile 'privileged'"),
            (spec.namespaces.user == "host", "the host's user namespace"),
            (spec.oom_score_adj is not None and spec.oom_score_adj < 0, f"oom_score_adj {spec.oom_score_adj}"),
            (any(mount.idmap for mount in spec.mounts), "an id-mapped bind mount"),
            (bool(unleased), f"device {''.join(unleased[:1])}, which is not leased,"),
        ):
            if wrong:
                raise NotPermitted(f"{what} is for root", subject=caller.user, hint="leave it out")
        for disk in spec.limits.io_max:
            if not _NUMBER.fullmatch(disk.target):
                # A path would be followed with root's rights, and the answer would tell what is there.
                raise NotPermitted("an io limit names its disk by a path", subject="io_max", hint="give its number, MAJOR:MINOR: see lsblk")

    def check_quota(self, caller: Caller, gpus: str, count: int, groups: tuple[str, ...], width: int = 1) -> None:
        """``Refused`` for so many GPUs, none of them or some, or so many jobs that start together, that the user could never have."""
        quotas = self.config.quotas
        for kind, name in (("user", caller.user), *(("group", name) for name in groups)):
            quota = quotas.of(kind, name)
            if quota.limit is not None and count > quota.limit:
                raise Refused(
                    f"needs {count} GPUs, the quota of {kind} {name} is {quota.limit}: this could never start",
                    subject=gpus,
                    hint=f"ask for at most {quota.limit}, or ask the administrator for a larger quota",
                )
            if quota.jobs == 0 or (not count and quota.cpu_jobs == 0):
                what, key = ("", "jobs") if quota.jobs == 0 else (" without GPUs", "cpu_jobs")
                raise Refused(
                    f"{kind} {name} may run no jobs{what}: this could never start",
                    subject=name,
                    hint=f"ask the administrator; it is {key} of the quota",
                )
            jobs = quota.jobs if quota.jobs is not None and width > quota.jobs else None
            what, key = "", "jobs"
            if jobs is None and not count and quota.cpu_jobs is not None and width > quota.cpu_jobs:
                jobs, what, key = quota.cpu_jobs, " without GPUs", "cpu_jobs"
            if jobs is not None:
                raise Refused(
                    f"{width} jobs start together, and {kind} {name} may run {jobs} jobs{what} at once: this could never start",
                    subject=name,
                    hint=f"ask for fewer, or ask the administrator for a larger quota ({key})",
                )
        if not count and 0 < self.config.cpu_jobs < width:
            raise Refused(
                f"{width} jobs start together, and this host runs {self.config.cpu_jobs} jobs without GPUs at once: this could never start",
                subject="role",
                hint="ask for fewer; the setting is host.cpu_jobs",
            )
        if not count and self.config.cpu_jobs == 0:
            raise Refused("this host runs no jobs without GPUs", subject="gpus", hint="the setting is host.cpu_jobs")

    def _class_quota(
        self, caller: Caller, job: JobSpec, count: int, wanted: tuple[str, ...], gpu_class: str, groups: tuple[str, ...]
    ) -> None:
        """Refused: more GPUs of a class than a quota has."""
        for pool, (name, limit) in self.config.quotas.of_classes(caller.user, groups).items():
            others = set(wanted or self.gpus.may_have(gpu_class)).difference(self.gpus.of_classes([name])[name])
            if count - len(others) > limit:
                raise Refused(
                    f"needs {count} GPUs, the quota of {pool.removeprefix(f'{name} of ')} is {limit} of class {name}:"
                    " this could never start",
                    subject=job.gpus,
                    hint=f"ask for at most {limit}, for another class, or ask the administrator for a larger quota",
                )

    def check_supplies(self, options: JobOptions, count: int, wanted: Sequence[str]) -> None:
        """Refused: more cores, or memory, than the host has for such a job."""
        for pool, asked in ((CORES, options.millicores), (MEMORY, options.memory)):
            supply = self.supplies.get(pool)
            if supply is None or not asked:
                continue
            gpus = len(set(wanted) - self.gpus.not_whole) if wanted else count
            if options.gpu_class and not self.gpus.not_whole.isdisjoint(self.gpus.may_have(options.gpu_class)):
                gpus = 0  # it may get slices, which have no part of their own
            most = supply.common(self.gpus.units) + supply.own(gpus, options.gpu_share, self.gpus.shareable.values())
            if asked > most:
                kept = f", as {bare(pool, supply.per_gpu)} stay with each GPU" if supply.per_gpu else ""
                raise Refused(
                    f"needs {amount(pool, asked)}, and this host has {bare(pool, most)} for such a job{kept}: this could never start",
                    subject="cpus" if pool == CORES else pool,
                    hint=f"ask for less; the settings are host.{pool} and host.{pool}_per_gpu",
                )

    def _limits(self, job: JobSpec) -> None:
        from dockless.cgroups import Limits, find_delegation, unavailable

        if job.spec.limits != Limits() and not job.spec.best_effort:
            # The launch will ask a user's systemd for a place of her own; asked here first, the answer is the same for both.
            for error in unavailable(job.spec.limits, find_delegation()):
                raise error
        if job.spec.limits.cpuset_cpus is not None and self.config.has_own_cores:
            raise Refused(
                "a job cannot choose its processors on this host, which sets some aside for each user (host.own_cores)",
                subject="cpuset",
                hint="leave --cpuset-cpus out; --cpus says how many it needs",
            )
