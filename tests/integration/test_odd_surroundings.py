"""A program's surroundings when they are not as usual: every verb says one sentence, no traceback, and a program gets no file of ours."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest
from support.requires import requires

COMMAND = [sys.executable, "-P", "-m", "dockless"]


def said(*arguments: str, environment: dict[str, str] | None = None, rc: tuple[int, ...] = (125,), before: tuple[str, ...] = (), **how):
    """What a command printed. ``environment``: "<unset>" takes a variable away; ``before``: words that start it."""
    given = {key: value for key, value in ({**os.environ} | (environment or {})).items() if value != "<unset>"}
    how |= {"capture_output": True, "text": True, "errors": "replace", "timeout": 120, "check": False}
    done = subprocess.run([*before, *COMMAND, *arguments], env=given, **how)
    assert done.returncode in rc, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr and "this is a bug" not in done.stderr, done.stderr
    if done.returncode == 125:
        assert len(done.stderr.splitlines()) <= 3 and done.stderr.startswith("dockless: ")
    return done.stdout + done.stderr


STRANGER = ("setpriv", "--reuid=54321", "--regid=54321", "--clear-groups")
VERBS = (["ps"], ["images"], ["queue"], ["df"], ["run", "--", "true"], ["submit", "--", "true"], ["inspect", "x"], ["info"])


@pytest.mark.parametrize("coding", ["latin1", "ascii", "ascii:strict"])
def test_a_terminal_that_knows_few_characters(coding):
    said("help", environment={"PYTHONIOENCODING": coding}, rc=(0,))
    said("inspect", "x漢…", environment={"PYTHONIOENCODING": coding})


@pytest.mark.parametrize("locale", ["C", "POSIX", "no_SUCH.utf8"])
def test_a_plain_locale(locale):
    said("inspect", "x\udce9", environment={"LC_ALL": locale, "PYTHONUTF8": "0"})
    said("help", environment={"LC_ALL": locale, "PYTHONUTF8": "0"}, rc=(0,))


@requires("root")
@pytest.mark.parametrize("verb", VERBS)
def test_a_user_whom_nobody_knows_without_a_home(verb, tmp_path):
    environment = {"HOME": "<unset>", "DOCKLESS_HOME": "<unset>", "XDG_RUNTIME_DIR": "<unset>", "PYTHONDONTWRITEBYTECODE": "1"}
    text = said(*verb, environment=environment, rc=(0, 125), before=STRANGER, cwd="/")
    assert "home directory" in text or verb[0] in ("queue", "info", "submit", "run"), text


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("length", [150, 300, 5000])
def test_a_home_that_is_too_long(verb, length):
    text = said(*verb, environment={"DOCKLESS_HOME": "/tmp/" + "x" * length}, rc=(0, 125))
    if length > 255:
        assert "DOCKLESS_HOME is too long" in text
    elif verb[0] in ("queue", "submit"):
        assert "the socket's path has" in text


def test_a_daemon_whose_socket_cannot_be(tmp_path):
    long = tmp_path / ("x" * 200)
    assert "the socket's path has" in said("daemon", environment={"DOCKLESS_HOME": str(long)})
    assert not long.exists()


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("home", ["/proc", "/etc/hostname", "/dev/null"])
def test_a_home_that_is_none(verb, home):
    said(*verb, environment={"DOCKLESS_HOME": home}, rc=(0, 125))


@requires("userns")
@pytest.mark.parametrize("files", [10, 16, 24, 40, 63])
def test_few_open_files(files):
    """They are counted before anything starts, not found out half way and taken for something else."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, before[1]))

    assert f"{files} files may be open" in said("run", "--", "true", preexec_fn=few)
    said("ps", preexec_fn=few, rc=(0,))


@requires("userns")
def test_as_many_open_files_as_are_needed():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    said("run", "--", "true", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1])), rc=(0,))


@requires("userns")
@pytest.mark.parametrize("umask", [0o077, 0o277, 0o377, 0o777])
def test_a_umask_that_takes_the_owner_s_own_rights(umask, home):
    """What dockless makes is its own to read and write; the program has the umask that the sandbox gives it."""
    there = {"preexec_fn": lambda: os.umask(umask), "environment": {"PYTHONDONTWRITEBYTECODE": "1"}, "rc": (0,)}
    assert said("run", "-d", "--name", "odd", "--", "sh", "-c", "umask; touch /tmp/x; stat -c %a /tmp/x", **there) == "odd\n"
    said("wait", "odd", **there)
    assert said("logs", "odd", **there) == "0022\n644\n"
    assert oct((home / "state" / "sandboxes" / "odd" / "log").stat().st_mode & 0o777) == "0o600"
    said("rm", "odd", **there)
    assert not list((home / "state" / "sandboxes").iterdir())


def small_files(size: int):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@requires("userns")
@pytest.mark.parametrize("size", [0, 1024, 20_000, 30_000])
def test_files_that_may_not_grow(size, home):
    """The limit is named, and nothing is left that could not be removed under it."""
    for line in (["run", "--", "true"], ["run", "-d", "--name", "odd", "--", "true"]):
        text = said(*line, preexec_fn=small_files(size), environment={"PYTHONDONTWRITEBYTECODE": "1"}, rc=(0, 125))
        assert "ulimit -f" in text or size > 28_000, text
    if (home / "state" / "sandboxes" / "odd").exists():
        said("rm", "-f", "odd", preexec_fn=small_files(size), rc=(0,))
    assert not list((home / "state").glob("sandboxes/*"))


@requires("user", "userns")
@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_few_processes(processes, home):
    """As many as this user may have at all, and some more: that is what is said, and nothing is left behind."""

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (processes, resource.getrlimit(resource.RLIMIT_NPROC)[1]))

    for line in (["run", "--", "true"], ["run", "-d", "--name", "odd", "--", "true"]):
        text = said(*line, preexec_fn=few, rc=(0, 125))
        assert "too many processes" in text or "odd" in text or text == ""
    if (home / "state" / "sandboxes" / "odd").exists():
        assert (home / "state" / "sandboxes" / "odd" / "started").exists()
        said("wait", "odd", rc=(0,))
        said("rm", "odd", rc=(0,))
    assert not list((home / "state").glob("sandboxes/*"))


@requires("userns")
@pytest.mark.parametrize("files", ["0", "3", "4"])
def test_few_files_of_the_program_s_own_are_no_failure_of_ours(files):
    """The limit is the program's: what needs a descriptor of ours is done before."""
    assert "cannot go to" not in said("run", "--ulimit", f"nofile={files}", "-w", "/tmp", "--", "true", rc=(0, 127))
    inside = "import os, resource; print(resource.getrlimit(resource.RLIMIT_NOFILE), os.getcwd())"
    assert said("run", "--ulimit", "nofile=20:30", "-w", "/tmp", "--", "/usr/bin/python3", "-Sc", inside, rc=(0,)) == "(20, 30) /tmp\n"


@requires("userns")
@pytest.mark.parametrize("limit", ["as=1", "data=1"])
def test_limits_in_which_no_program_begins(limit):
    text = said("run", "--ulimit", limit, "--", "true")
    assert "Cannot allocate memory" in text and "--ulimit as, data or stack" in text


@requires("userns")
@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1), (0, 1, 2)])
def test_closed_standard_streams_are_dev_null_for_the_program(tmp_path, closed):
    """Not the next file that we opened."""
    closing = "".join(f" {number}>&-" for number in closed)
    found = tmp_path / "found"
    found.mkdir(mode=0o777)
    found.chmod(0o777)
    inner = "for n in 0 1 2; do readlink /proc/self/fd/$n; done > /out/fds"
    line = f"{' '.join(COMMAND)} run -v {found}:/out -- sh -c '{inner}' {closing}"
    subprocess.run(["sh", "-c", line], stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False)
    links = (found / "fds").read_text().splitlines()
    for number in closed:
        if number != 1:  # the shell's own redirection
            assert links[number] in ("/dev/null", "/null"), links


def test_nobody_to_talk_to():
    for verb in (["ps"], ["images"], ["inspect", "x"], ["help"], ["version"]):
        line = f"{' '.join(COMMAND)} {' '.join(verb)} <&- >&- 2>&-"
        assert subprocess.run(["sh", "-c", line], timeout=120, check=False).returncode in (0, 125)


@pytest.mark.parametrize(
    "verb", [*VERBS, ["run", "-v", "./x:/x", "--", "true"], ["load", "x"], ["run", "--mount", "type=bind,source=x,target=/x", "--", "a"]]
)
def test_a_directory_that_is_gone(tmp_path, verb):
    place = tmp_path / "gone"
    line = f"mkdir {place}; cd {place}; rmdir {place}; exec {' '.join(COMMAND)} {' '.join(verb)}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 125) and "Traceback" not in done.stderr and "this is a bug" not in done.stderr
    if "-v" in verb or "--mount" in verb:
        assert "the current directory is gone" in done.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_no_place_for_temporary_files(verb):
    said(*verb, environment={"TMPDIR": "/nonexistent"}, rc=(0, 125))


@requires("userns")
def test_a_shortage_is_not_remembered_as_a_lack(tmp_path):
    """A process that once had no descriptor free must not believe for ever that this host has no user namespaces."""
    code = """
import os, dockless
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
try:
    dockless.run(["true"])
    raise SystemExit("it ran without a descriptor")
except (dockless.DocklessError, OSError):
    pass
for fd in held:
    os.close(fd)
assert dockless.run(["true"]).returncode == 0
"""
    warm = (
        "import dockless; from dockless import _call, _options, _keywords\n"
        "from dockless.sandbox import features; from dockless.sandbox.run import foreground, prepared\n"
    )
    few = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (128, {resource.getrlimit(resource.RLIMIT_NOFILE)[1]}))\n"
    done = subprocess.run([sys.executable, "-P", "-c", warm + few + code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_home_is_told_in_python(monkeypatch):
    from dockless.base import paths
    from dockless.errors import BadInput

    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as it answers where nobody knows one
    with pytest.raises(BadInput, match="no home directory"):
        paths.user_home()


def test_one_that_is_not_listed_says_where_it_would_be():
    text = said("run", "--", "true", environment={"DOCKLESS_HOME": "/dev/null"}, rc=(0,))
    assert "this sandbox is not listed by `dockless ps`: /dev/null/" in text
