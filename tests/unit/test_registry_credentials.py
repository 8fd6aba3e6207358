"""Logins: where they are looked for, which one fits, credential helpers, and the file that login writes."""

from __future__ import annotations

import base64
import json
import os
import stat
import time

import pytest
from support.requires import requires

from dockless.errors import BadInput, RegistryError
from dockless.images.registry import helpers
from dockless.images.registry.configuration import Configuration
from dockless.images.registry.credentials import HUB_KEY, Credentials, normal, search_path
from dockless.images.registry.logins import logout, target


def auth(user: str, password: str = "pw") -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.fixture
def env(tmp_path):
    """An environment with directories of its own for everything."""
    found = {
        "HOME": tmp_path / "home",
        "XDG_RUNTIME_DIR": tmp_path / "run",
        "XDG_CONFIG_HOME": tmp_path / "config",
        "PATH": tmp_path / "bin",
    }
    for place in found.values():
        place.mkdir()
    return {name: str(place) for name, place in found.items()}


@pytest.fixture
def write(env, tmp_path):
    """``write("run/containers/auth.json", {…})``."""

    def into(name: str, document: object) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document if isinstance(document, str) else json.dumps(document))

    return into


@pytest.fixture
def helper(tmp_path):
    """``helper("name", "shell script")`` installs docker-credential-name."""

    def install(name: str, script: str) -> None:
        path = tmp_path / "bin" / f"docker-credential-{name}"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return install


def user(env, location: str, repository: str = "") -> str | None:
    login = Credentials.load(env).find(location, repository)
    return login.username if login else None


def test_the_order_of_the_files(env, write):
    places = ["home/.dockercfg", "home/.docker/config.json", "config/containers/auth.json", "run/containers/auth.json"]
    assert user(env, "r.test") is None
    for name in places:
        document = {"r.test": auth(name)}
        write(name, document if name.endswith("cfg") else {"auths": document})
        assert user(env, "r.test") == name
    write("own.json", {"auths": {"other.test": auth("own")}})
    env["REGISTRY_AUTH_FILE"] = env["HOME"] + "/../own.json"
    assert user(env, "other.test") == "own" and user(env, "r.test") is None  # then no other file counts


def test_places_by_environment(env):
    del env["XDG_RUNTIME_DIR"], env["XDG_CONFIG_HOME"]
    env["DOCKER_CONFIG"] = "/docker"
    first, *rest = map(str, search_path(env))
    assert first.startswith("/run/containers/")
    assert rest == [f"{env['HOME']}/.config/containers/auth.json", "/docker/config.json", f"{env['HOME']}/.dockercfg"]
    assert list(map(str, search_path({})))[1:] == []


def test_the_most_specific_key(env, write):
    write("run/containers/auth.json", {"auths": {"r.test": auth("host"), "r.test/team": auth("team"), "r.test/team/app": auth("app")}})
    assert user(env, "r.test", "team/app") == "app"
    assert user(env, "r.test", "team/application") == "team"
    assert user(env, "r.test", "teams/app") == "host"
    assert user(env, "r.test") == "host"
    assert user(env, "r.test:5000", "team/app") is None
    assert user(env, "not-r.test", "team/app") is None


@pytest.mark.parametrize(
    "key",
    ["docker.io", HUB_KEY, "index.docker.io", "https://index.docker.io/v1", "registry-1.docker.io", "https://registry-1.docker.io/v2/"],
)
def test_all_names_of_the_hub(env, write, key):
    write("home/.docker/config.json", {"auths": {key: auth("ann")}})
    assert user(env, "docker.io", "library/busybox") == "ann"


def test_keys_that_are_urls(env, write):
    write("home/.docker/config.json", {"auths": {"https://quay.io/v1/": auth("ann"), "http://r.test:5000": auth("bob")}})
    assert user(env, "quay.io", "a/b") == "ann"
    assert user(env, "r.test:5000") == "bob"
    assert normal("r.test/v2/") == "r.test" and normal("docker.io/team") == "docker.io/team"


def test_passwords_and_tokens(env, write):
    write(
        "run/containers/auth.json",
        {
            "auths": {
                "a.test": auth("ann", "a:b c\u00fc"),
                "b.test": {"username": "bob", "password": "plain"},
                "c.test": {**auth("cat"), "identitytoken": "identity"},
                "d.test": {"registrytoken": "bearer"},
                "e.test": {"auth": base64.b64encode(b"eve:padded\0\0").decode()},
                "f.test": {},
                "g.test": {"auth": ""},
            }
        },
    )
    find = Credentials.load(env).find
    assert find("a.test").password == "a:b cü"
    assert find("b.test").password == "plain"
    assert find("c.test").identity_token == "identity"
    assert find("d.test").registry_token == "bearer"
    assert find("e.test").password == "padded"
    assert find("f.test") is None and find("g.test") is None
    assert "a:b" not in repr(find("a.test")) and "identity" not in repr(find("c.test")) and "bearer" not in repr(find("d.test"))
    assert find("a.test").source.endswith("run/containers/auth.json")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '"x"',
        '{"auths": [1]}',
        '{"auths": {"r.test": {"auth": "!!"}}}',
        '{"auths": {"r.test": {"auth": "bm9jb2xvbg=="}}}',
        '{"auths": {"r.test": {"auth": 1}}}',
        '{"auths": {"r.test": {"auth": "\u0080"}}}',
        '{"auths": {"r.test": {"username": "\\ud800"}}}',
        '{"auths": {"r.test": {"identitytoken": "a\\r\\nX: y"}}}',
        '{"auths": {"r.test": {"registrytoken": "a\\nb"}}}',
        '{"credHelpers": "x"}',
        "[" * 100_000,
    ],
)
def test_a_broken_file_is_an_error_and_names_itself(env, write, text):
    write("run/containers/auth.json", text)
    with pytest.raises(RegistryError) as caught:
        user(env, "r.test")
    assert caught.value.subject.endswith("auth.json") and "bm9" not in str(caught.value)


@requires("user")
def test_files_of_others(env, write, tmp_path):
    write("run/containers/auth.json", {})
    write("config/containers/auth.json", {"auths": {"r.test": auth("ann")}})
    (tmp_path / "run/containers").chmod(0)  # nobody can say whether there is a file
    assert user(env, "r.test") == "ann"
    (tmp_path / "run/containers").chmod(0o700)
    (tmp_path / "run/containers/auth.json").chmod(0)
    with pytest.raises(RegistryError, match="Permission denied"):
        user(env, "r.test")


def test_an_empty_file_is_no_error(env, write):
    write("run/containers/auth.json", "\n")
    assert user(env, "r.test") is None


# ---- helpers -----------------------------------------------------------------------------------------------------------------------------


def test_a_helper_of_one_registry(env, write, helper, tmp_path):
    write("home/.docker/config.json", {"credHelpers": {"r.test": "mine"}, "auths": {"r.test": auth("file")}})
    helper("mine", f'/bin/cat >{tmp_path}/asked; echo "$1" >>{tmp_path}/asked; echo \'{{"ServerURL":"x","Username":"ann","Secret":"s3"}}\'')
    login = Credentials.load(env).find("r.test", "a/b")
    assert (login.username, login.password, login.source) == ("ann", "s3", "docker-credential-mine")
    assert (tmp_path / "asked").read_text() == "r.testget\n"
    assert user(env, "q.test") is None


def test_a_store_for_all_registries(env, write, helper):
    write("home/.docker/config.json", {"credsStore": "all", "auths": {HUB_KEY: {}, "f.test": auth("file")}})
    known = f'{HUB_KEY}) echo \'{{"Username":"<token>","Secret":"id"}}\';;'
    helper("all", f'read server || true; case "$server" in {known} *) echo "credentials not found in native keychain"; exit 1;; esac')
    assert Credentials.load(env).find("docker.io").identity_token == "id"
    assert user(env, "f.test") == "file"
    assert user(env, "other.test") is None


def test_helpers_of_registries_conf_come_first(env, write, helper):
    write("run/containers/auth.json", {"auths": {"r.test": auth("file"), "q.test": auth("file")}})
    known = 'echo \'{"Username":"ring","Secret":"s"}\'; exit'
    helper("ring", f'read server || true; test "$server" = r.test && {{ {known}; }}; echo credentials not found; exit 1')
    configuration = Configuration(credential_helpers=("containers-auth.json", "ring"))
    found = Credentials.load(env, configuration)
    assert (found.find("r.test").username, found.find("q.test").username, found.find("p.test")) == ("ring", "file", None)


@pytest.mark.parametrize(
    ("answer", "login"),
    [
        ('{"Username": "u", "Secret": "s"}', ("u", "s")),
        ('{"Username": "", "Secret": "token"}', ("", "token")),
        ('{"Username": "u", "Secret": ""}', ("u", "")),
        ('{"Username": "", "Secret": ""}', None),
    ],
)
def test_half_a_login_is_one(env, helper, answer, login):
    helper("some", f"cat > /dev/null; echo '{answer}'")
    assert helpers.get("some", "r.test", {**env, "PATH": env["PATH"] + ":/usr/bin:/bin"}) == login


def test_a_helper_runs_with_little(env, helper, tmp_path):
    helper("env", f'env >{tmp_path}/env; pwd >>{tmp_path}/env; echo \'{{"Username":"u","Secret":"s"}}\'')
    noise = {"LD_PRELOAD": "/x.so", "PYTHONPATH": "/x", "BASH_ENV": "/x", "SECRET_OF_MINE": "1", "DBUS_SESSION_BUS_ADDRESS": "unix:x"}
    assert helpers.get("env", "r.test", {**env, "PATH": env["PATH"] + ":/usr/bin:/bin", **noise}) == ("u", "s")
    seen = (tmp_path / "env").read_text()
    assert "DBUS_SESSION_BUS_ADDRESS" in seen and seen.endswith("\n/\n")
    assert not [name for name in ("LD_PRELOAD", "PYTHONPATH", "BASH_ENV", "SECRET_OF_MINE") if name in seen]


@pytest.mark.parametrize("name", ["../../bin/sh", "a/b", "", "-x", "x" * 100, "a b", "a;b"])
def test_names_that_are_no_helpers(env, name):
    with pytest.raises(RegistryError):
        helpers.get(name, "r.test", env)


def test_a_helper_is_never_one_of_the_working_directory(env, helper, tmp_path, monkeypatch):
    helper("here", 'echo \'{"Username":"u","Secret":"s"}\'')
    monkeypatch.chdir(tmp_path / "bin")
    for path in ("", ".", ":", "bin"):
        with pytest.raises(RegistryError, match="no such program"):
            helpers.get("here", "r.test", {**env, "PATH": path})


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 3", "exit code 3"),
        ("echo no json", "no Username"),
        ('echo \'{"Username": 1, "Secret": 2}\'', "no Username"),
        ("echo []", "no Username"),
        ("/usr/bin/head -c 100000 /dev/zero", "more than"),
    ],
)
def test_helpers_that_fail(env, helper, script, why):
    helper("bad", script)
    with pytest.raises(RegistryError, match=why):
        helpers.get("bad", "r.test", env)


def test_a_helper_that_hangs(env, helper, monkeypatch):
    monkeypatch.setattr(helpers, "TIMEOUT", 0.1)
    helper("slow", "exec /bin/sleep 60")
    with pytest.raises(RegistryError, match="no answer"):
        helpers.get("slow", "r.test", env)


@pytest.mark.parametrize(
    "script",
    ["exec /bin/sleep 60", "exec 0<&-; exec /bin/sleep 60", "exec 1>&-; exec /bin/sleep 60", "/bin/sleep 60 & exit 0"],
    ids=["reads nothing", "closes its input", "closes its output", "leaves somebody with its output"],
)
def test_a_helper_that_never_reads_or_never_ends(env, helper, monkeypatch, script, tmp_path):
    monkeypatch.setattr(helpers, "TIMEOUT", 0.3)
    helper("deaf", f"echo $$ >{tmp_path}/pid; {script}")
    with pytest.raises(RegistryError, match="no answer"):
        helpers.store("deaf", "r.test", "ann", "x" * 20000, env)
    group = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        until_gone(group)


def until_gone(group: int) -> None:
    """``ProcessLookupError`` when nobody of that process group is left."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        os.killpg(group, 0)
        time.sleep(0.01)


def test_a_helper_that_answers_what_it_did_not_read(env, helper):
    helper("guess", 'echo \'{"Username":"u","Secret":"s"}\'')
    assert helpers.get("guess", "r.test/" + "x" * 20000, env) == ("u", "s")


def test_a_helper_that_floods_forever(env, helper):
    helper("flood", "exec /bin/cat /dev/zero")
    with pytest.raises(RegistryError, match="more than"):
        helpers.get("flood", "r.test", env)


# ---- logout, and where login writes ------------------------------------------------------------------------------------------------------


def test_where_login_writes(env):
    assert str(target(env)) == env["XDG_RUNTIME_DIR"] + "/containers/auth.json"
    assert str(target({"REGISTRY_AUTH_FILE": "/x/y"})) == "/x/y"
    assert str(target({"XDG_RUNTIME_DIR": "/nowhere/at/all", "HOME": "/h"})) == "/h/.config/containers/auth.json"


def test_logout_forgets_everywhere_but_in_dockers_file(env, write, tmp_path):
    rest = {"other": [1, {"deep": None}], "auths": {"q.test": auth("quin"), "r.test/team": auth("team")}}
    for name in ("run/containers/auth.json", "config/containers/auth.json"):
        write(name, {**rest, "auths": {**rest["auths"], "r.test": auth("ann"), "https://r.test/v1/": auth("old")}})
    write("home/.docker/config.json", {"auths": {"r.test": auth("docker")}})
    done = logout("r.test", env=env)
    assert len(done.removed) == 2 and done.remaining.endswith(".docker/config.json")
    for name in ("run/containers/auth.json", "config/containers/auth.json"):
        assert json.loads((tmp_path / name).read_text()) == rest
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert logout("nowhere.test", env=env) == type(done)((), "")
    assert user(env, "r.test", "team/x") == "team"


def test_logout_from_a_helper(env, write, helper, tmp_path):
    write("run/containers/auth.json", {"credHelpers": {"r.test": "mine"}})
    helper("mine", f'case "$1" in erase) cat >{tmp_path}/erased;; *) echo credentials not found; exit 1;; esac')
    env["PATH"] += ":/usr/bin:/bin"
    assert logout("r.test", env=env).removed == ("docker-credential-mine",)
    assert (tmp_path / "erased").read_text() == "r.test"


@pytest.mark.parametrize("name", ["", "a b", "r.test/UPPER", "../x", "r.test//x"])
def test_registries_that_are_none(env, name):
    with pytest.raises(BadInput):
        logout(name, env=env)
