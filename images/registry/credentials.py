"""Who we are at a registry: what ``podman login``, ``docker login`` and credential helpers have left.

Files in this order, the first that knows the registry counts: ``$REGISTRY_AUTH_FILE`` (then no other),
``$XDG_RUNTIME_DIR/containers/auth.json`` (else ``/run/containers/<uid>/auth.json``), ``$XDG_CONFIG_HOME/containers/auth.json``,
``$DOCKER_CONFIG/config.json`` (``~/.docker``), ``~/.dockercfg``. In a file: ``credHelpers`` of the host, then ``auths`` from the most
specific key (``host/team/project``) to the host, then ``credsStore``. Docker's keys may be URLs, and the Hub is
``https://index.docker.io/v1/`` there.

A file that is there and cannot be read is an error: going on as nobody would end in a riddle ("not found") at the registry.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from dockless.base import json
from dockless.base.dataclass import dataclass, field
from dockless.base.later import base64
from dockless.base.path import Path
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.errors import RegistryError
from dockless.images.registry import helpers
from dockless.images.registry.endpoint import HUB

if TYPE_CHECKING:
    from dockless.images.registry.configuration import Configuration

FILE_MAX = 4 << 20
FILES = "containers-auth.json"
"""What ``credential-helpers`` calls the files."""
HUB_KEY = "https://index.docker.io/v1/"
_HUB_NAMES = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io"})
_UNUSABLE = "a token has other characters than printable ASCII, or a name or password is no text"
_TOKEN_USER = "<token>"
"""The user name that means: the secret is an identity token."""


@dataclass(frozen=True, slots=True)
class Login:
    """One login. Secrets are not part of its ``repr``. ``source``: the file or helper that had it."""

    username: str
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    registry_token: str = field(default="", repr=False)
    source: str = ""

    def __post_init__(self) -> None:
        """Values that can stand in a header or a form; a lone surrogate (``"\\ud800"`` in JSON) or a line end cannot."""
        try:
            (self.username + self.password).encode()
            usable = (self.identity_token + self.registry_token).isascii() and (self.identity_token + self.registry_token).isprintable()
        except UnicodeEncodeError:
            usable = False
        if not usable:
            raise RegistryError(f"the login in {self.source} cannot be sent: {_UNUSABLE}", subject=self.source, hint="log in again")

    def basic(self) -> str:
        """The value of a Basic ``Authorization`` header."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


class Credentials:
    """Finds logins; looks into the files each time, as they change under a long-lived process."""

    def __init__(self, files: tuple[Path, ...] = (), env: Mapping[str, str] | None = None, stores: tuple[str, ...] = ()) -> None:
        """``stores``: credential helpers that are asked before the files."""
        self.files = files
        self._env = os.environ if env is None else env
        self._stores = stores

    @classmethod
    def load(cls, env: Mapping[str, str] | None = None, configuration: Configuration | None = None) -> Credentials:
        """This user's; ``configuration`` may name helpers that are asked first (``credential-helpers`` of registries.conf)."""
        env = os.environ if env is None else env
        stores = configuration.credential_helpers if configuration is not None else ()
        return cls(tuple(search_path(env)), env, tuple(store for store in stores if store != FILES))

    def find(self, location: str, repository: str = "") -> Login | None:
        """The login for a repository, or with "" for the registry itself; None for nobody."""
        for store in self._stores:
            if (found := self._ask(store, location)) is not None:
                return found
        for path in self.files:
            document = read(path)
            if document is not None and (found := self._in_file(path, document, location, repository)) is not None:
                return found
        return None

    def _in_file(self, path: Path, document: dict[str, Any], location: str, repository: str) -> Login | None:
        auths, helpers_of, store = table(document, "auths", path), table(document, "credHelpers", path), document.get("credsStore")
        for key, helper in helpers_of.items():
            if isinstance(helper, str) and helper and same_registry(key, location):
                return self._ask(helper, location)
        for name in _names(location, repository):
            for key in [name, *(other for other in auths if other != name and normal(other) == name)]:
                entry = auths.get(key)
                if isinstance(entry, dict) and (found := _login(entry, path, key)) is not None:
                    return found
        return self._ask(store, location) if isinstance(store, str) and store else None

    def _ask(self, helper: str, location: str) -> Login | None:
        for server in (HUB_KEY, HUB) if location == HUB else (location,):
            if (answer := helpers.get(helper, server, self._env)) is not None:
                username, secret = answer
                source = f"docker-credential-{helper}"
                return (
                    Login("", identity_token=secret, source=source) if username == _TOKEN_USER else Login(username, secret, source=source)
                )
        return None


def search_path(env: Mapping[str, str]) -> Iterator[Path]:
    """The files that may hold logins, in order."""
    if env.get("REGISTRY_AUTH_FILE"):
        yield Path(env["REGISTRY_AUTH_FILE"])
        return
    runtime, home = env.get("XDG_RUNTIME_DIR"), env.get("HOME")
    yield Path(runtime) / "containers/auth.json" if runtime else Path(f"/run/containers/{os.geteuid()}/auth.json")
    if env.get("XDG_CONFIG_HOME"):
        yield Path(env["XDG_CONFIG_HOME"]) / "containers/auth.json"
    elif home:
        yield Path(home) / ".config/containers/auth.json"
    if env.get("DOCKER_CONFIG"):
        yield Path(env["DOCKER_CONFIG"]) / "config.json"
    elif home:
        yield Path(home) / ".docker/config.json"
    if home:
        yield Path(home) / ".dockercfg"


def read(path: Path) -> dict[str, Any] | None:
    """A file's document, None where there is none. ``.dockercfg`` is the ``auths`` alone."""
    try:
        path.stat()
    except OSError:
        return None  # also where a directory on the way is closed to us: then the file is somebody else's
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_MAX + 1)
    except OSError as error:
        raise bad(path, error.strerror or str(error)) from None
    if not data.strip():
        return {}  # what docker and mktemp leave
    try:
        document = json.loads(data) if len(data) <= FILE_MAX else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise bad(path, "not a JSON object")
    return {"auths": document} if path.name == ".dockercfg" else document


def table(document: dict[str, Any], key: str, path: Path) -> dict[str, Any]:
    value = document.get(key) or {}
    if not isinstance(value, dict):
        raise bad(path, f"{key} is not an object")
    return value


def normal(key: str) -> str:
    """A key as we write it: a URL is cut to its host (``https://quay.io/v1/`` is quay.io), all names of the Hub are docker.io."""
    _, mark, rest = key.partition("://")
    host, slash, path = (rest.partition("/")[0] if mark else key).rstrip("/").partition("/")
    if path in ("v1", "v2"):
        slash = path = ""
    return (HUB if host in _HUB_NAMES else host) + slash + path


def same_registry(key: str, location: str) -> bool:
    return normal(key) == location


def _names(location: str, repository: str) -> Iterator[str]:
    """``host/a/b``, ``host/a``, ``host``."""
    parts = repository.split("/") if repository else []
    for count in range(len(parts), -1, -1):
        yield "/".join((location, *parts[:count]))


def _login(entry: dict[str, Any], path: Path, key: str) -> Login | None:
    """An entry of ``auths``, None where it holds nothing (docker leaves ``{}`` beside a ``credsStore``)."""
    values = {name: entry.get(name) or "" for name in ("auth", "username", "password", "identitytoken", "registrytoken")}
    if not all(isinstance(value, str) for value in values.values()):
        raise bad(path, f"the entry of {key} is malformed")
    username, password = values["username"], values["password"]
    if values["auth"]:
        try:
            text = base64.b64decode(values["auth"], validate=True).decode().rstrip("\0")
        except ValueError:  # not ASCII, not base64, not UTF-8
            raise bad(path, f"the auth of {key} is not base64") from None
        username, colon, password = text.partition(":")
        if not colon:
            raise bad(path, f"the auth of {key} is not user:password in base64")
    if values["identitytoken"] or values["registrytoken"]:
        return Login(username, password, values["identitytoken"], values["registrytoken"], str(path))
    return Login(username, password, source=str(path)) if username else None


def bad(path: Path, why: str) -> RegistryError:
    return RegistryError(f"{path}: {why}", subject=str(path), hint="log in again, or repair the file; see containers-auth.json(5)")
