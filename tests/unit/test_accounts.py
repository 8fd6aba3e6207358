"""Users of an image: what a spec means against passwd and group files that nobody vouches for (A35)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dockless.errors import BadInput
from dockless.sandbox.accounts import MAX_FILE, Account, parse_id, resolve_user

PASSWD = b"""root:x:0:0:root:/root:/bin/sh
me:x:1000:1001:Me:/home/me:/bin/sh
nohome:x:1002:1002:::/bin/sh
relative:x:1003:1003::etc:/bin/sh
"""
GROUP = b"""root:x:0:
wheel:x:10:root,me
video:x:44:other,me,
me:x:1001:me
"""


def test_names_and_numbers():
    me = Account(1000, 1001, (10, 44), "/home/me", "me")
    assert resolve_user("me", PASSWD, GROUP) == me
    assert resolve_user("1000", PASSWD, GROUP) == me
    assert resolve_user("", PASSWD, GROUP) == resolve_user("0", PASSWD, GROUP) == resolve_user("root", PASSWD, GROUP)
    assert resolve_user("root", PASSWD, GROUP) == Account(0, 0, (10,), "/root", "root")
    assert resolve_user("4242", PASSWD, GROUP) == Account(4242, 0, (), "/", "")
    assert resolve_user("2147483647", PASSWD, GROUP).uid == 2**31 - 1


def test_an_explicit_group_replaces_all_groups():
    assert resolve_user("me:video", PASSWD, GROUP) == Account(1000, 44, (), "/home/me", "me")
    assert resolve_user("me:7", PASSWD, GROUP) == Account(1000, 7, (), "/home/me", "me")
    assert resolve_user("4242:wheel", PASSWD, GROUP) == Account(4242, 10, (), "/", "")


def test_homes_that_are_no_paths():
    assert resolve_user("nohome", PASSWD, GROUP).home == "/"
    assert resolve_user("relative", PASSWD, GROUP).home == "/"


def test_an_image_without_the_files():
    assert resolve_user("", None, None) == resolve_user("root", None, None) == Account(0, 0, (), "/root", "root")
    assert resolve_user("5:6", None, None) == Account(5, 6, (), "/", "")
    assert resolve_user("root:root", None, None).gid == 0
    with pytest.raises(BadInput, match="no user 'me'") as raised:
        resolve_user("me", None, None)
    assert "no /etc/passwd" in raised.value.hint


@pytest.mark.parametrize("bad", ["nobody", "me:nogroup", "Me", "ROOT"])
def test_unknown_names_are_named(bad):
    with pytest.raises(BadInput) as raised:
        resolve_user(bad, PASSWD, GROUP)
    assert raised.value.subject == bad.split(":")[-1]
    assert raised.value.hint


BAD_NUMBERS = [
    "-1",
    "+1",
    "4294967295",
    "4294967296",
    "2147483648",
    "18446744073709551616",
    "9" * 4000,
    "0x0",
    "0X10",
    "0o1",
    "00",
    "01",
    "1e3",
    "1.0",
    "1_0",
    " 1",
    "1 ",
    "1\n",
    "\t1",
    "１",
    "¹",
]


@pytest.mark.parametrize("bad", BAD_NUMBERS)
def test_bad_numbers_are_refused_even_if_a_user_is_called_so(bad):
    trap = f"{bad}:x:0:0::/root:/bin/sh\n".encode()
    trap_group = f"{bad}:x:0:\n".encode()
    for passwd, group in ((PASSWD, GROUP), (trap, trap_group), (None, None)):
        for spec in (bad, f"{bad}:0", f"0:{bad}"):
            with pytest.raises(BadInput) as raised:
                resolve_user(spec, passwd, group)
            assert len(str(raised.value)) < 200
            assert ("is not a usable id" in str(raised.value)) == (not bad[0].isspace())
    assert parse_id(bad) is None


@pytest.mark.parametrize("bad", [":", ":0", "me:", "me::0", "0:0:0", "me:me:me", " ", "me ", "a b", "me\x7f", "\u2028"])
def test_misshapen_specs_are_refused(bad):
    with pytest.raises(BadInput):
        resolve_user(bad, PASSWD, GROUP)


@pytest.mark.parametrize(
    "line",
    [
        b"bad:x:0",
        b"bad:x:0:0:::/bin/sh:more",
        b"bad:x:-1:0::/:/bin/sh",
        b"bad:x:4294967295:0::/:",
        b"bad:x: 0:0::/:",
        b"bad:x:0x0:0::/:",
        b"bad:x::0::/:",
        b"bad:x:0:::/:",
        b"bad:x:0:99999999999::/:",
        b"b\0ad:x:0:0::/:",
        b" bad:x:0:0::/:",
        b"#bad:x:0:0::/:",
        b"+bad:x:0:0::/:",
        b"bad",
        b":x:0:0::/:",
    ],
)
def test_malformed_lines_are_skipped_whole(line):
    passwd = line + b"\ngood:x:5:6::/home/good:/bin/sh\r\n"
    assert resolve_user("good", passwd, None) == Account(5, 6, (), "/home/good", "good")
    with pytest.raises(BadInput):
        resolve_user("bad", passwd, None)


def test_the_first_line_of_a_name_or_a_number_counts():
    passwd = b"a:x:5:5::/a:\na:x:0:0::/b:\nc:x:5:0::/c:\n"
    assert resolve_user("a", passwd, None).uid == 5
    assert resolve_user("5", passwd, None).home == "/a"


def test_huge_files_are_read_to_a_bound():
    """The line that the bound cuts is not used: half of "1000" is "10"."""
    late = b"late:x:1000:1000::/:\n"
    filler = b"x" * (MAX_FILE - len(late) // 2) + b"\n"
    with pytest.raises(BadInput):
        resolve_user("late", filler + late, None)
    with pytest.raises(BadInput):
        resolve_user("late", (filler + late)[:MAX_FILE], None)
    with pytest.raises(BadInput):
        resolve_user("me2", b"u:x:1:1::/:\n" * 1_000_000, b"g:x:1:u\n" * 1_000_000)


def test_group_lists_are_bounded():
    group = b"".join(b"g%d:x:%d:me\n" % (n, n + 1) for n in range(70000))
    assert len(resolve_user("me", PASSWD, group).groups) <= 65536


def test_groups():
    assert resolve_user("0:video", PASSWD, GROUP).gid == 44
    assert resolve_user("0:12", PASSWD, GROUP).gid == 12
    for bad in ("-1", "nope", "", "0x1"):
        with pytest.raises(BadInput):
            resolve_user(f"0:{bad}", PASSWD, GROUP)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=20), st.binary(max_size=200), st.binary(max_size=100))
def test_anything_at_all_is_an_account_or_bad_input(spec, passwd, group):
    try:
        account = resolve_user(spec, passwd, group)
    except BadInput:
        return
    assert 0 <= account.uid < 2**31 and 0 <= account.gid < 2**31 and account.home.startswith("/")
