"""Commit: documents, digests, compression; the kernel's own uppers are in tests/integration/test_image_diff.py."""

from __future__ import annotations

import datetime
import gzip
import io
import json
import os
import socket
import tarfile

import pytest
from support import make_image as make
from support.layers import load, tree
from support.uppers import own_map

from dockless.errors import BadImage, BadInput, ImageError
from dockless.images import Store, host_image
from dockless.images.archive.assemble import Created, Edit, new_config
from dockless.images.archive.commit import commit
from dockless.images.archive.diff import Upper, write_layer
from dockless.images.archive.packing import Packer
from dockless.images.catalog import pins
from dockless.images.model import digest

BASE = [make.directory("etc"), make.file("etc/passwd", "root"), make.file("file", "file")]


@pytest.fixture
def base(tmp_path):
    return load(
        tmp_path,
        [BASE],
        config={"Env": ["PATH=/bin", "A=1"], "Cmd": ["sh"], "Healthcheck": {"Test": ["NONE"]}, "Labels": {"a": "1", "b": "2"}},
        container="of the build",
    )


def upper_with(place, files: dict[str, str], name="upper") -> Upper:
    root = place / name
    root.mkdir(mode=0o755)
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Upper(root, own_map(), userxattr=os.geteuid() != 0)


def config_of(image) -> dict:
    return json.loads(Store().read_blob(digest.parse(image.config_digest), "test"))


def manifest_of(image) -> dict:
    return json.loads(Store().read_blob(digest.parse(image.digest), "test"))


def test_a_commit_is_an_image_with_one_more_layer(tmp_path, base):
    upper = upper_with(tmp_path, {"etc/new": "new", "file": "changed"})
    image = commit(Store(), base, upper, reference="made:1", created=1_700_000_000, created_by="sh -c make")
    assert image.reference == "docker.io/library/made:1" and len(image.layers) == 2 and image.config == base.config
    assert tree(image.layers) == {"etc": "dir", "etc/passwd": "file:root", "etc/new": "file:new", "file": "file:changed"}
    assert Store().get("made:1") == image and image.created == "2023-11-14T22:13:20Z"
    told = config_of(image)
    assert told["history"] == [
        {"created_by": "not recorded by the base image"},
        {"created": "2023-11-14T22:13:20Z", "created_by": "sh -c make"},
    ]
    assert "container" not in told and told["config"]["Healthcheck"] == {"Test": ["NONE"]}
    layers = manifest_of(image)["layers"]
    assert layers[0] == manifest_of(base)["layers"][0] and layers[1]["mediaType"].endswith("tar+gzip")
    assert told["rootfs"]["diff_ids"][0] == config_of(base)["rootfs"]["diff_ids"][0]
    blob = Store().blob_path(digest.parse(layers[1]["digest"])).read_bytes()
    assert len(blob) == layers[1]["size"] and str(digest.of(gzip.decompress(blob))) == told["rootfs"]["diff_ids"][1]
    assert not list((Store().root / "tmp").iterdir())


def test_what_a_layer_cannot_hold_is_told(tmp_path, base):
    """Each reason once, with an example and how many more there are."""
    upper = upper_with(tmp_path, {"etc/kept": "kept", "etc/odd": "odd"})
    for name in ("one", "two", "three"):
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(upper.path / name))
    for key, value in (("user.kept", b"1"), ("user.overlay.origin", b"2"), ("user.a=b", b"3")):
        os.setxattr(upper.path / "etc/odd", key, value)
    image = commit(Store(), base, upper)
    assert sorted(image.warnings) == ["dropped: an xattr with '=' in its name: 'etc/odd'", "left out: a socket: 'one' and 2 more"]
    (upper.path / "three").unlink()
    assert "left out: a socket: 'one' and 1 more" in commit(Store(), base, upper).warnings
    made = Store().blob_path(digest.parse(manifest_of(image)["layers"][1]["digest"])).read_bytes()
    with tarfile.open(fileobj=io.BytesIO(made)) as tar:
        assert {key for key in tar.getmember("etc/odd").pax_headers if key.startswith("SCHILY")} == {"SCHILY.xattr.user.kept"}


def test_the_same_changes_at_a_given_time_are_the_same_image(tmp_path, base, monkeypatch):
    first = commit(Store(), base, upper_with(tmp_path, {"a/b": "c"}, "one"), created=1_000_000_000)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")
    second = commit(
        Store(tmp_path / "other"), load(tmp_path, [BASE], Store(tmp_path / "other"), config={}), upper_with(tmp_path, {"a/b": "c"}, "two")
    )
    assert (
        config_of(first)["rootfs"] == json.loads(Store(tmp_path / "other").read_blob(digest.parse(second.config_digest), "test"))["rootfs"]
    )
    third = commit(Store(), base, upper_with(tmp_path, {"a/b": "c"}, "three"))
    assert third.digest == first.digest
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    assert commit(Store(), base, upper_with(tmp_path, {"a/b": "c"}, "four")).digest != first.digest


def test_the_base_is_kept_while_it_is_committed_to(tmp_path, base):
    upper, used = upper_with(tmp_path, {"f": "x"}), []

    def write(out, clamp):
        used.append(pins.is_used(Store(), base.digest))
        return write_layer(upper, base.layers, out, clamp=clamp)

    assert tree(commit(Store(), base, write).layers)["f"] == "file:x"
    assert used == [True] and not pins.is_used(Store(), base.digest)


def test_an_upper_without_changes_adds_no_layer(tmp_path, base):
    image = commit(Store(), base, upper_with(tmp_path, {}), reference="same", edit=Edit(labels={"c": "3"}))
    assert image.layers == base.layers and dict(image.config.labels)["c"] == "3"
    assert config_of(image)["history"][-1]["empty_layer"] is True


@pytest.mark.parametrize(("compression", "level"), [("none", None), ("gzip", 1), ("gzip", 6), ("zstd", None), ("zstd", 19)])
def test_every_compression(tmp_path, base, compression, level):
    image = commit(Store(), base, upper_with(tmp_path, {"f": "x" * 100_000}), compression=compression, level=level)
    entry = manifest_of(image)["layers"][1]
    assert entry["mediaType"] == "application/vnd.oci.image.layer.v1.tar" + {"none": ""}.get(compression, f"+{compression}")
    assert tree(image.layers)["f"] == "file:" + "x" * 100_000
    assert entry["size"] > 100_000 if compression == "none" else entry["size"] < 3000


def test_gzip_has_no_time_and_no_name():
    made = []
    for _ in range(2):
        out = io.BytesIO()
        packer = Packer(out, "gzip")
        packer.write(b"hello" * 1000)
        packer.close()
        made.append(out.getvalue())
    assert made[0] == made[1] and made[0][:10] == b"\x1f\x8b\x08\0\0\0\0\0\0\xff" and gzip.decompress(made[0]) == b"hello" * 1000


def test_a_failing_output_is_told_and_ends_the_thread():
    class Full:
        def write(self, data):
            raise OSError(28, "No space left on device")

    packer = Packer(Full(), "none")
    with pytest.raises(OSError, match="No space"):
        for _ in range(1000):
            packer.write(b"x" * 100)
        packer.close()
    packer.abort()


def test_bad_arguments(tmp_path, base):
    upper = upper_with(tmp_path, {"f": "x"})
    for more in ({"compression": "xz"}, {"level": 0}, {"compression": "none", "level": 1}, {"reference": "Bad Name"}, {"created": 1e99}):
        with pytest.raises(BadInput):
            commit(Store(), base, upper, **more)
    with pytest.raises(BadInput, match="time zone"):
        commit(Store(), base, upper, created=datetime.datetime(2020, 1, 1))
    with pytest.raises(BadInput, match="the host is no image"):
        commit(Store(), host_image(), upper)
    with pytest.raises(ImageError, match="cannot read the upper"):
        commit(Store(), base, Upper(tmp_path / "none"))
    assert len(Store().list()) == 1 and not list((Store().root / "tmp").iterdir())


def test_a_base_whose_blobs_are_gone(tmp_path, base):
    for entry in manifest_of(base)["layers"]:
        Store().blob_path(digest.parse(entry["digest"])).unlink()
    with pytest.raises(BadImage, match="does not keep the blob") as caught:
        commit(Store(), base, upper_with(tmp_path, {"f": "x"}))
    assert "load that image again" in caught.value.hint


def test_docker_types_become_oci_types(tmp_path):
    blobs = make.Blobs()
    tar = make.layer_tar(BASE)
    config_raw = make.to_json(make.image_config([make.digest_of(tar)], {}))
    document = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": blobs.add(config_raw, "application/vnd.docker.container.image.v1+json"),
        "layers": [blobs.add(make.compress(tar, "gzip"), "application/vnd.docker.image.rootfs.diff.tar.gzip")],
    }
    path = blobs.write(tmp_path / "layout", [blobs.add(make.to_json(document), document["mediaType"])])
    (docker,) = Store().load(path)
    made = manifest_of(commit(Store(), docker, upper_with(tmp_path, {"f": "x"}), compression="zstd"))
    assert made["config"]["mediaType"] == "application/vnd.oci.image.config.v1+json"
    assert [entry["mediaType"].rpartition(".")[2] for entry in made["layers"]] == ["tar+gzip", "tar+zstd"]
    assert made["layers"][0]["digest"] == document["layers"][0]["digest"]


def test_edits(tmp_path, base):
    edit = Edit.parse(
        [
            "CMD a b", 'ENTRYPOINT ["/bin/x", "-y"]', "ENV A=2 B='x y'", "ENV C d e", "LABEL a=9", "USER app", "WORKDIR /w/../v",
            "EXPOSE 80 53/udp", "VOLUME /data", "STOPSIGNAL SIGINT",
        ],
        author="me",
        comment="why",
    )  # fmt: skip
    image = commit(Store(), base, upper_with(tmp_path, {}), edit=edit)
    config = image.config
    assert config.cmd == ("/bin/sh", "-c", "a b") and config.entrypoint == ("/bin/x", "-y") and config.user == "app"
    assert dict(config.env) == {"PATH": "/bin", "A": "2", "B": "x y", "C": "d e"} and config.working_dir == "/v"
    assert (config.volumes, config.stop_signal, dict(config.labels)) == (("/data",), 2, {"a": "9", "b": "2"})
    told = config_of(image)
    assert told["config"]["ExposedPorts"] == {"80/tcp": {}, "53/udp": {}} and told["author"] == "me"
    assert told["history"][-1]["comment"] == "why" and told["history"][-1]["author"] == "me"
    removed = commit(
        Store(), image, upper_with(tmp_path, {}, "u2"), edit=Edit(env={"A": None}, labels={"a": None}, entrypoint=("/e",))
    ).config
    assert "A" not in dict(removed.env) and removed.labels == (("b", "2"),) and removed.cmd == () and removed.entrypoint == ("/e",)


_EMPTY = ["", "ENV A", "ENV =x", "LABEL", "LABEL =x", "CMD", "ENTRYPOINT", "USER", "WORKDIR", "VOLUME", "EXPOSE", "STOPSIGNAL"]


@pytest.mark.parametrize(
    "bad", ["RUN x", "ENV", "ENV A=1 B", "EXPOSE x", "VOLUME data", "STOPSIGNAL NOPE", "WORKDIR w", "LABEL 'a", *_EMPTY]
)
def test_changes_that_are_none(bad):
    with pytest.raises(BadInput) as caught:
        Edit.parse([bad])
    assert caught.value.hint


def test_a_history_that_does_not_fit_is_replaced():
    raw = make.to_json({"history": [{"created_by": "x"}], "rootfs": {"type": "layers", "diff_ids": ["sha256:" + "0" * 64] * 2}})
    made = json.loads(new_config(raw, None, Edit(), Created.of(0), "y"))
    assert [entry["created_by"] for entry in made["history"]] == ["not recorded by the base image"] * 2 + ["y"]
