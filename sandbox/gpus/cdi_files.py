"""Files of the Container Device Interface: what devices of a kind a sandbox is to be shown, by whoever made them.

::

    parse("/etc/cdi/amd.json", text) ──► DeviceFile        kind "amd.com/gpu"; edits of all its devices, and of each by its name

Read strictly: an unknown field, one that is newer than the version of the specification that the file names, and a value of the wrong
type are errors that name the file and the line. JSON is read as YAML, which it also is, for the line of each value.

https://github.com/cncf-tags/container-device-interface, SPEC.md 1.1.0
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from dockless.base import device_names, json, yaml
from dockless.base.dataclass import dataclass, field
from dockless.base.text import escaped
from dockless.base.typing import Any, NoReturn, TypeVar
from dockless.errors import BadInput

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
_KIND = re.compile(rf"{device_names.KIND}\Z")
_NAME = re.compile(rf"{device_names.NAME}\Z")

_TOP = {"cdiVersion": "", "kind": "", "annotations": "0.6.0", "devices": "", "containerEdits": ""}
_DEVICE = {"name": "", "annotations": "0.6.0", "containerEdits": ""}
_EDITS = {"env": "", "deviceNodes": "", "mounts": "", "hooks": "", "additionalGids": "0.7.0", "intelRdt": "0.7.0", "netDevices": "1.1.0"}
_NODE = dict.fromkeys(("path", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"), "") | {"hostPath": "0.5.0"}
_MOUNT = {"hostPath": "", "containerPath": "", "type": "0.4.0", "options": ""}
_HOOK = dict.fromkeys(("hookName", "path", "args", "env", "timeout"), "")
"""The fields of each object, and the version that brought them; "" for the first."""
_ACCESS = re.compile(r"[rwm]*\Z")
_REFUSED = {
    "intelRdt": "shares of the processor's caches are not set by dockless",
    "netDevices": "a sandbox has no network devices of the host; --network host shows all of them",
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Node:
    """A device node. ``kind``: c or b, "" where the file does not say; ``major``, ``minor``: -1 where it does not. ``access``: letters of
    ``rw``, "" for a node that nothing inside may open."""

    source: str
    target: str
    kind: str = ""
    major: int = -1
    minor: int = -1
    access: str = "rw"
    where: str = ""


@dataclass(frozen=True, slots=True)
class FileMount:
    """A file or directory of the host."""

    source: str
    target: str
    readonly: bool = False
    noexec: bool = False
    recursive: bool = False
    where: str = ""


@dataclass(frozen=True, slots=True)
class Hook:
    """A program that other runtimes run as root when they make a container. ``name``: when."""

    name: str
    path: str
    args: tuple[str, ...] = ()
    where: str = ""


@dataclass(frozen=True, slots=True)
class Edits:
    """``refused``: why these edits cannot be made here, "" where they can."""

    env: tuple[tuple[str, str], ...] = ()
    nodes: tuple[Node, ...] = ()
    mounts: tuple[FileMount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    gids: tuple[int, ...] = ()
    refused: str = ""


@dataclass(frozen=True, slots=True)
class DeviceFile:
    """``edits``: made once where any of its devices is asked for. ``devices``: by their names."""

    path: str
    kind: str
    edits: Edits = field(default_factory=Edits)
    devices: Mapping[str, Edits] = field(default_factory=dict)


def parse(path: str, text: str) -> DeviceFile:
    """One file; ``path``: for errors, and its suffix says the format. ``BadInput``"""
    values, lines = _loaded(path, text)
    return _Reader(path, lines).file(_Given(values))


@dataclass(frozen=True, slots=True)
class _Given:
    """A value of the file, and the keys and indices that lead to it."""

    value: Any
    path: yaml.Path = ()

    def of(self, key: str | int) -> _Given:
        return _Given(self.value[key], (*self.path, key))


def _loaded(path: str, text: str) -> tuple[Any, Mapping[yaml.Path, int]]:
    """The document, and the line of each of its values. ``BadInput``"""
    if path.endswith(".json"):
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            line, why = getattr(error, "lineno", 1), getattr(error, "msg", error)
            raise BadInput(f"{path}:{line} is not JSON: {why}", subject=path, hint="correct that line") from None
        text = text.replace("\t", " ")  # between values, for none has one unescaped
    return yaml.loads(text, path)


class _Reader:
    """Of one file. ``lines``: of its values; ``version``: an index into ``VERSIONS``; ``refused``: of the edits that are being read."""

    def __init__(self, path: str, lines: Mapping[yaml.Path, int]) -> None:
        self.path = path
        self.lines = lines
        self.version = 0
        self.refused = ""

    def where(self, given: _Given) -> str:
        """The line of that value, or of what it is in: behind an alias nothing has a line."""
        path = given.path
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.path}:{self.lines.get(path, 1)}"

    def wrong(self, given: _Given, why: str, hint: str = "") -> NoReturn:
        raise BadInput(escaped(f"{self.where(given)}: {why}"), subject=self.path, hint=hint or "the vendor's tool makes the file anew")

    def refuse(self, given: _Given, why: str) -> None:
        """What is sound, and not done here: an error for who asks for the device."""
        self.refused = self.refused or escaped(f"{self.where(given)}: {why}")

    # ---- values --------------------------------------------------------------------------------------------------------------------

    def fields(self, given: _Given, known: Mapping[str, str], what: str) -> dict[str, _Given]:
        """The fields of an object, each known and of this version."""
        if not isinstance(given.value, dict):
            self.wrong(given, f"{what} is not an object")
        found = {name: given.of(name) for name in given.value}
        for name, value in found.items():
            if name not in known:
                self.wrong(value, f"{what} has an unknown field {name[:40]!r}", f"known are {', '.join(known)}")
            self.since(value, known[name], name)
        return found

    def since(self, given: _Given, version: str, what: str) -> None:
        if version and self.version < VERSIONS.index(version):
            self.wrong(
                given, f"{what} came with version {version}, and the file says {VERSIONS[self.version]}", f'say "cdiVersion": "{version}"'
            )

    def text(self, given: _Given, what: str) -> str:
        if not isinstance(given.value, str):
            self.wrong(given, f"{what} is not a text", "put it in quotes")
        if not given.value.isprintable():
            self.wrong(given, f"{what} has characters that cannot be shown")
        return given.value

    def number(self, given: _Given, what: str, most: int = 2**32 - 1) -> int:
        value = given.value
        if type(value) is not int or not 0 <= value <= most:
            self.wrong(given, f"{what} is not a whole number from 0 to {most}")
        return value

    def items(self, given: _Given, what: str, read: Callable[[_Given], T]) -> tuple[T, ...]:
        if given.value is None:
            return ()
        if not isinstance(given.value, list):
            self.wrong(given, f"{what} is not a list")
        return tuple(read(given.of(at)) for at in range(len(given.value)))

    def absolute(self, given: _Given, what: str) -> str:
        value = self.text(given, what)
        if not value.startswith("/") or "/../" in f"{value}/":
            self.wrong(given, f"{what} {value[:60]!r} is not an absolute path")
        return value

    # ---- objects -------------------------------------------------------------------------------------------------------------------

    def file(self, given: _Given) -> DeviceFile:
        if isinstance(given.value, dict) and "cdiVersion" in given.value:
            self.version = self._version(given.of("cdiVersion"))
        top = self.fields(given, _TOP, "the file")
        for name in ("cdiVersion", "kind", "devices"):
            if name not in top:
                self.wrong(given, f"{name} is missing")
        kind = self.text(top["kind"], "kind")
        if not _KIND.match(kind):
            self.wrong(top["kind"], f"kind {kind[:60]!r} is not vendor/class")
        if "." in kind.partition("/")[2]:
            self.since(top["kind"], "0.6.0", "a dot in a class")
        self._annotations(top)
        devices: dict[str, Edits] = {}
        for item in self.items(top["devices"], "devices", lambda item: item):
            name, edits = self._device(item)
            if name in devices:
                self.wrong(item, f"device {name} is there twice")
            devices[name] = edits
        if not devices:
            self.wrong(top["devices"], "there are no devices")
        return DeviceFile(self.path, kind, self._edits(top.get("containerEdits")), devices)

    def _version(self, given: _Given) -> int:
        version = self.text(given, "cdiVersion").removeprefix("v")
        if version not in VERSIONS:
            hint = f"known are {', '.join(VERSIONS)}"
            self.wrong(given, f"cdiVersion {version[:20]!r} is not known", hint)
        return VERSIONS.index(version)

    def _annotations(self, fields: Mapping[str, _Given]) -> None:
        """Texts for other programs, with no effect here."""
        if (given := fields.get("annotations")) is None:
            return
        if not isinstance(given.value, dict):
            self.wrong(given, "annotations is not an object")
        for name in given.value:
            self.text(given.of(name), "an annotation")

    def _device(self, given: _Given) -> tuple[str, Edits]:
        found = self.fields(given, _DEVICE, "a device")
        for name in ("name", "containerEdits"):
            if name not in found:
                self.wrong(given, f"a device has no {name}")
        name = self.text(found["name"], "a device's name")
        if not _NAME.match(name):
            self.wrong(found["name"], f"{name[:60]!r} is no name of a device")
        if not name[0].isalpha():
            self.since(found["name"], "0.5.0", "a name that begins with a digit")
        self._annotations(found)
        return name, self._edits(found["containerEdits"])

    def _edits(self, given: _Given | None) -> Edits:
        if given is None:
            return Edits()
        found = self.fields(given, _EDITS, "containerEdits")
        self.refused = ""
        for name, why in _REFUSED.items():
            if name in found:
                self._check_opaque(name, found[name])
                self.refuse(found[name], f"{name}: {why}")
        return Edits(
            self.items(found["env"], "env", self._variable) if "env" in found else (),
            self.items(found["deviceNodes"], "deviceNodes", self._node) if "deviceNodes" in found else (),
            self.items(found["mounts"], "mounts", self._mount) if "mounts" in found else (),
            self.items(found["hooks"], "hooks", self._hook) if "hooks" in found else (),
            self.items(found["additionalGids"], "additionalGids", self._gid) if "additionalGids" in found else (),
            self.refused,  # read last
        )

    def _check_opaque(self, name: str, given: _Given) -> None:
        """What is refused is not read; fields of it are new in later versions all the same."""
        if name == "intelRdt" and isinstance(given.value, dict):
            for key in ("schemata", "enableMonitoring"):
                if key in given.value:
                    self.since(given.of(key), "1.1.0", key)

    def _variable(self, given: _Given) -> tuple[str, str]:
        name, equals, value = self.text(given, "a variable").partition("=")
        if not name or not equals:
            self.wrong(given, f"variable {name[:40]!r} is not NAME=value")
        return name, value

    def _gid(self, given: _Given) -> int:
        return self.number(given, "a group", 2**31 - 1)

    def _node(self, given: _Given) -> Node:
        found = self.fields(given, _NODE, "a device node")
        if "path" not in found:
            self.wrong(given, "a device node has no path")
        path = self.absolute(found["path"], "path")
        kind = self.text(found["type"], "type") if "type" in found else ""
        if kind not in ("", "b", "c", "u", "p"):
            self.wrong(found["type"], f"type {kind[:20]!r} is not b, c, u or p")
        if kind == "p":
            self.refuse(found["type"], "a named pipe is no device, and dockless makes none")
        for name in ("fileMode", "uid", "gid"):  # of a node that is made; this one is bound, and stays the host's
            if name in found:
                self.number(found[name], name)
        return Node(
            self.absolute(found["hostPath"], "hostPath") if "hostPath" in found else path,
            path,
            kind.replace("u", "c"),
            self.number(found["major"], "major") if "major" in found else -1,
            self.number(found["minor"], "minor") if "minor" in found else -1,
            self._access(found["permissions"]) if "permissions" in found else "rw",
            self.where(given),
        )

    def _access(self, given: _Given) -> str:
        """Without m: nothing inside makes nodes."""
        said = self.text(given, "permissions")
        if said == "none":
            return ""
        if not _ACCESS.match(said):
            self.wrong(given, f"permissions {said[:20]!r} are neither letters of rwm nor none")
        return "".join(letter for letter in "rw" if letter in said) or "rw"

    def _mount(self, given: _Given) -> FileMount:
        found = self.fields(given, _MOUNT, "a mount")
        for name in ("hostPath", "containerPath"):
            if name not in found:
                self.wrong(given, f"a mount has no {name}")
        source = self.text
        if "type" not in found or self.text(found["type"], "type") in ("", "bind", "none"):
            source = self.absolute
        else:  # of another type it is no path
            self.refuse(found["type"], f"a mount of type {found['type'].value[:20]!r}: files and directories are bound, and nothing else")
        options = set(self.items(found["options"], "options", lambda item: self._option(item))) if "options" in found else set()
        return FileMount(
            source(found["hostPath"], "hostPath"),
            self.absolute(found["containerPath"], "containerPath"),
            not options.isdisjoint(("ro", "rro")),
            "noexec" in options,
            "rbind" in options,
            self.where(given),
        )

    def _option(self, given: _Given) -> str:
        option = self.text(given, "a mount's option")
        if option not in _OPTIONS:
            self.refuse(given, f"option {option[:40]!r} of a mount is not among {', '.join(_OPTIONS)}")
        return option

    def _hook(self, given: _Given) -> Hook:
        found = self.fields(given, _HOOK, "a hook")
        for name in ("hookName", "path"):
            if name not in found:
                self.wrong(given, f"a hook has no {name}")
        if "timeout" in found:
            self.number(found["timeout"], "timeout")
        if "env" in found:
            self.items(found["env"], "env", self._variable)
        args = self.items(found["args"], "args", lambda item: self.text(item, "an argument")) if "args" in found else ()
        return Hook(self.text(found["hookName"], "hookName"), self.absolute(found["path"], "path"), args, self.where(given))


_OPTIONS = (
    *("ro", "rro", "rw", "bind", "rbind", "nosuid", "nodev", "noexec", "exec", "private", "rprivate", "slave", "rslave"),
    *("relatime", "noatime", "nodiratime"),
)
"""Of mounts. Every mount is nosuid, nodev and private here, and its times are its file system's. A mount that is read-only is so with
what is mounted below it, where that is bound, too."""


def all_edits(file: DeviceFile, names: tuple[str, ...]) -> Iterator[Edits]:
    """Those of the file, once, and then those of these devices."""
    yield file.edits
    for name in names:
        yield file.devices[name]
