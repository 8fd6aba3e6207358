"""registries.conf, version 2: which registry a name means, under which other names it is reached, and which are refused.

Read as containers-registries.conf(5) says: the user's file replaces the system's; drop-ins (``registries.conf.d/*.conf``) are added in the
order of their names, the user's after the system's, and replace what has the same prefix. Of all ``[[registry]]`` whose prefix fits, the
longest counts; ``*.example.com`` fits every host below. What is misunderstood could undo a ``blocked``: so wrong types and contradictions
are errors, while keys that are not known are collected as warnings (a newer podman may have written them). Version 1
(``[registries.search]``) is refused.

``CONTAINERS_REGISTRIES_CONF`` and ``…_CONF_DIR`` name another file and another directory of drop-ins.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from dockless.base import json
from dockless.base.dataclass import dataclass, field
from dockless.base.path import Path
from dockless.base.typing import Any
from dockless.errors import BadInput, RegistryError
from dockless.images.model.reference import Reference, is_domain, is_path
from dockless.images.model.reference import parse as parse_reference
from dockless.images.registry.endpoint import Endpoint, split_port

SYSTEM = Path("/etc/containers")
FILE_MAX = 4 << 20
_PULLS = ("all", "digest-only", "tag-only")
_MODES = ("enforcing", "permissive", "disabled")
_REGISTRY_KEYS = frozenset({"prefix", "location", "insecure", "blocked", "mirror", "mirror-by-digest-only"})
_MIRROR_KEYS = frozenset({"location", "insecure", "pull-from-mirror"})
_TOP_KEYS = frozenset(
    {"unqualified-search-registries", "registry", "aliases", "short-name-mode", "credential-helpers", "additional-layer-store-auth-helper"}
)


@dataclass(frozen=True, slots=True)
class Mirror:
    location: str
    insecure: bool = False
    pull: str = "all"


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """One ``[[registry]]``. An empty ``location`` (with a ``*.`` prefix) leaves names as they are."""

    prefix: str
    location: str
    insecure: bool = False
    blocked: bool = False
    mirrors: tuple[Mirror, ...] = ()

    def matched(self, name: str) -> int:
        """Characters of ``name`` that the prefix covers, -1 where it does not fit."""
        if not self.prefix.startswith("*."):
            end = len(self.prefix) if name.startswith(self.prefix) else -1
        else:
            suffix = self.prefix[1:]
            at = name.find(suffix)
            end = at + len(suffix) if at > 0 and "/" not in name[:at] else -1
        return end if end == len(name) or name[end : end + 1] in ("/", ":", "@") else -1


@dataclass(frozen=True, slots=True)
class Configuration:
    """All that the files say, merged. ``search`` None: not configured, and then unqualified names are the Hub's, as with docker."""

    entries: tuple[RegistrySettings, ...] = ()
    search: tuple[str, ...] | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    short_name_mode: str = "permissive"
    credential_helpers: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()

    @classmethod
    def load(cls, env: Mapping[str, str] | None = None, system: Path = SYSTEM) -> Configuration:
        """What this user's files say. Each file is read once; ``BadInput`` names the file and the key."""
        configuration = cls()
        try:
            files = _files(os.environ if env is None else env, system)
        except OSError as error:
            raise _bad(Path(str(error.filename or system)), error.strerror or str(error)) from None
        for path in files:
            configuration = _merge(configuration, path, _read(path))
        _check_conflicts(configuration)
        return configuration

    def find(self, name: str) -> RegistrySettings | None:
        """The entry with the longest prefix that fits ``name`` (domain/path, with or without tag and digest)."""
        fitting = [entry for entry in self.entries if entry.matched(name) >= 0]
        return max(fitting, key=lambda entry: len(entry.prefix), default=None)

    @property
    def named_hosts(self) -> frozenset[str]:
        """Hosts that the user names as places of registries."""
        places = [entry.location or entry.prefix for entry in self.entries]
        places += [mirror.location for entry in self.entries for mirror in entry.mirrors]
        return frozenset(split_port(place.partition("/")[0])[0].lower() for place in places if not place.startswith("*."))


def endpoints(reference: Reference, configuration: Configuration, *, push: bool = False) -> list[Endpoint]:
    """Where to ask for ``reference``, in order: mirrors, then the registry itself; for a push it alone. ``RegistryError`` if blocked."""
    name = str(reference)
    entry = configuration.find(name)
    named = configuration.named_hosts
    if entry is None:
        return [Endpoint(reference.domain, reference.path, named=named)]
    if entry.blocked:
        raise RegistryError(
            f"{name}: the registry {entry.prefix} is blocked", subject=name, hint="registries.conf says blocked = true for it"
        )
    matched = min(entry.matched(name), len(reference.name))
    found = []
    for mirror in () if push else entry.mirrors:
        if mirror.pull == "all" or (mirror.pull == "digest-only") == (reference.digest is not None):
            found.append(_rewritten(reference, mirror.location, matched, mirror.insecure, True, named))
    found.append(_rewritten(reference, entry.location, matched, entry.insecure, False, named))
    return found


def short_names(text: str, configuration: Configuration) -> list[Reference]:
    """What ``text`` may mean, most likely first: itself if it names a registry, an alias, the name in each registry of the search list."""
    first, slash, _ = text.partition("/")
    if slash and (first == "localhost" or "." in first or ":" in first or first != first.lower()):
        return [parse_reference(text)]
    plain = parse_reference(text)  # the grammar, whatever it will mean
    bare = text.partition("@")[0]
    bare = bare.rpartition(":")[0] if ":" in bare else bare
    alias = configuration.aliases.get(bare)
    if alias:
        return [parse_reference(alias + text[len(bare) :])]
    if configuration.search is None:
        return [plain]
    if not configuration.search:
        raise BadInput(
            f"{text}: names no registry, and registries.conf has an empty unqualified-search-registries",
            subject=text,
            hint=f"write docker.io/{text}",
        )
    found = [parse_reference(f"{host}/{text}") for host in configuration.search]
    if len(found) > 1 and configuration.short_name_mode == "enforcing":
        raise BadInput(
            f"{text}: may be in {' or '.join(configuration.search)}, and short-name-mode is enforcing",
            subject=text,
            hint=f"write the registry: {found[0].name}",
        )
    return found


def _rewritten(reference: Reference, location: str, matched: int, insecure: bool, mirror: bool, named: frozenset[str]) -> Endpoint:
    name = location + reference.name[matched:] if location else reference.name
    host, _, path = name.partition("/")
    if not is_domain(host) or not is_path(path):
        raise BadInput(f"{reference}: registries.conf makes {name[:200]!r} of it", subject=str(reference), hint="check prefix and location")
    return Endpoint(host, path, insecure=insecure, mirror=mirror, named=named)


def _files(env: Mapping[str, str], system: Path) -> list[Path]:
    base = env.get("XDG_CONFIG_HOME") or (f"{env['HOME']}/.config" if env.get("HOME") else "")
    user = Path(base) / "containers" if base else None
    chosen, directory = env.get("CONTAINERS_REGISTRIES_CONF"), env.get("CONTAINERS_REGISTRIES_CONF_DIR")
    drop_ins = [system / "registries.conf.d"]
    if user is not None:
        drop_ins.append(user / "registries.conf.d")
    if chosen:
        main = Path(chosen)
        if not _is_file(main):
            raise BadInput(
                f"CONTAINERS_REGISTRIES_CONF names {main}, which is no file", subject=str(main), hint="unset it or make the file"
            )
    elif user is not None and _is_file(user / "registries.conf"):
        main, drop_ins = user / "registries.conf", drop_ins[1:]
    else:
        main = system / "registries.conf"
    if directory:
        drop_ins = [Path(directory)]
    found = [main] if _is_file(main) else []
    for place in drop_ins:
        found += [path for path in _inside(place) if path.name.endswith(".conf") and _is_file(path)]
    return found


def _inside(directory: Path) -> list[Path]:
    """What lies there, sorted; nothing where there is no such directory."""
    try:
        return [directory / name for name in sorted(os.listdir(directory))]
    except (FileNotFoundError, NotADirectoryError):
        return []


def status(path: Path) -> os.stat_result | None:
    """None where nothing is there. ``OSError`` where that cannot be seen: what a file there may forbid must not be passed over."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_file(path: Path) -> bool:
    found = status(path)
    return found is not None and stat.S_ISREG(found.st_mode)


def _read(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_MAX + 1)
        if len(data) > FILE_MAX:
            raise _bad(path, f"larger than {FILE_MAX} bytes")
        text = data.decode()
        document = simple_toml(text)
        if document is None:
            import tomllib

            document = tomllib.loads(text)
        return document
    except OSError as error:
        raise _bad(path, error.strerror or str(error)) from None
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"not TOML: {error}") from None


def simple_toml(text: str) -> dict[str, Any] | None:
    """What ``tomllib.loads`` makes of it; None unless each line is a comment, ``[name]``, ``[[name]]``, or a key with a string, a boolean
    or a list of strings. Nearly every registries.conf is that simple, and importing ``tomllib`` takes longer than asking a registry."""
    document: dict[str, Any] = {}
    table = document
    lists: dict[str, list[dict[str, Any]]] = {}
    for line in text.replace("\r\n", "\n").split("\n"):
        line = line.strip(" \t")
        if not line.isprintable() or "\\" in line:
            return None
        if not line or line[0] == "#":
            continue
        if line[0] == "[":
            name = line.strip("[]")
            if not _is_bare(name) or line not in (f"[{name}]", f"[[{name}]]"):
                return None
            if name in document and (name not in lists or line[1] != "["):
                return None
            table = {}
            if line[1] != "[":
                document[name] = table
            else:
                document[name] = lists.setdefault(name, [])
                lists[name].append(table)
            continue
        key, _, written = line.partition("=")
        key = key.rstrip()
        if key[:1] == '"' and key.count('"') == 2 and key[-1] == '"':
            key = key[1:-1]
        elif not _is_bare(key):
            return None
        try:
            value = json.loads(written)
        except (ValueError, RecursionError):
            return None
        strings = isinstance(value, list) and all(isinstance(item, str) for item in value)
        if key in table or not (strings or isinstance(value, str | bool)):
            return None
        table[key] = value
    return document


def _is_bare(key: str) -> bool:
    return key.isascii() and key.replace("-", "").replace("_", "").isalnum()


def _merge(below: Configuration, path: Path, document: dict[str, Any]) -> Configuration:
    if "registries" in document:
        raise _bad(
            path,
            "this is version 1 of the format ([registries.…])",
            'write [[registry]] with location = "…" and unqualified-search-registries',
        )
    warnings = [*below.warnings, *_unknown(path, "", document, _TOP_KEYS)]
    entries = {entry.prefix: entry for entry in below.entries}
    seen: set[str] = set()
    for number, table in enumerate(_tables(path, "registry", document.get("registry", [])), 1):
        entry = _entry(path, f"registry {number}", table, warnings)
        if entry.prefix in seen and entries[entry.prefix] != entry:
            raise _bad(path, f"two different [[registry]] for the prefix {entry.prefix}")
        seen.add(entry.prefix)
        entries[entry.prefix] = entry
    search = below.search
    if "unqualified-search-registries" in document:
        search = tuple(
            _host(path, "unqualified-search-registries", item) for item in _strings(path, document, "unqualified-search-registries")
        )
    aliases = {**below.aliases, **_aliases(path, document.get("aliases", {}))}
    mode = document.get("short-name-mode", below.short_name_mode)
    if mode not in _MODES:
        raise _bad(path, f"short-name-mode = {mode!r}", f"write one of {', '.join(_MODES)}")
    helpers = tuple(_strings(path, document, "credential-helpers")) if "credential-helpers" in document else below.credential_helpers
    return Configuration(tuple(entries.values()), search, aliases, mode, helpers, tuple(warnings), (*below.files, path))


def _entry(path: Path, what: str, table: dict[str, Any], warnings: list[str]) -> RegistrySettings:
    warnings += _unknown(path, what, table, _REGISTRY_KEYS)
    location, prefix = _place(path, what, table, "location"), _place(path, what, table, "prefix")
    wildcard = prefix.startswith("*.")
    if not location and not wildcard:
        raise _bad(path, f"{what} has no location", 'write location = "host", or a prefix that begins with "*."')
    if location.startswith("*."):
        raise _bad(path, f'{what}: location = "{location}"', "only a prefix may begin with *.")
    prefix = prefix or location
    if not is_domain(prefix.removeprefix("*.").partition("/")[0]):
        raise _bad(path, f"{what}: {prefix!r} does not begin with a host name")
    by_digest = _flag(path, what, table, "mirror-by-digest-only")
    mirrors = []
    for number, mirror in enumerate(_tables(path, f"{what}, mirror", table.get("mirror", [])), 1):
        which = f"{what}, mirror {number}"
        warnings += _unknown(path, which, mirror, _MIRROR_KEYS)
        pull = mirror.get("pull-from-mirror", "digest-only" if by_digest else "all") or "all"
        if pull not in _PULLS:
            raise _bad(path, f"{which}: pull-from-mirror = {pull!r}", f"write one of {', '.join(_PULLS)}")
        if by_digest and "pull-from-mirror" in mirror:
            raise _bad(path, f"{which}: pull-from-mirror beside mirror-by-digest-only = true", "leave one of them out")
        place = _place(path, which, mirror, "location")
        if not place or place.startswith("*."):
            raise _bad(path, f"{which} has no location")
        mirrors.append(Mirror(place, _flag(path, which, mirror, "insecure"), pull))
    return RegistrySettings(prefix, location, _flag(path, what, table, "insecure"), _flag(path, what, table, "blocked"), tuple(mirrors))


def _check_conflicts(configuration: Configuration) -> None:
    """One place, two opinions about its safety: nobody can have meant that."""
    for name in ("insecure", "blocked"):
        said: dict[str, bool] = {}
        for entry in configuration.entries:
            if entry.location and said.setdefault(entry.location, getattr(entry, name)) != getattr(entry, name):
                raise BadInput(
                    f"registries.conf says both {name} = true and {name} = false for {entry.location}",
                    subject=entry.location,
                    hint=f"look in {', '.join(map(str, configuration.files))}",
                )


def _aliases(path: Path, table: object) -> dict[str, str]:
    if not isinstance(table, dict):
        raise _bad(path, "aliases is not a table")
    for name, value in table.items():
        if not isinstance(value, str):
            raise _bad(path, f"the alias {name!r} is not a string")
        host, _, rest = value.partition("/")
        # An empty value takes an alias away that an earlier file gave.
        if value and not (is_domain(host) and is_path(rest) and (host == "localhost" or set(host) & set(".:"))):
            raise _bad(path, f"the alias {name!r} = {value[:100]!r} is no repository of a registry", "write registry/name, without a tag")
        if not is_path(name):
            raise _bad(path, f"the alias {name[:100]!r} is not a short name")
    return dict(table)


def _tables(path: Path, what: str, value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise _bad(path, f"{what} is not a list of tables", "write [[registry]] and [[registry.mirror]], with two brackets")
    return value


def _place(path: Path, what: str, table: dict[str, Any], key: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str):
        raise _bad(path, f"{what}: {key} is not a string")
    value = value.rstrip("/")
    if "://" in value:
        raise _bad(
            path, f"{what}: {key} = {value[:100]!r} has a scheme", "write host[:port][/path] without a scheme; insecure = true allows http"
        )
    if value and not is_domain(value.removeprefix("*.").partition("/")[0]):
        raise _bad(path, f"{what}: {key} = {value[:100]!r} does not begin with a host name")
    return value


def _host(path: Path, what: str, value: str) -> str:
    if not is_domain(value.rstrip("/")):
        raise _bad(path, f"{what}: {value[:100]!r} is not a host name")
    return value.rstrip("/")


def _flag(path: Path, what: str, table: dict[str, Any], key: str) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise _bad(path, f"{what}: {key} = {value!r}", "write true or false, without quotes")
    return value


def _strings(path: Path, document: dict[str, Any], key: str) -> list[str]:
    value = document[key]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _bad(path, f"{key} is not a list of strings")
    return value


def _unknown(path: Path, what: str, table: dict[str, Any], known: frozenset[str]) -> list[str]:
    """Warnings for keys nobody knows. One that differs only in case or in ``_`` for ``-`` was meant, and is an error."""
    found = []
    for key in table.keys() - known:
        if key.lower().replace("_", "-") in known:
            raise _bad(path, f"{what}: {key}".lstrip(": "), f"write {key.lower().replace('_', '-')}")
        found.append(f"{path}: {what + ': ' if what else ''}{key} is not known and has no effect")
    return sorted(found)


def _bad(path: Path, why: str, hint: str = "see containers-registries.conf(5)") -> BadInput:
    return BadInput(f"{path}: {why}", subject=str(path), hint=hint)
