"""The store: what it loads, how it names it, what it refuses, and that it stays sound. Runs as root and as an ordinary user."""

import base64
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support import make_image as make
from support.layers import load, tree

from dockless.base import paths
from dockless.errors import BadDigest, BadImage, BadInput, ImageError, NotRunnable, UnknownImage
from dockless.images import Store, host_image
from dockless.images.model import digest, platforms
from dockless.images.model.manifest import DOCKER_LIST, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST

ONE = [make.directory("etc"), make.file("etc/one", "1")]
TWO = [make.file("etc/two", "2")]
REF = "org.opencontainers.image.ref.name"


def blob(path: Path, name: str) -> Path:
    return path / "blobs" / name.replace(":", "/")


def largest(path: Path) -> Path:
    """The blob of a layout that is its largest layer."""
    return max((path / "blobs/sha256").iterdir(), key=lambda one: one.stat().st_size)


# -- what is loaded ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd", "xz", "bzip2"])
@pytest.mark.parametrize("name", ["layout", "layout.tar"])
def test_oci_layouts(tmp_path, name, compression):
    run = make.config(env={"A": "1"}, user="app", workdir="/etc", cmd=["/bin/true"])
    path = make.make_oci_layout(tmp_path / name, [ONE, TWO], run, "app:1", compression=compression)
    (image,) = Store().load(path)
    assert (image.reference, image.architecture, image.os) == ("docker.io/library/app:1", make.architecture(), "linux")
    assert tree(image.layers) == {"etc": "dir", "etc/one": "file:1", "etc/two": "file:2"}
    assert (image.config.user, image.config.working_dir, image.config.cmd) == ("app", "/etc", ("/bin/true",))
    assert dict(image.config.env) == {"PATH": make.PATH, "A": "1"}
    assert Store().get("app:1") == image
    assert Store().list() == [image]
    image.check_runnable()


@pytest.mark.parametrize("outer", ["none", "gzip", "zstd", "xz", "bzip2"])
@pytest.mark.parametrize("style", ["old", "new"])
def test_docker_archives(tmp_path, style, outer):
    first = make.Built([ONE, TWO], make.config(), ["one:1", "example.com/one:2"])
    second = make.Built([ONE], make.config(cmd=["x"]), [])
    path = make.make_docker_archive(tmp_path / "images.tar", [first, second], style=style, outer=outer)
    images = Store().load(path)
    assert [image.reference for image in images] == ["docker.io/library/one:1", "example.com/one:2", None]
    assert images[0].digest == images[1].digest != images[2].digest
    assert images[0].layers[0] == images[2].layers[0], "a shared layer is unpacked once"
    assert Store().get(images[2].digest).config.cmd == ("x",)


def test_docker_archives_with_compressed_layers(tmp_path):
    path = make.make_docker_archive(tmp_path / "k.tar", [make.Built([ONE], {}, ["k:1"])], layer_compression="gzip")
    assert tree(Store().load(path)[0].layers) == {"etc": "dir", "etc/one": "file:1"}


def test_sha512(tmp_path):
    image = load(tmp_path, [ONE, TWO], algorithm="sha512")
    assert image.digest.startswith("sha256:")
    assert image.layers[0].path.parent.parent.name == "sha512"
    assert tree(image.layers)["etc/two"] == "file:2"
    assert Store().get("test").layers == image.layers


def test_several_images_in_one_layout(tmp_path):
    blobs = make.Blobs()
    entries = [blobs.image([ONE], make.config(cmd=[name])) | {"annotations": {REF: name}} for name in ("a:1", "b:1", "bare-tag")]
    images = Store().load(blobs.write(tmp_path / "Several.tar", entries))
    assert [image.reference for image in images] == [
        "docker.io/library/a:1",
        "docker.io/library/b:1",
        "docker.io/library/several:bare-tag",
    ]


def test_the_platform_of_this_host_is_chosen(tmp_path):
    here = platforms.host()
    blobs = make.Blobs()

    def one(os_name, architecture, **more):
        return blobs.image([ONE], make.config(cmd=[architecture]), platform={"os": os_name, "architecture": architecture, **more})

    entries = [one("windows", here.architecture), one("linux", "s390x"), one("linux", here.architecture), one("linux", "mips64le")]
    attestation = blobs.image([], {}, platform={"os": "unknown", "architecture": "unknown"})
    nested = blobs.index([attestation, *entries])
    (image,) = Store().load(blobs.write(tmp_path / "multi", [nested | {"annotations": {REF: "multi:1"}}, *entries]))
    assert (image.reference, image.config.cmd) == ("docker.io/library/multi:1", (here.architecture,))
    assert (image.os, image.architecture) == ("linux", here.architecture)
    deep = nested
    for _ in range(5):
        deep = blobs.index([deep])
    with pytest.raises(BadImage, match="nested more than"):
        Store().load(blobs.write(tmp_path / "deep", [deep]))


def test_an_image_for_another_machine_loads_but_does_not_run(tmp_path):
    other = "arm64" if make.architecture() == "amd64" else "amd64"
    image = load(tmp_path, [ONE], architecture=other)
    assert image.architecture == other
    with pytest.raises(NotRunnable, match=f"is for linux/{other}.*this host is linux/{platforms.host().architecture}"):
        image.check_runnable()
    with pytest.raises(NotRunnable, match="windows"):
        load(tmp_path, [ONE], os="windows").check_runnable()
    with pytest.raises(NotRunnable, match="does not say"):
        load(tmp_path, [ONE], os=None).check_runnable()
    with pytest.raises(NotRunnable, match="no layers"):
        load(tmp_path, []).check_runnable()


def test_a_name_of_ones_own(tmp_path):
    path = make.make_oci_layout(tmp_path / "a", [ONE], {}, "theirs:1")
    (image,) = Store().load(path, name="mine")
    assert image.reference == "docker.io/library/mine:latest"
    with pytest.raises(UnknownImage):
        Store().get("theirs:1")
    for bad in ("host", "UPPER", "x@" + image.digest):
        with pytest.raises(BadInput):
            Store().load(path, name=bad)
    two = make.make_docker_archive(tmp_path / "two.tar", [make.Built([ONE], {"Cmd": ["1"]}), make.Built([ONE], {"Cmd": ["2"]})])
    with pytest.raises(BadInput, match="2 images"):
        Store().load(two, name="mine")


def test_a_name_that_is_none(tmp_path):
    (image,) = Store().load(make.make_oci_layout(tmp_path / "a", [ONE], {}, "Example.com/UPPER:1"))
    assert image.reference is None
    assert "loaded without a name" in image.warnings[0]
    assert image.name == image.digest


def test_a_tag_moves(tmp_path):
    first, second = load(tmp_path, [ONE]), load(tmp_path, [TWO])
    assert Store().get("test") == second
    assert Store().get(first.digest).reference is None
    assert [image.digest for image in Store().list()] == [second.digest, first.digest]


def test_each_list_is_younger_than_the_one_before(tmp_path, monkeypatch):
    """Or what is kept of one would be believed of another: of the same size, with a number given again, at one tick of the clock."""
    store = Store()
    one, two = load(tmp_path, [ONE], ref="one"), load(tmp_path, [TWO], ref="two")
    monkeypatch.setattr("dockless.images.catalog.catalog.write_atomic", at_one_moment)
    times = []
    for image in (one, two, one):
        store.tag(image.digest, "moving:1")
        times.append(os.stat(store.list_path).st_mtime_ns)
        assert store.get("moving:1").digest == image.digest
    assert times == sorted(set(times))


def at_one_moment(path: Path, data: bytes, mode: int) -> None:
    path.write_bytes(data)
    path.chmod(mode)
    os.utime(path, (1_000_000_000, 1_000_000_000))


def test_images_are_found_by_digest_and_its_beginning(tmp_path):
    image = load(tmp_path, [ONE])
    hexes = image.digest.partition(":")[2]
    for text in (image.digest, hexes, hexes[:12], f"sha256:{hexes[:8]}", image.config_digest, f"anything@{image.digest}"):
        assert Store().get(text).digest == image.digest, text
    for text in ("nothing", "0" * 64, "sha256:" + "0" * 64, f"x@sha256:{'0' * 64}", hexes[:7]):
        with pytest.raises(UnknownImage) as caught:
            Store().get(text)
        assert "dockless load" in caught.value.hint
    with pytest.raises(BadInput):
        Store().get("UPPER")


def test_the_host_is_an_image():
    image = Store().get("host")
    assert image == host_image()
    assert (image.layers, image.reference, image.is_host) == ((), "host", True)
    image.check_runnable()
    assert image.read_file("/etc/passwd") == Path("/etc/passwd").read_bytes()
    assert image.read_file("/etc/hostname") is None
    assert image.read_file("/etc/../etc/shadow") is None
    assert not paths.store().exists(), "reading makes nothing"


def test_inline_data(tmp_path):
    blobs = make.Blobs()
    entry = blobs.image([ONE], {})
    raw = blobs.pop(entry["digest"])
    (image,) = Store().load(blobs.write(tmp_path / "in", [entry | {"data": base64.b64encode(raw).decode()}]))
    assert image.digest == entry["digest"]
    with pytest.raises(BadDigest):
        Store().load(blobs.write(tmp_path / "bad", [entry | {"data": base64.b64encode(raw + b" ").decode()}]))


def test_blobs_behind_links_inside_the_layout(tmp_path):
    path = make.make_oci_layout(tmp_path / "links", [ONE], {})
    for number, one in enumerate(sorted((path / "blobs/sha256").iterdir())):
        one.rename(path / f"file-{number}")
        if number % 2:
            one.symlink_to(f"../../file-{number}")
        else:
            one.write_text(f"../../file-{number}")  # as a checkout without links has it
    assert tree(Store().load(path)[0].layers)["etc/one"] == "file:1"


def test_one_layer_twice(tmp_path):
    image = load(tmp_path, [ONE, [make.whiteout("etc/one")], ONE])
    assert tree(image.layers)["etc/one"] == "file:1"
    assert len(set(image.layers)) == 3


def test_layers_are_shared_and_not_read_again(tmp_path):
    seen = []
    first = load(tmp_path, [ONE, TWO])
    path = make.make_oci_layout(tmp_path / "other", [ONE, TWO, [make.file("three")]], {}, "other:1")
    (second,) = Store().load(path, progress=seen.append)
    assert second.layers[:2] == first.layers
    assert [one.state for one in seen] == ["shared", "shared", "done"]
    assert [(one.layer, one.layers, one.image) for one in seen][-1] == (3, 3, "docker.io/library/other:1")
    archive = make.make_docker_archive(tmp_path / "a.tar", [make.Built([ONE], {}, ["d:1"])])
    seen.clear()
    Store().load(archive, progress=seen.append)
    assert {one.state for one in seen} == {"done"}, "an archive does not say a layer's digest, so its bytes are checked"


def test_progress_tells_bytes(tmp_path):
    seen = []
    path = make.make_oci_layout(tmp_path / "big", [[make.file("f", os.urandom(5 << 20))]], {}, compression="none")
    Store().load(path, progress=seen.append)
    assert [one.state for one in seen[:-1]] == ["unpacking"] * (len(seen) - 1)
    assert len(seen) >= 5
    assert seen[-1].done == seen[-1].total > 5 << 20


def test_importing_the_package_is_cheap():
    heavy = "isal backports json cffi _cffi_backend"
    code = f"import sys, dockless.images; print([name for name in '{heavy}'.split() if name in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)}
    )
    assert result.stdout.strip() == "[]"


# -- what is refused -----------------------------------------------------------------------------------------------------------------


def sound():
    """Nothing half done is left."""
    store = Store()
    if store.root.exists():
        assert list((store.root / "tmp").iterdir()) == []
        assert [path.name for path in store.root.rglob(".*")] == []
        for image in store.list():
            assert tree(image.layers)


def test_a_wrong_layer_digest(tmp_path):
    path = make.make_oci_layout(tmp_path / "a", [[make.file("f", os.urandom(100_000))]], {})
    layer = largest(path)
    good = layer.read_bytes()
    for bad in (good[:-1], good + b"x", good[:5000] + bytes([good[5000] ^ 0xFF]) + good[5001:], b"", bytes(len(good))):
        layer.write_bytes(bad)
        with pytest.raises(BadDigest) as caught:
            Store().load(path)
        assert str(path) in str(caught.value)
        sound()
    assert Store().list() == []


def test_a_wrong_diff_id(tmp_path):
    with pytest.raises(BadDigest, match="uncompressed content"):
        load(tmp_path, [ONE], rootfs={"type": "layers", "diff_ids": [str(digest.of(b"other"))]})
    sound()


def test_a_wrong_document_digest(tmp_path):
    path = make.make_oci_layout(tmp_path / "a", [ONE], {})
    index = json.loads((path / "index.json").read_text())
    manifest_path = blob(path, index["manifests"][0]["digest"])
    raw = manifest_path.read_bytes()
    config_path = blob(path, json.loads(raw)["config"]["digest"])
    for target in (manifest_path, config_path):
        keep = target.read_bytes()
        target.write_bytes(keep + b" ")
        with pytest.raises(BadDigest):
            Store().load(path)
        target.write_bytes(keep)
    index["manifests"][0]["size"] += 1
    (path / "index.json").write_text(json.dumps(index))
    with pytest.raises(BadDigest, match="bytes, expected"):
        Store().load(path)
    sound()


def test_a_wrong_layer_in_a_docker_archive(tmp_path):
    path = make.make_docker_archive(tmp_path / "a.tar", [make.Built([[make.file("f", "x" * 600)]], {}, ["a:1"])])
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"x" * 600, b"y" * 600))
    with pytest.raises(BadDigest):
        Store().load(path)
    sound()


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("outer", ["none", "gzip", "zstd", "xz", "bzip2"])
def test_a_torn_archive(tmp_path, outer, part):
    path = make.make_oci_layout(tmp_path / "a.tar", [[make.file("f", os.urandom(200_000))]], {}, outer=outer)
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * part)])
    with pytest.raises(BadImage):
        Store().load(path)
    sound()


def test_a_missing_blob(tmp_path):
    path = make.make_oci_layout(tmp_path / "a", [ONE], {})
    next(one for one in (path / "blobs/sha256").iterdir() if one.read_bytes()[:2] == b"\x1f\x8b").unlink()
    with pytest.raises(BadImage, match="lacks the blob") as caught:
        Store().load(path)
    assert "incomplete" in caught.value.hint


def not_images(tmp_path):
    plain = tmp_path / "plain.txt"
    plain.write_text("hello")
    zeros = tmp_path / "zeros"
    zeros.write_bytes(bytes(4096))
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF" + bytes(2000))
    rootfs = tmp_path / "rootfs.tar.gz"
    rootfs.write_bytes(make.compress(make.layer_tar([make.directory("bin"), make.directory("etc"), make.file("bin/sh")]), "gzip"))
    other = tmp_path / "other.tar"
    other.write_bytes(make.layer_tar([make.file("README.md", "hi")]))
    legacy = make.write_files(tmp_path / "legacy.tar", {"repositories": b"{}", "abc/layer.tar": b""})
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "rootdir" / "bin").mkdir(parents=True)
    (tmp_path / "rootdir" / "etc").mkdir()
    layout = make.Blobs().write(tmp_path / "empty-layout", [])
    null = make.write_files(tmp_path / "null.tar", {"manifest.json": b"null"})
    garbage = make.write_files(tmp_path / "garbage", {"index.json": b"{"})
    version = make.write_files(tmp_path / "version", {"index.json": b'{"schemaVersion":2,"manifests":[]}', "oci-layout": b"{}"})
    entry = make.write_files(tmp_path / "entry.tar", {"manifest.json": b'[{"Config": 1}]'})
    config = b'{"rootfs": {"type": "layers", "diff_ids": ["sha256:%s"]}}' % (b"0" * 64)
    torn = make.write_files(tmp_path / "torn.tar", {"manifest.json": b'[{"Config": "c", "Layers": ["one/layer.tar"]}]', "c": config})
    outside = make.write_files(tmp_path / "outside.tar", {"manifest.json": b'[{"Config": "../../etc/passwd", "Layers": []}]'})
    return {
        plain: "only 5 bytes",
        zeros: "not an image: it holds nothing",
        program: "a program, not an image",
        rootfs: "a root file system, not an image",
        other: "it holds 'README.md' but neither",
        legacy: "without manifest.json",
        empty: "not an image: it holds nothing",
        tmp_path / "rootdir": "a root file system, not an image",
        layout: "lists no images",
        null: "lists no images",
        garbage: "not sound JSON",
        version: "unknown version",
        entry: "wrong kind",
        outside: "lacks the configuration",
        torn: "lacks the layer 'one/layer.tar'",
    }


def test_what_is_no_image(tmp_path):
    for path, why in not_images(tmp_path).items():
        with pytest.raises(BadImage, match=re.escape(why)) as caught:
            Store().load(path)
        assert caught.value.subject
    sound()


def test_what_is_not_there(tmp_path):
    with pytest.raises(BadInput, match="No such file"):
        Store().load(tmp_path / "nothing.tar")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(BadInput, match="neither a file nor a directory"):
        Store().load(tmp_path / "fifo")


def test_layers_and_diff_ids_must_agree(tmp_path):
    with pytest.raises(BadImage, match="names 0 layers, its manifest 1"):
        load(tmp_path, [ONE], rootfs={"type": "layers", "diff_ids": []})


def test_an_artifact_among_images_is_passed_over(tmp_path):
    blobs = make.Blobs()
    chart = blobs.image([ONE], {}, manifest={"artifactType": "application/x-chart"})
    with pytest.raises(BadImage, match="artifact of type 'application/x-chart'"):
        Store().load(blobs.write(tmp_path / "chart", [chart]))
    image = blobs.image([ONE], {})
    assert [one.digest for one in Store().load(blobs.write(tmp_path / "both", [chart, image]))] == [image["digest"]]


@pytest.mark.parametrize(
    ("declared", "match"), [(OCI_INDEX, "ambiguous"), (DOCKER_LIST, "ambiguous"), ("application/x", "nothing that is an image")]
)
def test_a_manifest_of_another_type(tmp_path, declared, match):
    blobs = make.Blobs()
    entry = blobs.image([ONE], {}) | {"mediaType": declared}
    with pytest.raises(BadImage, match=match):
        Store().load(blobs.write(tmp_path / "x", [entry]))


def test_docker_and_oci_types_may_mix(tmp_path):
    blobs = make.Blobs()
    entry = blobs.image([ONE], {}, manifest={"mediaType": DOCKER_MANIFEST}) | {"mediaType": OCI_MANIFEST}
    assert Store().load(blobs.write(tmp_path / "x", [entry]))


# -- the store itself ----------------------------------------------------------------------------------------------------------------


def test_a50_the_store_is_private(tmp_path):
    """A50: layers hold setuid files, so no other user may reach them (CVE-2021-41091). The list and the blobs of root's store are inert."""
    image = load(tmp_path, [[make.file("su", "x", 0o4755)]])
    assert stat.S_IMODE((image.layers[0].path / "su").stat().st_mode) == 0o4755
    shared = 0o755 if os.geteuid() == 0 else 0o700
    assert stat.S_IMODE(Store().root.stat().st_mode) == shared
    for path in Store().root.rglob("*"):
        parts = path.relative_to(Store().root).parts
        if path.is_dir() and "fs" not in parts:
            assert stat.S_IMODE(path.stat().st_mode) == (shared if parts[0] in ("blobs", "diffs") else 0o700), path


def test_left_overs_of_a_crash_are_removed(tmp_path):
    load(tmp_path, [ONE])
    left = Store().root / "tmp" / "abandoned" / "layer"
    left.mkdir(parents=True)
    (left / "f").write_text("x")
    load(tmp_path, [TWO])
    sound()


def test_a_store_that_lost_something_says_so(tmp_path):
    image = load(tmp_path, [ONE])
    kept = Store().root / "blobs" / image.digest.replace(":", "/")
    raw = kept.read_bytes()
    kept.write_bytes(raw + b" ")
    with pytest.raises(BadDigest):
        Store().get("test")
    kept.unlink()
    with pytest.raises(BadImage, match="lacks its document"):
        Store().get("test")
    kept.write_bytes(raw)
    image.layers[0].path.rename(tmp_path / "away")
    with pytest.raises(BadImage, match="lacks its layer"):
        Store().get("test")
    for text in ("{", "[]", "{}", '{"images": [], "tags": {}}'):
        (Store().root / "images.json").write_text(text)
        with pytest.raises(BadImage, match="damaged"):
            Store().list()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_store_of_somebody_else(tmp_path):
    Store().prepare()
    Store().root.chmod(0)
    try:
        with pytest.raises(ImageError, match="cannot read the image store"):
            Store().get("x")
        with pytest.raises(ImageError, match="cannot load"):
            load(tmp_path, [ONE])
    finally:
        Store().root.chmod(0o700)


def test_a_store_that_cannot_be_written(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    path = make.make_oci_layout(tmp_path / "a", [ONE], {})
    with pytest.raises(Exception, match="cannot load") as caught:
        Store(blocked / "store").load(path)
    assert str(blocked) in caught.value.hint
