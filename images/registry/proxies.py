"""Proxies as the environment names them: ``http_proxy``, ``https_proxy``, ``all_proxy``, ``no_proxy``, lower case before upper case.

``no_proxy`` holds host names (which cover the names below them), ``.suffix``, addresses, networks (``10.0.0.0/8``), each with an optional
``:port``, or ``*``. Loopback never goes through a proxy. ``HTTP_PROXY`` in upper case does not count inside a CGI script, where a client's
``Proxy:`` header would set it.
"""

from __future__ import annotations

from collections.abc import Mapping

from dockless.base.url import urlsplit
from dockless.errors import BadInput
from dockless.images.registry.addresses import LOOPBACK, address, classify


class Proxies:
    def __init__(self, env: Mapping[str, str]) -> None:
        def value(name: str) -> str:
            upper = "" if name == "http_proxy" and "REQUEST_METHOD" in env else env.get(name.upper(), "")
            return (env.get(name) or upper).strip()

        fallback = value("all_proxy")
        self._proxies = {scheme: value(f"{scheme}_proxy") or fallback for scheme in ("http", "https")}
        self._direct = tuple(part.strip().lower() for part in value("no_proxy").replace(" ", ",").split(",") if part.strip())

    def choose(self, scheme: str, host: str, port: int) -> str:
        """The proxy's URL for a request, "" for none."""
        proxy = self._proxies.get(scheme, "")
        if not proxy or self._is_direct(host.lower().rstrip("."), port):
            return ""
        url = proxy if "://" in proxy else f"http://{proxy}"
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            # The value may hold a password, so it is not repeated.
            raise BadInput(
                f"{scheme}_proxy is not a proxy that can be used",
                subject=f"{scheme}_proxy",
                hint="write http://host:port; SOCKS is not supported",
            )
        return url

    def _is_direct(self, host: str, port: int) -> bool:
        literal = address(host)
        if host == "localhost" or host.endswith(".localhost") or (literal is not None and classify(literal) == LOOPBACK):
            return True
        for entry in self._direct:
            if entry == "*":
                return True
            name, colon, wanted = entry.rpartition(":")
            if colon and wanted.isdigit() and (":" not in name or name.endswith("]")):
                if int(wanted) != port:
                    continue
                entry = name
            if literal is not None:
                import ipaddress

                try:
                    if ipaddress.ip_address(literal) in ipaddress.ip_network(entry.strip("[]"), strict=False):
                        return True
                except ValueError:
                    pass
                continue
            name = entry.lstrip("*").lstrip(".")
            if host.endswith(f".{name}") or (host == name and not entry.startswith(".")):
                return True
        return False
