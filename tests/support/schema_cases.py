"""Documents that probe each rule of the image specification's schema, one change to a sound image at a time.

``schema``: does the schema accept it? ``ours``: do we? ``why``: the reason where the two differ, as docs/images-schema.md has it.
https://github.com/opencontainers/image-spec/tree/main/schema
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.bad_registry import BadRegistry
from support.make_image import OCI_CONFIG, OCI_INDEX, OCI_LAYER, OCI_MANIFEST, Blobs, architecture, digest_of, file, layer_tar

GONE = object()
"""As a value: the field is left out."""
OTHER = "sha256+b64u:LCa0a2j_xo_5m0U8HTBBNBNCLXBkg7-g-YpeiGJm564"
SHA = "sha256:" + "5b" * 32
_LAYER = layer_tar([file("etc/hello", b"hello")])


@dataclass(frozen=True)
class Case:
    """``where``: document and path of the field, with dots; ``value``: what it is set to."""

    where: str
    value: Any
    schema: bool
    ours: bool
    why: str = ""
    note: str = ""

    @property
    def name(self) -> str:
        shown = "left out" if self.value is GONE else self.note or json.dumps(self.value)
        return f"{self.where} = {shown}"


def _both(accepted: bool, where: str, *values: Any) -> list[Case]:
    return [Case(where, value, accepted, accepted) for value in values]


def _differs(where: str, value: Any, ours: bool, why: str, note: str = "") -> Case:
    return Case(where, value, not ours, ours, why, note)


NULL = "null is how tools in Go write an empty field"
NO_DIGEST = "a digest that cannot be computed here protects nothing"

CASES = [
    # -- configuration
    *_both(True, "config.created", "2015-10-31T22:22:56.015925234Z", "0001-01-01T00:00:00Z", "2015-10-31T22:22:56+02:00", GONE),
    *_both(False, "config.created", "yesterday", 5, "2015-10-31", "2015-13-31T22:22:56Z", ""),
    *_both(True, "config.author", "Alyssa", "", GONE),
    *_both(False, "config.author", 5, ["Alyssa"]),
    *_both(False, "config.architecture", 5, []),
    _differs("config.architecture", GONE, True, "the image can be kept and looked at; it does not run"),
    *_both(False, "config.os", 123, {}),
    _differs("config.os", GONE, True, "the image can be kept and looked at; it does not run"),
    _differs("config.os", None, True, NULL),
    *_both(False, "config.variant", 7),
    *_both(False, "config.os\\.version", 10),
    *_both(True, "config.os\\.features", ["win32k"], []),
    *_both(False, "config.os\\.features", "win32k", [1]),
    *_both(True, "config.config", {}, GONE),
    _differs("config.config", None, True, NULL),
    *_both(False, "config.config", "sh", []),
    *_both(True, "config.config.User", "1:1", "app", ""),
    *_both(False, "config.config.User", 1234),
    *_both(True, "config.config.ExposedPorts", {"8080/tcp": {}}, {}),
    *_both(False, "config.config.ExposedPorts", ["8080/tcp"], {"8080/tcp": 1}, "8080/tcp"),
    *_both(True, "config.config.Env", ["A=1", "NOVALUE"], []),
    *_both(False, "config.config.Env", "A=1", [7353], {"A": "1"}),
    _differs("config.config.Env", None, True, NULL),
    _differs("config.config.Env", ["A=\0"], False, "no process can be given it"),
    *_both(True, "config.config.Entrypoint", ["/bin/sh"], [], None),
    *_both(False, "config.config.Entrypoint", "/bin/sh", [1], {}),
    *_both(True, "config.config.Cmd", ["-c", "true"], None),
    *_both(False, "config.config.Cmd", "true", [None, 1], 7),
    _differs("config.config.Cmd", ["a\0b"], False, "no process can be given it"),
    *_both(True, "config.config.Volumes", {"/data": {}}, {}, None),
    *_both(False, "config.config.Volumes", ["/data"], {"/data": "x"}, "/data"),
    _differs("config.config.Volumes", {"data": {}}, False, "a volume is an absolute path without '..' (attack A22)"),
    _differs("config.config.Volumes", {"/a/../../b": {}}, False, "a volume is an absolute path without '..' (attack A22)"),
    _differs("config.config.Volumes", {"/": {}}, False, "it would cover the whole image"),
    *_both(True, "config.config.WorkingDir", "/home/alice", "", "srv"),
    *_both(False, "config.config.WorkingDir", 5, ["/"]),
    *_both(True, "config.config.Labels", {"k": "v"}, {}, None),
    *_both(False, "config.config.Labels", {"k": 1}, ["k=v"], "k"),
    *_both(True, "config.config.StopSignal", "SIGTERM", "SIGRTMIN+3"),
    *_both(False, "config.config.StopSignal", 15),
    _differs("config.config.StopSignal", "SIGNOPE", False, "a sandbox could not be stopped as the image wants"),
    *_both(True, "config.config.ArgsEscaped", True, False),
    *_both(False, "config.config.ArgsEscaped", "yes"),
    *_both(True, "config.config.Unknown", 5, "x"),
    *_both(False, "config.rootfs", GONE, [], "layers"),
    *_both(False, "config.rootfs.type", "tree", 5),
    _differs("config.rootfs.type", GONE, True, "layers are the only type there is"),
    *_both(False, "config.rootfs.diff_ids", GONE, "x", [1]),
    _differs("config.rootfs.diff_ids", ["x"], False, "a layer's content is verified against it"),
    _differs("config.rootfs.diff_ids", [], False, "there are as many as layers"),
    *_both(True, "config.history", [], [{"created_by": "x", "empty_layer": True}], [{}], GONE),
    _differs("config.history", None, True, NULL),
    *_both(False, "config.history", "x", {}, ["x"], [{"created": "x"}], [{"author": 1}], [{"comment": 1}], [{"created_by": []}]),
    *_both(False, "config.history", [{"empty_layer": "yes"}]),
    *_both(False, "config", [], "x", 5),
    # -- manifest
    *_both(True, "manifest.schemaVersion", 2),
    *_both(False, "manifest.schemaVersion", 1, 3, "2", GONE, 2.5),
    _differs("manifest.schemaVersion", 2.0, False, "tools in Go refuse a fraction", "2.0"),
    *_both(True, "manifest.mediaType", OCI_MANIFEST, GONE),
    *_both(False, "manifest.mediaType", "invalid", "", 5),
    _differs("manifest.mediaType", "application/x-something", False, "a type that nobody here knows may mean anything"),
    _differs("manifest.artifactType", "application/x", False, "an artifact is no image"),
    *_both(False, "manifest.artifactType", "foo/.bar", 5),
    *_both(False, "manifest.config", GONE, [], "x"),
    _differs("manifest.layers", None, False, "there are as many as diff_ids"),
    *_both(False, "manifest.layers", GONE, {}, "x", [1]),
    *_both(True, "manifest.annotations", {"k": "v"}, {}),
    *_both(False, "manifest.annotations", {"k": 1}, "x", ["k"]),
    _differs("manifest.annotations", None, True, NULL),
    *_both(True, "manifest.subject", {"mediaType": OCI_MANIFEST, "digest": SHA, "size": 3}),
    *_both(False, "manifest.subject", "x", {"mediaType": "x", "digest": SHA, "size": 3}),
    *_both(True, "manifest.unknown", 5),
    *_both(False, "manifest", [], "x"),
    # -- descriptors
    *_both(True, "layer.mediaType", OCI_LAYER, "application/vnd.other.layer", "1" * 127 + "/" + "2" * 127),
    *_both(False, "layer.mediaType", GONE, "", "application", ".foo/bar", "foo/.bar", "1" * 128 + "/bar", "foo/" + "1" * 128, 5),
    *_both(False, "layer.size", GONE, "148", -1, 1.5, True, None),
    _differs("layer.size", 1 << 63, False, "no file is as large", "2^63"),
    *_both(False, "layer.digest", GONE, "", "sha256", ":" + "5b" * 32, "SHA256:" + "5b" * 32, "sha256+foo+-b:" + "5b" * 32, 5),
    _differs("layer.digest", "sha256:" + "5B" * 32, False, "the text of the specification wants lower case", "sha256:5B5B…"),
    _differs("layer.digest", "sha256:" + "5b" * 31, False, "a sha256 has 64 digits", "sha256: 62 digits"),
    *[_differs("layer.digest", f"{name}:{'5b' * 32}", False, NO_DIGEST) for name in ("sha256+b64", "sha256+foo-bar", "md5")],
    _differs("layer.digest", OTHER, False, NO_DIGEST),
    _differs("layer.digest", "multihash+base58:QmRZxt2b1FVZPNqd8hsiykDL3TdBDeTSPX9Kv46HmX4Gx8", False, NO_DIGEST),
    *_both(True, "layer.urls", ["https://example.com/foo"], []),
    *_both(False, "layer.urls", "https://example.com/foo", [1]),
    _differs("layer.urls", ["value"], True, "they are never followed"),
    _differs("layer.urls", None, True, NULL),
    *_both(True, "layer.annotations", {"k": "v"}),
    *_both(False, "layer.annotations", {"k": 1}, "x"),
    *_both(False, "layer.data", "aHR0cA", 5, "a$b="),
    *_both(True, "layer.artifactType", "application/x"),
    *_both(False, "layer.artifactType", "foo/.bar"),
    *_both(True, "layer.unknown", 5),
    # -- index
    *_both(True, "index.schemaVersion", 2),
    *_both(False, "index.schemaVersion", 1, GONE, "2"),
    *_both(True, "index.mediaType", OCI_INDEX, GONE),
    *_both(False, "index.mediaType", "invalid", 5),
    _differs("index.mediaType", "application/x-something", False, "a type that nobody here knows may mean anything"),
    *_both(False, "index.manifests", GONE, "x", {}, [1]),
    _differs("index.manifests", [], False, "it lists no image"),
    *_both(True, "index.annotations", {"k": "v"}),
    *_both(False, "index.annotations", {"k": 1}, "x"),
    *_both(True, "entry.platform", {"architecture": architecture(), "os": "linux"}),
    *_both(True, "entry.platform", {"architecture": architecture(), "os": "linux", "features": ["sse4"], "os.features": ["x"]}),
    *_both(
        False, "entry.platform", "linux", [], {"architecture": 5, "os": "linux"}, {"architecture": "amd64", "os": "linux", "variant": 7}
    ),
    *_both(False, "entry.platform", {"architecture": "amd64", "os": "linux", "os.features": "x"}),
    *_both(False, "entry.mediaType", "invalid", "", GONE),
    *_both(False, "entry.size", "7682", GONE, -1),
    *_both(False, "entry.digest", GONE, "sha256"),
    # -- another entry of the index, beside the image
    *_both(True, "beside.mediaType", "application/customized.manifest+json", OCI_MANIFEST),
    *_both(False, "beside.mediaType", "invalid", "", GONE),
    *_both(True, "beside.digest", OTHER, SHA, "sha512:" + "5b" * 64, "multihash+base58:QmRZxt2b1FVZPNqd8hsiykDL3TdBDeTSPX9Kv46HmX4Gx8"),
    *_both(False, "beside.digest", "sha256", GONE, ":5b"),
    *_both(False, "beside.size", "3", GONE),
    # -- layout (a registry has none)
    *_both(True, "layout.imageLayoutVersion", "1.0.0"),
    *_both(False, "layout.imageLayoutVersion", 1.0, "2.0.0", "1.0", "1.1.0", GONE, ""),
    *_both(False, "layout", [], "x"),
]


@dataclass(frozen=True)
class Documents:
    """A sound image with one change, as bytes. ``index`` names the manifest."""

    blobs: Blobs
    manifest: bytes
    index: bytes
    layout: bytes

    def write(self, place: Path) -> Path:
        """As an OCI layout."""
        for name, data in self.blobs.items():
            path = place / "blobs" / name.replace(":", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        (place / "index.json").write_bytes(self.index)
        (place / "oci-layout").write_bytes(self.layout)
        return place

    def serve(self, registry: BadRegistry) -> None:
        """As ``app:1`` by the index, the manifest by its digest."""
        registry.blobs.update(self.blobs)
        registry.serve("app:0", self.manifest, OCI_MANIFEST)
        registry.serve("app:1", self.index, OCI_INDEX)


def build(case: Case) -> Documents:
    target, _, path = case.where.replace("\\.", "\0").partition(".")
    keys = [key.replace("\0", ".") for key in path.split(".")] if path else []

    def changed(name: str, document: Any) -> Any:
        if name != target:
            return document
        if not keys:
            return case.value
        document = copy.deepcopy(document)
        inner = document
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
        if case.value is GONE:
            inner.pop(keys[-1], None)
        else:
            inner[keys[-1]] = case.value
        return document

    blobs = Blobs()

    def put(data: bytes, kind: str) -> dict[str, Any]:
        blobs[digest_of(data)] = data
        return {"mediaType": kind, "digest": digest_of(data), "size": len(data)}

    def raw(document: Any) -> bytes:
        return json.dumps(document).encode()

    rootfs = {"type": "layers", "diff_ids": [digest_of(_LAYER)]}
    config = {"architecture": architecture(), "os": "linux", "config": {"Cmd": ["/bin/sh"]}, "rootfs": rootfs}
    layer = changed("layer", put(_LAYER, OCI_LAYER))
    document = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": put(raw(changed("config", config)), OCI_CONFIG), "layers": [layer]}
    manifest = raw(changed("manifest", document))
    entry = changed("entry", put(manifest, OCI_MANIFEST) | {"platform": {"architecture": architecture(), "os": "linux"}})
    beside = {"mediaType": OCI_MANIFEST, "digest": SHA, "size": 3, "platform": {"architecture": "s390x", "os": "linux"}}
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry, changed("beside", beside)]}
    return Documents(blobs, manifest, raw(changed("index", index)), raw(changed("layout", {"imageLayoutVersion": "1.0.0"})))
