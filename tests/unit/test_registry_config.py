"""registries.conf: files, prefixes, mirrors, short names, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dockless.errors import BadInput, RegistryError
from dockless.images.model.reference import parse
from dockless.images.registry.configuration import Configuration, endpoints, short_names

DIGEST = "sha256:" + "a" * 64


@pytest.fixture
def files(tmp_path):
    """``files(main="…", drop_ins={"10.conf": "…"}, user="…", user_drop_ins={…})`` → Configuration."""

    def load(main: str = "", *, drop_ins=None, user: str | None = None, user_drop_ins=None, env=None) -> Configuration:
        system, home = tmp_path / "etc/containers", tmp_path / "home/.config/containers"
        for place, text, parts in ((system, main, drop_ins), (home, user, user_drop_ins)):
            (place / "registries.conf.d").mkdir(parents=True, exist_ok=True)
            if text is not None:
                (place / "registries.conf").write_text(text)
            for name, part in (parts or {}).items():
                (place / "registries.conf.d" / name).write_text(part)
        return Configuration.load({"HOME": str(tmp_path / "home"), **(env or {})}, system)

    return load


def where(configuration: Configuration, name: str, **options) -> list[str]:
    return [str(endpoint) for endpoint in endpoints(parse(name), configuration, **options)]


def test_nothing_configured(tmp_path):
    configuration = Configuration.load({}, tmp_path)
    (endpoint,) = endpoints(parse("busybox"), configuration)
    assert (endpoint.location, endpoint.netloc, endpoint.repository) == ("docker.io", "registry-1.docker.io", "library/busybox")
    assert endpoint.tried == ("https",) and not endpoint.mirror and not endpoint.insecure
    assert [str(name) for name in short_names("busybox", configuration)] == ["docker.io/library/busybox:latest"]


@pytest.mark.parametrize(
    ("netloc", "schemes"),
    [
        ("localhost:5000", ("https", "http")),
        ("127.8.9.1", ("https", "http")),
        ("[::1]:5000", ("https", "http")),
        ("a.localhost:1", ("https", "http")),
        ("10.0.0.1:5000", ("https",)),
        ("localhost.example.com", ("https",)),
        ("[::2]:5000", ("https",)),
    ],
)
def test_plain_http_is_for_this_machine(netloc, schemes, files):
    (endpoint,) = endpoints(parse(f"{netloc}/x"), files())
    assert endpoint.tried == schemes


def test_location_replaces_the_longest_prefix(files):
    configuration = files("""
        [[registry]]
        prefix = "example.com"
        location = "one.test"
        [[registry]]
        prefix = "example.com/team"
        location = "two.test/there"
        [[registry]]
        prefix = "example.com/team/app"
        location = "three.test:5000"
        insecure = true
    """)
    assert where(configuration, "example.com/x:1") == ["one.test/x"]
    assert where(configuration, "example.com/team/x") == ["two.test/there/x"]
    assert where(configuration, "example.com/teammate/x") == ["one.test/teammate/x"]
    with pytest.raises(BadInput, match=r"three\.test:5000"):
        where(configuration, "example.com/team/app:2")  # nothing is left of the name
    (endpoint,) = endpoints(parse("example.com/team/app/y"), configuration)
    assert str(endpoint) == "three.test:5000/y" and endpoint.insecure and endpoint.tried == ("https", "http")
    assert where(configuration, "example.com:5000/x") == ["one.test:5000/x"]


def test_the_hub_by_its_name(files):
    configuration = files('[[registry]]\nlocation = "docker.io"\n[[registry.mirror]]\nlocation = "mirror.test/hub"\n')
    first, second = endpoints(parse("busybox"), configuration)
    assert str(first) == "mirror.test/hub/library/busybox" and first.mirror
    assert second.netloc == "registry-1.docker.io" and not second.mirror
    assert where(configuration, "busybox", push=True) == ["docker.io/library/busybox"]


def test_wildcards(files):
    configuration = files("""
        [[registry]]
        prefix = "*.example.com"
        insecure = true
        [[registry]]
        prefix = "*.deep.example.com"
        location = "elsewhere.test/x"
        [[registry]]
        prefix = "a.deep.example.com/blocked"
        location = "a.deep.example.com/blocked"
        blocked = true
    """)
    (endpoint,) = endpoints(parse("a.example.com/app"), configuration)
    assert str(endpoint) == "a.example.com/app" and endpoint.insecure
    assert where(configuration, "a.b.deep.example.com/app") == ["elsewhere.test/x/app"]
    assert not endpoints(parse("example.com/app"), configuration)[0].insecure
    assert not endpoints(parse("evilexample.com/app"), configuration)[0].insecure
    assert not endpoints(parse("evil.test/a.example.com"), configuration)[0].insecure
    with pytest.raises(RegistryError, match="blocked"):
        where(configuration, "a.deep.example.com/blocked/x")


def test_blocked(files):
    configuration = files('[[registry]]\nlocation = "bad.test"\nblocked = true\n')
    for name in ("bad.test/x", "bad.test/x@" + DIGEST):
        with pytest.raises(RegistryError, match="blocked") as caught:
            where(configuration, name)
        assert "registries.conf" in caught.value.hint
    assert where(configuration, "bad.test.example.com/x") == ["bad.test.example.com/x"]


def test_which_mirrors_for_tags_and_digests(files):
    configuration = files("""
        [[registry]]
        location = "r.test"
        [[registry.mirror]]
        location = "all.test"
        [[registry.mirror]]
        location = "tags.test"
        pull-from-mirror = "tag-only"
        [[registry.mirror]]
        location = "digests.test"
        pull-from-mirror = "digest-only"
        insecure = true
        [[registry]]
        location = "s.test"
        mirror-by-digest-only = true
        [[registry.mirror]]
        location = "m.test"
    """)
    assert where(configuration, "r.test/x:1") == ["all.test/x", "tags.test/x", "r.test/x"]
    assert where(configuration, "r.test/x@" + DIGEST) == ["all.test/x", "digests.test/x", "r.test/x"]
    assert where(configuration, "s.test/x:1") == ["s.test/x"]
    assert where(configuration, "s.test/x@" + DIGEST) == ["m.test/x", "s.test/x"]
    assert configuration.named_hosts == {"r.test", "all.test", "tags.test", "digests.test", "s.test", "m.test"}


def test_drop_ins_replace_what_has_the_same_prefix(files):
    configuration = files(
        '[[registry]]\nlocation = "a.test"\n[[registry]]\nlocation = "b.test"\n',
        drop_ins={
            "20.conf": '[[registry]]\nlocation = "a.test"\nblocked = true\n',
            "10.conf": '[[registry]]\nlocation = "a.test"\ninsecure = true\n',
        },
        user_drop_ins={"00.conf": '[[registry]]\nprefix = "b.test"\nlocation = "c.test"\n', "no-drop-in.toml": "blocked ="},
    )
    assert configuration.find("a.test/x").blocked and not configuration.find("a.test/x").insecure
    assert where(configuration, "b.test/x") == ["c.test/x"]
    assert [path.name for path in configuration.files] == ["registries.conf", "10.conf", "20.conf", "00.conf"]


def test_the_users_file_replaces_the_systems(files):
    configuration = files(
        '[[registry]]\nlocation = "a.test"\nblocked = true\n',
        drop_ins={"x.conf": '[[registry]]\nlocation = "b.test"\nblocked = true\n'},
        user='unqualified-search-registries = ["quay.io"]\n',
    )
    assert configuration.entries == () and configuration.search == ("quay.io",)


def test_another_file_by_environment(files, tmp_path):
    other = tmp_path / "other.conf"
    other.write_text('[[registry]]\nlocation = "o.test"\ninsecure = true\n')
    place = tmp_path / "d"
    place.mkdir()
    env = {"CONTAINERS_REGISTRIES_CONF": str(other), "CONTAINERS_REGISTRIES_CONF_DIR": str(place)}
    assert files('[[registry]]\nlocation = "a.test"\n', drop_ins={"x.conf": "[aliases]"}, env=env).files == (other,)
    with pytest.raises(BadInput, match="no file"):
        files(env={"CONTAINERS_REGISTRIES_CONF": str(tmp_path / "none")})


# ---- short names -------------------------------------------------------------------------------------------------------------------------


def names(text: str, configuration: Configuration) -> list[str]:
    return [str(name) for name in short_names(text, configuration)]


def test_search_registries(files):
    configuration = files('unqualified-search-registries = ["quay.io", "docker.io", "localhost:5000"]\n')
    assert names("app:1", configuration) == ["quay.io/app:1", "docker.io/library/app:1", "localhost:5000/app:1"]
    assert names("team/app", configuration) == ["quay.io/team/app:latest", "docker.io/team/app:latest", "localhost:5000/team/app:latest"]
    assert names("ghcr.io/app", configuration) == ["ghcr.io/app:latest"]
    assert names("localhost/app", configuration) == ["localhost/app:latest"]
    assert names(f"app@{DIGEST}", configuration)[0] == f"quay.io/app@{DIGEST}"


def test_aliases(files):
    configuration = files(
        'unqualified-search-registries = ["quay.io"]\n'
        '[aliases]\n"app" = "registry.test/real/app"\n"team/tool" = "t.test/tool"\n"gone" = "g.test/gone"\n',
        drop_ins={"x.conf": '[aliases]\n"gone" = ""\n"late" = "l.test/late"\n'},
    )
    assert names("app", configuration) == ["registry.test/real/app:latest"]
    assert names("app:2", configuration) == ["registry.test/real/app:2"]
    assert names(f"app:2@{DIGEST}", configuration) == [f"registry.test/real/app:2@{DIGEST}"]
    assert names("team/tool", configuration) == ["t.test/tool:latest"]
    assert names("gone", configuration) == ["quay.io/gone:latest"]
    assert names("late", configuration) == ["l.test/late:latest"]
    assert names("docker.io/library/app", configuration) == ["docker.io/library/app:latest"]


def test_short_name_modes(files):
    text = 'unqualified-search-registries = ["quay.io", "docker.io"]\nshort-name-mode = "{}"\n[aliases]\n"known" = "k.test/known"\n'
    for mode in ("permissive", "disabled"):
        assert len(names("app", files(text.format(mode)))) == 2
    enforcing = files(text.format("enforcing"))
    with pytest.raises(BadInput, match=r"quay.io or docker.io") as caught:
        names("app", enforcing)
    assert "quay.io/app" in caught.value.hint
    assert names("known", enforcing) == ["k.test/known:latest"]
    assert names("app", files('unqualified-search-registries = ["quay.io"]\nshort-name-mode = "enforcing"\n')) == ["quay.io/app:latest"]


def test_an_empty_search_list(files):
    with pytest.raises(BadInput, match="names no registry"):
        names("app", files("unqualified-search-registries = []\n"))


# ---- what is refused ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[registries.search]\nregistries = ["docker.io"]\n', "version 1"),
        ("[registries.block]\nregistries = []\n", "version 1"),
        ("not toml", "not TOML"),
        ("[[registry]]\nblocked = true\n", "no location"),
        ('[[registry]]\nprefix = "a.test"\n', "no location"),
        ('[[registry]]\nlocation = "https://a.test"\n', "without a scheme"),
        ('[[registry]]\nlocation = "*.a.test"\n', r"\*\."),
        ('[[registry]]\nlocation = "a test"\n', "host name"),
        ('[[registry]]\nlocation = "a.test"\nblocked = "true"\n', "blocked"),
        ('[[registry]]\nlocation = "a.test"\nblocked = 1\n', "blocked"),
        ('[[registry]]\nlocation = "a.test"\nBlocked = true\n', "Blocked"),
        ('[[registry]]\nlocation = "a.test"\nmirror_by_digest_only = true\n', "mirror_by_digest_only"),
        ('[registry]\nlocation = "a.test"\n', "two brackets"),
        ('[[registry]]\nlocation = "a.test"\nmirror = "b.test"\n', "list of tables"),
        ('[[registry]]\nlocation = "a.test"\n[[registry.mirror]]\ninsecure = true\n', "no location"),
        ('[[registry]]\nlocation = "a.test"\n[[registry.mirror]]\nlocation = "b.test"\npull-from-mirror = "never"\n', "never"),
        (
            '[[registry]]\nlocation = "a.test"\nmirror-by-digest-only = true\n'
            '[[registry.mirror]]\nlocation = "b.test"\npull-from-mirror = "all"\n',
            "beside",
        ),
        ('[[registry]]\nlocation = "a.test"\n[[registry]]\nlocation = "a.test"\nblocked = true\n', "two different"),
        ('[[registry]]\nlocation = "a.test"\n[[registry]]\nprefix = "b.test"\nlocation = "a.test"\nblocked = true\n', "both blocked"),
        ('unqualified-search-registries = "docker.io"\n', "list of strings"),
        ('unqualified-search-registries = ["https://docker.io"]\n', "host name"),
        ('short-name-mode = "maybe"\n', "maybe"),
        ("[aliases]\napp = 1\n", "not a string"),
        ('[aliases]\napp = "x.test/app:tag"\n', "without a tag"),
        ('[aliases]\napp = "app"\n', "registry/name"),
        ('[aliases]\n"x.test:1/app" = "x.test/app"\n', "short name"),
    ],
)
def test_refused(files, text, why):
    with pytest.raises(BadInput) as caught:
        files(text)
    assert re.search(why, f"{caught.value} {caught.value.hint}") and caught.value.subject


def test_unknown_keys_are_warned_of(files):
    configuration = files(
        'new-thing = 1\n[[registry]]\nlocation = "a.test"\ncolour = "red"\n[[registry.mirror]]\nlocation = "b.test"\nspeed = 9\n'
    )
    assert [warning.partition(": ")[2] for warning in configuration.warnings] == [
        "new-thing is not known and has no effect",
        "registry 1: colour is not known and has no effect",
        "registry 1, mirror 1: speed is not known and has no effect",
    ]


def test_the_same_entry_twice_is_no_contradiction(files):
    entry = '[[registry]]\nlocation = "a.test"\ninsecure = true\n'
    assert len(files(entry + entry).entries) == 1


def test_a_file_of_another_size(files, monkeypatch):
    monkeypatch.setattr("dockless.images.registry.configuration.FILE_MAX", 10)
    with pytest.raises(BadInput, match="larger"):
        files("# long long long\n")


def test_the_files_of_this_machine():
    """What distributions ship is understood."""
    if Path("/etc/containers/registries.conf").exists():
        assert Configuration.load({}).warnings == ()


@pytest.mark.parametrize("name", ["registries.conf", "registries.conf.d", "registries.conf.d/a.conf"])
def test_what_cannot_be_seen_is_not_passed_over(name, files, tmp_path):
    """It may say ``blocked``."""
    files('[[registry]]\nlocation = "r.test"', user='[[registry]]\nlocation = "r.test"')
    own = tmp_path / "home/.config/containers" / name
    if own.is_dir():
        own.rmdir()
    own.unlink(missing_ok=True)
    own.symlink_to(own)
    with pytest.raises(BadInput, match=f"{own}: Too many levels of symbolic links"):
        Configuration.load({"HOME": str(tmp_path / "home")}, tmp_path / "etc/containers")
