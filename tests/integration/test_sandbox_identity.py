"""Who the program is: ids, groups, maps, capabilities, no_new_privs, seccomp, as the kernel tells it inside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.boxes import load, log_paths, ok, sh
from support.make_image import file
from support.requires import requires

from dockless.base.idmaps import default_map
from dockless.errors import BadInput, IdMapError, Unsupported
from dockless.sandbox import capabilities
from dockless.sandbox.spec import Namespaces

pytestmark = requires("userns")


def _status(**fields) -> dict[str, str]:
    text = ok("cat /proc/self/status", **fields)
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def _mask(text: str) -> int:
    return int(text, 16)


def test_the_id_map_is_the_one_we_chose():
    rows = [tuple(map(int, line.split())) for line in ok("cat /proc/self/uid_map").splitlines()]
    assert rows == [(r.inside, r.outside, r.count) for r in default_map().uids]
    rows = [tuple(map(int, line.split())) for line in ok("cat /proc/self/gid_map").splitlines()]
    assert rows == [(r.inside, r.outside, r.count) for r in default_map().gids]


def test_root_inside_is_nobody_of_importance_outside(tmp_path):
    assert ok("id -u; id -g").split() == ["0", "0"]
    assert default_map().outside_uid(0) == (os.geteuid() if os.geteuid() else 0x6FFF0000) or os.geteuid() == 0


@requires("subuid")
def test_user_by_number():
    assert _status(user="1234:567")["Uid"].split() == ["1234"] * 4
    assert _status(user="1234:567")["Gid"].split() == ["567"] * 4
    assert _status(user="1234:567")["Groups"] == ""


@requires("subuid")
def test_extra_groups():
    assert set(_status(user="1234:567", groups=(8, 9))["Groups"].split()) == {"8", "9"}


@requires("subuid", "overlay")
def test_user_by_name_is_looked_up_in_the_image(tmp_path):
    ref = load(
        tmp_path, [file("etc/passwd", "zoe:x:4321:77::/home/zoe:/bin/sh\n"), file("etc/group", "g:x:77:\nmore:x:78:zoe\n")], user="zoe"
    )
    status = _status(image=ref)
    assert (status["Uid"].split()[0], status["Gid"].split()[0], status["Groups"]) == ("4321", "77", "78")
    assert ok("echo $HOME", image=ref) == "/home/zoe\n"


def test_no_groups_of_the_caller_come_along():
    groups = set(_status()["Groups"].split())
    assert groups <= ({"0"} if os.geteuid() == 0 else {"65534", "0"}) or default_map().single


def test_podmans_eleven_capabilities():
    status = _status()
    wanted = capabilities.mask(capabilities.resolve("default", (), ()))
    assert _mask(status["CapPrm"]) == _mask(status["CapEff"]) == _mask(status["CapBnd"]) == wanted
    assert _mask(status["CapInh"]) == _mask(status["CapAmb"]) == 0


def test_capabilities_added_and_dropped():
    bounding = _mask(_status(cap_add=("SYS_PTRACE",), cap_drop=("CHOWN",))["CapBnd"])
    assert bounding >> 19 & 1 and not bounding & 1


@requires("subuid")
def test_a_user_other_than_root_has_none():
    status = _status(user="1000")
    assert _mask(status["CapPrm"]) == _mask(status["CapEff"]) == _mask(status["CapInh"]) == _mask(status["CapAmb"]) == 0


def test_untrusted_has_no_capability_no_network_no_writable_root():
    status = _status(profile="untrusted")
    assert _mask(status["CapBnd"]) == _mask(status["CapPrm"]) == 0
    assert sh("touch /x", profile="untrusted").exit.code != 0
    assert ok("cat /proc/net/dev | tail -n +3 | cut -d: -f1", profile="untrusted", network="host").split() == ["lo"]


def test_no_new_privs_and_a_filter():
    status = _status()
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert _status(seccomp="unconfined")["Seccomp"] == "0"


def test_a_profile_of_the_callers_own(tmp_path):
    profile = tmp_path / "profile.json"
    profile.write_text(
        '{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 71}]}'
    )
    said = sh("python3 -c 'import os; os.mkdir(\"/tmp/x\")'", seccomp=str(profile))
    assert said.exit.code != 0 and "Errno 71" in said.err


@requires("root")
def test_privileged():
    """Every capability that we have ourselves, no filter, no user namespace."""
    ours = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Cap"))
    status = _status(profile="privileged")
    assert status["CapEff"] == ours["CapEff"].strip()
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("0", "0")
    assert ok("readlink /proc/self/ns/user", profile="privileged").strip() == os.readlink("/proc/self/ns/user")


@requires("user")
@pytest.mark.parametrize("fields", [{"profile": "privileged"}, {"namespaces": Namespaces(user="host")}])
def test_privileges_are_refused_to_a_user(fields):
    with pytest.raises(Unsupported) as caught:
        sh("true", **fields)
    assert caught.value.hint


@requires("root")
@pytest.mark.parametrize("profile", ["default", "privileged"])
def test_the_hosts_secrets_without_a_user_namespace(profile):
    """Root inside is then root outside, and still has no more of the host's files than everybody has: also of one that the host replaces
    meanwhile, and wherever it lies."""
    fields = {"namespaces": Namespaces(user="host")} if profile == "default" else {"profile": profile}
    ran = sh("head -n 1 /etc/passwd; cat /etc/shadow; find -L /etc /opt /usr -xdev -type f ! -readable | grep -c . >&2", **fields)
    assert ran.out.startswith("root:") and len(ran.lines) == 1 and "Permission denied" in ran.err


def test_the_hosts_secrets():
    assert sh("cat /etc/shadow").exit.code != 0


@requires("single-id")
def test_a_single_id_can_only_be_root():
    assert ok("id -u").strip() == "0"


@requires("root")
def test_owner_gets_her_own_map():
    tester = _somebody()
    from dockless.sandbox.run import detached

    box = detached.start(_id_spec(), owner=tester)
    try:
        box.wait(20)
        text = log_paths(box)[-1].read_text()
        assert f"0 {tester} 1" in " ".join(text.split())
    finally:
        box.remove()


def _id_spec():
    from dockless.sandbox.spec import Spec

    return Spec(argv=("/bin/sh", "-c", "cat /proc/self/uid_map; true"))


def _somebody() -> int:
    """An ordinary user's id that exists here."""
    import pwd

    found = [entry.pw_uid for entry in pwd.getpwall() if 1000 <= entry.pw_uid < 60000]
    return found[0] if found else pwd.getpwnam("daemon").pw_uid


def test_a_supplementary_group_by_its_name_in_the_image():
    if default_map().single:
        with pytest.raises(IdMapError, match="group id"):  # not left out without a word
            ok("true", groups=("tty",))
        return
    assert "5" in ok("id -G", groups=("tty",)).split()
    with pytest.raises(BadInput, match="no group 'nosuch'"):
        ok("true", groups=("nosuch",))
