"""What is said of networks, as people write it: ``--network`` and ``network=``, ``-p`` and ``publish=``, ``--allow-out``, ``allow_out=``.
What each must be: ``sandbox.network.asked``. The ``…_words`` are the way back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dockless.base.dataclass import replace
from dockless.base.later import re
from dockless.base.typing import Any
from dockless.base.units import parse_size
from dockless.errors import BadInput
from dockless.sandbox.hosts import address_version
from dockless.sandbox.network.asked import CONTAINER
from dockless.sandbox.network.model import DEFAULT, Egress, Endpoint, Port, Rule

_DEFAULT_TOO = ("default", "private")
"""What Docker and Podman call the network of whoever names none."""
_KEYS = {"ip": "ip", "ip6": "ip", "mac": "mac", "mac-address": "mac", "alias": "alias", "name": "name"}
_FORM = "write NAME, or NAME:ip=10.1.0.5,ip6=fd00::5,mac=02:42:0a:01:00:05,alias=db"
_PUBLISHED = r"(?:(?:\[([^\[\]]*)\]|([0-9.]+)):)?([0-9]{1,5})(?:-([0-9]{1,5}))?:([0-9]{1,5})(?:-([0-9]{1,5}))?(?:/(tcp|udp))?\Z"
_PUBLISH_FORM = "write [ADDRESS:]HOST:INSIDE[/tcp|udp]: 8080:80, 127.0.0.1:5000-5005:5000-5005/udp, [fd00::5]:8080:80"
_RULE = r"(?:\[([^\[\]]+)\](?::([0-9,-]+))?|([^\[\]:]+)(?::([0-9,-]+))?)\Z"
_RULE_FORM = "write 10.0.0.0/8, [fd00::/8]:443, pypi.org:443 or *.pypi.org:80,8000-8080/tcp"


def network_of(value: str | Endpoint | Iterable[str | Endpoint], name: str) -> str:
    """``Spec.network``. ``BadInput``"""
    items = _items(value)
    alone = [item for item in items if item in ("none", "host") or (isinstance(item, str) and item.startswith(CONTAINER))]
    if not alone:
        return "private" if items else "none"
    if len(items) > 1:
        hint = "give that one alone, or networks by their names"
        raise BadInput(f"network {str(alone[0])[:80]} cannot be given together with another one", subject="network", hint=hint)
    return str(alone[0])


def endpoints_of(value: str | Endpoint | Iterable[str | Endpoint], name: str) -> tuple[Endpoint, ...]:
    """``Spec.endpoints``. ``BadInput``"""
    if network_of(value, name) != "private":
        return ()
    return tuple(item if isinstance(item, Endpoint) else parse_endpoint(item) for item in _items(value))


def _items(value: str | Endpoint | Iterable[str | Endpoint]) -> tuple[str | Endpoint, ...]:
    return (value,) if isinstance(value, (str, Endpoint)) else tuple(value)


def parse_endpoint(text: str) -> Endpoint:
    """``NAME[:KEY=VALUE,…]``, or Docker's ``name=NAME,KEY=VALUE,…``. ``BadInput``"""
    name, _, rest = text.partition(":") if "=" not in text.partition(":")[0] else ("", "", text)
    found: dict[str, list[str]] = {"ip": [], "mac": [], "alias": [], "name": [name] if name else []}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        if not value or key not in _KEYS or (_KEYS[key] != "alias" and key in ("mac", "mac-address", "name") and found[_KEYS[key]]):
            raise BadInput(f"network {text[:80]!r}: {part[:40]!r} cannot be read", subject="network", hint=_hint(name))
        found[_KEYS[key]].append(value)
    if not found["name"] or name in ("pasta", "slirp4netns"):
        raise BadInput(f"network {text[:80]!r} cannot be read", subject="network", hint=_hint(name))
    name = found["name"][0]
    return Endpoint(DEFAULT if name in _DEFAULT_TOO else name, tuple(found["ip"]), "".join(found["mac"]), tuple(found["alias"]))


def _hint(name: str) -> str:
    if name in ("pasta", "slirp4netns"):
        return f"an ordinary user's network is made by pasta anyway: --network {DEFAULT}"
    if name == "ns":
        return "a namespace is entered by no path; the network of another sandbox is: --network container:ID"
    return _FORM


def published(value: str | Port | Iterable[str | Port], name: str) -> tuple[Port, ...]:
    """``Spec.ports``. ``BadInput``"""
    items = (value,) if isinstance(value, (str, Port)) else value
    return tuple(item if isinstance(item, Port) else parse_published(item) for item in items)


def parse_published(text: str) -> Port:
    """``[ADDRESS:]HOST[-LAST]:INSIDE[-LAST][/tcp|udp]``. ``BadInput``"""
    found = re.match(_PUBLISHED, text)
    if found is None:
        hint = _PUBLISH_FORM
        if re.match(r"[0-9]{1,5}(-[0-9]{1,5})?(/[a-z]+)?\Z", text):
            hint = f"say which port of the host leads there, one of your choice: {text if '-' in text else f'8080:{text}'}"
            if "-" in text:
                hint = f"say which ports of the host lead there: {text.partition('/')[0]}:{text}"
        elif text.endswith("/sctp"):
            hint = "tcp and udp are published"
        raise BadInput(f"port {text[:80]!r} cannot be read", subject="publish", hint=hint)
    six, four, outside, last_outside, inside, last_inside, protocol = found.groups()
    if (six is not None and address_version(six) != 6) or (four and address_version(four) != 4):
        raise BadInput(f"port {text[:80]!r}: {six or four} is no address", subject="publish", hint=_PUBLISH_FORM)
    count = int(last_outside or outside) - int(outside) + 1
    if count < 1 or count != int(last_inside or inside) - int(inside) + 1:
        hint = "both ranges have the same length, and begin with the lower port: 5000-5005:6000-6005"
        raise BadInput(f"port {text[:80]!r}: the ranges do not fit each other", subject="publish", hint=hint)
    return Port(int(inside), int(outside), "udp" if protocol == "udp" else "tcp", six or four or "", count)


def egress_of(options: Mapping[str, Any]) -> Egress | None:
    """The record of the keywords for it, None where none of them is given. Who says where it may connect to, or takes the profile
    untrusted, does not mean the host by that, unless she says so. ``BadInput``"""
    ready: Egress | None = options.get("egress")
    said = [name for name in ("allow_out", "allow_host", "net_rate", "log_denied") if options.get(name) is not None]
    if not said:
        return ready
    if ready is not None:
        raise BadInput(f"egress= and {said[0]}= together", subject="egress", hint="say it in one way")
    allow = options.get("allow_out")
    rules = None if allow is None else rules_of(allow)
    rate = parse_size(options["net_rate"], "net_rate") if options.get("net_rate") is not None else 0
    if options.get("net_rate") is not None and not rate:
        raise BadInput("net_rate 0 lets nothing through", subject="net_rate", hint="leave it out for any rate; --deny-out lets nothing out")
    if rules == () and options.get("allow_host"):
        hint = "name the host's address as well: --allow-out ADDRESS:PORT --allow-host (allow_out=)"
        raise BadInput("allow_host has no effect where nothing is allowed", subject="allow_host", hint=hint)
    found = Egress(rules, _host_by_default(rules, options.get("profile")), rate, bool(options.get("log_denied")))
    return found if options.get("allow_host") is None else replace(found, host=options["allow_host"])


def _host_by_default(rules: tuple[Rule, ...] | None, profile: str | None) -> bool:
    return rules is None and profile != "untrusted"


def rules_of(value: str | Iterable[str | Rule]) -> tuple[Rule, ...]:
    items = (value,) if isinstance(value, str) else value
    return tuple(item if isinstance(item, Rule) else parse_rule(item) for item in items)


def parse_rule(text: str) -> Rule:
    """``TO[:PORT[-LAST],…][/tcp|udp]``. An address of IPv6 that has ports stands in brackets. ``BadInput``"""
    rest, slash, protocol = text.rpartition("/")
    if not slash or protocol not in ("tcp", "udp"):
        rest, protocol = text, ""
    if rest.count(":") > 1 and rest[:1] != "[":
        return _rule(rest, "", protocol)
    found = re.match(_RULE, rest)
    if found is None:
        raise BadInput(f"{text[:80]!r} cannot be read", subject="allow_out", hint=_RULE_FORM)
    return _rule(found[1] or found[3], found[2] or found[4] or "", protocol)


def _rule(to: str, ports: str, protocol: Any) -> Rule:
    pairs = []
    for part in ports.split(",") if ports else ():
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(part) > 11:
            raise BadInput(f"{to[:80]}: {part[:40]!r} is no port", subject="allow_out", hint=_RULE_FORM)
        pairs.append((int(first), int(last or first)))
    return Rule(to.lower(), tuple(pairs), protocol)


def network_words(network: str, endpoints: Sequence[Endpoint]) -> str | list[str]:
    """What ``network`` takes."""
    return network if network != "private" else [_endpoint_words(endpoint) for endpoint in endpoints]


def _endpoint_words(endpoint: Endpoint) -> str:
    settings = [f"ip={address}" for address in endpoint.addresses]
    settings += [f"mac={endpoint.mac}"] if endpoint.mac else []
    settings += [f"alias={alias}" for alias in endpoint.aliases]
    return f"{endpoint.network}:{','.join(settings)}" if settings else endpoint.network


def port_words(port: Port) -> str:
    """What ``publish`` takes."""
    address = f"[{port.address}]:" if ":" in port.address else f"{port.address}:" if port.address else ""
    outside, inside = (_range(first, first + port.count - 1) for first in (port.outside, port.inside))
    return f"{address}{outside}:{inside}/{port.protocol}"


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def egress_words(egress: Egress, profile: str) -> dict[str, Any]:
    """The keywords of which ``egress_of`` makes the same."""
    found: dict[str, Any] = {}
    if egress.allow is not None:
        found["allow_out"] = [_rule_words(rule) for rule in egress.allow]
    if egress.host != _host_by_default(egress.allow, profile):
        found["allow_host"] = egress.host
    if egress.rate:
        found["net_rate"] = egress.rate
    if egress.log:
        found["log_denied"] = True
    return found or {"allow_host": egress.host}


def _rule_words(rule: Rule) -> str:
    ports = ",".join(_range(first, last) for first, last in rule.ports)
    to = f"[{rule.to}]" if ":" in rule.to and ports else rule.to
    return f"{to}{f':{ports}' if ports else ''}{f'/{rule.protocol}' if rule.protocol else ''}"
