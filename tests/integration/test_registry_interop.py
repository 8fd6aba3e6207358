"""Over a real registry: what we commit and push, skopeo, umoci and podman read and agree on; what they push, we pull and run.

Agreed on are the manifest's digest, the configuration byte for byte, and the list of files with kind, mode, size and content.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import make_image as make
from support.layers import load, tree
from support.registries import DockerRegistry, docker_registry
from support.requires import requires
from support.uppers import upper

import dockless
from dockless.images import Image, Store
from dockless.images.archive.assemble import Edit
from dockless.images.archive.commit import commit
from dockless.images.registry import Configuration, Credentials
from dockless.images.transfer.pull import pull
from dockless.images.transfer.push import push

pytestmark = [requires("overlay", "program:unshare", "program:docker-registry"), pytest.mark.usefixtures("registry")]

NONE = {"configuration": Configuration(), "credentials": Credentials()}
SCRIPT = """
    rm etc/gone; rm -r d; mkdir d; printf new > d/new; chmod 4751 d/new; ln d/new hard; ln -s d/new soft; mkfifo fifo
    mkdir -p deep/{0}; printf y > deep/{0}/file; printf x > 'ü name'; head -c 300000 /dev/zero > zeros
""".replace("{0}", "/".join("n" * 60 for _ in range(4)))


@pytest.fixture
def registry(tmp_path) -> Iterator[DockerRegistry]:
    with docker_registry(tmp_path) as server:
        yield server


@pytest.fixture
def image(tmp_path, registry) -> Image:
    """Committed on a base with a whiteout and an opaque directory, and pushed as ``made:1``."""
    store = Store(index=False)  # layers as directories, which the test can mount by itself
    entries = [*make.rootfs_entries(), make.file("etc/gone", "x"), make.directory("d"), make.file("d/old", "old")]
    base = load(tmp_path, [entries], store, config={"Cmd": ["sh"], "Labels": {"a": "1"}})
    edit = Edit(env={"A": "1"}, labels={"b": "2"}, cmd=("/bin/sh", "-c", "cat /d/new; echo $A"))
    made = commit(store, base, upper(tmp_path, base.layers, SCRIPT)[0], reference="made:1", edit=edit, created=1_700_000_000)
    assert push(store, "made:1", f"{registry.netloc}/made:1", **NONE).digest == made.digest
    return made


@pytest.fixture(autouse=True)
def logins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """skopeo looks below /run for logins, where an ordinary user without a session may not even look."""
    (tmp_path / "logins.json").write_text("{}")
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "logins.json"))


def run(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
    assert done.returncode == 0, done.stderr
    return done.stdout


def configuration(image: Image) -> bytes:
    return Store().read_blob(Store().documents(image.digest, "test")[1].config.digest, "test")


def listed(root: Path) -> dict[str, tuple[object, ...]]:
    """Every file below a directory: kind, mode, size, content. The root's own metadata is the tool's."""
    found: dict[str, tuple[object, ...]] = {}
    for path in root.rglob("*"):
        about = path.lstat()
        content = os.readlink(path) if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        mode = 0 if path.is_symlink() else stat.S_IMODE(about.st_mode)
        found[str(path.relative_to(root))] = (stat.S_IFMT(about.st_mode), mode, about.st_size if path.is_file() else 0, content)
    return found


@requires("program:skopeo", "program:umoci", "root")
def test_what_we_push_skopeo_and_umoci_read(tmp_path, image, registry):
    """umoci unpacks what skopeo fetched; our own root is what a sandbox shows."""
    source = f"docker://{registry.netloc}/made:1"
    told = json.loads(run("skopeo", "inspect", "--tls-verify=false", source))
    assert told["Digest"] == image.digest and told["Labels"] == {"a": "1", "b": "2"} and "A=1" in told["Env"]
    assert run("skopeo", "inspect", "--tls-verify=false", "--config", "--raw", source).encode() == configuration(image)
    run("skopeo", "--insecure-policy", "copy", "--src-tls-verify=false", source, f"oci:{tmp_path}/layout:made")
    described = json.loads((tmp_path / "layout/index.json").read_text())["manifests"][0]
    assert described["digest"] == image.digest
    run("umoci", "unpack", "--image", f"{tmp_path}/layout:made", tmp_path / "bundle")
    theirs = listed(tmp_path / "bundle/rootfs")
    assert set(theirs) == set(tree(image.layers))
    assert theirs == _mounted(tmp_path, image)


def _mounted(tmp_path: Path, image: Image) -> dict[str, tuple[object, ...]]:
    """The image's files as overlayfs shows them."""
    (tmp_path / "root").mkdir()
    lower = ":".join(str(layer.path) for layer in reversed(image.layers))
    run("mount", "-t", "overlay", "overlay", "-o", f"ro,lowerdir={lower}", tmp_path / "root")
    try:
        return listed(tmp_path / "root")
    finally:
        run("umount", tmp_path / "root")


@requires("program:podman", "root")
def test_what_we_push_podman_pulls_and_pushes_back(tmp_path, image, registry):
    """It comes back with the same configuration, and runs here."""
    place = Path(tempfile.mkdtemp(prefix="p-"))  # podman takes no long paths
    try:
        storage = ["--root", place / "root", "--runroot", place / "run", "--tmpdir", place / "tmp", "--storage-driver", "vfs"]
        podman = ["podman", *storage, "--events-backend", "none", "--cgroup-manager", "cgroupfs"]
        name = f"{registry.netloc}/made:1"
        assert run(*podman, "pull", "-q", "--tls-verify=false", name).strip() == image.config_digest.removeprefix("sha256:")
        told = json.loads(run(*podman, "image", "inspect", name))[0]
        assert told["Digest"] == image.digest and told["Config"]["Cmd"] == list(image.config.cmd)
        assert told["RootFS"]["Layers"] == json.loads(configuration(image))["rootfs"]["diff_ids"]
        run(*podman, "tag", name, f"{registry.netloc}/podman:1")
        run(*podman, "push", "-q", "--tls-verify=false", f"{registry.netloc}/podman:1")
        back = pull(Store(tmp_path / "other"), f"{registry.netloc}/podman:1", **NONE)
        assert back.config_digest == image.config_digest and tree(back.layers) == tree(image.layers)
    finally:
        subprocess.run(["umount", "--lazy", place / "root/vfs"], stderr=subprocess.DEVNULL)
        shutil.rmtree(place, ignore_errors=True)


@requires("program:skopeo", "busybox", "userns")
@pytest.mark.parametrize("form", ["v2s2", "oci"])
def test_what_skopeo_pushes_we_pull_and_run(image, registry, form):
    source, target = f"docker://{registry.netloc}/made:1", f"docker://{registry.netloc}/skopeo-{form}:1"
    run("skopeo", "--insecure-policy", "copy", "--format", form, "--src-tls-verify=false", "--dest-tls-verify=false", source, target)
    back = pull(Store(), f"{registry.netloc}/skopeo-{form}:1", **NONE)
    assert back.config == image.config and tree(back.layers) == tree(image.layers)
    if form == "oci":
        assert back.digest == image.digest
    assert dockless.run(back.name, capture_output=True, text=True).stdout == "new1\n"


@requires("program:umoci", "program:skopeo", "root")
def test_what_umoci_makes_and_skopeo_pushes_we_pull_and_run(tmp_path, image, registry):
    source = f"docker://{registry.netloc}/made:1"
    run("skopeo", "--insecure-policy", "copy", "--src-tls-verify=false", source, f"oci:{tmp_path}/layout:made")
    run("umoci", "unpack", "--image", f"{tmp_path}/layout:made", tmp_path / "bundle")
    root = tmp_path / "bundle/rootfs"
    (root / "d/new").write_text("by umoci")
    (root / "soft").unlink()
    run("umoci", "repack", "--image", f"{tmp_path}/layout:repacked", tmp_path / "bundle")
    target = f"docker://{registry.netloc}/umoci:1"
    run("skopeo", "--insecure-policy", "copy", "--dest-tls-verify=false", f"oci:{tmp_path}/layout:repacked", target)
    back = pull(Store(), f"{registry.netloc}/umoci:1", **NONE)
    after = tree(back.layers)
    assert "soft" not in after and after["d/new"] == after["hard"] == "file:by umoci"
    assert {"d/old", "etc/gone"}.isdisjoint(after)
    assert dockless.run(back.name, capture_output=True, text=True).stdout == "by umoci1\n"
