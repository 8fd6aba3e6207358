"""``network``: networks that sandboxes are on; ``port``: which ports of the host lead into a sandbox."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

from dockless.base.later import re
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.cli.filters import filter_option, filters, labels
from dockless.cli.output import confirmed, each_named, names_done, out, print_json, table, warn
from dockless.cli.parser import Namespace, Parser, whole
from dockless.cli.template import format_option, inspected, show
from dockless.errors import BadInput, DocklessError

if TYPE_CHECKING:
    from dockless.sandbox.network.model import Port
    from dockless.sandbox.run.networks import NetworkInfo

_KEYS = ("name", "label", "dangling")
_ACTIONS = ("create", "ls", "inspect", "rm", "connect", "disconnect", "prune")
_OF_CREATE = ("subnet", "gateway", "mtu", "internal", "isolated", "label")
_OF_CONNECT = ("ip", "ip6", "mac_address", "alias")


def network_options(parser: Parser) -> None:
    parser.usage = "dockless network create|ls|inspect|rm|prune [NAME …], dockless network connect|disconnect NAME SANDBOX"
    parser.add_argument("action", choices=_ACTIONS, help="prune: those that no sandbox is on, but not bridge")
    parser.add_argument("names", nargs="*", metavar="NAME", help="networks; to connect or disconnect: a network and a sandbox")
    new = parser.add_argument_group("create")
    new.add_argument("--subnet", action="append", default=[], metavar="CIDR", help="10.20.0.0/24; one of IPv6 may stand beside it")
    new.add_argument("--gateway", action="append", default=[], metavar="ADDRESS", help="the host's own address there (default: the first)")
    new.add_argument("--mtu", type=whole(0), metavar="BYTES", help="of a packet (default: 1500)")
    new.add_argument("--internal", action="store_true", help="nothing on it leads out")
    new.add_argument("--isolated", action="store_true", help="those on it do not reach one another")
    new.add_argument("-l", "--label", action="append", default=[], metavar="NAME=VALUE", help="a label")
    joined = parser.add_argument_group("connect")
    joined.add_argument("--ip", metavar="ADDRESS", help="the sandbox's own there, of IPv4")
    joined.add_argument("--ip6", metavar="ADDRESS", help="likewise, of IPv6")
    joined.add_argument("--mac-address", metavar="MAC", help="likewise")
    joined.add_argument("--alias", action="append", default=[], metavar="NAME", help="another name for it there")
    parser.add_argument("-f", "--force", "-y", "--yes", action="store_true", help="do not ask (prune)")
    filter_option(parser, "name=, label=NAME[=VALUE], dangling=true|false (ls, prune)")
    format_option(parser)
    parser.quiet("names alone; nothing where there is nothing to tell")
    parser.json()


def network(options: Namespace) -> int:
    action = options.action
    wanted = {"ls": 0, "prune": 0, "connect": 2, "disconnect": 2}.get(action)
    if len(options.names) != wanted if wanted is not None else not options.names:
        what = "wants a name" if wanted is None else "takes no name" if not wanted else "wants a network and a sandbox"
        raise BadInput(f"network {action} {what}", subject=action, hint="dockless network --help")
    for flags, actions in ((_OF_CREATE, ("create",)), (_OF_CONNECT, ("connect",)), (("filter",), ("ls", "prune"))):
        for name in flags:
            if getattr(options, name) not in (None, [], False) and action not in actions:
                flag = f"--{name.replace('_', '-')}"
                hint = f"{flag} is for network {' and network '.join(actions)}"
                raise BadInput(f"network {action} takes no {flag}", subject=flag, hint=hint)
    if options.force and action in ("inspect", "ls"):
        hint = f"{'a template' if action == 'inspect' else 'a filter'} is given by {'--format' if action == 'inspect' else '--filter'}"
        raise BadInput(f"network {action} takes no -f", subject="-f", hint=hint)
    return _DO[action](options)


def _create(options: Namespace) -> int:
    from dockless.networks import create

    if len(options.names) > 1 and (options.subnet or options.gateway):
        hint = "make one network at a time, or leave the subnets to dockless"
        raise BadInput("several networks with one subnet", subject="--subnet", hint=hint)
    said = {"subnets": options.subnet, "gateways": options.gateway, "internal": options.internal, "isolated": options.isolated}
    said |= {"labels": _labels(options.label)} | ({} if options.mtu is None else {"mtu": options.mtu})

    def make(name: str) -> None:
        create(name, **said)
        _warn_of_barriers(name)

    return each_named(options.names, make, as_json=options.json, quiet=options.quiet)


def _labels(texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    return {name: value for name, _, value in pairs}


def _chosen(given: list[str]) -> list[NetworkInfo]:
    from dockless.sandbox.run.networks import chosen

    wanted = filters(given, {key: key for key in _KEYS}, {"dangling": ("true", "false")})
    dangling = set(wanted.get("dangling", ()))
    return chosen(
        names=wanted.get("name", ()),
        labels=labels(wanted.get("label", ())),
        dangling="true" in dangling if len(dangling) == 1 else None,
    )


def _row(network: NetworkInfo) -> dict[str, Any]:
    from dockless.base.records import plain

    found: dict[str, Any] = plain(network)
    return found


def _list(options: Namespace) -> int:
    from dockless.sandbox.network.records import torn

    found = _chosen(options.filter)
    for error in torn():
        warn(str(error), hint=error.hint or "")
    if options.quiet:
        for one in found:
            out(one.name)
    elif options.json:
        print_json([_row(one) for one in found])
    elif options.format:
        show(options.format, [_row(one) for one in found])
    else:
        table(("NETWORK", "SUBNETS", "KIND", "SANDBOXES"), [(one.name, " ".join(one.subnets), _kind(one), _on(one)) for one in found])
    return 0


def _kind(network: NetworkInfo) -> str:
    return " ".join(word for word, on in (("internal", network.internal), ("isolated", network.isolated)) if on)


def _on(network: NetworkInfo) -> str:
    ids = [one.id or one.addresses[0] for one in network.sandboxes]
    return " ".join(ids) if len(ids) <= 5 else f"{' '.join(ids[:5])} and {len(ids) - 5} more"


def _inspect(options: Namespace) -> int:
    from dockless.sandbox.run.networks import get

    return inspected(options, lambda name: _row(get(name)))


def _remove(options: Namespace) -> int:
    from dockless.sandbox.run.networks import remove

    return each_named(options.names, remove, as_json=options.json, quiet=options.quiet)


def _prune(options: Namespace) -> int:
    from dockless.sandbox.network.model import DEFAULT
    from dockless.sandbox.run.networks import remove

    unused = [one.name for one in _chosen(options.filter) if not one.sandboxes and one.name != DEFAULT]
    if unused and not options.force and not confirmed(f"Remove {len(unused)} networks: {', '.join(unused[:5])}?"):
        return 1
    return each_named(unused, remove, as_json=options.json, quiet=options.quiet)


def _connect(options: Namespace) -> int:
    from dockless.networks import connect

    name, box = options.names
    addresses = [address for address in (options.ip, options.ip6) if address]
    connect(name, box, addresses=addresses, mac=options.mac_address or "", aliases=options.alias)
    _warn_of_names(box)
    _warn_of_barriers(name)
    names_done([box], as_json=options.json, quiet=options.quiet)
    return 0


def _disconnect(options: Namespace) -> int:
    from dockless.networks import disconnect

    name, box = options.names
    disconnect(name, box)
    _warn_of_names(box)
    names_done([box], as_json=options.json, quiet=options.quiet)
    return 0


def _warn_of_barriers(name: str) -> None:
    from dockless.sandbox.run.networks import barred

    for text in barred([name]):
        warn(text)


def _warn_of_names(id: str) -> None:
    from dockless.sandbox.run import networks
    from dockless.sandbox.run.box import get

    with contextlib.suppress(DocklessError):  # it has ended, or a network of it is gone
        if networks.names_wait(get(id)):
            what = f"sandbox {id} keeps the /etc/resolv.conf of its start, not that of its present networks: it finds nobody there by name"
            warn(what, hint=f"dockless restart {id}")


_DO: dict[str, Callable[[Namespace], int]] = {
    "create": _create, "ls": _list, "inspect": _inspect, "rm": _remove, "connect": _connect, "disconnect": _disconnect, "prune": _prune,
}  # fmt: skip


def port_options(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", help="a sandbox of `dockless ps`")
    parser.add_argument("port", nargs="?", metavar="PORT[/tcp|udp]", help="one port inside; left out: all")
    parser.json()


def port(options: Namespace) -> int:
    from dockless.sandbox.run import networks
    from dockless.sandbox.run.box import get

    box = get(options.id)
    if not box.alive:
        raise box.not_running()
    has = networks.of(box)
    rows = [row for lease in has for row in _published(lease.ports, lease.addresses, lease.network)]
    if not rows and (spec := box.spec).ports:  # by pasta, which needs no lease
        rows = [*_published(spec.ports, ("0.0.0.0", "::"), spec.endpoints[0].network)]
    if options.port is not None:
        found = re.match(r"([0-9]{1,5})(?:/(tcp|udp))?\Z", options.port)
        if found is None:
            raise BadInput(f"port {options.port[:40]!r} cannot be read", subject="PORT", hint="write 80 or 53/udp")
        rows = [row for row in rows if (row["inside"], row["protocol"]) == (int(found[1]), found[2] or "tcp")]
        if not rows:
            raise BadInput(
                f"port {options.port} of sandbox {box.id} is not published", subject=options.port, hint=f"dockless port {box.id} lists them"
            )
    if options.json:
        print_json(rows)
        return 0
    for row in rows:
        place = f"[{row['address']}]" if ":" in row["address"] else row["address"]
        where = f"{place}:{row['outside']}"
        out(where if options.port is not None else f"{row['inside']}/{row['protocol']} -> {where}")
    return 0


def _published(ports: Iterable[Port], addresses: Iterable[str], network: str) -> Iterator[dict[str, Any]]:
    """A row for each port, and for each kind of the sandbox's addresses where it is on all of the host's."""
    every = ["::" if ":" in address else "0.0.0.0" for address in addresses]
    for one in ports:
        for number in range(one.count):
            for address in [one.address] if one.address else every:
                yield {
                    "inside": one.inside + number,
                    "protocol": one.protocol,
                    "address": address,
                    "outside": one.outside + number,
                    "network": network,
                }
