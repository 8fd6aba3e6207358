"""Who a program runs as: ``name|uid[:group|gid]`` looked up in the passwd and group files **of the image**.

The files come from whoever made the image, so they are data of a stranger (attack A35): this is a parser over bytes that someone else
has read inside the root with a size limit; nothing here opens a file or asks the host's NSS. A line that is not exactly what
passwd(5) or group(5) describe is skipped, never half used; a number is digits and nothing else, and must fit an id that a user namespace
can map. A number never falls back to a name, and a name never falls back to root.
"""

from __future__ import annotations

from collections.abc import Iterator

from dockless.base.dataclass import dataclass
from dockless.errors import BadInput

MAX_ID = 2**31 - 1
"""Ids at or above 2**31 are refused: they turn negative in programs that keep them in an int, and 2**32-1 means "unchanged"."""

MAX_FILE = 1 << 20
"""Bytes of a passwd or group file that are looked at."""

MAX_GROUPS = 65536
"""NGROUPS_MAX, setgroups(2)."""


@dataclass(frozen=True, slots=True)
class Account:
    """A user as numbers. ``groups``: the supplementary groups, without ``gid``; ``name``: empty where the image has no such user."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str = "/"
    name: str = ""


def check_account(account: Account) -> None:
    """``BadInput`` for numbers that no user or group has."""
    numbers = (account.uid, account.gid, *account.groups)
    if len(account.groups) > MAX_GROUPS or not all(0 <= number <= MAX_ID for number in numbers):
        raise BadInput("the numbers of the account are out of range", subject="user", hint=f"ids go from 0 to {MAX_ID}")


@dataclass(frozen=True, slots=True)
class _User:
    name: str
    uid: int
    gid: int
    home: str


@dataclass(frozen=True, slots=True)
class _Group:
    name: str
    gid: int
    members: frozenset[str]


def resolve_user(spec: str, passwd: bytes | None, group: bytes | None) -> Account:
    """The account that ``spec`` means in an image with these two files (None: the image has none).

    Empty means root. Without a group part, the primary group is the one passwd gives and the supplementary groups are those that list
    the user; with one, there are no supplementary groups (as Docker does it). A uid that passwd does not know runs
    with gid 0 and home ``/``. Errors: ``BadInput`` that names the user or group.
    """
    user_part, colon, group_part = spec.partition(":")
    if (colon and not group_part) or (not user_part and colon):
        raise BadInput(f"user {spec[:80]!r} has an empty part", subject=spec[:80], hint="use name, uid, name:group or uid:gid")
    account = _find_user(user_part or "0", passwd)
    if group_part:
        gid = find_gid(group_part, group)
        return Account(account.uid, gid, (), account.home, account.name)
    groups = _memberships(account.name, account.gid, group) if account.name else ()
    return Account(account.uid, account.gid, groups, account.home, account.name)


def parse_id(text: str) -> int | None:
    """``text`` as a uid or gid, or None if it is not one: ASCII digits only, no sign, blank, prefix or leading zero, at most 2**31-1."""
    if not text.isascii() or not text.isdigit() or len(text) > 10 or (text[0] == "0" and text != "0"):
        return None
    number = int(text)
    return number if number <= MAX_ID else None


def _find_user(part: str, passwd: bytes | None) -> _User:
    number = parse_id(part)
    if number is not None:
        for user in _users(passwd):
            if user.uid == number:
                return user
        return _User("root" if number == 0 else "", number, 0, "/root" if number == 0 else "/")
    _refuse_bad_number(part, "user")
    for user in _users(passwd):
        if user.name == part:
            return user
    if part == "root" and passwd is None:
        return _User("root", 0, 0, "/root")
    raise BadInput(
        f"the image has no user {part[:80]!r}",
        subject=part[:80],
        hint="give a number (uid or uid:gid), or a name that is in the image's /etc/passwd"
        if passwd is not None
        else "the image has no /etc/passwd: give a number, uid or uid:gid",
    )


def find_gid(part: str, group: bytes | None) -> int:
    """The number of a group that the image knows by that name. ``BadInput``"""
    number = parse_id(part)
    if number is not None:
        return number
    _refuse_bad_number(part, "group")
    for entry in _groups(group):
        if entry.name == part:
            return entry.gid
    if part == "root" and group is None:
        return 0
    raise BadInput(
        f"the image has no group {part[:80]!r}",
        subject=part[:80],
        hint="give a number, or a name that is in the image's /etc/group",
    )


def _refuse_bad_number(part: str, what: str) -> None:
    """What starts like a number but is not an id is an error, never a name: a passwd line called ``-1`` or ``0x0`` must not catch it."""
    if part[:1].isdigit() or part.startswith(("+", "-")):
        raise BadInput(f"{what} {part[:40]!r} is not a usable id", subject=part[:40], hint=f"ids are plain digits, from 0 to {MAX_ID}")
    if any(c.isspace() or not c.isprintable() for c in part):
        raise BadInput(f"{what} {part[:40]!r} has blanks or control characters", subject=part[:40], hint="give a name or a number")


def _memberships(name: str, primary: int, group: bytes | None) -> tuple[int, ...]:
    found: dict[int, None] = {}
    for entry in _groups(group):
        if name in entry.members and entry.gid != primary:
            found[entry.gid] = None
            if len(found) >= MAX_GROUPS:
                break
    return tuple(sorted(found))


def _users(passwd: bytes | None) -> Iterator[_User]:
    """Lines ``name:password:uid:gid:gecos:home:shell``; everything else is skipped."""
    for fields in _records(passwd, 7):
        uid, gid = parse_id(fields[2]), parse_id(fields[3])
        if uid is not None and gid is not None:
            yield _User(fields[0], uid, gid, fields[5] if fields[5].startswith("/") else "/")


def _groups(group: bytes | None) -> Iterator[_Group]:
    """Lines ``name:password:gid:member,member``."""
    for fields in _records(group, 4):
        gid = parse_id(fields[2])
        if gid is not None:
            yield _Group(fields[0], gid, frozenset(fields[3].split(",")) - {""})


def _records(data: bytes | None, count: int) -> Iterator[list[str]]:
    if data is None:
        return
    bounded = data[:MAX_FILE]
    lines = bounded.split(b"\n")
    if len(data) >= MAX_FILE:
        lines.pop()  # cut here or by whoever read it, and half a line could name another id
    for line in lines:
        if b"\0" in line or line.startswith((b"#", b"+", b"-")):
            continue
        fields = line.decode("utf-8", "surrogateescape").rstrip("\r").split(":")
        if len(fields) == count and fields[0] and not any(c.isspace() for c in fields[0]):
            yield fields
