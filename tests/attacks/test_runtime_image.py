"""Hostile images at the moment of start: links and files where kernel file systems belong, working directories, users, entry points.

Rows A9, A10, A22–A29, A31, A35, A53 of the list of attacks; the table is in README.md beside this file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path

import pytest
from support.boxes import load, ok, run, sh
from support.make_image import device, directory, file, symlink
from support.requires import requires

from dockless.base.idmaps import default_map
from dockless.errors import BadInput, CommandNotExecutable, CommandNotFound, DocklessError, ImageError, LaunchFailed
from dockless.sandbox.spec import Bind, Spec, Tmpfs

pytestmark = requires("userns", "overlay")


@pytest.fixture
def victim(tmp_path: Path):
    """A directory of the host that everybody may write: what an escape would change."""
    place = tmp_path / "victim"
    place.mkdir()
    place.chmod(0o777)
    (place / "hello").write_text("untouched")
    (place / "hello").chmod(0o666)
    before = _picture(place)
    yield place
    assert _picture(place) == before


def _picture(place: Path) -> list[tuple[str, int, int, bytes]]:
    rows = []
    for path in [place, *sorted(place.rglob("*"))]:
        found = path.lstat()
        rows.append((str(path), found.st_mode, found.st_nlink, path.read_bytes() if path.is_file() else b""))
    return rows


@pytest.mark.parametrize("name", ["proc", "sys", "dev"])
@pytest.mark.parametrize(
    "target", ["{victim}", "/tmp", "tmp", "/proc/self/root/..", "../../../../../..{victim}", "/", "/proc/1/root{victim}"]
)
def test_kernel_directory_is_a_link(tmp_path, victim, name, target):
    """A25, A26: CVE-2019-19921, CVE-2023-27561, CVE-2026-41579: refused, and nothing appears where the link points."""
    ref = load(tmp_path, [symlink(name, target.format(victim=victim))], without=[name])
    with pytest.raises(LaunchFailed) as caught:
        sh("true", image=ref)
    assert f"/{name}" in str(caught.value) and caught.value.hint


@pytest.mark.parametrize("name", ["proc", "sys", "dev"])
def test_kernel_directory_is_a_file(tmp_path, name):
    ref = load(tmp_path, [file(name, "x")], without=[name])
    with pytest.raises(LaunchFailed) as caught:
        sh("true", image=ref)
    assert f"/{name}" in str(caught.value)


@pytest.mark.parametrize("name", ["proc", "sys", "dev", "tmp", "etc"])
def test_kernel_directory_is_missing(tmp_path, name):
    ref = load(tmp_path, without=[name, *(("etc/passwd", "etc/group", "etc/os-release") if name == "etc" else ())])
    assert ok("[ -e /proc/self/status ] && [ -d /sys/kernel ] && [ -c /dev/null ] && cat /etc/hostname", image=ref) == "dockless\n"


@pytest.mark.parametrize("deep", ["proc/self", "dev/null", "dev/pts", "dev/shm", "dev/fd", "sys/fs", "sys/fs/cgroup"])
def test_content_below_the_mount_points_is_covered(tmp_path, victim, deep):
    """What an image has below /proc, /sys and /dev never shows, links least of all (A27, A28)."""
    parent = deep.rpartition("/")[0]
    entries = [directory(parent)] if "/" in parent else []
    ref = load(tmp_path, [*entries, symlink(deep, str(victim))])
    text = ok(
        "readlink /proc/self/exe; stat -c %t:%T /dev/null; readlink /dev/fd; ls /sys/fs >/dev/null; touch /dev/shm/x; [ -L /dev/pts "
        "] || echo dir",
        image=ref,
    )
    assert "1:3" in text and "/proc/self/fd" in text and "dir" in text


@pytest.mark.parametrize("path", ["/proc", "/sys", "/dev", "/proc/sys", "/sys/firmware", "/proc/../proc", "/dev/shm/.."])
@pytest.mark.parametrize("mode", ["disk", "readonly"])
def test_volume_over_a_kernel_file_system(tmp_path, path, mode):
    """A25: an image's VOLUME must not cover what is ours."""
    try:
        ref = load(tmp_path, volumes=[path])
    except ImageError:
        return  # refused already as an image
    kinds = {}
    for line in ok("cat /proc/self/mountinfo", image=ref, root=mode).splitlines():
        left, _, right = line.partition(" - ")
        kinds[left.split()[4]] = right.split()[0]
    assert kinds["/proc"] == "proc" and kinds["/sys"] == "sysfs" and kinds["/dev"] == "tmpfs"
    assert kinds.get("/proc/sys", "proc") == "proc" and "/dev/null" in kinds
    assert ok(
        "echo x 2>/dev/null > /proc/sys/kernel/hostname || echo refused; echo > /dev/null && echo null", image=ref, root=mode
    ).split() == ["refused", "null"]


@pytest.mark.parametrize("path", ["/../../etc", "/a/../../../b", "/link/x"])
def test_volume_that_climbs(tmp_path, victim, path):
    """A22: CVE-2022-23648: nothing of the host is copied in, nothing is made outside."""
    try:
        ref = load(tmp_path, [symlink("link", str(victim)), file("etc/mark", "the image's own")], volumes=[path])
    except ImageError:
        return
    for mode in ("disk", "readonly"):
        try:
            ran = sh("cat /etc/shadow /link/hello", image=ref, root=mode)
        except LaunchFailed:
            continue  # nothing can be made there: refused
        assert "untouched" not in ran.out and "root:" not in ran.out


@pytest.mark.parametrize("workdir", ["/proc/self/fd/7", "/proc/self/fd/16", "/proc/1/cwd", "/proc/self/cwd", "/proc/1/root", "/link"])
def test_workdir_outside_the_root(tmp_path, victim, workdir):
    """A23: CVE-2024-21626. A working directory that leads out is refused before anything of the image runs."""
    ref = load(tmp_path, [symlink("link", "/proc/self/fd/9")], workdir=workdir)
    with pytest.raises(LaunchFailed, match="director"):
        sh("echo ran", image=ref)


def test_workdir_that_only_looks_as_if_it_led_outside(tmp_path, victim):
    """A23: what is left of a path is looked up inside: too many ``..`` end at the root."""
    ref = load(tmp_path, [symlink("link", "/proc/self/fd/9")], workdir="/link/../../..")
    ran = sh(f"pwd; cat ../../../../../../{victim}/hello", image=ref)
    assert ran.out == "/\n" and ran.exit.code != 0, ran


def test_no_descriptor_leaks(tmp_path):
    """A23: whatever the host has open without close-on-exec, the program has 0, 1, 2 and nothing else."""
    ref = load(tmp_path)
    opened = [os.open("/", os.O_RDONLY) for _ in range(40)]
    try:
        for fd in opened:
            os.set_inheritable(fd, True)
        for image in (ref, "host"):
            text = ok("ls /proc/self/fd", image=image).split()
            assert set(text) <= {"0", "1", "2", "3"}  # 3 is ls's own
            links = ok("for f in /proc/$$/fd/*; do readlink $f; done; true", image=image)
            assert "memfd" not in links and "/proc" not in links.replace("/proc/", "", 1)
    finally:
        for fd in opened:
            os.close(fd)


def test_nothing_of_the_host_in_proc_1(tmp_path):
    """A23, A24, A44: init holds no file, and its program, root and memory are closed to the program."""
    ref = load(tmp_path)
    for image in (ref, "host"):
        ran = sh(
            "ls /proc/1/fd/ /proc/1/map_files/; readlink /proc/1/exe /proc/1/root /proc/1/cwd; cat /proc/1/environ /proc/1/maps; "
            "head -c1 /proc/1/mem; echo done",
            image=image,
        )
        shown = ran.out.replace("done", "").replace("/proc/1/fd/:", "").replace("/proc/1/map_files/:", "").split()
        assert shown == [], ran.out


def test_the_hosts_memory_is_not_in_the_sandbox(tmp_path):
    """The launcher was exec'd, not forked: a secret on our heap is in nobody else's memory (launch.md)."""
    secret = "the secret on the heap of the host " + os.urandom(8).hex()
    script = (
        "for p in /proc/[0-9]*; do grep -c 'the secret on the heap' $p/mem $p/environ $p/cmdline; done 2>/dev/null | grep -v ':0$'; "
        "echo done"
    )
    ran = sh(script.replace("the secret", "the[ ]secret"), image=load(tmp_path))
    assert ran.out.strip() == "done" and secret


def _interpreter() -> tuple[Path, str]:
    path = Path(os.path.realpath(sys.executable))
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def test_overwriting_the_runtime_through_proc_self_exe(tmp_path):
    """A24: CVE-2019-5736. `#!/proc/self/exe` and friends: neither the interpreter nor the launcher changes."""
    import dockless.native as native

    launcher = os.pread(native.launcher(), 1 << 20, 0)
    before = _interpreter()
    entries = [file("bin/evil", "#!/proc/self/exe\n", 0o755), symlink("bin/evil2", "/proc/self/exe"), symlink("bin/evil3", "/proc/1/exe")]
    ref = load(tmp_path, entries)
    for program in ("/bin/evil", "/bin/evil2", "/bin/evil3", "/proc/self/exe", "/proc/1/exe"):
        try:
            run(Spec(argv=(program,), image=ref, timeout=5.0))
        except DocklessError as error:
            assert isinstance(error, (CommandNotExecutable, CommandNotFound, LaunchFailed))
    sh("for p in /proc/[0-9]*; do echo x > $p/exe; cp /bin/sh $p/exe; done; true", image=ref)
    assert _interpreter() == before and os.pread(native.launcher(), 1 << 20, 0) == launcher


def test_the_launcher_is_sealed():
    """A24: even with the descriptor in hand nothing can be written to it."""
    import fcntl

    import dockless.native as native

    fd = native.launcher()
    if "memfd" not in os.readlink(f"/proc/self/fd/{fd}"):
        pytest.skip("AppArmor wants the installed file here")
    seals = fcntl.fcntl(fd, 1034)  # F_GET_SEALS
    assert seals & 0xF == 0xF  # seal, shrink, grow, write
    with pytest.raises(OSError):
        os.pwrite(fd, b"x", 0)


@requires("root")
def test_devices_of_a_layer_do_not_open(tmp_path):
    """A9: block and character nodes in a layer are there or not, but do not open."""
    entries = [
        device("dev0", 8, 0, block=True),
        device("dev1", 1, 1),
        device("dev2", 195, 0),
        device("dev3", 1, 3),
        device("tmp/dev4", 254, 0, block=True),
    ]
    ref = load(tmp_path, entries)
    for script in ("cat", "head -c 1"):
        ran = sh(f"for d in /dev[0-9] /tmp/dev4; do [ -e $d ] && {script} < $d && echo $d opened; done; echo done", image=ref)
        assert "opened" not in ran.out, ran


@requires("subuid")
def test_setuid_and_capabilities_are_inert(tmp_path):
    """A10: no_new_privs."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("no busybox (package busybox-static)")
    ref = load(tmp_path, [file("opt/busybox", Path(busybox).read_bytes(), 0o6755)])
    script = "/opt/busybox id -u; /opt/busybox cat /proc/self/status | grep -E '^(Uid|CapEff|NoNewPrivs)'"
    assert ok(script, image=ref, user="1000").split() == [
        "1000", "Uid:", "1000", "1000", "1000", "1000", "CapEff:", "0" * 16, "NoNewPrivs:", "1"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "user",
    [
        "4294967295",
        "2147483648",
        "-1",
        "0x0",
        "+0",
        "00",
        " 0",
        "0 ",
        "root ",
        "1e3",
        "٠",
        ":0",
        "0:-1",
        "0:4294967295",
        "app:nosuch",
        "nosuch",
    ],
)
def test_users_that_are_no_users(tmp_path, user):
    """A35: CVE-2024-40635, CVE-2026-30892. Refused: never root by accident."""
    try:
        ref = load(tmp_path, user=user)
    except ImageError:
        return
    with pytest.raises(DocklessError):
        sh("id -u", image=ref)
    with pytest.raises(BadInput):
        sh("id -u", user=user)


@pytest.mark.parametrize(
    "passwd",
    [
        b"evil:x:0x0:0::/:/bin/sh\n",
        b"evil:x:-1:0::/:/bin/sh\n",
        b"evil:x:4294967296:0::/:/bin/sh\n",
        b"evil:x::0::/:/bin/sh\n",
        b"evil:x:0:0\n",
        b"evil\0:x:0:0::/:/bin/sh\n",
        b"\xff\xfe",
    ],
)
def test_malicious_passwd(tmp_path, passwd):
    """A35: a line that is not exactly a passwd line names nobody."""
    ref = load(tmp_path, [file("etc/passwd", passwd)], user="evil")
    with pytest.raises(DocklessError):
        sh("id -u", image=ref)


def test_gigantic_passwd(tmp_path):
    """A35: bounded read."""
    ref = load(tmp_path, [file("etc/passwd", b"x:x:1:1::/:/bin/sh\n" * 200_000)], user="app")
    with pytest.raises(DocklessError):
        sh("id -u", image=ref)


@pytest.mark.parametrize("target", ["/proc/self/environ", "../../../../../../../etc/passwd", "{victim}/hello", "/dev/zero", "passwd"])
def test_passwd_that_is_a_link(tmp_path, victim, target):
    """A35: looked up inside the image, whatever it points at: the host's accounts are nobody's inside."""
    ref = load(tmp_path, [symlink("etc/passwd", target.format(victim=victim))], user="tester-of-the-host")
    with pytest.raises(DocklessError):
        sh("id -u", image=ref)


def test_image_environment_and_labels_ask_in_vain(tmp_path):
    """A21, A53: what an image says in ENV or LABEL gives it no device, mount or variable of ours."""
    ref = load(
        tmp_path,
        env={"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VISIBLE_DEVICES": "0,1", "NVIDIA_DRIVER_CAPABILITIES": "all"},
        labels={"io.dockless.mounts": "/:/host", "cdi.k8s.io/gpu": "nvidia.com/gpu=all"},
    )
    text = ok("env; ls /dev; cat /proc/self/mountinfo", image=ref)
    assert "CUDA_VISIBLE_DEVICES" not in text and "nvidia0" not in text and " /host " not in text
    assert "NVIDIA_VISIBLE_DEVICES=all" not in text


def test_image_environment_does_not_reach_helpers(tmp_path):
    """A33, A34: LD_PRELOAD and friends of an image act inside, on nothing of ours: no helper runs in its environment or its root."""
    hostile = dict.fromkeys(
        ("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PYTHONPATH", "GCONV_PATH", "GLIBC_TUNABLES", "BASH_ENV", "ENV"), "/evil.so"
    )
    ref = load(tmp_path, [file("evil.so", b"\x7fELF not really", 0o755)], env=hostile)
    assert ok("echo fine", image=ref) == "fine\n"
    assert not any(name in os.environ and os.environ[name] == "/evil.so" for name in hostile)


@pytest.mark.parametrize("target", ["/link/x", "/link", "/deep/link/../link/y"])
@pytest.mark.parametrize("kind", ["bind", "tmpfs"])
def test_mount_target_is_a_link_to_the_host(tmp_path, victim, target, kind):
    """A30, A31: a link that is right on the host alone leads nowhere inside: refused, nothing is made or mounted on the host."""
    ref = load(tmp_path, [symlink("link", str(victim)), directory("deep"), symlink("deep/link", "../../../../../.." + str(victim))])
    with pytest.raises(LaunchFailed, match="to mount"):
        sh("echo ran", image=ref, mounts=(_mount(tmp_path, target, kind),))
    assert not os.path.ismount(victim)


@pytest.mark.parametrize(("target", "where"), [("/link/x", "/x"), ("/link", "")])
@pytest.mark.parametrize("kind", ["bind", "tmpfs"])
def test_mount_target_is_a_link_that_is_right_inside_too(tmp_path, victim, target, where, kind):
    """A30, A31: the same path exists in the image: the mount lands there, in the sandbox's own root."""
    inside = str(victim)[1:]
    folders = [directory("/".join(inside.split("/")[: depth + 1])) for depth in range(inside.count("/") + 1)]
    links = [symlink("link", str(victim)), directory("deep"), symlink("deep/link", "../../../../../../../.." + str(victim))]
    ref = load(tmp_path, [*folders, *links])
    out = ok("cat /proc/self/mountinfo; echo x > /dev/null", image=ref, mounts=(_mount(tmp_path, target, kind),))
    assert str(victim) + where in [line.split()[4] for line in out.splitlines()], out
    assert not os.path.ismount(victim)


@pytest.mark.parametrize("target", ["/deep/link/../x", "/deep/../deep/x", "/deep//x/", "/deep/./x"])
def test_a_mount_target_is_cleaned_before_links_are_followed(tmp_path, target):
    """As Docker does: what is checked against /proc, /sys and /dev is the path that is mounted on."""
    ref = load(tmp_path, [directory("deep"), symlink("deep/link", "/etc")])
    text = ok("cat /proc/self/mountinfo", image=ref, mounts=(Tmpfs(target),))
    assert "/deep/x" in [line.split()[4] for line in text.splitlines()]


def _mount(tmp_path, target, kind):
    if kind == "tmpfs":
        return Tmpfs(target)
    source = tmp_path / "source"
    source.mkdir(exist_ok=True)
    return Bind(str(source), target)


@pytest.mark.parametrize("inside", [False, True], ids=["nowhere inside", "also inside"])
def test_etc_is_a_link(tmp_path, victim, inside):
    """Our own /etc/hosts lands inside the root, not where the image's /etc points on the host."""
    folders = str(victim)[1:].split("/")
    entries = [directory("/".join(folders[: depth + 1])) for depth in range(len(folders))] if inside else []
    ref = load(tmp_path, [symlink("etc", str(victim)), *entries], without=["etc", "etc/passwd", "etc/group", "etc/os-release"])
    if not inside:
        with pytest.raises(LaunchFailed, match="/etc/hostname"):
            sh("echo ran", image=ref, user="0")
        return
    assert "localhost" in ok(f"cat {victim}/hosts", image=ref, user="0")


def test_binds_are_opened_with_no_symlink_tricks_inside(tmp_path, victim):
    """A51: a library directory of the image that points at the host does not make a mount land there."""
    ref = load(tmp_path, [directory("usr/lib"), symlink("usr/lib/x86_64-linux-gnu", "/../../../../.." + str(victim))])
    source = tmp_path / "driver"
    source.mkdir()
    (source / "libcuda.so.1").write_text("driver")
    idmap = default_map()
    if os.geteuid() == 0:
        os.chown(source, idmap.outside_uid(0) or 0, idmap.outside_gid(0) or 0)
    target = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
    try:
        ran = sh(f"cat {target}", image=ref, mounts=(Bind(str(source / "libcuda.so.1"), target),))
    except LaunchFailed:
        return  # the link leads nowhere inside: refused
    assert ran.out == "driver"
