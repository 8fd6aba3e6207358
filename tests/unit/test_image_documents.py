"""Manifests, indexes, configurations and platforms: strict, bounded, never guessed."""

import json
import signal

import pytest

from dockless.errors import BadDigest, BadImage, BadInput, NotRunnable
from dockless.images.model import choose, config, digest, manifest, platforms
from dockless.images.model.digest import Digest
from dockless.images.model.platforms import Platform

D = "sha256:" + "1" * 64
CONFIG = {"mediaType": manifest.OCI_CONFIG, "digest": D, "size": 2}
LAYER = {"mediaType": manifest.OCI_LAYER + "+gzip", "digest": D, "size": 3}
IMAGE = {"schemaVersion": 2, "config": CONFIG, "layers": [LAYER]}
INDEX = {"schemaVersion": 2, "manifests": [{"mediaType": manifest.OCI_MANIFEST, "digest": D, "size": 1}]}


def parse(document, declared=""):
    return manifest.parse(document if isinstance(document, bytes) else json.dumps(document).encode(), "test", declared)


@pytest.mark.parametrize("media_type", [None, manifest.OCI_MANIFEST, manifest.DOCKER_MANIFEST])
def test_manifests_are_read(media_type):
    found = parse(IMAGE | ({"mediaType": media_type} if media_type else {}))
    assert isinstance(found, manifest.Manifest)
    assert [str(layer.digest) for layer in found.layers] == [D]


@pytest.mark.parametrize("media_type", [None, manifest.OCI_INDEX, manifest.DOCKER_LIST])
def test_indexes_are_read(media_type):
    assert isinstance(parse(INDEX | ({"mediaType": media_type} if media_type else {})), manifest.Index)
    assert parse({"schemaVersion": 2, "manifests": None}) == manifest.Index(())


REFUSED = {
    "both": (IMAGE | INDEX, "ambiguous"),
    "index with layers": (INDEX | {"layers": []}, "ambiguous"),
    "index with config": (INDEX | {"config": CONFIG}, "ambiguous"),
    "index type, manifest content": (IMAGE | {"mediaType": manifest.OCI_INDEX}, "ambiguous"),
    "manifest type, index content": (INDEX | {"mediaType": manifest.OCI_MANIFEST}, "ambiguous"),
    "two spellings": (IMAGE | {"Layers": []}, "two spellings"),
    "one key twice": (b'{"schemaVersion": 2, "config": {}, "config": {}}', "twice"),
    "schema 1": ({"schemaVersion": 1, "fsLayers": [], "history": []}, "schema 1"),
    "schema 1 in disguise": (IMAGE | {"fsLayers": []}, "schema 1"),
    "signed schema 1": (IMAGE | {"mediaType": "application/vnd.docker.distribution.manifest.v1+prettyjws"}, "schema 1"),
    "no version": ({"config": CONFIG, "layers": []}, "schemaVersion"),
    "version 2.0": (IMAGE | {"schemaVersion": 2.0}, "schemaVersion"),
    "version 3": (IMAGE | {"schemaVersion": 3}, "schemaVersion"),
    "type of another kind": (IMAGE | {"mediaType": 7}, "media type"),
    "unknown type": (IMAGE | {"mediaType": "application/x-something"}, "unknown"),
    "helm chart": (IMAGE | {"config": CONFIG | {"mediaType": "application/vnd.cncf.helm.config.v1+json"}}, "artifact"),
    "empty config": (IMAGE | {"config": CONFIG | {"mediaType": "application/vnd.oci.empty.v1+json"}}, "artifact"),
    "artifact type": (IMAGE | {"artifactType": "application/x"}, "artifact"),
    "no config": ({"schemaVersion": 2, "layers": []}, "artifact"),
    "nothing": ({"schemaVersion": 2}, "no configuration"),
    "a list": ([], "not an object"),
    "no json": (b"{", "JSON"),
    "not utf-8": (b'{"a": "\xff"}', "JSON"),
    "trailing data": (b"{} {}", "JSON"),
    "half a surrogate pair": (b'{"schemaVersion": 2, "manifests": [], "a": "\\uD8aa"}', "surrogates"),
    "deep": (b"[" * 100_000, "nested too deeply"),
    "too large": (b" " * (manifest.DOCUMENT_MAX + 1), "larger"),
    "too many layers": (IMAGE | {"layers": [LAYER] * 1001}, "more than 1000"),
    "layers no list": (IMAGE | {"layers": {}}, "not a list"),
    "negative size": (IMAGE | {"layers": [LAYER | {"size": -1}]}, "size"),
    "size as text": (IMAGE | {"layers": [LAYER | {"size": "3"}]}, "size"),
    "size true": (IMAGE | {"layers": [LAYER | {"size": True}]}, "size"),
    "descriptor no object": (IMAGE | {"layers": ["x"]}, "not an object"),
    "no descriptor": (IMAGE | {"layers": [None]}, "no media type or no size"),
    "descriptor without type": (IMAGE | {"layers": [LAYER | {"mediaType": None}]}, "no media type or no size"),
    "descriptor without size": (IMAGE | {"config": CONFIG | {"size": None}}, "no media type or no size"),
    "no descriptor in an index": (INDEX | {"manifests": [None]}, "no media type or no size"),
    "manifests no list": (INDEX | {"manifests": 7}, "not a list"),
    "no layers": ({"schemaVersion": 2, "config": CONFIG}, "it has no layers"),
    "only an artifact type": ({"schemaVersion": 2, "artifactType": "application/x"}, "artifact of type 'application/x'"),
    "too many entries": (INDEX | {"manifests": [None] * 10_001}, "has 10001 manifests, more than 10000"),
}


@pytest.mark.parametrize(("document", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused(document, why):
    with pytest.raises(BadImage, match=why):
        parse(document)


def test_a_manifest_that_was_called_an_index_is_refused():
    with pytest.raises(BadImage, match="ambiguous"):
        parse(IMAGE, manifest.OCI_INDEX)
    with pytest.raises(BadImage, match="ambiguous"):
        parse(INDEX, manifest.DOCKER_MANIFEST)


@pytest.mark.parametrize("bad", ["sha256:../../etc/passwd", "md5:" + "1" * 32, "", None])
def test_a_digest_that_is_none_is_refused(bad):
    with pytest.raises(BadDigest):
        parse(IMAGE | {"layers": [LAYER | {"digest": bad}]})


def test_as_much_as_is_allowed():
    assert len(parse(IMAGE | {"layers": [LAYER] * 1000}).layers) == 1000
    document = json.dumps(INDEX).encode()
    assert len(parse(document + b" " * (manifest.DOCUMENT_MAX - len(document))).entries) == 1
    assert manifest.load_json(b'"\\ud83d\\ude00"', "test") == "\U0001f600", "a whole pair is a character"


def test_an_index_entry_that_nobody_here_can_name_is_passed_over():
    """Its digest is of another algorithm; one that is no digest at all, or is none, is refused."""
    (entry,) = INDEX["manifests"]
    found = parse(INDEX | {"manifests": [entry, entry | {"digest": "blake3:" + "1" * 64}, entry | {"digest": "sha384+x:a_b"}]})
    assert [str(one.digest) for one in found.entries] == [D]
    for bad in ("sha256:123", "sha512:" + "1" * 64, None, "SHA1:1", "x"):
        with pytest.raises(BadDigest):
            parse(INDEX | {"manifests": [entry | {"digest": bad}]})


def test_what_a_descriptor_says():
    said = {"annotations": {"a": "1", "b": None}, "platform": {"os": "linux", "architecture": "arm", "variant": "v6"}, "data": "eA=="}
    found = parse(IMAGE | {"layers": [LAYER | said, LAYER | {"annotations": None, "platform": None}]}).layers
    assert found[0] == manifest.Descriptor(
        LAYER["mediaType"], Digest("sha256", "1" * 64), 3, (("a", "1"),), Platform("linux", "arm", "v6"), "eA=="
    )
    assert found[1] == manifest.Descriptor(LAYER["mediaType"], Digest("sha256", "1" * 64), 3)
    assert [found[0].annotation(key) for key in "ab"] == ["1", ""]


def test_attestations_are_known():
    entry = {"mediaType": manifest.OCI_MANIFEST, "digest": D, "size": 1}
    marked = entry | {"annotations": {"vnd.docker.reference.type": "attestation-manifest"}}
    unknown = [
        entry | {"platform": one} for one in ({"architecture": "unknown", "os": "linux"}, {"architecture": "amd64", "os": "unknown"})
    ]
    known = entry | {"platform": {"architecture": "amd64", "os": "linux"}}
    found = parse({"schemaVersion": 2, "manifests": [entry, marked, *unknown, known]})
    assert [one.is_attestation for one in found.entries] == [False, True, True, True, False]


# -- configuration -------------------------------------------------------------------------------------------------------------------


def run_config(**fields):
    return config.parse({"os": "linux", "architecture": "amd64", "config": fields}, "test").config


def test_the_configuration_is_read():
    found = run_config(
        Env=["PATH=/bin", "A=1=2", "EMPTY=", "A=3", "NOVALUE", "=x"],
        Entrypoint=["/init"],
        Cmd=["a", "b"],
        WorkingDir="/srv/./x/",
        User="app:staff",
        Volumes={"/data/": {}, "/a//b": None},
        StopSignal="SIGUSR1",
        Labels={"k": "v"},
    )
    assert found.env == (("PATH", "/bin"), ("A", "3"), ("EMPTY", ""))
    assert (found.entrypoint, found.cmd, found.working_dir, found.user) == (("/init",), ("a", "b"), "/srv/x", "app:staff")
    assert (found.volumes, found.stop_signal, found.labels) == (("/a/b", "/data"), signal.SIGUSR1, (("k", "v"),))
    assert run_config(Labels={"k": None, "l": ""}).labels == (("l", ""),)


def test_what_stands_beside_the_configuration():
    diff_ids = ["sha256:" + "1" * 64, "sha512:" + "2" * 128]
    found = config.parse({"created": "2026-01-02T03:04:05Z", "rootfs": {"type": "layers", "diff_ids": diff_ids}}, "test")
    assert (found.created, [str(one) for one in found.diff_ids]) == ("2026-01-02T03:04:05Z", diff_ids)
    assert config.parse({"rootfs": {"diff_ids": diff_ids[:1] * 1000}}, "test").diff_ids
    for rootfs, why in (
        ({"type": "tarball"}, "type is not 'layers'"),
        ({"diff_ids": diff_ids * 501}, "it has 1002 layers, more than 1000"),
        ({"diff_ids": "x"}, "not a list"),
        ({"diff_ids": [7]}, "not a text"),
        ([], "not an object"),
    ):
        with pytest.raises(BadImage, match=why):
            config.parse({"rootfs": rootfs}, "test")
    with pytest.raises(BadDigest):
        config.parse({"rootfs": {"diff_ids": [None]}}, "test")
    with pytest.raises(BadImage, match="created"):
        config.parse({"created": 7}, "test")


def test_what_is_not_said_has_a_default():
    assert run_config() == config.ImageConfig()
    assert config.parse({}, "test").platform == Platform("", "")
    assert run_config(Env=None, Cmd=None, Volumes=None, WorkingDir="").working_dir == "/"
    assert run_config(WorkingDir="srv").working_dir == "/srv"


@pytest.mark.parametrize("path", ["/../etc", "/a/../../etc", "data", "", "/", "/./", "/a\0b", "../x"])
def test_a22_a_volume_must_be_absolute_and_clean(path):
    """A22: a VOLUME path that leaves the image."""
    with pytest.raises(BadImage, match="volume"):
        run_config(Volumes={path: {}})


@pytest.mark.parametrize(
    ("text", "number"),
    [("SIGTERM", 15), ("term", 15), ("9", 9), ("SIGRTMIN+3", signal.SIGRTMIN + 3), ("RTMAX-1", signal.SIGRTMAX - 1), ("", 0)],
)
def test_stop_signals(text, number):
    assert config._stop_signal(text, "test") == number


@pytest.mark.parametrize("text", ["SIGNOPE", "0", "65", "-1", "SIGTERM+1", "SIGRTMIN+99", "_DFL", "999999", "SIGRTMIN+", "SIGRTMIN-1000"])
def test_stop_signals_that_are_none(text):
    with pytest.raises(BadImage, match="signal"):
        config._stop_signal(text, "test")


@pytest.mark.parametrize(
    "fields",
    [
        *({"Env": ["x=\0"]}, {"Cmd": "echo hi"}, {"Env": [1]}, {"Cmd": {}}, {"User": 7}, {"Volumes": []}, {"WorkingDir": "/\0"}),
        *({"Env": ["x=1", None]}, {"Labels": {"k": 1}}, {"Labels": []}, {"User": "a\0"}, {"Entrypoint": ["a", "b\0"]}, {"StopSignal": 9}),
    ],
)
def test_fields_of_the_wrong_kind(fields):
    with pytest.raises(BadImage, match="malformed"):
        run_config(**fields)


# -- platforms -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (("Linux", "x86_64"), ("linux", "amd64", "")),
        (("linux", "X86-64", "v1"), ("linux", "amd64", "")),
        (("linux", "amd64", "v2"), ("linux", "amd64", "v2")),
        (("linux", "aarch64", "v8"), ("linux", "arm64", "")),
        (("linux", "arm64", "8"), ("linux", "arm64", "")),
        (("linux", "arm64", "v9"), ("linux", "arm64", "v9")),
        (("linux", "riscv64", "v1"), ("linux", "riscv64", "v1")),
        (("linux", "ppc64le", "8"), ("linux", "ppc64le", "8")),
        (("linux", "arm"), ("linux", "arm", "v7")),
        (("linux", "arm", "6"), ("linux", "arm", "v6")),
        (("linux", "arm", "v5"), ("linux", "arm", "v5")),
        (("linux", "armhf"), ("linux", "arm", "v7")),
        (("linux", "armhf", "v6"), ("linux", "arm", "v6")),
        (("linux", "armel", "5"), ("linux", "arm", "v5")),
        (("linux", "i686"), ("linux", "386", "")),
        ((None, 7, ["v1"]), ("", "", "")),
        (("linux/amd64", "a b", "-v1"), ("", "", "")),
        (("x" * 40, "x" * 41, ""), ("x" * 40, "", "")),
    ],
)
def test_platforms_are_normalised(said, meant):
    assert platforms.normal(*said) == Platform(*meant)


@pytest.mark.parametrize(
    ("text", "meant"),
    [("arm64", ("linux", "arm64", "")), ("windows/amd64", ("windows", "amd64", "")), ("linux/arm/v6", ("linux", "arm", "v6"))],
)
def test_platforms_as_people_write_them(text, meant):
    assert platforms.parse(text) == Platform(*meant)


@pytest.mark.parametrize("text", ["", "linux/", "a/b/c/d", "linux amd64", "linux/\u00e4", "linux//v1"])
def test_platforms_that_are_none(text):
    with pytest.raises(BadInput, match="is not a platform"):
        platforms.parse(text)


def test_platforms_are_shown():
    assert [str(Platform(*one)) for one in (("linux", "arm", "v6"), ("linux", "amd64"), ("", ""))] == ["linux/arm/v6", "linux/amd64", "?/?"]


@pytest.mark.parametrize(
    ("here", "best_first", "never"),
    [
        (
            "linux/amd64/v3",
            ["linux/amd64/v3", "linux/amd64/v2", "linux/amd64", "linux/386"],
            ["linux/amd64/v4", "linux/amd64/x", "linux/amd64/v100", "linux/arm64", "windows/amd64", "linux/arm"],
        ),
        ("linux/amd64", ["linux/amd64", "linux/386"], ["linux/amd64/v2"]),
        (
            "linux/arm64",
            ["linux/arm64", "linux/arm64/v9", "linux/arm/v8", "linux/arm/v7", "linux/arm/v6"],
            ["linux/arm/v9", "linux/386", "linux/amd64"],
        ),
        ("linux/arm/v7", ["linux/arm/v7", "linux/arm/v6"], ["linux/arm/v8", "linux/arm64"]),
        ("linux/386", ["linux/386"], ["linux/amd64"]),
        ("linux/riscv64", ["linux/riscv64"], ["linux/arm", "linux/386"]),
    ],
)
def test_the_best_platform_is_preferred(here, best_first, never):
    at = platforms.parse(here)
    ranks = [platforms.rank(platforms.parse(one), at) for one in best_first]
    assert None not in ranks and ranks == sorted(set(ranks), reverse=True)
    assert [one for one in never if platforms.rank(platforms.parse(one), at) is not None] == []


def test_levels_of_amd64():
    v2 = frozenset(("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"))
    assert platforms.amd64_level(frozenset()) == ""
    assert platforms.amd64_level(v2) == "v2"
    v3 = v2.union(("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"))
    v4 = frozenset(("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"))
    assert [platforms.amd64_level(flags) for flags in (v3, v3 | v4, v2 | v4, v3 - {"cx16"})] == ["v3", "v4", "v2", ""]


def test_this_host_can_run_its_own_platform():
    assert platforms.rank(platforms.host(), platforms.host()) is not None


@pytest.mark.parametrize(
    ("full", "ref", "name"),
    [
        ("docker.io/library/a:1", "1", "docker.io/library/a:1"),
        ("docker.io/library/a:1", "", "docker.io/library/a:1"),
        ("docker.io/library/a:1", "docker.io/library/a:1", "docker.io/library/a:1"),
        ("docker.io/library/a:1", "2", "2"),
        ("docker.io/library/a:1", "other:1", "other:1"),
        ("", "2", "2"),
        ("", "", ""),
    ],
)
def test_a_name_that_a_repack_left_behind_does_not_count(full, ref, name):
    from dockless.images.archive.discover import _name
    from dockless.images.model.digest import of

    notes = tuple((key, value) for key, value in ((manifest.CONTAINERD_NAME, full), (manifest.REF_NAME, ref)) if value)
    assert _name(manifest.Descriptor(manifest.OCI_MANIFEST, of(b""), 0, notes)) == name


# -- the image of an index that is meant ---------------------------------------------------------------------------------------------


class Holder:
    """Documents by digest; a platform or None to an entry."""

    what = "the index"

    def __init__(self):
        self.documents = {}
        self.absent = set()

    def has(self, entry):
        return entry.digest not in self.absent

    def read(self, entry):
        return self.documents[entry.digest]

    def entry(self, name, platform=None, media_type=manifest.OCI_MANIFEST, **more):
        place = platforms.parse(platform) if platform else None
        return manifest.Descriptor(media_type, digest.of(name.encode()), 1, platform=place, **more)

    def index(self, name, *entries):
        found = self.entry(name, media_type=manifest.OCI_INDEX)
        rows = [{"mediaType": one.media_type, "digest": str(one.digest), "size": one.size} for one in entries]
        self.documents[found.digest] = json.dumps({"schemaVersion": 2, "manifests": rows}).encode()
        return found


HERE = Platform("linux", "amd64", "v3")


def test_the_first_of_those_that_suit_best():
    holder = Holder()
    other, plain, fits, again = (
        holder.entry("a", "linux/arm64"),
        holder.entry("b"),
        holder.entry("c", "linux/amd64"),
        holder.entry("d", "linux/amd64"),
    )
    old = holder.entry("e", "linux/386")

    def chosen(*entries, strict=True):
        return choose.choose(holder, entries, HERE, strict=strict)

    assert chosen(other, plain, old, fits, again) is fits
    assert chosen(plain, old) is old
    holder.absent = {fits.digest}
    assert chosen(other, fits, again) is fits, "what suits is wanted, there or not"
    assert chosen(other, plain) is plain
    marked = holder.entry("f", "linux/amd64", annotations=(("vnd.docker.reference.type", "attestation-manifest"),))
    assert chosen(marked, holder.entry("g", "linux/amd64", media_type="application/x"), again) is again
    for none in ((), (marked,)):
        with pytest.raises(BadImage, match="lists no image for any platform"):
            chosen(*none)


def test_where_none_suits():
    holder = Holder()
    entries = [holder.entry(str(number), f"linux/m{number}") for number in range(13)]
    with pytest.raises(NotRunnable, match="has no image for linux/amd64/v3") as caught:
        choose.choose(holder, entries, HERE, strict=True)
    assert "linux/m0, linux/m1, " in caught.value.hint and "linux/m11 …" in caught.value.hint and "m12" not in caught.value.hint
    with pytest.raises(NotRunnable) as caught:
        choose.choose(holder, entries[:12], HERE, strict=True)
    assert "linux/m11; choose" in caught.value.hint
    holder.absent = {entries[0].digest, entries[1].digest}
    assert choose.choose(holder, entries, HERE, strict=False) is entries[2], "the first that is there can at least be looked at"


def test_an_index_in_an_index():
    holder = Holder()
    wanted = inner = holder.entry("x")
    for depth in range(4):
        inner = holder.index(f"depth {depth}", inner)
    assert choose.choose(holder, [inner], HERE, strict=True) == wanted
    with pytest.raises(BadImage, match="nested more than 4 deep"):
        choose.choose(holder, [holder.index("depth 4", inner)], HERE, strict=True)


def test_a_blob_that_its_descriptor_carries():
    def carrying(data, size=1):
        return manifest.Descriptor("x", digest.of(b"x"), size, data=data)

    assert choose.inline(carrying(None), "it") is None
    assert choose.inline(carrying("eA=="), "it") == b"x"
    for bad in ("eA", "e A==", "\u00e4"):
        with pytest.raises(BadImage, match="not base64"):
            choose.inline(carrying(bad), "it")
    with pytest.raises(BadDigest, match=r"^it: its bytes have the digest"):
        choose.inline(carrying("eQ=="), "it")
    with pytest.raises(BadDigest, match=r"^it has 1 bytes, expected 2"):
        choose.inline(carrying("eA==", 2), "it")
