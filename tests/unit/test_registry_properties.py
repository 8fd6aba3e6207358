"""Whatever stands in a configuration, an auth file or an answer: it is understood or refused with an error of ours, nothing else."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from dockless.errors import DocklessError
from dockless.images.model.reference import parse as parse_reference
from dockless.images.registry.configuration import Configuration, _check_conflicts, _merge, endpoints, short_names, simple_toml
from dockless.images.registry.credentials import Credentials, normal
from dockless.images.registry.endpoint import Endpoint, split_port
from dockless.images.registry.errors import refusal
from dockless.images.registry.transport import Registry

HOSTS = st.sampled_from(
    [
        "a.test",
        "*.test",
        "a.test/x",
        "b.test:5000",
        "docker.io",
        "",
        "A.test",
        "a.test/",
        "*.a.test/x",
        "x",
        "é.test",
        "a..b",
        "https://a",
        "[::1]:5",
    ]
)
WORDS = st.one_of(HOSTS, st.text(max_size=8), st.booleans(), st.integers(), st.none(), st.lists(HOSTS, max_size=2))
MIRROR = st.dictionaries(st.sampled_from(["location", "insecure", "pull-from-mirror", "odd"]), WORDS, max_size=4)
ENTRY = st.dictionaries(
    st.sampled_from(["location", "prefix", "insecure", "blocked", "mirror-by-digest-only", "mirror", "Location"]),
    st.one_of(WORDS, st.lists(MIRROR, max_size=2)),
    max_size=5,
)
SOUND = st.fixed_dictionaries(
    {"location": HOSTS},
    optional={"prefix": HOSTS, "blocked": st.booleans(), "mirror": st.lists(st.fixed_dictionaries({"location": HOSTS}), max_size=2)},
)
DOCUMENT = st.dictionaries(
    st.sampled_from(["registry", "aliases", "unqualified-search-registries", "short-name-mode", "credential-helpers", "new"]),
    st.one_of(WORDS, st.lists(st.one_of(ENTRY, SOUND), max_size=3), st.dictionaries(HOSTS, WORDS, max_size=2)),
    max_size=4,
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


PIECES = st.sampled_from(
    [
        "[",
        "]",
        "[[",
        "]]",
        "a",
        "b",
        "registry",
        "aliases",
        " ",
        "\t",
        "\r",
        "\n",
        "=",
        '"',
        "'",
        '"x"',
        "true",
        "1",
        ",",
        "#",
        ".",
        "\\",
        "\x7f",
        "é",
        "{",
        "}",
    ]
)
LINES = st.sampled_from(
    [
        "# é",
        "",
        "  ",
        "a=true",
        "b = false ",
        'a = "x#"',
        '"a.b" = "x/y"',
        'c = ["x", "y"]',
        "c = []",
        "[a]",
        "[d]",
        "[[a]]",
        "[[d]]",
        "[[c]]",
        "a = 1",
        "\t[a]",
    ]
)
TOML = st.lists(LINES | st.lists(PIECES, max_size=8).map("".join), max_size=8).flatmap(
    lambda lines: st.sampled_from(["\n", "\r\n", "\r"]).map(lambda end: end.join(lines))
)


@given(TOML)
@example("[[c]]\na = true\n[[c]]\na = false")
@example("c = []\n[[c]]")
@example("[a]\na = true\n[[a]]")
def test_a_simple_file_says_what_it_says_as_toml(text):
    found = simple_toml(text)
    assert found is None or found == tomllib.loads(text)


def test_what_distributions_install_is_simple():
    text = """# a comment
unqualified-search-registries = ["docker.io"]

[[registry]]
location = "r.test"
insecure = true

[aliases]
  "almalinux" = "docker.io/library/almalinux"
"""
    assert simple_toml(text) == tomllib.loads(text)


@given(DOCUMENT)
def test_configurations(document):
    try:
        configuration = _merge(Configuration(), Path("registries.conf"), document)
        _check_conflicts(configuration)
        for name in ("a.test/x", "a.test/x/y:1", "b.test:5000/z", "busybox", "q.a.test/x"):
            for endpoint in endpoints(parse_reference(name), configuration):
                assert endpoint.netloc and endpoint.repository and split_port(endpoint.netloc)[0]
        short_names("busybox:1", configuration)
    except DocklessError as error:
        assert str(error) and error.hint


@given(
    st.dictionaries(
        st.sampled_from(["auths", "credHelpers", "credsStore", "other"]),
        st.one_of(
            JSON,
            st.dictionaries(
                st.sampled_from(["r.test", "https://r.test/v1/", "r.test/a"]),
                JSON | st.dictionaries(st.sampled_from(["auth", "username", "password", "identitytoken"]), JSON),
            ),
        ),
    )
)
def test_auth_files(tmp_path_factory, document):
    path = tmp_path_factory.getbasetemp() / "auth.json"
    path.write_text(json.dumps(document))
    try:
        login = Credentials((path,), {"PATH": "/nowhere"}).find("r.test", "a/b")
        assert login is None or login.basic().startswith("Basic ")
    except DocklessError as error:
        assert str(error) and error.hint


@given(st.text(max_size=40))
def test_keys(key):
    assert normal(normal(key)) == normal(key) or "://" in normal(key)


@given(JSON, st.integers(100, 599))
def test_refusals(body, status):
    assert str(refusal(status, json.dumps({"errors": body}).encode(), method="GET", what="x", host="h"))


@given(st.text(alphabet="htps:/?#[]@.\\%aé\x00\t :1", max_size=30))
def test_locations(location):
    """Judging one raises nothing unforeseen, and what passes has a plain host."""
    registry = Registry(Endpoint("r.test", "x"), env={})
    try:
        url = registry._judged("https://r.test/v2/x", location, "x")
    except DocklessError:
        return
    assert url.startswith("https://") and "@" not in url.split("/")[2] and url.isascii() and url.isprintable()
