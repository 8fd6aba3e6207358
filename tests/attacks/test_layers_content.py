"""Layers whose content is the attack: devices, setuid programs, xattrs that overlayfs would obey, documents that lie.

A18 and the registry side of A19 have nothing to attack yet: this form of ``images`` never opens a connection.
"""

import base64
import json
import os
import socket
import subprocess

import pytest
from support import make_image as make
from support.layers import load, tree
from support.requires import requires

from dockless.errors import BadDigest, BadImage, UnknownImage
from dockless.images import Store
from dockless.images.model import digest

ROOT = os.geteuid() == 0


def test_device_nodes(tmp_path):
    """A9: as root a node is there as the image says (the sandbox's device filter makes it inert); as a user it is not; 0:0, which would
    hide files of other layers, never is."""
    image = load(tmp_path, [[make.device("sda", 8, 0, block=True), make.device("nvidia0", 195, 0), make.device("wh", 0, 0)]])
    assert set(tree(image.layers)) == ({"sda", "nvidia0"} if ROOT else set())
    assert any("0:0 would act as a whiteout" in warning for warning in image.warnings)


def test_a_device_0_0_hides_nothing(tmp_path):
    """A9: only ``.wh.`` entries are whiteouts."""
    image = load(tmp_path, [[make.file("f", "below")], [make.device("f", 0, 0)]])
    assert tree(image.layers) == {"f": "file:below"}


def test_setuid_and_capabilities(tmp_path):
    """A10: kept for the image, out of every other user's reach."""
    image = load(tmp_path, [[make.file("su", "x", 0o6755)]])
    assert (image.layers[0].path / "su").stat().st_mode & 0o7777 == 0o6755
    assert (Store().root / "layers").stat().st_mode & 0o077 == 0


FORBIDDEN = [
    "trusted.overlay.opaque",
    "trusted.overlay.redirect",
    "trusted.overlay.metacopy",
    "trusted.overlay.overlay.opaque",
    "trusted.overlay.whiteout",
    "trusted.anything",
    "user.overlay.opaque",
    "user.overlay.redirect",
    "user.overlay.whiteout",
    "user.overlay.overlay.redirect",
    "security.selinux",
    "security.ima",
    "overlay.overlay.opaque",
    "system.nfs4_acl",
]


@pytest.mark.parametrize("key", FORBIDDEN)
@pytest.mark.parametrize("writer", ["SCHILY", "LIBARCHIVE"])
def test_xattrs_that_overlayfs_would_obey(tmp_path, key, writer):
    """A11: they never reach the disk, in either spelling."""
    value = "y" if writer == "SCHILY" else base64.b64encode(b"y").decode()
    pax = {f"{writer}.xattr.{key}": value}
    entries = [make.directory("d", pax=pax), make.file("d/f", "x", pax=pax), make.symlink("s", "d", pax=pax), make.directory(".", pax=pax)]
    image = load(tmp_path, [[make.directory("d"), make.file("d/below")], entries])
    top = image.layers[1].path
    for path in (top, top / "d", top / "d/f", top / "s"):
        assert os.listxattr(path, follow_symlinks=False) == []
    assert set(tree(image.layers)) == {"d", "d/f", "d/below", "s"}


@requires("root", "overlay", "program:unshare")
def test_a_redirect_reveals_nothing(tmp_path):
    """A11: a redirect to another directory of a lower layer, mounted by the kernel, shows nothing of it."""
    pax = {"SCHILY.xattr.trusted.overlay.redirect": "/secret", "SCHILY.xattr.trusted.overlay.metacopy": ""}
    layers = [[make.directory("secret", 0o700), make.file("secret/key", "x")], [make.directory("d", pax=pax)]]
    image = load(tmp_path, layers)
    (tmp_path / "m").mkdir()
    lower = ":".join(str(layer.path) for layer in reversed(image.layers))
    script = 'mount -t overlay overlay -o "ro,redirect_dir=follow,lowerdir=$1" "$2" && ls "$2/d"'
    result = subprocess.run(["unshare", "-m", "sh", "-c", script, "sh", lower, tmp_path / "m"], capture_output=True, text=True, check=True)
    assert result.stdout == ""


# -- documents -----------------------------------------------------------------------------------------------------------------------

EVIL = [
    "sha256:../../victim",
    "sha256:" + "../" * 20 + "etc",
    "sha256:" + "A" * 64,
    "md5:" + "0" * 32,
    "sha1:" + "0" * 40,
    "sha256:/etc/passwd",
    "a/b:c",
]


@pytest.mark.parametrize("evil", EVIL)
@pytest.mark.parametrize("where", ["index", "config", "layer", "diff_id"])
def test_digest_traversal(tmp_path, evil, where):
    """A16: what is no digest is refused before any path is made of it."""
    blobs = make.Blobs()
    entry = blobs.image([[make.file("f")]], {}, **({"rootfs": {"type": "layers", "diff_ids": [evil]}} if where == "diff_id" else {}))
    if where == "index":
        entry["digest"] = evil
    elif where in ("config", "layer"):
        document = json.loads(blobs[entry["digest"]])
        (document["config"] if where == "config" else document["layers"][0])["digest"] = evil
        entry = blobs.add(make.to_json(document), make.OCI_MANIFEST)
    # An index may list images whose digests cannot be computed here, beside others: alone they are none.
    unknown = where == "index" and evil.startswith(("md5:", "sha1:"))
    with pytest.raises(BadImage, match="lists no images") if unknown else pytest.raises(BadDigest, match="is not a digest"):
        Store().load(blobs.write(tmp_path / "x", [entry]))
    assert Store().list() == []
    assert not (tmp_path / "victim").exists()


def test_names_in_a_docker_archive(tmp_path):
    """A16: Config and Layers of manifest.json are names in the archive, never paths of the host."""
    victim = tmp_path / "victim.json"
    victim.write_text("{}")
    for path in (f"../{victim.name}", str(victim), "a/../../victim.json"):
        with pytest.raises(BadImage, match="lacks the configuration"):
            Store().load(make.write_files(tmp_path / "d", {"manifest.json": json.dumps([{"Config": path, "Layers": []}]).encode()}))
        archive = make.write_files(tmp_path / "a.tar", {"manifest.json": json.dumps([{"Config": path, "Layers": []}]).encode()})
        with pytest.raises(BadImage, match="lacks the configuration"):
            Store().load(archive)


def test_links_out_of_a_layout(tmp_path):
    """A16: a layout's links are resolved inside it."""
    secret = tmp_path / "secret"
    secret.write_text('{"schemaVersion": 2, "manifests": []}')
    for target in (str(secret), "../secret", "/etc/passwd", "/dev/zero"):
        layout = tmp_path / "layout"
        layout.mkdir(exist_ok=True)
        (layout / "index.json").unlink(missing_ok=True)
        (layout / "index.json").symlink_to(target)
        with pytest.raises(BadImage, match="not an image"):
            Store().load(layout)


@pytest.mark.parametrize("more", [{"manifests": []}, {"Layers": []}, {"fsLayers": []}, {"mediaType": make.OCI_INDEX}])
def test_ambiguous_manifests(tmp_path, more):
    """A17: a document that is two things is refused (CVE-2021-41190)."""
    blobs = make.Blobs()
    entry = blobs.image([[make.file("f")]], {}, manifest=more) | {"mediaType": make.OCI_MANIFEST}
    with pytest.raises(BadImage):
        Store().load(blobs.write(tmp_path / "x", [entry]))


def test_no_request_at_an_images_bidding(tmp_path):
    """A19: ``urls`` of a foreign layer are data; nothing connects to them."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(0)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/layer"
        blobs = make.Blobs()
        absent = str(digest.of(b"x"))
        layer = {"mediaType": "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", "digest": absent, "size": 1, "urls": [url]}
        entry = blobs.image([], {}, manifest={"layers": [layer]}, rootfs={"type": "layers", "diff_ids": [absent]})
        with pytest.raises(BadImage, match="lacks the blob"):
            Store().load(blobs.write(tmp_path / "x", [entry]))
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_layer_that_poses_as_another(tmp_path):
    """A20: an image that claims a cached layer's diff_id for other bytes gets neither, and the cached one stays."""
    good, evil = [make.file("f", "good")], [make.file("f", "evil")]
    first = load(tmp_path, [good])
    claimed = {"type": "layers", "diff_ids": [make.digest_of(make.layer_tar(good))]}
    for _ in range(2):
        with pytest.raises(BadDigest):
            load(tmp_path, [evil], rootfs=claimed, ref="evil:1")
    assert tree(first.layers) == {"f": "file:good"}
    with pytest.raises(UnknownImage):
        Store().get("evil:1")


def test_a_layer_that_poses_as_one_to_come(tmp_path):
    """A20: the same, when the liar comes first."""
    good, evil = [make.file("f", "good")], [make.file("f", "evil")]
    with pytest.raises(BadDigest):
        load(tmp_path, [evil], rootfs={"type": "layers", "diff_ids": [make.digest_of(make.layer_tar(good))]})
    assert tree(load(tmp_path, [good]).layers) == {"f": "file:good"}


def test_a_layer_depends_on_what_lies_below(tmp_path):
    """A20: a hard link copies from below; the same layer on another base is another layer."""
    top = [make.hardlink("h", "f")]
    first, second = load(tmp_path, [[make.file("f", "1")], top]), load(tmp_path, [[make.file("f", "2")], top])
    assert first.layers[1] != second.layers[1]
    assert (tree(first.layers)["h"], tree(second.layers)["h"]) == ("file:1", "file:2")


def test_a_tag_is_only_moved_by_an_image_that_loaded(tmp_path):
    """A20: a broken image does not take a tag away; one called ``host`` does not become the host."""
    first = load(tmp_path, [[make.file("f", "1")]], ref="app:1")
    with pytest.raises(BadDigest):
        load(tmp_path, [[make.file("f", "2")]], ref="app:1", rootfs={"type": "layers", "diff_ids": ["sha256:" + "0" * 64]})
    assert Store().get("app:1") == first
    load(tmp_path, [[make.file("f", "3")]], ref="host:latest")
    assert Store().get("host").is_host


def test_labels_and_annotations_are_data(tmp_path):
    """A21: whatever they say, they end up as labels and nowhere else."""
    labels = {
        "io.containerd.log-uri": "binary:///bin/sh?-c=id",
        "cdi.k8s.io/device": "nvidia.com/gpu=all",
        "dockless.mounts": "/:/host",
        "run.oci.hooks": "/x",
    }
    blobs = make.Blobs()
    entry = blobs.image([[make.file("f")]], make.config(labels=labels), manifest={"annotations": labels})
    (image,) = Store().load(blobs.write(tmp_path / "x", [entry | {"annotations": labels}]))
    assert dict(image.config.labels) == labels
    assert image.reference is None
    assert (image.config.volumes, image.config.user, dict(image.config.env)) == ((), "", {"PATH": make.PATH})


@pytest.mark.parametrize("path", ["/../../etc", "/a/../../etc", "../x", "etc", "/"])
def test_volume_paths(tmp_path, path):
    """A22: a volume that leaves the image is refused (CVE-2022-23648); one behind a link is the sandbox's to resolve inside."""
    with pytest.raises(BadImage, match="volume"):
        load(tmp_path, [[make.file("f")]], config=make.config(volumes=[path]))
