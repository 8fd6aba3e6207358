"""Image references against the tables of distribution/reference, and digests that are safe as paths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockless.errors import BadDigest, BadInput
from dockless.images.model import digest, reference

A256 = "sha256:" + "a" * 64
A512 = "sha512:" + "0123456789abcdef" * 8

GOOD = {
    "busybox": "docker.io/library/busybox:latest",
    "busybox:1.37": "docker.io/library/busybox:1.37",
    "library/busybox": "docker.io/library/busybox:latest",
    "docker.io/busybox": "docker.io/library/busybox:latest",
    "index.docker.io/busybox": "docker.io/library/busybox:latest",
    "user/app": "docker.io/user/app:latest",
    "localhost/app": "localhost/app:latest",
    "localhost:5000/app": "localhost:5000/app:latest",
    "example.com/a/b/c:v1": "example.com/a/b/c:v1",
    "Registry/app": "Registry/app:latest",
    "[2001:db8::1]:5000/app": "[2001:db8::1]:5000/app:latest",
    f"busybox@{A256}": f"docker.io/library/busybox@{A256}",
    f"busybox:1@{A256}": f"docker.io/library/busybox:1@{A256}",
    f"a/b@{A512}": f"docker.io/a/b@{A512}",
    "a__b/c-d--e.f_g": "docker.io/a__b/c-d--e.f_g:latest",
    "app:UPPER_tag.1-x": "docker.io/library/app:UPPER_tag.1-x",
    "xn--n3h.com/myimage": "xn--n3h.com/myimage:latest",
}
BAD = [
    "",
    ":tag",
    "a" * 64,
    "0" * 64,
    "UPPER",
    "user/UPPER",
    "example.com/UPPER:tag",
    "-app",
    "app-",
    "a___b",
    "a..b",
    "a//b",
    "/a",
    "a/",
    "app:",
    "app:-x",
    "app:" + "x" * 129,
    "app@sha256:abc",
    "app@sha256:" + "A" * 64,
    "app@md5:" + "a" * 32,
    "app@sha256:../../etc/passwd",
    "app\n",
    "app tag",
    "http://example.com/app",
    "example.com/" + "a" * 256,
    "../../etc",
    "a/../b",
    "[bad]/app",
]


@pytest.mark.parametrize(("text", "full"), GOOD.items())
def test_good_references(text, full):
    parsed = reference.parse(text)
    assert str(parsed) == full
    assert reference.parse(full) == parsed
    assert reference.parse(parsed.familiar) == parsed


@pytest.mark.parametrize("text", BAD)
def test_bad_references(text):
    with pytest.raises(BadInput) as caught:
        reference.parse(text)
    assert caught.value.hint


def test_the_familiar_form_is_what_people_type():
    assert reference.parse("docker.io/library/busybox:1").familiar == "busybox:1"
    assert reference.parse("user/app").familiar == "user/app:latest"
    assert reference.parse("example.com/x").familiar == "example.com/x:latest"


@pytest.mark.parametrize("text", ["docker.io/library/user/app:1", "docker.io/localhost/x:1", "docker.io/library/localhost/x:1"])
def test_the_familiar_form_is_not_short_where_that_would_be_another_image(text):
    assert reference.parse(reference.parse(text).familiar) == reference.parse(text)


def test_an_upper_case_name_is_explained():
    with pytest.raises(BadInput, match="must be lower case"):
        reference.parse("MyImage")


@given(st.text(max_size=80))
def test_any_text_is_parsed_or_refused(text):
    try:
        parsed = reference.parse(text)
    except BadInput:
        return
    assert reference.parse(str(parsed)) == parsed
    assert ".." not in parsed.path.split("/")


@pytest.mark.parametrize("text", [A256, A512])
def test_good_digests(text):
    assert str(digest.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "sha256:" + "A" * 64,
        "sha256:" + "a" * 63,
        "sha256:" + "a" * 65,
        "sha512:" + "a" * 64,
        "sha1:" + "a" * 40,
        "SHA256:" + "a" * 64,
        "sha256:../../etc/passwd",
        "sha256:" + "../" * 21 + "a",
        "sha256:" + "a" * 63 + "\n",
        "../sha256:" + "a" * 64,
        "sha256",
        "",
        None,
        7,
    ],
)
def test_bad_digests(text):
    with pytest.raises(BadDigest):
        digest.parse(text)


def test_a_chain_id_depends_on_all_layers_below():
    first, second = digest.of(b"1"), digest.of(b"2")
    assert digest.chain((first,)) == (first,)
    assert digest.chain((first, second))[1] == digest.of(f"{first} {second}".encode())
    assert digest.chain((first, second))[1] != digest.chain((second, second))[1]
