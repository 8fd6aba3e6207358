"""policy.json: the scope that fits best decides, and what cannot be checked is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dockless.errors import BadImage, BadInput, RegistryError
from dockless.images.model.reference import parse
from dockless.images.registry.policy import check

ACCEPT, REJECT, SIGNED = [{"type": "insecureAcceptAnything"}], [{"type": "reject"}], [{"type": "signedBy", "keyType": "GPGKeys"}]


def write(path: Path, default=ACCEPT, **docker) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"default": default, "transports": {"docker": docker}}))


def ask(tmp_path: Path, ref: str) -> None:
    check(parse(ref), env={"HOME": str(tmp_path / "home")}, system=tmp_path / "etc")


def allowed(tmp_path: Path, ref: str) -> bool:
    try:
        ask(tmp_path, ref)
    except RegistryError:
        return False
    return True


def test_without_a_file_everything_is_accepted(tmp_path):
    assert allowed(tmp_path, "busybox")


@pytest.mark.parametrize(
    ("scope", "ref"),
    [
        ("docker.io/library/busybox:1", "busybox:1"),
        ("docker.io/library/busybox", "busybox:2"),
        ("docker.io/library", "alpine"),
        ("docker.io", "someone/thing"),
        ("r.example.com:5000/a", "r.example.com:5000/a/b/c:1"),
        ("*.example.com", "r.example.com/a"),
        ("*.example.com", "deep.r.example.com:5000/a"),
        ("", "anything/else"),
        ("docker.io/library/busybox@sha256:" + "0" * 64, "busybox@sha256:" + "0" * 64),
    ],
)
def test_a_scope_fits(tmp_path, scope, ref):
    write(tmp_path / "etc/policy.json", ACCEPT, **{scope: REJECT})
    with pytest.raises(RegistryError, match="the policy rejects it") as error:
        ask(tmp_path, ref)
    assert "policy.json" in error.value.hint
    write(tmp_path / "etc/policy.json", REJECT, **{scope: ACCEPT})
    assert allowed(tmp_path, ref)


@pytest.mark.parametrize(
    ("scope", "ref"),
    [("docker.io/library/busy", "busybox"), ("*.example.com", "example.com/a"), ("docker.io/library/busybox:1", "busybox:11")],
)
def test_a_scope_that_does_not_fit(tmp_path, scope, ref):
    write(tmp_path / "etc/policy.json", ACCEPT, **{scope: REJECT})
    assert allowed(tmp_path, ref)


def test_the_most_specific_decides_and_all_it_demands_must_hold(tmp_path):
    write(tmp_path / "etc/policy.json", REJECT, **{"docker.io": ACCEPT, "docker.io/bad": REJECT, "docker.io/both": ACCEPT + REJECT})
    assert allowed(tmp_path, "good/x")
    assert not allowed(tmp_path, "bad/x")
    assert not allowed(tmp_path, "both/x")
    assert not allowed(tmp_path, "quay.io/x/y")


def test_the_users_file_replaces_the_systems(tmp_path):
    write(tmp_path / "etc/policy.json", REJECT)
    write(tmp_path / "home/.config/containers/policy.json", ACCEPT)
    assert allowed(tmp_path, "busybox")


@pytest.mark.parametrize("kind", ["signedBy", "sigstoreSigned"])
def test_a_signature_is_not_believed(tmp_path, kind):
    write(tmp_path / "etc/policy.json", [{"type": kind}])
    with pytest.raises(RegistryError, match="cannot check") as error:
        ask(tmp_path, "busybox")
    assert "skopeo" in error.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"default": []}',
        '{"default": {}}',
        '{"default": [{"type": "maybe"}]}',
        '{"default": [1]}',
        '{"default": [{"type": "reject"}], "default": [{"type": "insecureAcceptAnything"}]}',
        '{"default": [{"type": "insecureAcceptAnything"}], "transport": {}}',
        '{"default": [{"type": "insecureAcceptAnything"}], "transports": []}',
        '{"default": [{"type": "insecureAcceptAnything"}], "transports": {"docker": []}}',
    ],
)
def test_what_is_not_understood_is_an_error(tmp_path, text):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/policy.json").write_text(text)
    with pytest.raises((BadInput, BadImage), match=r"policy\.json"):
        ask(tmp_path, "busybox")


def test_a_policy_that_cannot_be_seen_is_not_passed_over(tmp_path):
    write(tmp_path / "etc/policy.json")
    own = tmp_path / "home/.config/containers/policy.json"
    own.parent.mkdir(parents=True)
    own.symlink_to(own)
    with pytest.raises(BadInput, match=rf"{own} is not sound: Too many levels of symbolic links"):
        ask(tmp_path, "busybox")
