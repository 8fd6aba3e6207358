"""login and logout: a login is tried at its registry before it is kept, and kept where podman, skopeo and buildah look too.

The file is ``$REGISTRY_AUTH_FILE``, else ``$XDG_RUNTIME_DIR/containers/auth.json`` (which a reboot forgets), else ``auth.json`` below
``~/.config/containers``. It is replaced in one step, readable by its owner only, and all of it that is not ours stays. Where it names a
credential helper for the registry, the helper keeps the secret. Docker's own files are read by ``credentials`` but never written.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from dockless.base.dataclass import dataclass
from dockless.base.later import base64
from dockless.base.typing import Any
from dockless.errors import BadInput, NotFound, RegistryError
from dockless.images.files import write_atomic
from dockless.images.model.reference import is_domain, is_path
from dockless.images.registry import credentials as known
from dockless.images.registry import helpers
from dockless.images.registry.configuration import Configuration
from dockless.images.registry.credentials import HUB_KEY, Credentials, Login
from dockless.images.registry.endpoint import HUB, Endpoint


@dataclass(frozen=True, slots=True)
class LoggedOut:
    """``removed``: files and helpers that forgot the login. ``remaining``: where another one still is (docker's file), "" for nowhere."""

    removed: tuple[str, ...]
    remaining: str


class _Fixed(Credentials):
    def __init__(self, login: Login) -> None:
        super().__init__()
        self._login = login

    def find(self, location: str, repository: str = "") -> Login:
        return self._login


def login(
    registry: str,
    username: str,
    password: str,
    *,
    configuration: Configuration | None = None,
    env: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> str:
    """Try a login and keep it. Returns where: a file, or the helper. ``Unauthorized`` where the registry refuses it; nothing is kept then.

    ``registry``: ``host[:port]``, or ``host/team`` for a login that counts for the repositories below only.
    """
    env = os.environ if env is None else env
    key, location = _key(registry)
    if not username or ":" in username or not (username + password).isprintable():
        raise BadInput(
            "this cannot be a user name and its password",
            subject=username[:80],
            hint="a user name has no colon, and neither may hold control characters",
        )
    check(location, Login(username, password, source="the command line"), configuration=configuration, env=env)
    path = (file or target(env)).resolve()
    with _locked(path):
        document = known.read(path) or {}
        helper = _helper(document, path, location)
        if helper:
            helpers.store(helper, HUB_KEY if location == HUB else location, username, password, env)
            return f"docker-credential-{helper}"
        auths = known.table(document, "auths", path)
        auths[key] = {"auth": base64.b64encode(f"{username}:{password}".encode()).decode()}
        _write(path, {**document, "auths": auths})
    return str(path)


def check(location: str, login: Login, *, configuration: Configuration | None = None, env: Mapping[str, str] | None = None) -> None:
    """Ask the registry whether it takes this login."""
    from dockless.images.registry.transport import Registry

    configuration = Configuration.load(env) if configuration is None else configuration
    entry = configuration.find(location)
    if entry is not None and entry.blocked:
        raise RegistryError(f"the registry {location} is blocked", subject=location, hint="registries.conf says blocked = true for it")
    endpoint = Endpoint(location, "", insecure=entry is not None and entry.insecure, named=configuration.named_hosts)
    with Registry(endpoint, credentials=_Fixed(login), env=env) as registry:
        try:
            registry.request("GET", "/v2/", what=location).close()
        except NotFound:
            raise RegistryError(f"{location} is no registry: it has no /v2/", status=404, subject=location, hint="check the name") from None


def logout(registry: str, *, env: Mapping[str, str] | None = None, file: Path | None = None) -> LoggedOut:
    """Forget a login in all files of containers' tools and in the helpers they name. Docker's file is left alone, and reported."""
    env = os.environ if env is None else env
    key, location = _key(registry)
    removed = []
    for path in [file] if file else [path for path in known.search_path(env) if path.name not in ("config.json", ".dockercfg")]:
        if not path.exists():
            continue
        path = path.resolve()
        with _locked(path):
            document = known.read(path) or {}
            helper = _helper(document, path, location)
            if helper and helpers.erase(helper, HUB_KEY if location == HUB else location, env):
                removed.append(f"docker-credential-{helper}")
            auths = known.table(document, "auths", path)
            kept = {name: entry for name, entry in auths.items() if known.normal(name) != key}
            if len(kept) < len(auths):
                _write(path, {**document, "auths": kept})
                removed.append(str(path))
    found = Credentials((file,) if file else tuple(known.search_path(env)), env).find(*_split(key))
    return LoggedOut(tuple(removed), found.source if found else "")


def target(env: Mapping[str, str]) -> Path:
    """The file that a login is written to."""
    if env.get("REGISTRY_AUTH_FILE"):
        return Path(env["REGISTRY_AUTH_FILE"])
    runtime, base, home = env.get("XDG_RUNTIME_DIR"), env.get("XDG_CONFIG_HOME"), env.get("HOME")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime) / "containers/auth.json"
    if not runtime and os.geteuid() == 0:
        return Path("/run/containers/0/auth.json")
    if not base and not home:
        raise BadInput("there is no place for a login: neither XDG_RUNTIME_DIR nor HOME is set", hint="name a file in REGISTRY_AUTH_FILE")
    return (Path(base) if base else Path(str(home)) / ".config") / "containers/auth.json"


def _key(registry: str) -> tuple[str, str]:
    """(the key in a file, its host) of what the user wrote."""
    key = known.normal(registry.strip())
    host, path = _split(key)
    if not is_domain(host) or (path and not is_path(path)):
        raise BadInput(f"{registry[:100]!r} is not a registry", subject=registry[:100], hint="write host[:port], without https://")
    return key, host


def _split(key: str) -> tuple[str, str]:
    host, _, path = key.partition("/")
    return host, path


def _helper(document: Mapping[str, Any], path: Path, location: str) -> str:
    """The helper that keeps this registry's secrets, "" for the file itself."""
    for name, helper in known.table(dict(document), "credHelpers", path).items():
        if isinstance(helper, str) and known.same_registry(name, location):
            return helper
    store = document.get("credsStore")
    return store if isinstance(store, str) else ""


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time; the lock is the directory's, so that no file is left behind."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise known.bad(path, error.strerror or str(error)) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _write(path: Path, document: Mapping[str, Any]) -> None:
    try:
        write_atomic(path, (json.dumps(document, indent="\t") + "\n").encode())
    except OSError as error:
        raise known.bad(path, error.strerror or str(error)) from None
