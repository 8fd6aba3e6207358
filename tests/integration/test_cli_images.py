"""The verbs of images against a real registry, and with real sandboxes: pull, push, login, run what is missing, commit, diff, Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import bad_registry as bad
from support.bad_registry import BadRegistry
from support.make_image import busybox_image, file
from support.registries import DockerRegistry, docker_registry
from support.requires import requires

import dockless
from dockless.cli import main
from dockless.errors import NotFound, UnknownImage
from dockless.images import Store
from dockless.sandbox.run import detached

COMMAND = [sys.executable, "-P", "-m", "dockless"]
TOOLS = "docker.io/library/tools:1"


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return busybox_image(tmp_path_factory.mktemp("layout"), ref="tools:1", cmd=("echo", "its own command"))


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, layout: Path) -> Iterator[DockerRegistry]:
    """One that wants a login: ann, secret."""
    with docker_registry(tmp_path_factory.mktemp("registry"), users={"ann": "secret"}) as found:
        yield found


@pytest.fixture(autouse=True)
def logins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of this user's configuration counts."""
    place = tmp_path / "auth.json"
    (tmp_path / "registries.conf").write_text("")
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(place))
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(tmp_path / "registries.conf"))
    return place


@pytest.fixture
def tools(layout: Path) -> str:
    return Store().load(layout)[0].digest


@pytest.fixture
def logged_in(registry: DockerRegistry) -> str:
    done = subprocess.run([*COMMAND, "login", "-q", "-u", "ann", "--password-stdin", registry.netloc], input="secret\n", text=True)
    assert done.returncode == 0
    return registry.netloc


needs_registry = requires("program:docker-registry", "program:htpasswd")


# -- registries


@needs_registry
def test_login_push_pull_logout(registry, tools, logins, capfd):
    there = f"{registry.netloc}/team/tools:2"
    assert main(["push", "tools:1", there]) == 125
    out, err = capfd.readouterr()
    assert out == "" and f"hint: dockless login {registry.netloc}" in err
    login = [*COMMAND, "login", "-u", "ann", "--password-stdin", registry.netloc]
    refused = subprocess.run(login, input="wrong", text=True, capture_output=True)
    assert refused.returncode == 125 and "check the user name and the password" in refused.stderr and not logins.exists()
    accepted = subprocess.run(login, input="secret\n", text=True, capture_output=True)
    assert accepted.stdout == f"logged in to {registry.netloc} as ann; kept in {logins}\n" and logins.stat().st_mode & 0o777 == 0o600

    assert main(["push", "tools:1", there]) == 0
    out, err = capfd.readouterr()
    assert re.fullmatch(rf"{there}  {tools[7:19]}  2 blobs sent, .+; 0 were there\n", out) and "blob 1/2" in err
    assert main(["push", "--json", "tools:1", f"{registry.netloc}/other/tools:2"]) == 0
    pushed = json.loads(capfd.readouterr().out)
    assert (pushed["digest"], pushed["uploaded"], pushed["mounted"]) == (tools, 0, 2)

    main(["prune", "-q", "--all", "--yes"])
    assert main(["pull", f"{registry.netloc}/team/none:1", there, "--json"]) == 125
    out, err = capfd.readouterr()
    assert [row["digest"] for row in json.loads(out)] == [tools] and json.loads(err)["error"] == "not_in_registry"
    assert main(["pull", "-q", there, f"{registry.netloc}/other/tools@{tools}"]) == 0
    assert capfd.readouterr() == (f"{there}\n{tools}\n", "")
    assert main(["pull", "--platform", "linux/s390x", there]) == 125 and "s390x" in capfd.readouterr().err
    assert main(["logout", registry.netloc]) == 0
    assert main(["logout", registry.netloc]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == f"there was no login for {registry.netloc}"
    assert main(["pull", there, "--policy", "missing"]) == 0 and main(["pull", there]) == 125


@needs_registry
def test_login_asks_on_a_terminal_and_shows_no_password(registry, logins):
    child, terminal = pty.fork()
    if child == 0:
        os.execv(COMMAND[0], [*COMMAND, "login", registry.netloc])
    out = b""
    questions = {b"user name": b"ann\n", b"password of": b"secret\n"}
    try:
        while piece := os.read(terminal, 4096):
            out += piece
            for question in [question for question in questions if question in out]:
                time.sleep(0.05)  # until the echo is off
                os.write(terminal, questions.pop(question))
    except OSError:
        pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, out.decode()
    assert b"logged in" in out and b"secret" not in out and logins.exists()


# -- what is missing is pulled


@needs_registry
@requires("userns", "overlay")
def test_run_pulls_what_is_missing(registry, logged_in, tools, capfd):
    there = f"{logged_in}/run/tools:1"
    main(["push", "-q", "tools:1", there])
    main(["prune", "-q", "--all", "--yes"])
    capfd.readouterr()
    assert main(["run", "--pull", "never", there]) == 125
    assert "there is no image" in capfd.readouterr().err
    assert main(["run", there]) == 0
    out, err = capfd.readouterr()
    assert out == "its own command\n" and "layer 1/1" in err
    assert main(["run", there]) == 0 and capfd.readouterr() == ("its own command\n", "")
    main(["rmi", "-q", there])
    assert main(["run", "-q", "-d", "--name", "gone", there]) == 0 and main(["wait", "-q", "gone"]) == 0 and main(["rm", "-q", "gone"]) == 0
    capfd.readouterr()
    assert main(["run", f"{logged_in}/run/none"]) == 125
    assert re.fullmatch(r"dockless: .+: not in the registry.*\n  hint: .+\n  note: the store has no image .+\n", capfd.readouterr().err)

    main(["rmi", "-q", there])
    with pytest.raises(UnknownImage):
        dockless.run(there, pull="never")
    assert dockless.run(there, ["echo", "1"], capture_output=True).stdout == b"1\n"
    with dockless.Sandbox(there, ["true"], pull="always") as box:
        assert box.wait().code == 0
    with pytest.raises(NotFound):
        dockless.run(f"{logged_in}/run/none", ["true"])


# -- what a sandbox changed


@requires("userns", "overlay")
def test_diff_commit_export_of_a_sandbox(tools, tmp_path, capfd):
    assert main(["run", "-q", "-d", "--name", "box", "tools:1", "--", "sh", "-c", "echo new > /new; rm /etc/group"]) == 0
    main(["wait", "-q", "box"])
    capfd.readouterr()
    assert main(["diff", "box"]) == 0
    assert capfd.readouterr().out.splitlines() == ["C /etc", "D /etc/group", "A /new"]
    assert main(["diff", "--json", "box"]) == 0
    assert {"kind": "A", "path": "/new"} in json.loads(capfd.readouterr().out)
    assert main(["commit", "-q", "box", "mine:1", "-c", 'CMD ["cat", "/new"]', "-m", "made by a test", "-a", "me"]) == 0
    assert main(["commit", "-q", "box", "mine:zstd", "--compression", "zstd", "--level", "1", "--no-pause"]) == 0
    assert [_top_layer(name) for name in ("mine:1", "mine:zstd")] == ["tar+gzip", "tar+zstd"]
    assert main(["export", "box", "-o", str(tmp_path / "root.tar")]) == 0 and main(["inspect", "box"]) == 0
    assert main(["rm", "-q", "box"]) == 0 and detached.find("box") is None
    capfd.readouterr()
    assert main(["history", "mine:1", "--json"]) == 0
    newest, *_ = json.loads(capfd.readouterr().out)
    assert newest["comment"] == "made by a test" and newest["created_by"].startswith("sh -c echo new")
    assert main(["run", "mine:1"]) == 0 and capfd.readouterr().out == "new\n"
    assert main(["import", "-q", str(tmp_path / "root.tar"), "flat:1", "-c", "CMD cat /new"]) == 0
    capfd.readouterr()
    assert main(["run", "flat:1"]) == 0 and capfd.readouterr().out == "new\n"


def _top_layer(name: str) -> str:
    store = Store()
    return store.documents(store.get(name).digest, name)[1].layers[-1].media_type.split(".")[-1]


@requires("userns", "overlay")
def test_an_image_in_use_stays(tools, capfd):
    assert main(["run", "-q", "-d", "--name", "busy", "tools:1", "--", "sleep", "100"]) == 0
    try:
        capfd.readouterr()
        assert main(["rmi", "tools:1"]) == 125 and "a sandbox uses" in capfd.readouterr().err
        assert main(["prune", "--all", "--yes"]) == 0 and main(["images", "-q"]) == 0
        assert capfd.readouterr().out == f"{TOOLS}\n"
        assert main(["images"]) == 0 and "in use" in capfd.readouterr().out
    finally:
        main(["kill", "-q", "busy"])
        main(["wait", "-q", "busy"])
        main(["rm", "-q", "busy"])
    assert main(["rmi", "tools:1"]) == 0


# -- an interrupt


def test_a_cancelled_task_ends_its_pull():
    with BadRegistry() as registry:
        registry.image("app:1", [[file("a", os.urandom(400_000))]], compression="none")
        begun, whole = threading.Event(), threading.Event()

        def slowly(exchange: bad.Exchange) -> None:
            status, headers, body = exchange.part()
            exchange.head(status, headers, length=len(body))
            for at in range(0, len(body), 4096):
                exchange.write(body[at : at + 4096])
                begun.set()
                time.sleep(0.15)
            whole.set()

        registry.script(slowly, part=registry.layers("app:1")[0])

        async def cancelled() -> None:
            task = asyncio.create_task(dockless.aio.run(registry.name("app:1"), ["true"]))
            await asyncio.to_thread(begun.wait, 20)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(cancelled())
        assert not whole.is_set()
    assert Store().list() == []


def test_an_interrupted_pull_says_how_to_go_on_and_does(tmp_path):
    content = os.urandom(700_000)
    with BadRegistry() as registry:
        registry.image("app:1", [[file("a", content)]], compression="none")
        (layer,) = registry.layers("app:1")
        registry.script(bad.stalled_at(400_000), part=layer)
        pull = [*COMMAND, "pull", registry.name("app:1")]
        cut = subprocess.Popen(pull, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 20
        while not any(path.stat().st_blocks >= 512 for path in (Store().root / "partial").rglob(layer[7:] + "*")):
            assert time.monotonic() < deadline and cut.poll() is None
            time.sleep(0.01)
        time.sleep(0.1)
        cut.send_signal(signal.SIGINT)
        out, err = cut.communicate(timeout=20)
        assert (cut.returncode, out) == (130, "")
        assert err == "dockless: interrupted; what has come is kept: run the same command to go on with the pull\n"
        again = subprocess.run(pull, capture_output=True, text=True)
        assert again.returncode == 0 and registry.requests(part=layer)[-1].range.startswith("bytes=")
    assert Store().get(registry.name("app:1")).read_file("/a", 1 << 20) == content
