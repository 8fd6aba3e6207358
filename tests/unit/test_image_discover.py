"""What an OCI layout or a docker-save archive holds, from files made up: which images, under which names, and what is said of the rest."""

from __future__ import annotations

import io
import json

import pytest

from dockless.errors import BadDigest, BadImage
from dockless.images.archive import discover
from dockless.images.model import digest, platforms
from dockless.images.model.manifest import CONTAINERD_NAME, DOCUMENT_MAX, OCI_CONFIG, OCI_INDEX, OCI_LAYER, OCI_MANIFEST, REF_NAME

HERE = platforms.host()
FOREIGN = [{"os": "linux", "architecture": name} for name in ("s390x", "mips64le")]


class Files:
    """A source of these files; counts those that are still open."""

    def __init__(self, files: dict[str, bytes], what: str = "/d/Thing.tar.gz") -> None:
        self.files, self.what, self.opened = files, what, []

    def open(self, name):
        if name not in self.files:
            return None
        self.opened.append(io.BytesIO(self.files[name]))
        return self.opened[-1]

    def names(self):
        return list(self.files)

    def close(self): ...


class Layout(dict):
    """The files of an OCI layout, blobs by their digests."""

    def blob(self, raw, media_type, **more):
        if not isinstance(raw, bytes):
            raw = json.dumps(raw).encode()
        name = digest.of(raw)
        self[f"blobs/sha256/{name.hex}"] = raw
        return {"mediaType": media_type, "digest": str(name), "size": len(raw), **more}

    def image(self, cmd="x", layers=0, **more):
        diff_ids = [f"sha256:{number:064}" for number in range(layers)]
        config = self.blob({"config": {"Cmd": [cmd]}, "rootfs": {"diff_ids": diff_ids}}, OCI_CONFIG)
        rows = [self.blob(f"{cmd} layer {number}".encode(), OCI_LAYER) for number in range(layers)]
        return self.blob({"schemaVersion": 2, "config": config, "layers": rows}, OCI_MANIFEST, **more)

    def found(self, *entries, what="/d/Thing.tar.gz"):
        self["index.json"] = json.dumps({"schemaVersion": 2, "manifests": list(entries)}).encode()
        source = Files(self, what)
        images = discover.candidates(source)
        assert all(stream.closed for stream in source.opened)
        return images


def named(name):
    return {"annotations": {REF_NAME: name}}


def commands(images):
    return [image.document.config.cmd[0] for image in images]


def test_images_of_a_layout():
    layout = Layout({"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'})
    (one, two) = layout.found(layout.image("a", 2, **named("a:1")), layout.image("b", **named("example.com/b:2")))
    assert [image.names for image in (one, two)] == [("docker.io/library/a:1",), ("example.com/b:2",)]
    assert one.document.config.cmd == ("a",) and digest.of(one.manifest).hex in one.what and one.config in layout.values()
    assert [layer.open().read() for layer in one.layers] == [b"a layer 0", b"a layer 1"]
    assert [(layer.digest, layer.size) for layer in one.layers] == [(digest.of(b"a layer 0"), 9), (digest.of(b"a layer 1"), 9)]
    assert one.layers[0].what == f"/d/Thing.tar.gz: layer {digest.of(b'a layer 0')}" and one.warnings == ()
    del layout[f"blobs/sha256/{digest.of(b'a layer 1').hex}"]
    with pytest.raises(BadImage, match="lacks the blob") as caught:
        one.layers[1].open()
    assert caught.value.subject == "/d/Thing.tar.gz"


@pytest.mark.parametrize("layout", [b"[]", b"{}", b'{"imageLayoutVersion": "1.1.0"}', b'{"imageLayoutVersion": null}', b"1"])
def test_layouts_of_another_version(layout):
    files = Layout({"oci-layout": layout})
    with pytest.raises(BadImage, match="unknown version"):
        files.found(files.image())


def test_several_platforms_under_one_name_are_one_image():
    layout = Layout()
    here = {"platform": {"os": "linux", "architecture": HERE.architecture}}
    foreign = [layout.image(f"f{number}", platform=one, **named("a:1")) for number, one in enumerate(FOREIGN)]
    other = layout.image("other", **here, **named("b:1"))
    plain = layout.image("plain", **named("a:1"))
    mark = layout.image("attestation", platform={"os": "unknown", "architecture": "unknown"}, **named("a:1"))
    thing = layout.blob(b"{}", "application/x-thing")
    assert commands(layout.found(thing, mark, *foreign, other, plain, layout.image("here", **here, **named("a:1")))) == [
        "here",
        "other",
        "plain",
    ]


def test_where_no_platform_suits_the_first_that_is_there_is_taken():
    layout = Layout()
    foreign = [layout.image(f"f{number}", platform=one) for number, one in enumerate(FOREIGN)]
    assert commands(layout.found(*foreign)) == ["f0"]
    raw = layout.pop(f"blobs/sha256/{foreign[0]['digest'].partition(':')[2]}")
    assert commands(layout.found(*foreign)) == ["f1"]
    import base64

    carried = foreign[0] | {"data": base64.b64encode(raw).decode()}
    assert commands(layout.found(carried, foreign[1])) == ["f0"], "what the index carries is there"


def test_an_index_in_the_layout_is_followed():
    layout = Layout()
    inner = layout.blob({"schemaVersion": 2, "manifests": [layout.image("inner")]}, OCI_INDEX, **named("a:1"))
    (image,) = layout.found(inner)
    assert (image.document.config.cmd, image.names) == (("inner",), ("docker.io/library/a:1",))
    layout["index.json"] = layout[f"blobs/sha256/{layout.image()['digest'].partition(':')[2]}"]
    with pytest.raises(BadImage, match=r"index\.json is not an index"):
        discover.candidates(Files(layout))


def test_artifacts_are_left_out():
    layout = Layout()
    chart = layout.blob({"schemaVersion": 2, "config": layout.blob(b"{}", "application/x-chart"), "layers": []}, OCI_MANIFEST)
    assert commands(layout.found(chart, layout.image("a"))) == ["a"]
    with pytest.raises(BadImage, match="an artifact of type 'application/x-chart'"):
        layout.found(chart)
    with pytest.raises(BadImage, match="lists nothing that is an image"):
        layout.found(layout.blob(b"{}", "application/x-thing"))


@pytest.mark.parametrize(
    ("what", "name", "full"),
    [
        ("/d/Thing.tar.gz", "1.0", "docker.io/library/thing:1.0"),
        ("/d/thing.tar", "1.0", "docker.io/library/thing:1.0"),
        ("/d/thing.oci", "1.0", "docker.io/library/thing:1.0"),
        ("/d/thing.tgz", "1.0", "docker.io/library/thing:1.0"),
        ("/d/thing/", "1.0", "docker.io/library/thing:1.0"),
        ("/", "1.0", "docker.io/library/1.0:latest"),
        ("/d/thing", "a/b", "docker.io/a/b:latest"),
        ("/d/thing", "a@sha256:" + "1" * 64, "docker.io/library/a:latest"),
        ("/d/thing", "example.com:5/a", "example.com:5/a:latest"),
    ],
)
def test_names(what, name, full):
    layout = Layout()
    (image,) = layout.found(layout.image(**named(name)), what=what)
    assert (image.names, image.warnings) == ((full,), ())


def test_names_that_are_none():
    layout = Layout()
    images = layout.found(
        layout.image("a"), layout.image("b", **named("a/UPPER" + "x" * 200)), layout.image("c", annotations={CONTAINERD_NAME: "c:1"})
    )
    assert [image.names for image in images] == [(), (), ("docker.io/library/c:1",)]
    assert [len(image.warnings) for image in images] == [0, 1, 0]
    assert images[1].warnings[0].startswith("loaded without a name: 'a/UPPERxxx") and "x" * 100 not in images[1].warnings[0]


def test_a_link_as_a_file():
    """A checkout without links has a link's text in its place; one that is as long as the blob should be is the blob."""
    layout = Layout()
    entry = layout.image("a")
    place = f"blobs/sha256/{entry['digest'].partition(':')[2]}"
    layout["there"] = layout[place]
    layout[place] = b"../../there"
    assert commands(layout.found(entry)) == ["a"]
    layout[place] = b"../../there" + b"x" * 300
    with pytest.raises(BadDigest):
        layout.found(entry)
    text = layout.blob(b"../../there", OCI_LAYER)
    layer = discover._oci_layer(Files(layout), discover.manifest._descriptor(text, "test"))
    assert layer.open().read() == b"../../there"


@pytest.mark.parametrize("name", ["index.json", "oci-layout"])
def test_a_document_may_be_so_large_and_no_larger(name):
    layout = Layout({"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'})
    entry = layout.image("a")
    layout.found(entry)
    layout[name] += b" " * (DOCUMENT_MAX - len(layout[name]))
    assert commands(discover.candidates(Files(layout))) == ["a"]
    layout[name] += b" "
    with pytest.raises(BadImage, match="is larger than"):
        discover.candidates(Files(layout))


def test_a_configuration_may_be_so_large_and_no_larger():
    layout = Layout()
    for size, fits in ((DOCUMENT_MAX, True), (DOCUMENT_MAX + 1, False)):
        config = layout.blob(b'{"config": {"Cmd": ["a"]}}'.ljust(size), OCI_CONFIG)
        entry = layout.blob({"schemaVersion": 2, "config": config, "layers": []}, OCI_MANIFEST)
        if fits:
            assert commands(layout.found(entry)) == ["a"]
        else:
            with pytest.raises(BadImage, match="is larger than"):
                layout.found(entry)


# -- docker save ---------------------------------------------------------------------------------------------------------------------

CONFIG = json.dumps({"config": {"Cmd": ["d"]}, "rootfs": {"diff_ids": ["sha256:" + "1" * 64]}}).encode()
HEX = digest.of(CONFIG).hex
ENTRY = {"Config": f"{HEX}.json", "RepoTags": ["a:1", "UPPER:2", "b"], "Layers": ["l/layer.tar"]}


def archive(*entries, **files):
    every = {"manifest.json": json.dumps(list(entries)).encode(), f"{HEX}.json": CONFIG, "l/layer.tar": b"layer"}
    return Files(every | files)


def test_images_of_a_docker_archive():
    (image,) = discover.candidates(archive(ENTRY))
    assert image.names == ("docker.io/library/a:1", "docker.io/library/b:latest")
    assert image.warnings == ("the tag 'UPPER:2' is not a valid reference and was left out",)
    assert (image.manifest, image.config, image.document.config.cmd) == (None, CONFIG, ("d",))
    (layer,) = image.layers
    assert (layer.digest, layer.size, layer.open().read()) == (None, None, b"layer")
    (plain,) = discover.candidates(archive(ENTRY | {"RepoTags": None}))
    assert (plain.names, plain.warnings) == ((), ())
    (empty,) = discover.candidates(archive({"Config": "c", "Layers": None}, c=b"{}"))
    assert (empty.layers, empty.warnings) == ((), ())


@pytest.mark.parametrize("document", [b"null", b"[]", b'{"a": 1}', b"7", json.dumps([None] * 10_001).encode()])
def test_archives_that_list_no_images(document):
    with pytest.raises(BadImage, match="lists no images"):
        discover.candidates(Files({"manifest.json": document}))


@pytest.mark.parametrize(
    "entry",
    [
        {"RepoTags": [1]},
        {"RepoTags": "a:1"},
        {"Layers": "l/layer.tar"},
        {"Layers": [None]},
        {"Layers": {"l/layer.tar": 1}},
        {"Config": None},
        {"Config": ["c"]},
        {"RepoTags": ["a:1"] * 10_001},
        {"Layers": ["l"] * 10_001},
    ],
)
def test_entries_of_the_wrong_kind(entry):
    with pytest.raises(BadImage, match="wrong kind"):
        discover.candidates(archive(ENTRY | entry))


def test_what_an_archive_lacks():
    for entries, why in (
        ([ENTRY, 7], "an entry is not an object"),
        ([None] * 10_000, "an entry is not an object"),
        ([ENTRY | {"Config": "gone"}], "lacks the configuration 'gone'"),
        ([ENTRY | {"Layers": []}], "names 1 layers, its manifest 0"),
    ):
        with pytest.raises(BadImage, match=why):
            discover.candidates(archive(*entries))
    with pytest.raises(BadImage, match="configuration is not an object"):
        discover.candidates(archive({"Config": "c"}, c=b"[]"))
    (image,) = discover.candidates(archive(ENTRY | {"Layers": ["gone"]}))
    with pytest.raises(BadImage, match="lacks the layer 'gone'"):
        image.layers[0].open()


def test_a_configuration_that_is_not_what_its_name_says():
    """In the old form the name is a habit; where it is a blob's, it is a promise."""
    other = "1" * 64
    (image,) = discover.candidates(archive(ENTRY | {"Config": f"{other}.json", "RepoTags": []}, **{f"{other}.json": CONFIG}))
    assert len(image.warnings) == 1 and f"its digest is sha256:{HEX}" in image.warnings[0]
    with pytest.raises(BadDigest):
        discover.candidates(archive(ENTRY | {"Config": f"blobs/sha256/{other}"}, **{f"blobs/sha256/{other}": CONFIG}))
    (image,) = discover.candidates(archive(ENTRY | {"Config": f"blobs/sha256/{HEX}", "RepoTags": []}, **{f"blobs/sha256/{HEX}": CONFIG}))
    assert image.warnings == ()


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ([], "holds nothing but"),
        (["a", "b", "c"], "it holds 'a', 'b', 'c' but"),
        (["a", "b", "c", "d"], "it holds 'a', 'b', 'c' … but"),
        (["x" * 50], f"it holds '{'x' * 40}' but"),
        (["repositories"], r"without manifest\.json"),
        (["bin", "x"], "it holds 'bin', 'x' but"),
        (["bin", "etc"], "a root file system"),
    ],
)
def test_what_is_no_image(names, why):
    with pytest.raises(BadImage, match=why):
        discover.candidates(Files(dict.fromkeys(names, b"")))
