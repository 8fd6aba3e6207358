"""The vocabulary of requirements: unknown words are errors, MUST_RUN turns the right skips into failures."""

from __future__ import annotations

import pytest
from support import requires as requirements
from support.requires import UnknownWord, requires


@pytest.mark.parametrize("word", ["rooot", "cgroup2:memroy", "kernel>=new", "kernel", "gpu:1", "", "root,userns"])
def test_an_unknown_word_is_an_error(word):
    with pytest.raises(UnknownWord):
        requires(word)


def test_every_word_has_an_answer():
    samples = {
        "cgroup2:": "memory",
        "kernel>=": "5.14",
        "cpus>=": "1",
        "project-quotas:": "ext4",
        "program:": "sh",
        "package:": "bash",
        "module:": "os",
        "arch:": "x86_64",
        "cross-gcc:": "aarch64",
    }
    for word in requirements.WORDS:
        assert isinstance(requirements.missing(word + samples.get(word, "")), str)


def test_a_missing_word_skips_or_fails(monkeypatch):
    word = "kernel>=99.0"
    monkeypatch.delenv("DOCKLESS_MUST_RUN", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"requires kernel>=99\.0: needs Linux 99\.0"):
        requirements.check(word)
    monkeypatch.setenv("DOCKLESS_MUST_RUN", "root, kernel>=99.0")
    with pytest.raises(pytest.fail.Exception, match="forbids this skip"):
        requirements.check(word)


def test_must_run_covers_parameters(monkeypatch):
    monkeypatch.setenv("DOCKLESS_MUST_RUN", "cgroup2")
    assert requirements.must_run("cgroup2:memory")
    assert not requirements.must_run("root")
    monkeypatch.setenv("DOCKLESS_MUST_RUN", "cgroup2:cpu")
    assert not requirements.must_run("cgroup2:memory")
    monkeypatch.setenv("DOCKLESS_MUST_RUN", "cgruop2")
    with pytest.raises(UnknownWord):
        requirements.must_run("root")
