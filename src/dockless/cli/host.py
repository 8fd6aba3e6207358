"""This machine: ``info``, ``daemon``, ``doctor``, ``demo``, ``version``."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence

from dockless.base.typing import TYPE_CHECKING
from dockless.base.units import format_size
from dockless.cli.output import age, out, print_json, table, warn
from dockless.cli.parser import Namespace, Parser
from dockless.errors import BadInput, DaemonUnavailable, GpuDriverMissing

if TYPE_CHECKING:
    from dockless.sched import DaemonInfo, GpuInfo, HostInfo


def info_options(parser: Parser) -> None:
    parser.json()


def info(options: Namespace) -> int:
    """The daemon's view where one answers, else the inventory alone."""
    from dockless.sched import connect

    try:
        with connect() as queue:
            host, daemon = queue.info(), queue.ping()
    except DaemonUnavailable as error:
        return _without_daemon(options, error)
    if options.json:
        print_json(host.as_dict() | {"daemon": daemon.as_dict()})
        return 0
    rights = ", administrator" if daemon.admin else ""
    out(f"daemon      process {daemon.pid} at {daemon.socket}, up {age(daemon.started)}; you are {daemon.user}{rights}")
    warn_of_outage(daemon)
    out(f"jobs        {host.running} running, {host.waiting} waiting")
    if host.cores:
        out(f"cores       {host.cores_used:g} of {host.cores:g} asked for by running jobs")
        out(f"memory      {format_size(host.memory_used)} of {format_size(host.memory)} asked for by running jobs")
    if host.disk:
        out(f"disk        {host.disk}")
    if host.drained:
        out(f"host        {host.drained}: no job is started")
    print_gpus(host)
    _print_unleased(dict(host.unleased))
    sharing = {share.user for gpu in host.gpus for share in gpu.shares}
    whole = Counter(gpu.user for gpu in host.gpus if not gpu.shares)
    for kind, name, used, limit in host.quotas:
        of, no_limit = ("", ", no limit") if limit is None else (f" of {limit}", "")
        # Jobs that start together count for the GPUs that they share, all others for each share.
        counted = f", of which {used - whole[name]} for shares of a GPU" if kind == "user" and name in sharing else ""
        out(f"quota       {kind} {name}: {used}{of} GPUs in use{no_limit}{counted}")
    for one in host.reservations:
        whose = ", ".join((*(f"user {name}" for name in one.users), *(f"group {name}" for name in one.groups)))
        kept = [f"{one.gpus} GPU{'' if one.gpus == 1 else 's'}"] if one.gpus else []
        kept += [f"{one.cores} core{'' if one.cores == 1 else 's'}"] if one.cores else []
        kept += [f"{format_size(one.memory)} of memory"] if one.memory else []
        out(f"reserved    {one.name}: {', '.join(kept)} {one.text}, for {whose}")
    return 0


def warn_of_outage(daemon: DaemonInfo) -> None:
    """Say that the daemon cannot write its queue, where that is so."""
    if daemon.outage:
        warn(daemon.outage, hint="make room on the disk of the daemon's directory; until then no job is started, and no end is recorded")


def print_gpus(host: HostInfo) -> None:
    """The table of GPUs and holders."""
    from dockless.cli.overview import holder, size_of, users_of

    if not host.gpus:
        out(f"gpus        none{': ' + host.gpu_error if host.gpu_error else ''}")
        return
    rows = [
        (
            *(gpu.index, gpu.model, size_of(gpu), gpu.uuid),
            *(holder(gpu), users_of(gpu), age(gpu.since)),
        )
        for gpu in host.gpus
    ]
    table(("GPU", "MODEL", "MEMORY", "UUID", "HOLDER", "USER", "SINCE"), rows)
    _print_troubles(host.gpus)


def _print_troubles(gpus: Sequence[GpuInfo]) -> None:
    for gpu in gpus:
        if gpu.trouble:
            out(f"GPU {gpu.index} is out of service: {gpu.trouble}.")
    if any(gpu.simulated for gpu in gpus):
        out("GPUs are simulated.")


def _print_unleased(unleased: Mapping[str, str]) -> None:
    if not unleased:
        return
    from dockless.sandbox.gpus import handed_out

    out(*(f"{line}." for line in handed_out.in_words(unleased)))


def _without_daemon(options: Namespace, error: DaemonUnavailable) -> int:
    from dockless.base.records import plain
    from dockless.cli.overview import holder, shares, size_of, users_of
    from dockless.sandbox.gpus import gpu, handed_out, lease
    from dockless.sched import GpuInfo

    problem = ""
    units: tuple[gpu.Gpu, ...] = ()
    try:
        units = gpu.units(gpu.inventory(links=False))
    except GpuDriverMissing as missing:
        problem = str(missing)
    units = lease.told(units + handed_out.beside(units))
    unleased = handed_out.unleased(handed_out.kinds())
    users, parts = lease.users([unit.uuid for unit in units]), shares([unit.uuid for unit in units])
    gpus = [
        GpuInfo(u.index, u.uuid, u.model, u.memory, simulated=u.simulated, outside=bool(u.used_by) or u.uuid in users,
                user=users.get(u.uuid, ""), trouble=u.trouble, shares=parts.get(u.uuid, ()))
        for u in units
    ]  # fmt: skip
    if options.json:
        keys = ("index", "uuid", "model", "memory", "simulated", "user", "trouble", "shares")
        rows = [
            {key: plain(getattr(one, key)) for key in keys} | {"held": bool(one.user), "outside": one.outside and not one.user}
            for one in gpus
        ]
        print_json({"daemon": None, "gpus": rows, "gpu_error": problem, "unleased": plain(list(unleased.items()))})
        return 0
    out(f"daemon      {error}", f"            {error.hint}")
    if not gpus:
        out(f"gpus        none{': ' + problem if problem else ''}")
        return 0
    _print_unleased(unleased)
    cells = [(one.index, one.model, size_of(one), one.uuid, holder(one), users_of(one)) for one in gpus]
    table(("GPU", "MODEL", "MEMORY", "UUID", "HOLDER", "USER"), cells)
    _print_troubles(gpus)
    return 0


def daemon_options(parser: Parser) -> None:
    parser.add_argument("--socket", metavar="PATH", help="where to listen (default: daemon.sock in the runtime directory)")
    parser.add_argument("--install", action="store_true", help="make it a service of systemd that starts at boot: root's, or your own")
    parser.add_argument("--print", action="store_true", help="with --install: only print the unit of the service")
    parser.add_argument("--uninstall", action="store_true", help="stop the service and remove it; running jobs go on")
    parser.json()


def daemon(options: Namespace) -> int:
    if options.print and not options.install:
        raise BadInput("--print belongs to --install", subject="--print", hint="dockless daemon --install --print")
    if options.install or options.uninstall:
        return _service(options)
    from dockless.sched.daemon import main

    return main(["--socket", options.socket] if options.socket else [])


def _service(options: Namespace) -> int:
    from dockless.base.path import Path
    from dockless.sched import service

    if options.install and options.uninstall:
        raise BadInput("--install and --uninstall exclude each other", subject="--uninstall", hint="give one of them")
    socket = Path(options.socket) if options.socket else None
    if options.print:
        text = service.unit(socket)
        print_json({"unit": str(service.place()), "text": text}) if options.json else out(*text.splitlines())
        return 0
    file = service.install(socket) if options.install else service.uninstall()
    if options.json:
        print_json({"unit": str(file) if file else None, "installed": options.install})
    elif file is None:
        out(f"{service.place()} is not there.")
    elif options.install:
        out(f"The daemon runs, and starts at each boot: {file}")
        if os.geteuid() != 0:
            out("It runs while you are logged in. `loginctl enable-linger` starts it at boot and keeps it and its jobs beyond your logout.")
    else:
        out(f"The service has ended and {file} is removed. Running jobs go on.")
    return 0


def doctor_options(parser: Parser) -> None:
    parser.quiet("only what needs attention")
    parser.json()


def doctor(options: Namespace) -> int:
    from dockless import doctor as examination

    findings = examination.examine()
    able = examination.can_run(findings)
    if options.json:
        print_json({"can_run": able, "checks": findings})
    else:
        out(*examination.lines(findings, only_problems=options.quiet))
    return 0 if able else 1


def demo_options(parser: Parser) -> None:
    parser.add_argument("--keep", action="store_true", help="leave the demo's directory, to look around in")


def demo(options: Namespace) -> int:
    from dockless.demo import run_demo

    return run_demo(keep=options.keep)


def version_options(parser: Parser) -> None:
    parser.json()


def version(options: Namespace) -> int:
    import platform

    from dockless._version import __version__

    if options.json:
        print_json({"version": __version__, "python": platform.python_version(), "linux": platform.release()})
    else:
        out(f"dockless {__version__}")
    return 0
