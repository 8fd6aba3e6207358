"""What the caller asks to have mounted: binds, tmpfs, named volumes."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import threading
from pathlib import Path

import pytest
from support.boxes import Ran, load, log_paths, ok, running, sh
from support.requires import requires

import dockless
from dockless.base import paths
from dockless.base.idmaps import default_map
from dockless.errors import BadInput, DocklessError, IdMapError, LaunchFailed
from dockless.sandbox.run import detached
from dockless.sandbox.spec import Bind, Namespaces, Spec, Tmpfs, Volume
from dockless.sandbox.volumes import volume_path

pytestmark = requires("userns")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory that root inside may write, whoever that is outside."""
    place = tmp_path / "tree"
    (place / "sub").mkdir(parents=True)
    (place / "file").write_text("from the host\n")
    _give_to_sandbox_root(place)
    return place


def _give_to_sandbox_root(place: Path) -> None:
    idmap = default_map()
    for path in (place, *place.rglob("*")):
        if os.geteuid() == 0:
            os.chown(path, idmap.outside_uid(0) or 0, idmap.outside_gid(0) or 0)


def test_bind(tree):
    assert ok("cat /m/file; echo back > /m/made", mounts=(Bind(str(tree), "/m"),)) == "from the host\n"
    assert (tree / "made").read_text() == "back\n"


def test_bind_readonly(tree):
    ran = sh(
        "cat /m/file; echo x > /m/file; touch /m/y; chmod 777 /m/file; mount -o remount,rw /m",
        mounts=(Bind(str(tree), "/m", readonly=True),),
    )
    assert ran.out == "from the host\n" and (tree / "file").read_text() == "from the host\n" and not (tree / "y").exists()
    assert ran.exit.code != 0


def test_bind_of_a_file(tree):
    assert ok("cat /a/deep/place", mounts=(Bind(str(tree / "file"), "/a/deep/place"),)) == "from the host\n"
    assert ok("cat /etc/passwd", mounts=(Bind(str(tree / "file"), "/etc/passwd"),)) == "from the host\n"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_a_mount_covers_none_below_it(tree, order):
    (tree / "sub/x").write_text("x")
    asked = (Tmpfs("/m"), Bind(str(tree), "/m/t"), Tmpfs("/m/t/sub"))
    mounts = tuple(asked[i] for i in order)
    assert ok("ls -A /m /m/t/sub", mounts=mounts).split() == ["/m:", "t", "/m/t/sub:"]


def test_no_setuid_and_no_devices_through_a_bind(tree):
    options = ok("grep ' /m ' /proc/self/mountinfo", mounts=(Bind(str(tree), "/m"),)).split()[5].split(",")
    assert {"nosuid", "nodev"} <= set(options)


@pytest.fixture
def nested(tree):
    """The tree with a tmpfs mounted below it; needs root."""
    subprocess.run(["mount", "-t", "tmpfs", "none", tree / "sub"], check=True)
    (tree / "sub/inner").write_text("inner\n")
    os.chmod(tree / "sub", 0o777)
    yield tree
    subprocess.run(["umount", tree / "sub"], check=True)


@requires("root")
def test_recursive(nested):
    assert ok("cat /m/sub/inner", mounts=(Bind(str(nested), "/m"),)) == "inner\n"
    assert ok("ls -A /m/sub", mounts=(Bind(str(nested), "/m", recursive=False),)) == ""


@requires("root")
def test_readonly_means_all_of_it(nested):
    """A read-only recursive bind is read-only below its inner mounts too (mount(2)'s MS_RDONLY was not)."""
    ran = sh("touch /m/sub/y && echo written; touch /m/y && echo written", mounts=(Bind(str(nested), "/m", readonly=True),))
    assert ran.out == "" and not (nested / "sub/y").exists()


def test_nothing_mounted_inside_shows_outside(tree, tmp_path):
    ok("cat /proc/self/mountinfo", mounts=(Tmpfs("/m"), Bind(str(tree), "/n")))
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


@requires("root", "idmap")
def test_idmapped_bind(tmp_path):
    """Owners on disk are the ids of the inside: what uid 0 inside writes is uid 0's on the host."""
    place = tmp_path / "owned"
    place.mkdir()
    (place / "zero").touch()
    (place / "thousand").touch()
    os.chown(place / "thousand", 1000, 1000)
    text = ok("stat -c %u:%g /m/zero /m/thousand; touch /m/new", mounts=(Bind(str(place), "/m", idmap=True),))
    assert text.split() == ["0:0", "1000:1000"]
    assert (place / "new").stat().st_uid == 0


@requires("user")
def test_idmapped_bind_needs_root(tree):
    with pytest.raises(DocklessError) as caught:
        sh("true", mounts=(Bind(str(tree), "/m", idmap=True),))
    assert caught.value.hint


def test_tmpfs():
    text = ok("stat -f -c '%b %S %T' /m; stat -c %a /m; touch /m/x", mounts=(Tmpfs("/m", size=4 << 20, mode=0o700),)).split()
    assert int(text[0]) * int(text[1]) == 4 << 20 and text[2:] == ["tmpfs", "700"]
    assert "No space" in sh("head -c 5000000 /dev/zero > /m/x", mounts=(Tmpfs("/m", size=4 << 20),)).err


def test_mount_target_through_a_link_stays_inside(tree):
    """``..`` and links are resolved inside the root, however many."""
    mounts = (Tmpfs("/tmp/a"), Bind(str(tree), "/../../../tmp/a/../b/"))
    assert ok("cat /tmp/b/file", mounts=mounts) == "from the host\n"


def test_bind_into_run(tree):
    """A socket directory below /run is where one would mount it."""
    assert ok("ls /run/app", mounts=(Bind(str(tree), "/run/app"),)).split() == ["file", "sub"]


# -- named volumes ---------------------------------------------------------------------------------------------------------------------


def test_volume_persists():
    mounts = (Volume("data", "/data"),)
    ok("echo kept > /data/f", mounts=mounts)
    assert ok("cat /data/f", mounts=mounts) == "kept\n"
    assert sh("echo x > /data/f", mounts=(Volume("data", "/data", readonly=True),)).exit.code != 0
    assert ok("ls -A /data", mounts=(Volume("other", "/data"),)) == ""


def test_volume_is_nobody_elses():
    """A50: a directory that other users of the host cannot enter."""
    ok("touch /data/f", mounts=(Volume("data", "/data"),))
    path = Path(volume_path("data"))
    above = [path, *path.parents]
    above = above[: above.index(paths.state()) + 1]
    assert any(not stat.S_IMODE(p.stat().st_mode) & 0o005 for p in above), [(str(p), oct(p.stat().st_mode)) for p in above]


@requires("root")
def test_volume_names_cannot_reach_another_users_volumes():
    mine, hers = Path(volume_path("1500")), Path(volume_path("data", 1500 if _known(1500) else _any_user()))
    assert not hers.is_relative_to(mine) and mine != hers.parent


def test_volume_made_by_eight_threads_at_once():
    errors = []

    def one() -> None:
        try:
            volume_path("shared")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


# -- on behalf of another user ---------------------------------------------------------------------------------------------------------


def _known(uid: int) -> bool:
    import pwd

    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _any_user() -> int:
    import pwd

    found = [entry.pw_uid for entry in pwd.getpwall() if 1000 <= entry.pw_uid < 60000]
    return found[0] if found else pwd.getpwnam("daemon").pw_uid


def _as_owner(script: str, owner: int, **fields) -> str:
    box = detached.start(Spec(argv=("/bin/sh", "-c", script), **fields), owner=owner)
    try:
        box.wait(20)
        return "".join(path.read_text() for path in log_paths(box))
    finally:
        box.remove()


@pytest.fixture
def public(tmp_path):
    """A directory that everybody can reach: pytest's own are 0700."""
    import shutil
    import tempfile

    place = Path(tempfile.mkdtemp(prefix="test-public-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@requires("root")
def test_owner_opens_only_what_she_may(public):
    owner = _any_user()
    secret = public / "secret"
    secret.mkdir(mode=0o700)
    (secret / "f").write_text("secret")
    with pytest.raises(LaunchFailed) as caught:
        _as_owner("cat /m/f", owner, mounts=(Bind(str(secret / "f"), "/m/f"),))
    assert "may not be read" in str(caught.value) and caught.value.errno == 13
    assert detached.list_all() == []


@requires("root")
def test_owner_sees_her_own_files(public):
    owner = _any_user()
    hers = public / "hers"
    hers.mkdir(mode=0o700)
    (hers / "f").write_text("mine\n")
    for path in (hers, hers / "f"):
        os.chown(path, owner, owner)
    assert "mine" in _as_owner("cat /m/f; echo made > /m/g", owner, mounts=(Bind(str(hers), "/m"),))
    assert (hers / "g").stat().st_uid == owner


@requires("root")
def test_owner_cannot_borrow_anothers_working_directory(public):
    """/proc/<pid>/cwd is a door past directories that are closed to her: root's keeper must not go through it on her behalf."""
    owner = _any_user()
    closed = public / "closed"
    inner = closed / "inner"
    inner.mkdir(parents=True)
    (inner / "f").write_text("behind a closed door\n")
    closed.chmod(0o700)
    with subprocess.Popen(["sleep", "60"], cwd=inner) as process:
        try:
            with pytest.raises(LaunchFailed):
                text = _as_owner("cat /m/f", owner, mounts=(Bind(f"/proc/{process.pid}/cwd", "/m"),))
                assert "closed door" not in text
        finally:
            process.kill()


@requires("root")
def test_owner_cannot_be_privileged():
    for fields in ({"profile": "privileged"}, {"namespaces": Namespaces(user="host")}):
        with pytest.raises(DocklessError):
            _as_owner("true", _any_user(), **fields)
    assert detached.list_all() == []


# -- whose rights root's own binds give (docs/decisions/006) ----------------------------------------------------------------------------


@pytest.fixture
def roots(tmp_path):
    """Root's own private directory, where nobody else can reach it."""
    place = tmp_path / "roots"
    (place / "sub").mkdir(parents=True)
    (place / "file").write_text("root's\n")
    for path in (place, place / "sub"):
        path.chmod(0o700)
    (place / "file").chmod(0o600)
    return place


@pytest.fixture
def reachable(public):
    """Root's own private directory, in a directory that everybody can enter."""
    place = public / "roots"
    place.mkdir(mode=0o700)
    (place / "file").write_text("root's\n")
    return place


def _warned(script: str, **fields) -> tuple[Ran, tuple[str, ...]]:
    with running(Spec(argv=("/bin/sh", "-c", script), **fields)) as (box, output):
        ended = box.wait(20)
        return Ran(ended, output(), ""), box.warnings


@requires("root", "idmap")
@pytest.mark.parametrize("readonly", [False, True])
def test_a_private_directory_of_roots(roots, readonly):
    """What pytest's tmp_path is to root: readable, and writable if that is asked."""
    ran, warnings = _warned(
        "cat /m/file; stat -c %u:%g /m; ls /m/sub; echo x > /m/made", mounts=(Bind(str(roots), "/m", readonly=readonly),)
    )
    assert ran.out == "root's\n0:0\n" and warnings == ()
    assert (roots / "made").exists() is not readonly and (ran.exit.code == 0) is not readonly
    assert readonly or (roots / "made").stat().st_uid == 0


@requires("root", "idmap")
def test_a_file_of_roots(roots):
    assert ok("cat /m", mounts=(Bind(str(roots / "file"), "/m"),)) == "root's\n"


@requires("root", "idmap")
@pytest.mark.parametrize("fields", [{}, {"user": "1000"}, {"profile": "untrusted"}])
@pytest.mark.parametrize("readonly", [False, True])
def test_no_setuid_file_of_roots_where_others_can_reach_it(reachable, fields, readonly):
    """The sandbox's root opens the directory to everybody and puts a set-user-id program there."""
    script = "chmod 755 /m; cp /bin/true /m/t; chmod 4755 /m/t /m/file; exit 0"
    _warned(script, mounts=(Bind(str(reachable), "/m", readonly=readonly),), **fields)
    assert [p for p in reachable.rglob("*") if p.stat().st_mode & 0o6000] == [] and stat.S_IMODE(reachable.stat().st_mode) == 0o700


@requires("root", "idmap")
def test_a_warning_says_why_and_what_helps(reachable, roots):
    ran, (warning,) = _warned("cat /m/file", mounts=(Bind(str(reachable), "/m"),))
    assert ran.exit.code != 0 and f"{reachable} belongs to 0:0 and cannot be read or changed" in warning and ":idmap" in warning
    assert ok("cat /m/file; touch /m/made", mounts=(Bind(str(reachable), "/m", idmap=True),)) == "root's\n"
    # Nobody else can enter it, as long as the sandbox does not open it: what is said is true, and so is what helps.
    assert "no directory above it keeps others out" in warning and "others can reach it" not in warning
    assert f"{reachable}:/m:ro lets it be read" in warning and "only its owner can enter (mode 0700)" in warning
    ran, warnings = _warned("cat /m/file", mounts=(Bind(str(reachable), "/m", readonly=True),))
    assert (ran.out, warnings) == ("root's\n", ())
    (reachable / "inner").mkdir(mode=0o755)
    ran, warnings = _warned("touch /m/made && echo made", mounts=(Bind(str(reachable / "inner"), "/m"),))
    assert (ran.out, warnings) == ("made\n", ())
    reachable.chmod(0o755)
    _, (warning,) = _warned("true", mounts=(Bind(str(reachable), "/m"),))
    assert "cannot be changed inside" in warning and ":ro" in warning
    assert _warned("true", mounts=(Bind(str(reachable), "/m", readonly=True),))[1] == ()
    reachable.chmod(0o1777)
    assert _warned("true", mounts=(Bind(str(reachable), "/m"),))[1] == ()


@requires("root", "idmap")
def test_the_untrusted_profile_never_gets_rights(roots):
    ran, (*_, warning) = _warned("cat /m/file", mounts=(Bind(str(roots), "/m"),), profile="untrusted")
    assert ran.out == "" and "untrusted" in warning and "idmap" not in warning
    with pytest.raises(DocklessError) as caught:
        sh("true", mounts=(Bind(str(roots), "/m", idmap=True),), profile="untrusted")
    assert caught.value.hint


@pytest.fixture
def hers(public, monkeypatch):
    """A user's closed directory, in one that everybody can enter, and an account for her: the machine need not have one."""
    entry = pwd.struct_passwd(("her", "x", 61234, 64321, "", "/", "/bin/false"))
    others = [other for other in pwd.getpwall() if other.pw_uid != 61234]
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: entry if uid == 61234 else _unknown(uid, others))
    home = public / "home"
    place = home / "hers"
    place.mkdir(parents=True)
    home.chmod(0o700)
    place.chmod(0o700)
    (place / "f").write_text("hers\n")
    for path in (home, place, place / "f"):
        os.chown(path, 61234, 64321)
    return place


def _unknown(uid: int, others: list[pwd.struct_passwd]) -> pwd.struct_passwd:
    for other in others:
        if other.pw_uid == uid:
            return other
    raise KeyError(uid)


@requires("root", "idmap")
def test_the_directory_of_a_user(hers):
    """The sandbox's root acts as its owner there, and as nobody else: what is root's stays out of reach."""
    (hers / "roots").write_text("root's\n")
    (hers / "roots").chmod(0o600)
    script = "cat /m/f; touch /m/made; chown 7 /m/f; chmod 4755 /m/roots; cat /m/roots; rm -f /m/missing; stat -c %u:%g /m /m/f /m/made"
    ran, warnings = _warned(script, mounts=(Bind(str(hers), "/m"),))
    assert ran.out.split() == ["hers", "0:0", "0:0", "0:0"] and warnings == ()
    assert ((hers / "made").stat().st_uid, (hers / "made").stat().st_gid) == (61234, 64321)
    assert (hers / "f").stat().st_uid == 61234 and stat.S_IMODE((hers / "roots").stat().st_mode) == 0o600


@requires("root", "idmap")
@pytest.mark.parametrize("group", [42, 0])
def test_the_directorys_group_is_not_hers(hers, group):
    """She owns it, as users own their mail spools, and is not in its group: neither is the sandbox's root."""
    (hers / "secret").write_text("the group's\n")
    os.chown(hers, 61234, group)
    os.chown(hers / "secret", 0, group)
    hers.chmod(0o770)
    (hers / "secret").chmod(0o640)
    script = "cat /m/f /m/secret; cp /bin/true /m/t; chmod 2755 /m/t; exit 0"
    ran, _ = _warned(script, mounts=(Bind(str(hers), "/m"),))
    assert ran.out == "hers\n"
    assert [p for p in hers.iterdir() if p.stat().st_mode & stat.S_ISGID and p.stat().st_gid == group] == []


@requires("root", "idmap")
@pytest.mark.parametrize("readonly", [False, True])
def test_no_setuid_file_of_a_users_where_others_can_reach_it(hers, readonly):
    hers.parent.chmod(0o755)
    hers.chmod(0o750)
    script = "cat /m/f; chmod 755 /m; cp /bin/true /m/t; chmod 4755 /m/t /m/f; exit 0"
    ran, warnings = _warned(script, mounts=(Bind(str(hers), "/m", readonly=readonly),))
    assert (ran.out == "hers\n") is readonly and len(warnings) == (0 if readonly else 1)
    assert [p for p in hers.rglob("*") if p.stat().st_mode & 0o6000] == [] and stat.S_IMODE(hers.stat().st_mode) == 0o750


@requires("root", "idmap")
def test_an_owner_without_an_account(hers):
    os.chown(hers, 61235, 61235)
    os.chown(hers.parent, 61235, 61235)
    ran, (warning,) = _warned("cat /m/f", mounts=(Bind(str(hers), "/m"),))
    assert ran.out == "" and "no user" in warning


@requires("root")
@pytest.mark.parametrize("target", ["/m", "/m/", "//m"])
def test_the_same_target_twice(tmp_path, target):
    with pytest.raises(BadInput) as caught:
        sh("true", mounts=(Tmpfs("/m"), Tmpfs(target)))
    assert "/m" in str(caught.value) and caught.value.hint


@requires("root", "idmap")
@pytest.mark.parametrize("door", ["a link", "a link on the way", "another's directory"])
def test_who_can_move_what_is_bound_gets_no_rights_over_it(public, roots, door):
    """A user whose path root binds can put another directory there: root's, which she cannot read herself."""
    hers = public / "hers"
    hers.mkdir()
    if door == "another's directory":
        (hers / "x").mkdir(mode=0o700)
        (hers / "x/file").write_text("root's\n")
        source = hers / "x"
    else:
        (hers / "x").symlink_to(roots if door == "a link" else roots.parent)
        source = hers / "x" if door == "a link" else hers / "x/roots"
    os.chown(hers, 1234, 1234)
    ran, (warning,) = _warned("cat /m/file", mounts=(Bind(str(source), "/m", readonly=True),))
    assert ran.out == "" and "others may decide" in warning


@requires("root", "idmap")
def test_what_is_mounted_below_is_not_mapped(roots):
    """A file system that may be open to everybody elsewhere, or cannot map owners at all: neither an error nor a right."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "none", roots / "sub"], check=True)
    try:
        (roots / "sub/inner").write_text("inner\n")
        script = "cat /m/sub/inner; touch /m/made; chmod 4755 /m/sub/inner || echo refused"
        assert ok(script, mounts=(Bind(str(roots), "/m"),)).split() == ["inner", "refused"]
    finally:
        subprocess.run(["umount", roots / "sub"], check=True)


@requires("root", "idmap")
def test_a_file_system_that_cannot_map_owners(roots):
    """procfs is one. Left open it is a warning; asked for it is an error that names it, also where it is only mounted below."""
    _, (warning,) = _warned("true", mounts=(Bind("/proc/sys", "/m"),))
    assert "its file system cannot map owners" in warning and ":idmap" not in warning
    subprocess.run(["mount", "-t", "proc", "none", roots / "sub"], check=True)
    try:
        for source, recursive in (("/proc/sys", False), (str(roots), True)):
            with pytest.raises(LaunchFailed) as caught:
                sh("true", mounts=(Bind(source, "/m", idmap=True, recursive=recursive),))
            assert f"cannot map the owners of {source}" in str(caught.value)
            assert "idmap" in (caught.value.hint or "") and ("norecursive" in (caught.value.hint or "")) is recursive
        assert ok("cat /m/file", mounts=(Bind(str(roots), "/m"),)) == "root's\n"
    finally:
        subprocess.run(["umount", roots / "sub"], check=True)


@requires("root", "idmap")
def test_a_start_asks_again_who_owns_it(roots):
    """A plan that is kept must not outlive what it was decided from."""
    mounts = (Bind(str(roots), "/m"),)
    assert ok("cat /m/file", mounts=mounts) == "root's\n"
    for path in (roots, roots / "file"):
        os.chown(path, 1, 1)
    assert ok("cat /m/file; touch /m/made", mounts=mounts) == "root's\n"
    assert (roots / "made").stat().st_uid == 1


@requires("root", "idmap")
def test_detached_sandboxes_have_the_same_rights_and_warnings(roots, reachable):
    box = detached.start(Spec(argv=("cat", "/m/file"), mounts=(Bind(str(roots), "/m"), Bind(str(reachable), "/n"))))
    try:
        box.wait(20)
        assert "F root's" in log_paths(box)[0].read_text() and ":idmap" in box.document.warnings[0]
    finally:
        box.remove()


def test_a_memory_file_system_from_which_nothing_is_executed():
    script = "cp /bin/true /t/x && chmod 755 /t/x && { /t/x && echo ran; }"
    assert ok(script, mounts=(Tmpfs("/t"),)) == "ran\n"
    assert "Permission denied" in sh(script, mounts=(Tmpfs("/t", noexec=True),)).err


def test_a_tmpfs_of_an_id_of_the_sandboxs(tmp_path):
    options = {"tmpfs": ["/t:uid=5,gid=7,size=1M,mode=700"], "capture_output": True, "text": True}
    shown = dockless.run(load(tmp_path), ["sh", "-c", "stat -c %u:%g:%a /t; df -k /t"], **options).stdout
    assert shown.startswith("5:7:700\n") and " 1024 " in shown
    with pytest.raises(IdMapError, match="user id 4000000 does not exist"):
        dockless.run(load(tmp_path), ["true"], tmpfs=["/t:uid=4000000"])
    for wrong in ("uid=x", "uid=-1", "gid=4294967295", "uid="):
        with pytest.raises(BadInput, match="cannot be read"):
            dockless.run(["true"], tmpfs=[f"/t:{wrong}"])
