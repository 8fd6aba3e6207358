"""Manifests, indexes, configurations and platforms: strict, bounded, never guessed."""

import json
import signal

import pytest

from dockless.errors import BadDigest, BadImage
from dockless.images import config, manifest, platforms
from dockless.images.platforms import Platform

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


def test_attestations_are_known():
    entry = {"mediaType": manifest.OCI_MANIFEST, "digest": D, "size": 1}
    marked = entry | {"annotations": {"vnd.docker.reference.type": "attestation-manifest"}}
    unknown = entry | {"platform": {"architecture": "unknown", "os": "unknown"}}
    found = parse({"schemaVersion": 2, "manifests": [entry, marked, unknown]})
    assert [one.is_attestation for one in found.entries] == [False, True, True]


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
    "fields", [{"Env": ["x=\0"]}, {"Cmd": "echo hi"}, {"Env": [1]}, {"Cmd": {}}, {"User": 7}, {"Volumes": []}, {"WorkingDir": "/\0"}]
)
def test_fields_of_the_wrong_kind(fields):
    with pytest.raises(BadImage, match="malformed"):
        run_config(**fields)


# -- platforms -----------------------------------------------------------------------------------------------------------------------


def test_platforms_are_normalised():
    assert platforms.normal("Linux", "x86_64") == Platform("linux", "amd64")
    assert platforms.normal("linux", "aarch64", "v8") == Platform("linux", "arm64")
    assert platforms.normal("linux", "arm") == Platform("linux", "arm", "v7")
    assert platforms.normal(None, 7) == Platform("", "")


def test_the_best_platform_is_preferred():
    here = Platform("linux", "amd64", "v3")

    def rank(*words):
        return platforms.rank(platforms.normal(*words), here)

    assert rank("linux", "amd64", "v3") > rank("linux", "amd64", "v2") > rank("linux", "amd64") > rank("linux", "386")
    assert rank("linux", "amd64", "v4") is None
    assert rank("linux", "arm64") is None
    assert rank("windows", "amd64") is None
    arm = Platform("linux", "arm64")
    assert platforms.rank(Platform("linux", "arm64"), arm) > platforms.rank(Platform("linux", "arm", "v7"), arm)
    assert platforms.rank(Platform("linux", "arm", "v7"), arm) > platforms.rank(Platform("linux", "arm", "v6"), arm)


def test_levels_of_amd64():
    v2 = frozenset(("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"))
    assert platforms.amd64_level(frozenset()) == ""
    assert platforms.amd64_level(v2) == "v2"
    assert platforms.amd64_level(v2.union(("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"))) == "v3"


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
    from dockless.images.digest import of
    from dockless.images.discover import _name

    notes = tuple((key, value) for key, value in ((manifest.CONTAINERD_NAME, full), (manifest.REF_NAME, ref)) if value)
    assert _name(manifest.Descriptor(manifest.OCI_MANIFEST, of(b""), 0, notes)) == name
