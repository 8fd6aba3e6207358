"""``quota set`` on the file: that key alone changes, and never where another user leads it."""

from __future__ import annotations

import os
import tomllib
from concurrent.futures import ThreadPoolExecutor

import pytest

from dockless.base import settings
from dockless.errors import BadInput, NotPermitted
from dockless.sched.quota_file import set_quota

TEXT = """# our lab
[quota.users]  # people
root = 4  # the boss
daemon = { limit = 2 } # at night

# who is who
[groups]
v = ['root']

[quota.groups]
v = 3
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "lab").mkdir(mode=0o755)
    return tmp_path / "lab" / "dockless.toml"


@pytest.mark.parametrize(
    ("change", "old", "new"),
    [
        (("user", "root", {"limit": 5}), "root = 4  #", "root = 5  #"),
        (("user", "root", {"guarantee": 1}), "root = 4  #", "root = {limit = 4, guarantee = 1}  #"),
        (("user", "root", {}, ["limit"]), "root = 4  # the boss\n", ""),
        (("user", "bin", {"limit": 1}), "at night\n", "at night\nbin = 1\n"),
        (("user", "daemon", {"weight": 3, "limit": 1}), "{ limit = 2 }", "{ limit = 1, weight = 3}"),
        (("group", "v", {"weight": 1}, ["limit"]), "v = 3", "v = {weight = 1}"),
        (("user", "root", {"classes.1g.10gb": 2}), "root = 4  #", 'root = {limit = 4, classes = {"1g.10gb" = 2}}  #'),
        (("default", "", {"limit": 1}), "[quota.users]", "[quota]\ndefault = 1\n\n[quota.users]"),
    ],
)
def test_nothing_else_changes(file, change, old, new):
    file.write_text(TEXT)
    said = set_quota(*change, path=file)
    assert file.read_text() == TEXT.replace(old, new, 1) and said.file == file


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ("", "[quota.users]\nbin = 3\n"),
        ("[host]\nadmins = []\n", "[host]\nadmins = []\n\n[quota.users]\nbin = 3\n"),
        ("[quota]\ndefault = 2\n\n[host]\n", "[quota]\ndefault = 2\n\n[quota.users]\nbin = 3\n\n[host]\n"),
        ("[quota.users]\n# nobody\n\n# mine\n[host]\n", "[quota.users]\nbin = 3\n# nobody\n\n# mine\n[host]\n"),
        ("[quota]\nusers = { root = 1 }\n", "[quota]\nusers = { root = 1, bin = 3}\n"),
        ("quota.users.root.limit = 1\n[host]\n", "quota.users.root.limit = 1\nquota.users.bin = 3\n[host]\n"),
        (
            "[quota.users.root]\nlimit = 1 # x\n\n# mine\n[host]\n",
            "[quota.users]\nbin = 3\n\n[quota.users.root]\nlimit = 1 # x\n\n# mine\n[host]\n",
        ),
        ("[quota.users.bin]  # b\njobs = 1 # x\n\n# mine\n[host]\n", "[quota.users.bin]  # b\njobs = 1 # x\nlimit = 3\n\n# mine\n[host]\n"),
    ],
)
def test_wherever_quotas_stand(file, text, new):
    file.write_text(text)
    set_quota("user", "bin", {"limit": 3}, path=file)
    assert file.read_text() == new


def test_a_limit_of_a_class(file):
    """Each by itself; with the last one the table goes."""
    file.write_text('[quota.users]\nbin = { jobs = 1, classes = { "1g.10gb" = 2, H100 = 3 } } # b\n')
    assert set_quota("user", "bin", {"classes.H100": 4}, ["classes.1g.10gb"], file).after == {"jobs": 1, "classes": {"H100": 4}}
    assert file.read_text() == "[quota.users]\nbin = { jobs = 1, classes = {H100 = 4} } # b\n"
    assert set_quota("user", "bin", {}, ["classes.H100"], file).after == {"jobs": 1}
    assert set_quota("user", "bin", {"classes.A100": 0}, (), file).after["classes"] == {"A100": 0}
    assert set_quota("user", "bin", {}, ["classes"], file).after == {"jobs": 1}
    with pytest.raises(BadInput, match="'classes' does not say of which"):
        set_quota("user", "bin", {"classes": 1}, (), file)
    with pytest.raises(BadInput, match="is no class of GPUs"):
        set_quota("user", "bin", {"classes.a,b": 1}, (), file)


def test_a_file_that_is_missing_is_made(file):
    place = file.parent / "new" / "dockless.toml"
    said = set_quota("default", "", {"limit": 3, "guarantee": 1}, path=place)
    assert (said.before, said.after, said.default) == ({}, {"limit": 3, "guarantee": 1}, False)
    assert settings.load(place)["quota.default"] == {"limit": 3, "guarantee": 1}


@pytest.mark.parametrize(
    ("change", "words", "hint"),
    [
        (("user", "root", {"limt": 1}), "a quota has no 'limt'", "did you mean limit?"),
        (("user", "root", {}, ["wait"]), "a quota has no 'wait'", "weight"),
        (("user", "root", {"limit": 1}, ["limit"]), "limit cannot be both set and unset", "leave"),
        (("user", "root", {}), "there is nothing to change", "KEY=NUMBER"),
        (("user", "no-such", {"limit": 1}), "there is no user 'no-such'", "name of an account"),
        (("group", "no-such", {"limit": 1}), "there is no group 'no-such'", "group"),
        (("user", "daemon", {"guarantee": 3}), "quota.users.daemon.guarantee is more than the limit, 2", "borrow"),
        (("user", "root", {"weight": 0}), "quota.users.root.weight is 0, not a whole number from 1", "weight"),
    ],
)
def test_what_the_settings_would_refuse_is_not_written(file, change, words, hint):
    file.write_text(TEXT)
    with pytest.raises(BadInput) as caught:
        set_quota(*change, path=file)
    assert words in str(caught.value) and hint in caught.value.hint
    assert file.read_text() == TEXT


def test_a_file_that_is_wrong_already_stays(file):
    file.write_text("[quota.users]\nroot = 1\n[qota]\n")
    with pytest.raises(BadInput, match=":3: there is no section"):
        set_quota("user", "root", {"limit": 2}, path=file)
    assert "root = 1" in file.read_text()


def test_who_is_gone_can_be_taken_out(file):
    file.write_text("[quota.users]\nno-such = 1\n")
    assert set_quota("user", "no-such", {}, ["limit"], file).after == {}
    assert tomllib.loads(file.read_text()) == {"quota": {"users": {}}}


def test_its_owner_and_mode_stay(file):
    file.write_text(TEXT)
    file.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(file, 1, 2)
    had = file.stat()
    set_quota("user", "root", {"limit": 7}, path=file)
    now = file.stat()
    assert now.st_ino != had.st_ino
    assert (now.st_mode, now.st_uid, now.st_gid) == (had.st_mode, had.st_uid, had.st_gid)
    assert sorted(os.listdir(file.parent)) == [".dockless.toml.lock", "dockless.toml"]


def test_a_link_is_followed_where_nobody_else_can_change_it(file):
    real = file.parent / "dotfiles" / "settings.toml"
    real.parent.mkdir(mode=0o755)
    real.write_text(TEXT)
    file.symlink_to("dotfiles/../dotfiles/settings.toml")
    assert set_quota("user", "root", {"limit": 7}, path=file).file == real
    assert file.is_symlink() and "root = 7" in real.read_text()
    real.parent.chmod(0o777)
    with pytest.raises(NotPermitted, match="dotfiles is another user's, or others may write to it"):
        set_quota("user", "root", {"limit": 8}, path=file)
    real.parent.chmod(0o1777)
    set_quota("user", "root", {"limit": 9}, path=file)
    file.unlink()
    file.symlink_to("dockless.toml")
    with pytest.raises(BadInput, match="too many links"):
        set_quota("user", "root", {"limit": 10}, path=file)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a link to somebody")
def test_the_link_of_another_user_is_not_followed(file):
    theirs = file.parent / "theirs"
    theirs.write_text(TEXT)
    file.symlink_to(theirs)
    os.lchown(file, 1, 1)
    with pytest.raises(NotPermitted, match=r"dockless\.toml is another user's"):
        set_quota("user", "root", {"limit": 8}, path=file)
    assert theirs.read_text() == TEXT


def test_many_at_once_lose_no_change(file):
    names = ["root", "daemon", "bin", "sys", "games", "man", "mail", "news"]
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(lambda name: set_quota("user", name, {"limit": 1}, path=file), names))
    assert settings.load(file)["quota.users"] == dict.fromkeys(names, 1)


def test_a_guarantee_and_a_weight_of_a_class(file):
    """Each key by itself; a limit alone is a number. What is not named stays as it is written."""
    file.write_text('[quota.users]\nbin = { classes = { "1g.10gb" = 2, A100 = { limit = 3 } } } # b\n')

    def now(*change):
        return set_quota("user", "bin", *change, path=file).after["classes"]

    assert now({"classes.1g.10gb.guarantee": 1}) == {"A100": {"limit": 3}, "1g.10gb": {"limit": 2, "guarantee": 1}}
    assert file.read_text() == '[quota.users]\nbin = { classes = {A100 = {limit = 3}, "1g.10gb" = {limit = 2, guarantee = 1}} } # b\n'
    assert now({"classes.1g.10gb": 4, "classes.A100.weight": 2})["1g.10gb"] == {"limit": 4, "guarantee": 1}
    assert now({}, ["classes.1g.10gb.guarantee"]) == {"A100": {"limit": 3, "weight": 2}, "1g.10gb": 4}
    assert now({}, ["classes.1g.10gb.limit", "classes.A100.weight"]) == {"A100": 3}
    assert now({"classes.H100.guarantee": 1}, ["classes.A100"]) == {"H100": {"guarantee": 1}}
    assert now({"classes.H100.limit": 1, "classes.H100.weight": 2}, ["classes.H100"]) == {"H100": {"limit": 1, "weight": 2}}
    file.write_text("[quota.users.bin.classes.H100]\nguarantee = 1\n[host]\n")
    assert now({"classes.A100": 1}) == {"H100": {"guarantee": 1}, "A100": 1}
    assert settings.load(file)["quota.users"]["bin"] == {"classes": {"H100": {"guarantee": 1}, "A100": 1}}
    for change, words in [
        ({"classes.A100.limt": 1}, "a class has no 'limt' in a quota"),
        ({"classes.A100.guarantee": 2}, "quota.users.bin.classes.A100.guarantee is more than the limit, 1"),
        ({"classes.A100.weight": 0}, "quota.users.bin.classes.A100.weight is 0, not a whole number from 1"),
    ]:
        with pytest.raises(BadInput) as caught:
            set_quota("user", "bin", change, path=file)
        assert words in str(caught.value)
    with pytest.raises(BadInput) as caught:
        set_quota("user", "bin", {}, ["classes.A100.gurantee"], file)
    assert caught.value.hint == "did you mean classes.A100.guarantee?"


@pytest.mark.parametrize(
    ("key", "words", "hint"),
    [
        ("classes", "a quota has a limit for each class, and 'classes' does not say of which", "classes.NAME=NUMBER"),
        ("classes.1g.10gb.wait", "a class has no 'wait' in a quota", "did you mean classes.1g.10gb.weight?"),
        ("classes.H100.", "'classes.H100.' does not say of which class", "classes.H100=2"),
        ("classes.guarantee", "'classes.guarantee' does not say of which class", "classes.H100=2"),
        ("classes.", "'classes.' does not say of which class", "classes.H100=2"),
        ("classes.h100", "class 'h100' is the same as 'H100', of which the quota says something", "write H100"),
        ("classes.H10O", "no GPU of this host is of class H10O", "dockless gpu list"),
    ],
)
def test_slips_in_classes_are_not_written(file, monkeypatch, key, words, hint):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")
    text = "[quota.users]\nbin = { classes = { H100 = 2, A10O = 1 } }\n"
    file.write_text(text)
    with pytest.raises(BadInput) as caught:
        set_quota("user", "bin", {key: 2}, path=file)
    assert words in str(caught.value) and hint in caught.value.hint and file.read_text() == text


def test_classes_that_there_may_be(file, monkeypatch):
    """Slices of a profile can be made later; what stands there already can be changed and taken out."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")
    file.write_text("[quota.users]\nbin = { classes = { A10O = 1 } }\n")
    assert set_quota("user", "bin", {"classes.1g.10gb": 2, "classes.whole": 1, "classes.A10O": 2}, path=file).after["classes"] == {
        "A10O": 2, "1g.10gb": 2, "whole": 1
    }  # fmt: skip
    assert "A10O" not in set_quota("user", "bin", {}, ["classes.A10O"], file).after["classes"]
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "0")
    assert set_quota("user", "bin", {"classes.X1": 2}, path=file).after["classes"]["X1"] == 2
