"""Export and import: the merged tree as one tar, and a tar as an image; what was exported comes back."""

from __future__ import annotations

import io
import os
import tarfile

import pytest
from support import make_image as make
from support.layers import load, tree
from support.uppers import own_map

from dockless.errors import BadImage, BadInput, ImageError, UnsafeLayer
from dockless.images import Store, UnpackLimits, host_image, subid
from dockless.images.archive.assemble import Edit
from dockless.images.archive.diff import Upper
from dockless.images.archive.export import export
from dockless.images.archive.importing import import_root
from dockless.images.model.platforms import Platform

LAYERS = [
    [
        make.directory("etc"),
        make.file("etc/passwd", "root", uid=5, gid=6),
        make.file("gone", "x"),
        make.directory("d"),
        make.file("d/1", "1"),
    ],
    [
        make.whiteout("gone"),
        make.directory("d"),
        make.opaque("d"),
        make.file("d/2", "2"),
        make.symlink("s", "d/2"),
        make.hardlink("h", "d/2"),
    ],
    [make.directory("etc", 0o700), make.file("etc/hosts", "h", 0o4755)],
]


@pytest.fixture
def image(tmp_path):
    return load(tmp_path, LAYERS)


def exported(image, **more) -> list[tarfile.TarInfo]:
    out = io.BytesIO()
    written = export(image, out, **more)
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as archive:
        members = archive.getmembers()
    assert (written.members, written.size) == (len(members), sum(member.size for member in members if member.isreg()))
    return members


def test_the_export_is_the_merged_tree(image):
    found = {info.name: info for info in exported(image)}
    assert list(found) == [".", "d", "d/2", "etc", "etc/hosts", "etc/passwd", "h", "s"]
    assert (found["etc"].mode, found["etc/hosts"].mode, found["h"].linkname, found["s"].linkname) == (0o700, 0o4755, "d/2", "d/2")
    single = os.geteuid() != 0 and subid.ids() is None
    assert (found["etc/passwd"].uid, found["etc/passwd"].gid) == ((0, 0) if single else (5, 6))


def test_with_an_upper_on_top(tmp_path, image):
    upper = tmp_path / "upper"
    (upper / "etc").mkdir(parents=True)
    (upper / "etc/new").write_text("new")
    (upper / "d").write_text("a file now")
    found = {info.name: info for info in exported(image, upper=Upper(upper, own_map(), userxattr=os.geteuid() != 0), created=0)}
    assert list(found) == [".", "d", "etc", "etc/hosts", "etc/new", "etc/passwd", "h", "s"]
    assert found["d"].isreg() and found["h"].isreg() and found["etc/new"].uid == 0 and {info.mtime for info in found.values()} == {0}


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_what_was_exported_comes_back(tmp_path, image, compression):
    path = tmp_path / "root.tar"
    export(image, path, compression=compression)
    edit = Edit(cmd=("sh",), env={"A": "1"}, user="app", comment="imported")
    made = import_root(Store(), path, reference="made:1", edit=edit, created=0)
    assert tree(made.layers) == tree(image.layers) and len(made.layers) == 1
    assert (made.config.cmd, made.config.env, made.config.user) == (("sh",), (("A", "1"),), "app")
    made.check_runnable()
    _, parsed, _ = Store().documents(made.digest, "test")
    assert parsed.layers[0].media_type.endswith("+zstd" if compression == "zstd" else "+gzip")
    if compression != "none":
        assert Store().blob_path(parsed.layers[0].digest).read_bytes() == path.read_bytes()
    assert import_root(Store(), path, edit=edit, created=0).digest == made.digest
    assert not list((Store().root / "tmp").iterdir())


@pytest.mark.parametrize("compression", ["xz", "bzip2", "gzip"])
def test_other_compressions_and_streams(compression):
    raw = make.compress(make.layer_tar(LAYERS[0]), compression)
    made = import_root(Store(), io.BytesIO(raw), compression="none", platform=Platform("linux", "arm", "v6"))
    assert tree(made.layers)["etc/passwd"] == "file:root" and str(made.platform) == "linux/arm/v6" and made.reference is None
    _, parsed, _ = Store().documents(made.digest, "test")
    assert Store().blob_path(parsed.layers[0].digest).read_bytes() == make.layer_tar(LAYERS[0])


def test_an_export_of_nothing_is_an_image(tmp_path):
    assert import_root(Store(), io.BytesIO(bytes(1024))).layers


def test_what_is_no_root_file_system(tmp_path):
    for data, error in (
        (b"", BadImage),
        (b"hello" * 500, BadImage),
        (make.compress(b"hello" * 500, "gzip"), BadImage),
        (make.layer_tar(LAYERS[0])[:1000], BadImage),
        (make.compress(make.layer_tar(LAYERS[0]), "gzip")[:-9], BadImage),
        (make.layer_tar([make.file("../x", "x")]), UnsafeLayer),
    ):
        with pytest.raises(error):
            import_root(Store(), io.BytesIO(data))
    for path, error in ((tmp_path, BadInput), (tmp_path / "none", ImageError)):
        with pytest.raises(error):
            import_root(Store(), path)
    with pytest.raises(ImageError, match="more than 1000 bytes"):
        import_root(Store(limits=UnpackLimits(size=1000)), io.BytesIO(make.layer_tar([make.file("x", b"x" * 5000)])))
    assert Store().list() == [] and not list((Store().root / "tmp").iterdir())


def test_an_empty_tree_is_an_image_with_an_empty_layer(tmp_path):
    image = import_root(Store(), io.BytesIO(make.layer_tar([])))
    assert len(image.layers) == 1 and tree(image.layers) == {}


def test_the_host_is_not_exported(tmp_path):
    with pytest.raises(BadInput):
        export(host_image(), tmp_path / "x")
    assert not (tmp_path / "x").exists()
