"""What is mounted in a sandbox, as people write it: ``-v`` and ``mounts=``, ``--mount``, ``--tmpfs``. What each must be: ``sandbox.spec``;
how it is mounted: ``sandbox.rootfs``."""

from __future__ import annotations

from dockless.base.paths import absolute
from dockless.base.typing import TYPE_CHECKING, NoReturn
from dockless.base.units import parse_size
from dockless.errors import BadInput

if TYPE_CHECKING:
    from dockless.sandbox.spec import Mount

_ALWAYS = ("private", "rprivate", "nosuid", "nodev")
"""What every bind and volume is: nothing mounted later travels, and it has no devices and no set-user-id programs."""
_OTHER_FLAGS = {
    **dict.fromkeys(("z", "Z"), "the labels of SELinux are left as they are: leave it out, or chcon(1) the directory as root"),
    **dict.fromkeys(("cached", "delegated", "consistent"), "that is for Docker Desktop: leave it out"),
    **dict.fromkeys(("shared", "rshared", "slave", "rslave"), "what is mounted later does not travel: mount it before"),
    "nocopy": "nothing of the image is copied into a volume anyway: leave it out",
    "noexec": "a bind can be executed; --tmpfs /inside:noexec cannot",
    "U": "idmap shifts the owners and changes no file: /on/the/host:/inside:idmap",
    "O": "changes to a bind are changes on the host: bind it read-only (ro), or copy it with dockless cp",
}
_MOUNT_KEYS = {
    "bind": ("source", "target", "ro", "rw", "idmap", "bind-nonrecursive"),
    "volume": ("source", "target", "ro", "rw"),
    "tmpfs": ("target", "size", "mode", "uid", "gid"),
}
_MOUNT_ALIASES = {
    "src": "source", "dst": "target", "destination": "target", "readonly": "ro", "tmpfs-size": "size", "tmpfs-mode": "mode",
}  # fmt: skip
_SWITCHES = ("ro", "rw", "idmap", "bind-nonrecursive")
_BOOLEANS = {"": True, "true": True, "1": True, "false": False, "0": False}


def parse_mount(text: str) -> Mount:
    """``SOURCE:TARGET[:ro,rw,idmap,norecursive]``: a path on the host (``/…``, ``./…``, ``~/…``) or the name of a volume."""
    from dockless.sandbox.spec import Bind, Volume

    source, colon, rest = text.partition(":")
    target, _, flags = rest.partition(":")
    names = set(filter(None, flags.split(",")))
    unknown = names - {"ro", "rw", "idmap", "norecursive", "rbind", "bind", *_ALWAYS}
    if not colon or not source or not target or unknown or {"ro", "rw"} <= names:
        what = f"has the unknown option {sorted(unknown)[0]!r}" if unknown else "cannot be read"
        hint = "write /on/the/host:/inside, with :ro for read-only, or volume:/inside"
        if not colon and source[:1] == "/":
            hint = f"a volume has a name: data:{source}; memory that is thrown away: --tmpfs {source}"
        raise BadInput(
            f"mount {text[:80]!r} {what}",
            subject=text[:80],
            hint=next((_OTHER_FLAGS[one] for one in sorted(unknown & _OTHER_FLAGS.keys())), hint),
        )
    if source[0] in "/.~":
        path = absolute(source, "mounts")
        recursive = not names & {"norecursive", "bind"}
        return Bind(path, target, readonly="ro" in names, recursive=recursive, idmap="idmap" in names or None)
    if "idmap" in names:
        raise BadInput(
            f"mount {text[:80]!r}: a volume is never id-mapped", subject=text[:80], hint="its files belong to the sandbox already"
        )
    return Volume(source, target, readonly="ro" in names)


def parse_mount_settings(text: str) -> Mount:
    """Docker's long form: ``type=bind,source=/a,target=/b,ro``. Without a type it is a volume."""
    from dockless.sandbox.spec import Bind, Volume

    def refuse(why: str) -> NoReturn:
        raise BadInput(f"--mount {text[:80]!r}: {why}", subject=text[:80], hint="write type=bind,source=/on/the/host,target=/inside,ro")

    settings: dict[str, str] = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        key = _MOUNT_ALIASES.get(key, key)
        if key in settings:
            refuse(f"{key} is given twice")
        if key not in _SWITCHES and not value:
            refuse(f"{part[:30]!r} is not KEY=VALUE")
        if key in _SWITCHES and value not in _BOOLEANS:
            refuse(f"{key} is {value[:30]!r}, neither true nor false")
        settings[key] = value
    kind = settings.pop("type", "volume")
    if kind not in _MOUNT_KEYS:
        refuse(f"type {kind[:30]!r} is unknown, it is bind, volume or tmpfs")
    for key in settings:
        if key not in _MOUNT_KEYS[kind]:
            refuse(f"{key[:30]!r} is no setting of a {kind}, which has {', '.join(_MOUNT_KEYS[kind])}")
    if "target" not in settings:
        refuse("there is no target")
    if kind != "tmpfs" and "source" not in settings:
        refuse("there is no source")
    if kind == "tmpfs":
        sizes = [f"{key}={settings[key]}" for key in ("size", "mode", "uid", "gid") if key in settings]
        return parse_tmpfs(f"{settings['target']}:{','.join(sizes)}")
    source, target = settings["source"], settings["target"]
    on = {key: _BOOLEANS[settings.get(key, "false")] for key in _SWITCHES}
    if on["ro"] and on["rw"]:
        refuse("ro and rw are given")
    if kind == "bind":
        recursive = not on["bind-nonrecursive"]
        return Bind(absolute(source, "--mount"), target, readonly=on["ro"], recursive=recursive, idmap=on["idmap"] or None)
    if source[0] in "/.~":
        refuse("a volume has a name, not a path; type=bind is for a path of the host")
    return Volume(source, target, readonly=on["ro"])


def parse_tmpfs(text: str) -> Mount:
    """``TARGET[:size=64M,mode=1777,uid=1000,gid=1000,noexec]``."""
    from dockless.sandbox.spec import Tmpfs

    target, _, settings = text.partition(":")
    size, mode, noexec, ids = 0, 0o1777, False, {"uid": 0, "gid": 0}
    for setting in filter(None, settings.split(",")):
        key, _, value = setting.partition("=")
        if setting in ("rw", "nosuid", "nodev", "exec", "noexec"):  # a private one can always be written, and never has devices or set ids
            noexec = setting == "noexec" or (noexec and setting != "exec")
        elif key == "size":
            size = parse_size(value, "tmpfs size")
            if not size:  # to the kernel it is no limit
                raise BadInput(f"tmpfs {text[:80]!r}: size 0 leaves no room", subject=text[:80], hint="leave it out for half the memory")
        elif key == "mode" and value and set(value) <= set("01234567") and len(value) <= 5:
            mode = int(value, 8)
        elif key in ids and value.isascii() and value.isdecimal() and len(value) < 11 and int(value) < 0xFFFFFFFF:
            ids[key] = int(value)
        else:
            hint = "write /inside or /inside:size=64M,mode=1777,uid=1000,gid=1000,noexec; ids are numbers"
            raise BadInput(f"tmpfs {text[:80]!r}: {setting[:30]!r} cannot be read", subject=text[:80], hint=hint)
    return Tmpfs(target, size=size, mode=mode, noexec=noexec, uid=ids["uid"], gid=ids["gid"])
