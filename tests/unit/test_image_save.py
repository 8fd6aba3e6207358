"""Save: every format is loaded again with the same digests, shared blobs are written once, nothing half written stays."""

from __future__ import annotations

import io
import json
import tarfile

import pytest
from support import make_image as make
from support.layers import load, tree

from dockless.errors import BadDigest, BadImage, BadInput, ImageError, UnknownImage
from dockless.images import Store
from dockless.images.archive.save import save
from dockless.images.layers.compression import Decompressed
from dockless.images.model import digest

BASE = [make.directory("etc"), make.file("etc/passwd", "root")]


@pytest.fixture
def images(tmp_path):
    """Two images with one layer in common, and one without a name."""
    return [
        load(tmp_path, [BASE, [make.file("one", "1")]], ref="one:1", config={"Cmd": ["one"]}),
        load(tmp_path, [BASE, [make.file("two", "2")]], ref="registry.example:5000/deep/two:v2", compression="zstd"),
        load(tmp_path, [BASE], ref=None, compression="none"),
    ]


def again(tmp_path, path):
    return Store(tmp_path / "again").load(path)


def facts(images):
    return sorted((image.reference or "", image.digest, image.config_digest, tuple(tree(image.layers).items())) for image in images)


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_an_oci_tar_comes_back_the_same(tmp_path, images, compression):
    path = tmp_path / "out.tar"
    save(Store(), images, path, compression=compression)
    assert facts(again(tmp_path, path)) == facts(images)
    first = path.read_bytes()
    save(Store(), [image.reference or image.digest for image in images], path, compression=compression)
    assert path.read_bytes() == first
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_what_is_in_an_oci_tar(tmp_path, images):
    out = io.BytesIO()
    save(Store(), [images[0], images[0], images[1]], out)
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as archive:
        names = archive.getnames()
        index = json.load(archive.extractfile("index.json"))
        docker = json.load(archive.extractfile("manifest.json"))
        assert {(info.uid, info.mtime, info.mode) for info in archive if info.isreg()} == {(0, 0, 0o644)}
    assert len(names) == len(set(names)) and names[:3] == ["oci-layout", "index.json", "manifest.json"]
    assert len([name for name in names if name.count("/") == 2]) == 2 + 2 + 4  # the gzip and the zstd form of a layer are two blobs
    assert [entry["annotations"]["org.opencontainers.image.ref.name"] for entry in index["manifests"]] == [
        "docker.io/library/one:1",
        "registry.example:5000/deep/two:v2",
    ]
    assert [entry["RepoTags"] for entry in docker] == [["docker.io/library/one:1"], ["registry.example:5000/deep/two:v2"]]
    assert all(layer in names for entry in docker for layer in [*entry["Layers"], entry["Config"]])


def test_an_oci_directory_takes_more_images(tmp_path, images):
    place = tmp_path / "out"
    save(Store(), images[:1], place, format="oci-dir")
    assert facts(again(tmp_path, place)) == facts(images[:1])
    save(Store(), images, place, format="oci-dir")
    save(Store(), images, place, format="oci-dir")
    assert facts(Store(tmp_path / "third").load(place)) == facts(images)
    other = load(tmp_path, [BASE, [make.file("new", "n")]], ref="one:1")
    save(Store(), [other], place, format="oci-dir")
    found = {image.reference: image.digest for image in Store(tmp_path / "fourth").load(place)}
    assert found["docker.io/library/one:1"] == other.digest and len(found) == 3


@pytest.mark.parametrize("index", [True, False])
def test_a_docker_archive_keeps_image_ids(tmp_path, images, index):
    store = Store()
    if not index:
        for image in images:
            for diff_id in store.documents(image.digest, "test")[2].diff_ids:
                store.tar_path(diff_id).unlink(missing_ok=True)
    out = io.BytesIO()
    save(store, [image.digest for image in images[:2]] + ["one:1"], out, format="docker-archive", compression="gzip")
    path = tmp_path / "out.tar.gz"
    path.write_bytes(out.getvalue())
    with tarfile.open(path) as archive:
        assert len(archive.getnames()) == len(set(archive.getnames())) == 3 + 2 + 1
    loaded = again(tmp_path, path)
    assert {image.config_digest for image in loaded} == {image.config_digest for image in images[:2]}
    assert [image.reference for image in loaded if image.reference] == ["docker.io/library/one:1"]


def test_blobs_that_are_gone_are_told_before_anything_is_written(tmp_path, images):
    store = Store()
    _, parsed, _ = store.documents(images[0].digest, "test")
    store.blob_path(parsed.layers[0].digest).unlink()
    with pytest.raises(BadImage, match=r"docker.io/library/one:1: the store does not keep the blob sha256:") as caught:
        save(store, images, tmp_path / "out.tar")
    assert "pull or load" in caught.value.hint and not (tmp_path / "out.tar").exists()


@pytest.mark.parametrize("format", ["oci-tar", "oci-dir"])
@pytest.mark.parametrize("damage", ["flip", "shorter", "longer"])
def test_a_damaged_blob_ends_the_save(tmp_path, images, format, damage):
    store = Store()
    _, parsed, _ = store.documents(images[0].digest, "test")
    blob = store.blob_path(parsed.layers[1].digest)
    data = blob.read_bytes()
    blob.write_bytes({"flip": data[:-1] + bytes([data[-1] ^ 1]), "shorter": data[:-1], "longer": data + b"x"}[damage])
    with pytest.raises((BadDigest, BadImage)):
        save(store, images, tmp_path / "out", format=format)
    assert not (tmp_path / "out").is_file() and not (tmp_path / "out/index.json").exists()
    assert not list(tmp_path.rglob(".*"))


def test_bad_arguments(tmp_path, images):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    for arguments, more in (
        (([], tmp_path / "x"), {}),
        ((images, tmp_path / "x"), {"format": "zip"}),
        ((images, tmp_path / "x"), {"compression": "xz"}),
        ((images, io.BytesIO()), {"format": "oci-dir"}),
        ((images, tmp_path / "full"), {"format": "oci-dir"}),
        ((images, tmp_path / "full"), {}),
        ((["host"], tmp_path / "x"), {}),
    ):
        with pytest.raises(BadInput):
            save(Store(), *arguments, **more)
    with pytest.raises(UnknownImage):
        save(Store(), ["none:1"], tmp_path / "x")
    with pytest.raises(ImageError, match=r"cannot write .*x\.tar: No such file"):
        save(Store(), images, tmp_path / "missing/x.tar")


def test_a_pipe_is_written_to(tmp_path, images):
    import os
    import threading

    os.mkfifo(tmp_path / "pipe")
    thread = threading.Thread(target=save, args=(Store(), images[:1], tmp_path / "pipe"), kwargs={"compression": "gzip"})
    thread.start()
    raw = (tmp_path / "pipe").read_bytes()
    thread.join()
    with tarfile.open(fileobj=Decompressed(io.BytesIO(raw), "test"), mode="r|") as archive:
        assert "index.json" in archive.getnames()
    assert digest.of(raw) and (tmp_path / "pipe").is_fifo()
