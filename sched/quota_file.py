"""``quota set``: a quota changed in ``dockless.toml`` where it stands. Comments, order and everything else stay.

The new text is checked as the daemon will read it, written beside the file, and takes its place with the owner and the mode that it had.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path

from dockless.base import paths, settings, settings_told
from dockless.base.dataclass import dataclass
from dockless.base.typing import Any
from dockless.errors import BadInput, NotPermitted
from dockless.images.files import locked, replacing

SECTIONS = {"user": ("quota", "users"), "group": ("quota", "groups"), "default": ("quota",)}
"""Where quotas of a kind stand."""
_OF_CLASS = "classes."
_KEYS_OF_CLASS = tuple(field.key for field in settings.CLASS_QUOTA)
_SLIP = 0.6
"""Likeness, 0 to 1, from which the last word of a class is taken for a misspelt key of the class."""
_LINKS = 40
"""As many as the kernel follows, path_resolution(7)."""


@dataclass(frozen=True, slots=True)
class Change:
    """``before``, ``after``: the quota's keys and values, empty where the file does not have it. ``default``: whether the file has one for
    users whom it does not name."""

    file: Path
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    default: bool


def set_quota(kind: str, name: str, values: Mapping[str, int], unset: Iterable[str] = (), path: Path | None = None) -> Change:
    """Change the quota of ``kind`` (``user``, ``group``, or ``default``, which has no name) in ``path`` (default: the settings in use).
    ``values``: by key; ``classes.NAME`` is the limit of a class, ``classes.NAME.guarantee`` and ``classes.NAME.weight`` the rest. A quota
    with nothing left is removed. Raises BadInput for what ``settings.load`` would not read and for a name that this host does not have,
    NotPermitted for a path that another user could change, Unwritable."""
    unset = tuple(unset)
    _check_keys(values, unset)
    file = _followed(paths.config_file() if path is None else path)
    where = (*SECTIONS[kind], name if kind != "default" else "default")
    with paths.writing("the settings", file):
        paths.make(file.parent, 0o755 if os.geteuid() == 0 else 0o700)
        with locked(file.with_name(f".{file.name}.lock")):
            text = settings.text_of(file) or ""
            found = settings.check(file, text)
            if (
                kind != "default"
                and values
                and not (kind == "group" and name in found["groups"])
                and not settings_told.is_known(kind, name)
            ):
                raise BadInput(f"there is no {kind} {name!r} on this host", subject=name, hint="write the name of an account or a group")
            section = ".".join(SECTIONS[kind])
            before = _table(found["quota.default"] if kind == "default" else found[section].get(name))
            _check_classes(before, values, found["gpus.devices"])
            after = _merged(before, values, unset)
            if after != before:
                changed = _changed(file, text, where, after)
                settings.check(file, changed)
                _write(file, changed.encode())
    return Change(file, before, after, found["quota.default"] is not None)


def _check_keys(values: Mapping[str, int], unset: tuple[str, ...]) -> None:
    known = [field.key for field in settings.QUOTA]
    for key in (*values, *unset):
        if key == "classes" and key in values:
            hint = "write classes.NAME=NUMBER, or classes.NAME.guarantee=NUMBER"
            raise BadInput("a quota has a limit for each class, and 'classes' does not say of which", subject=key, hint=hint)
        if not key.startswith(_OF_CLASS) and key not in known:
            near = settings.nearest(key, known)
            raise BadInput(
                f"a quota has no {key!r}", subject=key, hint=f"did you mean {near}?" if near else f"a quota has {', '.join(known)}"
            )
        if key.startswith(_OF_CLASS):
            _check_key_of_class(key, key in values)
    if both := [key for key in unset if key in values]:
        raise BadInput(f"{both[0]} cannot be both set and unset", subject=both[0], hint="leave one of them out")
    if not values and not unset:
        raise BadInput("there is nothing to change", subject="quota", hint=f"write KEY=NUMBER or --unset KEY; keys are {', '.join(known)}")


def _merged(before: Mapping[str, Any], values: Mapping[str, int], unset: tuple[str, ...]) -> dict[str, Any]:
    classes = {**before.get("classes", {})} if "classes" not in unset else {}
    for key in (*unset, *values):
        if key.startswith(_OF_CLASS):
            name, what = _of_class(key)
            of = _table(classes.pop(name, None))
            if key in values:
                of[what or "limit"] = values[key]
            else:
                of = {one: value for one, value in of.items() if what and one != what}
            if of:
                classes[name] = of["limit"] if set(of) == {"limit"} else of
    plain = {key: value for key, value in values.items() if not key.startswith(_OF_CLASS)}
    after = {key: value for key, value in {**before, **plain, "classes": classes}.items() if key not in unset}
    return after if classes else {key: value for key, value in after.items() if key != "classes"}


def _of_class(key: str) -> tuple[str, str]:
    """``classes.1g.10gb.weight``: the class, and what of it; "" where it says only the class."""
    name, _, what = key.removeprefix(_OF_CLASS).rpartition(".")
    return (name, what) if name and what in _KEYS_OF_CLASS else (key.removeprefix(_OF_CLASS), "")


def _check_key_of_class(key: str, sets: bool) -> None:
    name, what = _of_class(key)
    last = name.rpartition(".")[2] if "." in name and not what else ""
    if near := settings.nearest(last, _KEYS_OF_CLASS, _SLIP) if last else "":
        hint = f"did you mean {key.removesuffix(last)}{near}?"
        raise BadInput(f"a class has no {last!r} in a quota", subject=key, hint=hint)
    if sets and (name in _KEYS_OF_CLASS or not name or name.endswith(".")):
        hint = "write classes.NAME=NUMBER, or classes.NAME.guarantee=NUMBER, for example classes.H100=2"
        raise BadInput(f"{key!r} does not say of which class", subject=key, hint=hint)


def _check_classes(before: Mapping[str, Any], values: Mapping[str, int], kinds: Sequence[str]) -> None:
    """That this host has GPUs of the classes that are new, or can have: of MIG profiles there may be slices later."""
    from dockless.sandbox.gpus.host_classes import has_class
    from dockless.sandbox.gpus.request import is_profile

    there = before.get("classes", {})
    new = {name: key for key in values if key.startswith(_OF_CLASS) and (name := _of_class(key)[0]) not in there}
    for name, key in new.items():
        if same := next((one for one in (*there, *new) if one != name and one.lower() == name.lower()), ""):
            raise BadInput(f"class {name!r} is the same as {same!r}, of which the quota says something", subject=key, hint=f"write {same}")
    known = has_class(kinds)
    for name, key in new.items():
        if not is_profile(name) and not known(name):
            hint = (
                "`dockless gpu list` lists the GPUs; a class is a model (H100), a MIG profile (1g.10gb), a kind of gpus.devices, or whole"
            )
            raise BadInput(f"no GPU of this host is of class {name}", subject=key, hint=hint)


def _table(said: Mapping[str, Any] | int | None) -> dict[str, Any]:
    return dict(said) if isinstance(said, Mapping) else {} if said is None else {"limit": said}


def _followed(path: Path) -> Path:
    """The file that ``path`` leads to. NotPermitted where a user other than us and root could make it lead elsewhere."""
    walked, links = Path("/"), 0
    rest = list(reversed(Path(os.path.abspath(path)).parts[1:]))
    while rest:
        name = rest.pop()
        if name == "..":
            walked = walked.parent
            continue
        here = walked / name
        try:
            about = here.lstat()
        except FileNotFoundError:
            return here.joinpath(*reversed(rest))
        link = stat.S_ISLNK(about.st_mode)
        if (link or rest) and not _ours(about):
            raise NotPermitted(
                f"{here} is another user's, or others may write to it: the settings are not changed through it",
                subject=str(path),
                hint="give it to yourself or root, and let nobody else write to it",
            )
        if not link:
            walked = here
            continue
        links += 1
        if links > _LINKS:
            raise BadInput(f"{path} leads through too many links", subject=str(path), hint="make it a file")
        target = Path(os.readlink(here))
        if target.is_absolute():
            walked = Path("/")
        rest += reversed(target.parts[target.is_absolute() :])
    return walked


def _ours(about: os.stat_result) -> bool:
    """Whether nobody but us and root can change a link, or what is in a directory."""
    if about.st_uid not in (0, os.geteuid()):
        return False
    mode = about.st_mode
    others = 0o002 if about.st_gid == os.getegid() else 0o022  # a group of one's own
    return stat.S_ISLNK(mode) or not mode & others or bool(mode & stat.S_ISVTX)


def _changed(file: Path, text: str, where: tuple[str, ...], quota: Mapping[str, Any]) -> str:
    """``text`` with ``quota`` at the key ``where``; without that key where ``quota`` is empty."""
    import tomlkit
    from tomlkit.container import OutOfOrderTableProxy

    document: Any = tomlkit.parse(text)
    table, made = document, False
    for depth, section in enumerate(where[:-1], 1):
        if section not in table:
            table[section] = tomlkit.table(is_super_table=depth < len(where) - 1)
            made = True
        table = table[section]
    if isinstance(table, OutOfOrderTableProxy):  # [quota.users], something else, [quota.groups]
        parts = [part for key, part in document.body if key is not None and key.key == section]
        table = next((part for part in parts if not part.is_super_table()), parts[0])
    name, old = where[-1], table.get(where[-1])
    if not quota:
        del table[name]
    elif isinstance(old, MutableMapping):
        for key in [key for key in old if key not in quota]:
            del old[key]
        for key, value in quota.items():
            if old.get(key) != value:
                _put(old, key, _inline(value) if isinstance(value, Mapping) else value)
    else:
        new = _inline(quota)
        _put(table, name, quota["limit"] if set(quota) == {"limit"} else new)
    if made:
        table.add(tomlkit.nl())
    changed = tomlkit.dumps(document)
    if made:
        changed = changed.rstrip("\n") + "\n"
    _check_rest(file, text, changed, where, quota)
    return changed


def _inline(values: Mapping[str, Any]) -> Any:
    import tomlkit

    table: Any = tomlkit.inline_table()
    for key, value in values.items():
        table[key] = _inline(value) if isinstance(value, Mapping) else value
    return table


def _put(table: Any, key: str, value: Any) -> None:
    """A key that is new comes behind the last one, before the empty lines and comments that lead over to the next section."""
    from tomlkit.items import Table

    after = []
    if isinstance(table, Table) and key not in table:
        if table.is_super_table():  # it gets a header, and would repeat the comment of the first section in it
            table.trivia.comment = table.trivia.comment_ws = ""
        body = table.value.body
        while body and body[-1][0] is None:
            after.append(body.pop())
    table[key] = value
    if after:
        table.value.body.extend(reversed(after))


def _check_rest(file: Path, text: str, changed: str, where: tuple[str, ...], quota: Mapping[str, Any]) -> None:
    """Whether that key alone has changed: TOML has many ways to write a table, and not all can be changed by a program."""
    import tomllib

    try:
        new = tomllib.loads(changed)
    except ValueError:
        new = {}
    old = tomllib.loads(text)
    _taken(old, where)
    if _table(_taken(new, where)) != quota or new != old:
        raise BadInput(
            f"{file}: {'.'.join(where)} stands there in a way that cannot be changed from here",
            subject=".".join(where),
            hint="edit the file",
        )


def _taken(document: dict[str, Any], where: tuple[str, ...]) -> Any:
    """The value at ``where``, taken out with the sections that are empty then."""
    name, *rest = where
    if name not in document:
        return None
    if not rest:
        return document.pop(name)
    found = _taken(document[name], tuple(rest))
    if not document[name]:
        del document[name]
    return found


def _write(file: Path, data: bytes) -> None:
    try:
        had = file.lstat()
    except FileNotFoundError:
        had = None
    with replacing(file) as out:
        fd = out.fileno()
        if had is None:
            os.fchmod(fd, 0o644 if os.geteuid() == 0 else 0o600)
        else:
            made = os.fstat(fd)
            if (made.st_uid, made.st_gid) != (had.st_uid, had.st_gid):
                os.fchown(fd, had.st_uid, had.st_gid)
            os.fchmod(fd, stat.S_IMODE(had.st_mode))
        out.write(data)
