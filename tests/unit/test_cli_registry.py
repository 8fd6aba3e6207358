"""``pull``, ``push``, ``login`` and ``logout``, over a store and a file of logins that only note what they are asked."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dockless.errors import NotFound, Unauthorized
from dockless.images import Store
from dockless.images.progress import Progress
from dockless.images.transfer.push import Pushed

DIGEST = "sha256:" + "ab" * 32


def image(name: str, *, warnings: tuple[str, ...] = (), layers: int = 2) -> Any:
    return SimpleNamespace(
        name=name, reference=name, digest=DIGEST, config_digest="sha256:c", os="linux", architecture="arm64", variant="v8", size=2048,
        created="2026-01-02T03:04:05Z", layers=("layer",) * layers, warnings=warnings, config={"cmd": ["true"]},
    )  # fmt: skip


def row(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "reference": name, "digest": DIGEST, "config_digest": "sha256:c", "os": "linux", "architecture": "arm64", "variant": "v8",
        "size": 2048, "created": "2026-01-02T03:04:05Z", "layers": 2, "warnings": [], "config": {"cmd": ["true"]}, **fields,
    }  # fmt: skip


# -- pull and push


@pytest.fixture
def pulls(monkeypatch):
    """What the store was asked to pull. ``gone:1`` there is not, ``slow:1`` is interrupted; all others come with a line of progress."""
    asked = []

    def pull(self, name, *, platform, policy, progress):
        asked.append((name, platform, policy, progress is not None))
        if name == "gone:1":
            raise NotFound("gone:1: not in the registry", hint="look")
        if name == "slow:1":
            raise KeyboardInterrupt
        if progress is not None:
            progress(Progress(name, 1, 2, DIGEST, 5, 5, "done"))
        return image(name, warnings=("odd",) if name == "odd:1" else (), layers=1 if name == "odd:1" else 2)

    monkeypatch.setattr(Store, "pull", pull)
    return asked


PULLED = "{}  abababababab  2 KiB, 2 layers\n"
LINE = "{}: layer 1/2 abababababab: done, 5 B read\n"


def test_pull(pulls, say):
    assert say("pull", "a:1", "odd:1") == (
        0,
        PULLED.format("a:1") + "odd:1  abababababab  2 KiB, 1 layer\n",
        LINE.format("a:1") + LINE.format("odd:1") + "dockless: odd:1: odd\n",
    )
    assert say("pull", "-q", "a:1", "odd:1") == (0, "a:1\nodd:1\n", "")
    code, out, err = say("pull", "--json", "a:1", "odd:1")
    assert (code, err) == (0, "dockless: odd:1: odd\n")
    assert json.loads(out) == [row("a:1"), row("odd:1", layers=1, warnings=["odd"])]
    told = [asked[3] for asked in pulls]
    assert told == [True, True, False, False, False, False] and {asked[1:3] for asked in pulls} == {(None, "always")}


def test_what_is_asked_of_the_registry(pulls, say):
    say("pull", "-q", "--platform", "linux/arm64", "--policy", "missing", "a:1")
    assert pulls == [("a:1", "linux/arm64", "missing", False)]


def test_a_pull_of_several_goes_on_after_one_that_fails(pulls, say):
    code, out, err = say("pull", "gone:1", "a:1")
    assert (code, out, err) == (125, PULLED.format("a:1"), "dockless: gone:1: not in the registry\n  hint: look\n" + LINE.format("a:1"))
    code, out, err = say("pull", "--json", "a:1", "gone:1")
    assert (code, json.loads(out), json.loads(err)["error"]) == (125, [row("a:1")], "not_in_registry")


def test_an_interrupted_pull_can_go_on(pulls, say):
    interrupted = "dockless: interrupted; what has come is kept: run the same command to go on with {}\n"
    assert say("pull", "-q", "a:1", "slow:1", "b:1") == (130, "a:1\n", interrupted.format("the pull"))
    assert [asked[0] for asked in pulls] == ["a:1", "slow:1"]


def test_push(monkeypatch, say):
    asked = []

    def push(self, name, destination, *, progress):
        asked.append((name, destination))
        if progress is not None:
            progress(Progress(name, 1, 2, DIGEST, 5, 5, "done"))
        return Pushed("reg.example/a:1", DIGEST, sent=3072, uploaded=4, mounted=2, there=1)

    monkeypatch.setattr(Store, "push", push)
    line = "a:1: blob 1/2 abababababab: done, 5 B sent\n"
    assert say("push", "a:1") == (0, "reg.example/a:1  abababababab  4 blobs sent, 3 KiB; 3 were there\n", line)
    assert say("push", "-q", "a:1", "reg.example/a:1") == (0, DIGEST + "\n", "")
    code, out, err = say("push", "--json", "a:1", "b:2")
    known = {"reference": "reg.example/a:1", "digest": DIGEST, "sent": 3072, "uploaded": 4, "mounted": 2, "there": 1}
    assert (code, json.loads(out), err) == (0, known, "")
    assert asked == [("a:1", None), ("a:1", "reg.example/a:1"), ("a:1", "b:2")]

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, "push", interrupted)
    assert say("push", "a:1")[0] == 130


# -- login and logout


@pytest.fixture
def login(monkeypatch, say):
    """What ``login`` says with this on standard input, which is a terminal or not; and what it keeps."""

    def login(*words: str, typed: str | None = "", terminal: bool = False, refused: bool = False) -> tuple[tuple[int, str, str], list[Any]]:
        kept = []

        def keep(registry, username, password):
            kept.append((registry, username, password))
            if refused:
                raise Unauthorized("no", hint="dockless login")
            return "/auth.json"

        stdin = None if typed is None else io.StringIO(typed)
        if stdin is not None:
            stdin.isatty = lambda: terminal
        monkeypatch.setattr("dockless.images.registry.login", keep)
        monkeypatch.setattr(sys, "stdin", stdin)
        return say("login", *words), kept

    return login


BY_STDIN = ("-u", "ann", "--password-stdin")


def test_a_password_on_standard_input(login):
    said, kept = login(*BY_STDIN, "reg.example", typed=" secret \r\n\n")
    assert said == (0, "logged in to reg.example as ann; kept in /auth.json\n", "") and kept == [("reg.example", "ann", " secret ")]
    said, kept = login("-q", *BY_STDIN, typed="two\nlines")
    assert said == (0, "", "") and kept == [("docker.io", "ann", "two\nlines")]
    (code, out, err), _ = login("--json", *BY_STDIN, "reg.example", typed="x")
    assert (code, json.loads(out), err) == (0, {"registry": "reg.example", "username": "ann", "kept": "/auth.json"}, "")
    assert login(*BY_STDIN, typed="x" * 70_000)[1] == [("docker.io", "ann", "x" * 65_536)]


def test_a_refused_login_says_what_to_check(login):
    hint = "check the user name and the password; many registries want a token instead of it"
    assert login(*BY_STDIN, typed="x", refused=True)[0] == (125, "", f"dockless: no\n  hint: {hint}\n")


@pytest.mark.parametrize(
    ("words", "how", "said"),
    [
        (("-p", "x"), {}, "a password on the command line is for everybody to read"),
        (("-p", ""), {}, "a password on the command line is for everybody to read"),
        (("--password-stdin",), {"typed": "x"}, "--password-stdin without --username"),
        (BY_STDIN, {"typed": "x", "terminal": True}, "--password-stdin on a terminal would show the password"),
        (BY_STDIN, {"typed": "\r\n"}, "standard input is empty"),
        (BY_STDIN, {"typed": None}, "standard input is empty"),
        (("-u", "ann"), {"typed": "x"}, "there is no terminal to ask for the password on"),
        (("-u", "ann"), {"typed": None}, "there is no terminal to ask for the password on"),
    ],
)
def test_logins_that_are_refused(login, words, how, said):
    (code, out, err), kept = login(*words, **how)
    assert (code, out, kept) == (125, "", []) and err.startswith(f"dockless: {said}") and "\n  hint: " in err


def test_the_way_out_names_the_user_that_was_given(login):
    assert "hint: dockless login reg.example -u NAME, which asks" in login("-p", "x", "reg.example")[0][2]
    assert "hint: dockless login docker.io -u ann, which asks" in login("-p", "x", "-u", "ann")[0][2]


def test_on_a_terminal_it_asks(login, monkeypatch):
    asked = []

    def getpass(prompt, stream):
        asked.append((prompt, stream is sys.stderr))
        return "secret"

    monkeypatch.setattr("getpass.getpass", getpass)
    said, kept = login("reg.example", typed=" ann \n", terminal=True)
    assert said == (0, "logged in to reg.example as ann; kept in /auth.json\n", "user name at reg.example: ")
    assert kept == [("reg.example", "ann", "secret")] and asked == [("password of ann: ", True)]
    said, kept = login("-u", "bob\x1b", typed="nobody reads this\n", terminal=True)
    assert said[2] == "" and kept == [("docker.io", "bob\x1b", "secret")] and asked[-1] == ("password of bob\\x1b: ", True)
    refused = "dockless: a login needs a name and a password\n"
    assert login(typed="\n", terminal=True)[0] == (125, "", "user name at docker.io: " + refused)
    monkeypatch.setattr("getpass.getpass", lambda prompt, stream: "")
    assert login("-u", "ann", terminal=True) == ((125, "", refused), [])


@pytest.mark.parametrize(
    ("removed", "remaining", "out", "err"),
    [
        (["/a", "/b"], "", "logged out of reg.example: /a\nlogged out of reg.example: /b\n", ""),
        ([], "", "there was no login for reg.example\n", ""),
        (
            ["/a"], "/c", "logged out of reg.example: /a\n",
            "dockless: another login for it stays in /c\n  hint: docker logout reg.example\n",
        ),
    ],
)  # fmt: skip
def test_logout(monkeypatch, say, removed, remaining, out, err):
    asked = []
    monkeypatch.setattr(
        "dockless.images.registry.logout", lambda registry: asked.append(registry) or SimpleNamespace(removed=removed, remaining=remaining)
    )
    assert say("logout", "reg.example") == (0, out, err)
    assert say("logout", "-q") == (0, "", "")
    code, printed, said = say("logout", "--json", "reg.example")
    assert (code, json.loads(printed), said) == (0, {"registry": "reg.example", "removed": removed, "remaining": remaining}, "")
    assert asked == ["reg.example", "docker.io", "reg.example"]
