"""What we commit, save and export others read, and agree on digests, configuration and files; what they write is loaded here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from support import make_image as make
from support.layers import load, tree
from support.requires import requires
from support.uppers import upper

from dockless.images import Image, Store
from dockless.images.archive.assemble import Edit
from dockless.images.archive.commit import commit
from dockless.images.archive.export import export
from dockless.images.archive.save import save
from dockless.images.model import digest

pytestmark = requires("overlay", "program:unshare")

BASE = [
    make.directory("etc"),
    make.file("etc/passwd", "root"),
    make.file("etc/gone", "x"),
    make.directory("d"),
    make.file("d/old", "old"),
    make.file("f", "f"),
]
SCRIPT = """
    rm etc/gone f; rm -r d; mkdir d; printf new > d/new; ln d/new hard; ln -s d/new soft; mkfifo fifo; printf x > 'ü name'
    touch -d @1000000000.123456789 old; mkdir -p deep/{0}; printf y > deep/{0}/file; chmod 4755 d/new
""".replace("{0}", "/".join("n" * 60 for _ in range(5)))
FILES = {"d", "d/new", "etc", "etc/passwd", "hard", "soft", "fifo", "ü name", "old"}


@pytest.fixture
def image(tmp_path) -> Image:
    """A commit on a commit."""
    return made_image(tmp_path, "gzip")


def made_image(tmp_path, compression) -> Image:
    store = Store(index=False)  # layers as directories, which the test can mount by itself
    base = load(tmp_path, [BASE], store, config={"Cmd": ["sh"], "Labels": {"a": "1"}})
    first = commit(store, base, upper(tmp_path, base.layers, SCRIPT, name="one")[0], compression=compression, created=1_700_000_000)
    edit = Edit(env={"A": "1"}, labels={"b": "2"}, entrypoint=("/bin/x",))
    second = upper(tmp_path, first.layers, "printf top > top; rm top; printf z > etc/z; rm etc/z", name="two")[0]
    return commit(store, first, second, reference="made:1", edit=edit, created=1_700_000_000)


def run(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
    assert done.returncode == 0, done.stderr
    return done.stdout


NAME = "docker.io/library/made:1"


@requires("program:skopeo")
def test_skopeo_reads_what_we_save(tmp_path, image):
    save(Store(), [image], tmp_path / "dir", format="oci-dir")
    save(Store(), [image], tmp_path / "oci.tar")
    save(Store(), [image], tmp_path / "docker.tar", format="docker-archive")
    for place in (
        f"oci:{tmp_path}/dir:{NAME}",
        f"oci:{tmp_path}/dir",
        f"oci-archive:{tmp_path}/oci.tar",
        f"oci-archive:{tmp_path}/oci.tar:{NAME}",
    ):
        told = json.loads(run("skopeo", "inspect", place))
        assert told["Digest"] == image.digest and told["Env"] == ["A=1"] and told["Labels"] == {"a": "1", "b": "2"}
        assert len(told["Layers"]) == len(image.layers) and told["Created"] == "2023-11-14T22:13:20Z"
    config = Store().read_blob(Store().documents(image.digest, "test")[1].config.digest, "test")
    assert run("skopeo", "inspect", "--config", "--raw", f"docker-archive:{tmp_path}/docker.tar").encode() == config
    assert run("skopeo", "inspect", "--config", "--raw", f"docker-archive:{tmp_path}/oci.tar:made:1").encode() == config


@requires("program:skopeo")
def test_what_skopeo_copies_comes_back_the_same(tmp_path, image):
    """Into the Docker form only without zstd, for which skopeo knows no Docker type."""
    save(Store(), [image], tmp_path / "oci.tar")
    source = f"oci-archive:{tmp_path}/oci.tar"
    run("skopeo", "--insecure-policy", "copy", source, f"oci:{tmp_path}/copied:made")
    run("skopeo", "--insecure-policy", "copy", source, f"docker-archive:{tmp_path}/copied.tar:made:1")
    (again,) = Store(tmp_path / "again").load(tmp_path / "copied")
    assert again.digest == image.digest and tree(again.layers) == tree(image.layers)
    (docker,) = Store(tmp_path / "docker").load(tmp_path / "copied.tar")
    assert tree(docker.layers) == tree(image.layers) and docker.config == image.config


@requires("program:skopeo")
def test_zstd_layers_are_copied(tmp_path):
    image = made_image(tmp_path, "zstd")
    save(Store(), [image], tmp_path / "oci.tar", compression="gzip")
    run("skopeo", "--insecure-policy", "copy", f"oci-archive:{tmp_path}/oci.tar", f"dir:{tmp_path}/copied")
    assert digest.of((tmp_path / "copied/manifest.json").read_bytes()) == digest.parse(image.digest)


@requires("program:umoci")
def test_umoci_unpacks_what_we_commit(tmp_path, image):
    save(Store(), [image], tmp_path / "dir", format="oci-dir")
    rootless = [] if os.geteuid() == 0 else ["--rootless"]
    run("umoci", "unpack", *rootless, "--image", f"{tmp_path}/dir:{NAME}", tmp_path / "bundle")
    root = tmp_path / "bundle/rootfs"
    found = {str(path.relative_to(root)) for path in root.rglob("*")}
    assert found == set(tree(image.layers)) and found >= FILES
    assert (root / "d/new").stat().st_ino == (root / "hard").stat().st_ino and (root / "hard").stat().st_mode & 0o7777 == 0o4755
    assert (root / "old").stat().st_mtime_ns == 1_000_000_000_123_456_789 and (root / "deep").is_dir()
    told = json.loads((tmp_path / "bundle/config.json").read_text())
    assert told["process"]["args"] == ["/bin/x"] and "A=1" in told["process"]["env"]
    history = json.loads(run("umoci", "stat", "--json", "--image", f"{tmp_path}/dir:{NAME}"))["history"]
    assert len(history) == 3


@requires("program:umoci")
def test_what_umoci_commits_is_loaded(tmp_path, image):
    save(Store(), [image], tmp_path / "dir", format="oci-dir")
    rootless = [] if os.geteuid() == 0 else ["--rootless"]
    run("umoci", "unpack", *rootless, "--image", f"{tmp_path}/dir:{NAME}", tmp_path / "bundle")
    root = tmp_path / "bundle/rootfs"
    (root / "by-umoci").write_text("hello")
    (root / "d/new").unlink()
    run("umoci", "repack", "--image", f"{tmp_path}/dir:repacked", tmp_path / "bundle")
    found = {loaded.digest: loaded for loaded in Store(tmp_path / "again").load(tmp_path / "dir")}
    assert len(found) == 2 and tree(found.pop(image.digest).layers) == tree(image.layers)
    after = tree(found.popitem()[1].layers)
    assert after["by-umoci"] == "file:hello" and "d/new" not in after and after["hard"] == "file:new"


@requires("program:tar")
def test_gnu_tar_unpacks_what_we_export(tmp_path, image):
    export(image, tmp_path / "root.tar")
    (tmp_path / "root").mkdir()
    run("tar", "-C", tmp_path / "root", "-xpf", tmp_path / "root.tar")
    root = tmp_path / "root"
    assert {str(path.relative_to(root)) for path in root.rglob("*")} == set(tree(image.layers))
    assert (root / "old").stat().st_mtime_ns == 1_000_000_000_123_456_789
    assert (root / "d/new").stat().st_ino == (root / "hard").stat().st_ino


@requires("root", "program:podman")
def test_podman_loads_what_we_save(tmp_path, image):
    place = Path(tempfile.mkdtemp(prefix="p-"))  # podman takes no long paths
    storage = ["--root", place / "root", "--runroot", place / "run", "--storage-driver", "vfs"]
    for format in ("oci-tar", "docker-archive"):
        save(Store(), [image], tmp_path / f"{format}.tar", format=format)
        run("podman", *storage, "load", "-i", tmp_path / f"{format}.tar")
        told = json.loads(run("podman", *storage, "image", "inspect", NAME))[0]
        assert told["Id"] == image.config_digest.removeprefix("sha256:")
        run("podman", *storage, "save", "--format", "oci-archive", "-o", tmp_path / f"again-{format}.tar", NAME)
        (again,) = Store(tmp_path / f"store-{format}").load(tmp_path / f"again-{format}.tar")
        assert again.reference == NAME and again.config == image.config and tree(again.layers) == tree(image.layers)
        run("podman", *storage, "rmi", "-f", NAME)
    shutil.rmtree(place)


def test_the_layers_are_what_a_registry_would_get(tmp_path, image):
    """Each blob decompresses to its diff id, by the standard library alone."""
    import gzip
    import hashlib

    _, parsed, document = Store().documents(image.digest, "test")
    for layer, diff_id in zip(parsed.layers, document.diff_ids, strict=True):
        raw = Store().blob_path(layer.digest).read_bytes()
        assert hashlib.sha256(raw).hexdigest() == layer.digest.hex and len(raw) == layer.size
        if layer.media_type.endswith("gzip"):
            assert hashlib.sha256(gzip.decompress(raw)).hexdigest() == diff_id.hex
