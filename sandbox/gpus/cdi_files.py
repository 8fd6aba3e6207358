"""Files of the Container Device Interface: what devices of a kind a sandbox is to be shown, by whoever made them.

::

    parse("/etc/cdi/amd.json", text) ──► DeviceFile        kind "amd.com/gpu"; edits of all its devices, and of each by its name

Read strictly: an unknown field, one that is newer than the version of the specification that the file names, and a value of the wrong
type are errors that name the file and the line. JSON is read as what it also is, YAML, for that says the lines.

https://github.com/cncf-tags/container-device-interface, SPEC.md 1.1.0
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from dockless.base import json
from dockless.base.dataclass import dataclass, field
from dockless.base.typing import Any, NoReturn, TypeVar
from dockless.errors import BadInput

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
KIND = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?\Z")
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?\Z")
LONGEST = 4 << 20
"""Bytes of a file at most."""

_TOP = {"cdiVersion": "", "kind": "", "annotations": "0.6.0", "devices": "", "containerEdits": ""}
_DEVICE = {"name": "", "annotations": "0.6.0", "containerEdits": ""}
_EDITS = {"env": "", "deviceNodes": "", "mounts": "", "hooks": "", "additionalGids": "0.7.0", "intelRdt": "0.7.0", "netDevices": "1.1.0"}
_NODE = dict.fromkeys(("path", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"), "") | {"hostPath": "0.5.0"}
_MOUNT = {"hostPath": "", "containerPath": "", "type": "0.4.0", "options": ""}
_HOOK = dict.fromkeys(("hookName", "path", "args", "env", "timeout"), "")
"""The fields of each object, and the version that brought them; "" for the first."""
_ACCESS = re.compile(r"(?!.*(.).*\1)[rwm]+\Z")
_REFUSED = {
    "intelRdt": "shares of the processor's caches are not set by dockless",
    "netDevices": "a sandbox has no network devices of the host; --network host shows all of them",
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Node:
    """A device node. ``kind``: c or b, "" where the file does not say; ``major``, ``minor``: -1 where it does not."""

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
    return _Reader(path).file(_composed(path, text))


def _composed(path: str, text: str) -> Any:
    import yaml

    what = "JSON" if path.endswith(".json") else "YAML"
    hint = f"make it valid {what}, or remove it; other files are read without it"
    if what == "JSON":
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            line = getattr(error, "lineno", 1)
            raise BadInput(f"{path}:{line}: not valid JSON: {getattr(error, 'msg', error)}", subject=path, hint=hint) from None
        text = text.replace("\t", " ")  # between values, for none has one unescaped
    try:
        found = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        raise BadInput(f"{path}:{line}: not valid {what}: {getattr(error, 'problem', None) or error}", subject=path, hint=hint) from None
    if found is None:
        raise BadInput(f"{path}:1: the file is empty", subject=path, hint="remove it, or write devices into it")
    return found


class _Reader:
    """Of one file. ``version``: an index into ``VERSIONS``."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.version = 0

    def where(self, node: Any) -> str:
        return f"{self.path}:{node.start_mark.line + 1}"

    def wrong(self, node: Any, why: str, hint: str = "") -> NoReturn:
        raise BadInput(f"{self.where(node)}: {why}", subject=self.path, hint=hint or "the vendor's tool makes the file anew")

    # ---- values --------------------------------------------------------------------------------------------------------------------

    def fields(self, node: Any, known: Mapping[str, str], what: str) -> dict[str, Any]:
        """The fields of an object, each known, of this version, and there once."""
        if node.id != "mapping":
            self.wrong(node, f"{what} is not an object")
        found: dict[str, Any] = {}
        for key, value in node.value:
            name = key.value if key.id == "scalar" else "?"
            if name not in known:
                self.wrong(key, f"{what} has an unknown field {name[:40]!r}", f"known are {', '.join(known)}")
            if name in found:
                self.wrong(key, f"{name} is there twice")
            self.since(key, known[name], name)
            found[name] = value
        return found

    def since(self, node: Any, version: str, what: str) -> None:
        if version and self.version < VERSIONS.index(version):
            self.wrong(
                node, f"{what} came with version {version}, and the file says {VERSIONS[self.version]}", f'say "cdiVersion": "{version}"'
            )

    def text(self, node: Any, what: str) -> str:
        if node.id != "scalar" or node.tag != "tag:yaml.org,2002:str":
            self.wrong(node, f"{what} is not a text", "put it in quotes")
        value = str(node.value)
        if not value.isprintable():
            self.wrong(node, f"{what} has characters that cannot be shown")
        return value

    def number(self, node: Any, what: str, most: int = 2**32 - 1) -> int:
        value = node.value if node.id == "scalar" and node.tag == "tag:yaml.org,2002:int" else ""
        if not re.fullmatch(r"[0-9]{1,19}", value) or (len(value) > 1 and value[0] == "0") or int(value) > most:
            self.wrong(node, f"{what} is not a whole number from 0 to {most}")
        return int(value)

    def items(self, node: Any, what: str, read: Callable[[Any], T]) -> tuple[T, ...]:
        if node.id == "scalar" and node.tag == "tag:yaml.org,2002:null":
            return ()
        if node.id != "sequence":
            self.wrong(node, f"{what} is not a list")
        return tuple(read(item) for item in node.value)

    def absolute(self, node: Any, what: str) -> str:
        value = self.text(node, what)
        if not value.startswith("/") or "/../" in f"{value}/":
            self.wrong(node, f"{what} {value[:60]!r} is not an absolute path")
        return value

    # ---- objects -------------------------------------------------------------------------------------------------------------------

    def file(self, node: Any) -> DeviceFile:
        if node.id == "mapping":
            for key, value in node.value:
                if key.value == "cdiVersion":
                    self.version = self._version(value)
        top = self.fields(node, _TOP, "the file")
        for name in ("cdiVersion", "kind", "devices"):
            if name not in top:
                self.wrong(node, f"{name} is missing")
        kind = self.text(top["kind"], "kind")
        if not KIND.match(kind):
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

    def _version(self, node: Any) -> int:
        version = self.text(node, "cdiVersion").removeprefix("v")
        if version not in VERSIONS:
            hint = f"known are {', '.join(VERSIONS)}"
            self.wrong(node, f"cdiVersion {version[:20]!r} is not known", hint)
        return VERSIONS.index(version)

    def _annotations(self, fields: Mapping[str, Any]) -> None:
        """Texts for other programs, with no effect here."""
        if (node := fields.get("annotations")) is None:
            return
        if node.id != "mapping":
            self.wrong(node, "annotations is not an object")
        for _, value in node.value:
            self.text(value, "an annotation")

    def _device(self, node: Any) -> tuple[str, Edits]:
        found = self.fields(node, _DEVICE, "a device")
        for name in ("name", "containerEdits"):
            if name not in found:
                self.wrong(node, f"a device has no {name}")
        name = self.text(found["name"], "a device's name")
        if not NAME.match(name):
            self.wrong(found["name"], f"{name[:60]!r} is no name of a device")
        if not name[0].isalpha():
            self.since(found["name"], "0.5.0", "a name that begins with a digit")
        self._annotations(found)
        return name, self._edits(found["containerEdits"])

    def _edits(self, node: Any) -> Edits:
        if node is None:
            return Edits()
        found = self.fields(node, _EDITS, "containerEdits")
        for name in _REFUSED.keys() & found.keys():
            self._check_opaque(name, found[name])
        given = {name: f"{self.where(found[name])}: {name}: {why}" for name, why in _REFUSED.items() if name in found}
        return Edits(
            self.items(found["env"], "env", self._variable) if "env" in found else (),
            self.items(found["deviceNodes"], "deviceNodes", self._node) if "deviceNodes" in found else (),
            self.items(found["mounts"], "mounts", self._mount) if "mounts" in found else (),
            self.items(found["hooks"], "hooks", self._hook) if "hooks" in found else (),
            self.items(found["additionalGids"], "additionalGids", self._gid) if "additionalGids" in found else (),
            next(iter(given.values()), ""),
        )

    def _check_opaque(self, name: str, node: Any) -> None:
        """What is refused is not read; fields of it are new in later versions all the same."""
        if name == "intelRdt" and node.id == "mapping":
            for key, _ in node.value:
                if key.value in ("schemata", "enableMonitoring"):
                    self.since(key, "1.1.0", str(key.value))

    def _variable(self, node: Any) -> tuple[str, str]:
        name, equals, value = self.text(node, "a variable").partition("=")
        if not name or not equals:
            self.wrong(node, f"variable {name[:40]!r} is not NAME=value")
        return name, value

    def _gid(self, node: Any) -> int:
        return self.number(node, "a group", 2**31 - 1)

    def _node(self, node: Any) -> Node:
        found = self.fields(node, _NODE, "a device node")
        if "path" not in found:
            self.wrong(node, "a device node has no path")
        path = self.absolute(found["path"], "path")
        kind = self.text(found["type"], "type") if "type" in found else ""
        if kind not in ("", "b", "c", "u"):
            self.wrong(found["type"], f"type {kind[:20]!r} is not b, c or u", "a named pipe is no device: mount it")
        access = self.text(found["permissions"], "permissions") if "permissions" in found else "rw"
        if not _ACCESS.match(access):
            self.wrong(found["permissions"], f"permissions {access[:20]!r} are not letters of rwm")
        for name in ("fileMode", "uid", "gid"):  # of a node that is made; this one is bound, and stays the host's
            if name in found:
                self.number(found[name], name)
        return Node(
            self.absolute(found["hostPath"], "hostPath") if "hostPath" in found else path,
            path,
            kind.replace("u", "c"),
            self.number(found["major"], "major") if "major" in found else -1,
            self.number(found["minor"], "minor") if "minor" in found else -1,
            access.replace("m", "") or "rw",
            self.where(node),
        )

    def _mount(self, node: Any) -> FileMount:
        found = self.fields(node, _MOUNT, "a mount")
        for name in ("hostPath", "containerPath"):
            if name not in found:
                self.wrong(node, f"a mount has no {name}")
        if "type" in found and self.text(found["type"], "type") not in ("", "bind", "none"):
            self.wrong(found["type"], f"a mount of type {found['type'].value[:20]!r}", "files and directories are bound, and nothing else")
        options = set(self.items(found["options"], "options", lambda item: self._option(item))) if "options" in found else set()
        return FileMount(
            self.absolute(found["hostPath"], "hostPath"),
            self.absolute(found["containerPath"], "containerPath"),
            "ro" in options,
            "noexec" in options,
            "rbind" in options,
            self.where(node),
        )

    def _option(self, node: Any) -> str:
        option = self.text(node, "a mount's option")
        if option not in _OPTIONS:
            self.wrong(node, f"option {option[:40]!r} of a mount is unknown", f"known are {', '.join(_OPTIONS)}")
        return option

    def _hook(self, node: Any) -> Hook:
        found = self.fields(node, _HOOK, "a hook")
        for name in ("hookName", "path"):
            if name not in found:
                self.wrong(node, f"a hook has no {name}")
        if "timeout" in found:
            self.number(found["timeout"], "timeout")
        if "env" in found:
            self.items(found["env"], "env", self._variable)
        args = self.items(found["args"], "args", lambda item: self.text(item, "an argument")) if "args" in found else ()
        return Hook(self.text(found["hookName"], "hookName"), self.absolute(found["path"], "path"), args, self.where(node))


_OPTIONS = (
    *("ro", "rw", "bind", "rbind", "nosuid", "nodev", "noexec", "exec", "private", "rprivate", "slave", "rslave"),
    *("relatime", "noatime", "nodiratime"),
)
"""Of mounts. Every mount is nosuid, nodev and private here, and its times are its file system's."""


def all_edits(file: DeviceFile, names: tuple[str, ...]) -> Iterator[Edits]:
    """Those of the file, once, and then those of these devices."""
    yield file.edits
    for name in names:
        yield file.devices[name]
