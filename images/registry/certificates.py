"""TLS contexts: the system's CAs, and what ``certs.d`` adds for a registry. Anything else fails closed (behaviour R19).

``<place>/<host[:port]>/`` may hold ``*.crt`` (CAs to trust besides the system's) and pairs ``NAME.cert``, ``NAME.key`` (to identify
ourselves). The first place that has the directory counts: the user's, containers', docker's. A registry's CAs also count for the hosts it
leads to, as token servers and blob stores are often signed by the same one; its client certificate and ``insecure`` never do.
"""

from __future__ import annotations

import _thread
import functools
import os
from collections.abc import Mapping

from dockless.base.path import Path
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.errors import RegistryError
from dockless.images.registry.deadline import Timed

if TYPE_CHECKING:
    from ssl import SSLContext

SYSTEM_PLACES = (Path("/etc/containers/certs.d"), Path("/etc/docker/certs.d"))


def places(env: Mapping[str, str]) -> tuple[Path, ...]:
    base = env.get("XDG_CONFIG_HOME") or (f"{env['HOME']}/.config" if env.get("HOME") else "")
    return ((Path(base) / "containers/certs.d",) if base else ()) + SYSTEM_PLACES


class Certificates:
    """The TLS contexts of one registry and of the hosts it leads to. Thread-safe."""

    def __init__(self, host: str, aliases: tuple[str, ...] = (), where: tuple[Path, ...] = SYSTEM_PLACES) -> None:
        """``host``: the registry's, with its port where it has one; ``aliases``: other names of it (docker.io)."""
        self._where = where
        self._own = tuple(dict.fromkeys((host, host.lower(), *aliases)))
        self._lock = _thread.allocate_lock()
        self._contexts: dict[tuple[str, int, bool, bool], SSLContext] = {}

    def context(self, host: str, port: int, *, insecure: bool = False, probe: bool = False) -> SSLContext:
        """The context for a connection to ``host:port``, made once. ``probe``: without the system's CAs, which take their time to load;
        enough to learn whether TLS is spoken."""
        with self._lock:
            found = self._contexts.get((host, port, insecure, probe))
            if found is None:
                found = self._contexts[host, port, insecure, probe] = self._make(host, port, insecure, probe)
            return found

    def _make(self, host: str, port: int, insecure: bool, probe: bool) -> SSLContext:
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.sslsocket_class = _timed_class()
        context.set_alpn_protocols(["http/1.1"])
        if insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif not probe:
            context.load_default_certs()
        bare = f"[{host}]" if ":" in host else host
        names = (f"{bare}:{port}", bare) if port == 443 else (f"{bare}:{port}",)
        if set(names) & set(self._own):
            names = (*self._own, *names)
        own, mine = self._directory(names), self._directory(self._own)
        for directory in {own, mine} - {None}:
            assert directory is not None
            for path in sorted(directory.glob("*.crt")):
                _load(path, lambda path=path: context.load_verify_locations(path))
        for path in sorted(own.glob("*.cert")) if own else ():
            key = path.with_suffix(".key")
            _load(path, lambda path=path, key=key: context.load_cert_chain(path, key))
        return context

    def _directory(self, names: tuple[str, ...]) -> Path | None:
        found = (place / name for place in self._where for name in names if "/" not in name and name.strip("."))
        return next((directory for directory in found if os.path.isdir(directory)), None)


def _load(path: Path, load: Any) -> None:
    try:
        load()
    except OSError as error:  # ssl.SSLError is one
        raise RegistryError(
            f"{path} cannot be used: {error}", subject=str(path), hint="certs.d holds PEM: *.crt, and NAME.cert with NAME.key"
        ) from None


@functools.cache
def _timed_class() -> Any:
    """A TLS socket that keeps the thread's deadlines. Made here so that importing this module does not import ssl."""
    import ssl

    class TimedTls(Timed, ssl.SSLSocket):
        pass

    return TimedTls
