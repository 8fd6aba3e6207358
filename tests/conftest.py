"""What every test gets: its own DOCKLESS_HOME, the requirements check, the residue check, a time limit, golden files."""

from __future__ import annotations

import gc
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
from support import apart, residue, sharing
from support import requires as requirements

HERE = Path(__file__).resolve().parent
FAILED = pytest.StashKey[bool]()
TEMPORARY = pytest.StashKey[Path]()
STATUS = pytest.StashKey[int]()
CHECKED_FOR_RESIDUE = ("integration", "attacks")
WITH_STAND_INS = ("test_sched_", "test_cli_jobs")
"""Their stand-ins for sandboxes and daemons hold pipes and sockets."""

# No deadline: the guest emulates its processor. No database of examples where the tests lie on a read-only disk.
hypothesis.settings.register_profile("dockless", deadline=None, **({} if os.access(HERE.parent, os.W_OK) else {"database": None}))
hypothesis.settings.load_profile("dockless")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/* from what the tests produce now")
    parser.addoption("--needing", metavar="WORDS", help="only tests that require one of these words; cgroup2 covers every cgroup2:…")
    parser.addoption("--lacking", action="store_true", help="with --needing: only tests that cannot run here for want of such a word")
    parser.addoption(
        "--share",
        metavar="DIRECTORY",
        type=lambda name: Path(name).resolve(),
        help="only files that no other run with this directory, empty at first, has taken",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Whatever a shell starts in the background is deaf to Ctrl-C, what nohup(1) starts to SIGHUP, and so are their children: tests that
    # interrupt something would wait. The kernel also sends SIGHUP to a whole process group that nobody looks after any more, when something
    # in it is stopped, as tests do to keepers: that ends no run. What is executed has the default again.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, lambda *_: None)
    apart.mark()
    config.stash[TEMPORARY] = apart.own_temporary_directory()
    config.addinivalue_line("markers", "requires(*words): what the test needs of the machine; see tests/support/requires.py")
    config.addinivalue_line("markers", "leaves(reason): the test may leave something behind, on purpose; no residue check")


def pytest_collection_finish() -> None:
    # Ten thousand tests are a million objects that stay: the collector need not look at them after each test.
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[STATUS] = int(exitstatus)


def pytest_terminal_summary(config: pytest.Config) -> None:
    if not sys.stdout.isatty():
        config.get_terminal_writer().fullwidth = 250  # what failed and why, on a line that is not cut at 80


def pytest_unconfigure(config: pytest.Config) -> None:
    apart.remove(config.stash[TEMPORARY])
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()) and STATUS in config.stash:
        # A test that failed left a thread that waits, and Python would wait for it, for ever.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(config.stash[STATUS])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.needing:
        _keep_needing(set(config.option.needing.split(",")), config, items)
    limit = apart.TIME_LIMIT * apart.slowness()
    for item in items:
        own = item.get_closest_marker("timeout")
        item.add_marker(pytest.mark.timeout(own.args[0] * limit / apart.TIME_LIMIT if own else limit), append=False)


def _keep_needing(words: set[str], config: pytest.Config, items: list[pytest.Item]) -> None:
    def kept(item: pytest.Item) -> bool:
        required = {word for mark in item.iter_markers("requires") for word in mark.args}
        among = {word for word in required if not words.isdisjoint({word, word.partition(":")[0]})}
        return any(map(requirements.missing, among)) if config.option.lacking else bool(among)

    config.hook.pytest_deselected(items=[item for item in items if not kept(item)])
    items[:] = filter(kept, items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    if session.config.option.share is None or session.config.option.collectonly or session.testsfailed:
        return None
    for item, following in sharing.in_turn(session.items, session.config.option.share):
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    mark = item.get_closest_marker("timeout")
    assert mark is not None
    apart.end_the_run_after(mark.args[0])
    try:
        return (yield)
    finally:
        apart.forget_the_end()


def pytest_report_header() -> list[str]:
    probes = ("root", "userns", "overlay", "subuid", "cgroup2", "cgroup2:memory", "device-filter", "virtio-disk", "gpu")
    has = [word for word in probes if not requirements.missing(word)]
    lines = [f"machine: Linux {os.uname().release}, has: {' '.join(has) or 'nothing special'}"]
    if os.environ.get("DOCKLESS_MUST_RUN"):
        lines.append(f"must run: {os.environ['DOCKLESS_MUST_RUN']}")
    return lines


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    # The nearest mark last: a module's needs are reported before a test's own.
    for mark in reversed(list(item.iter_markers("requires"))):
        requirements.check(*mark.args)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(autouse=True, scope="session")
def _own_directory(tmp_path_factory: pytest.TempPathFactory) -> None:
    residue.OWN_DIRECTORY = tmp_path_factory.getbasetemp()


@pytest.fixture(autouse=True)
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A DOCKLESS_HOME of the test's own, kept when the test fails. The name is short: a unix socket's path has 108 bytes."""
    place = tmp_path / "h"
    place.mkdir(mode=0o700)
    monkeypatch.setenv("DOCKLESS_HOME", str(place))
    yield place
    residue.unmount_below(tmp_path)
    if not request.node.stash.get(FAILED, False):
        residue.remove_tree(place)


@pytest.fixture
def passable(home: Path) -> Iterator[None]:
    """Other users can come to the test's directories, as to /run/dockless; pytest's are closed to them, and are so again afterwards."""
    closed = {one: mode for one in (home, *home.parents) if (mode := one.stat().st_mode & 0o7777) & 0o55 != 0o55}
    for one, mode in closed.items():
        one.chmod(mode | 0o55)
    yield
    for one, mode in closed.items():
        one.chmod(mode)


@pytest.fixture
def own_host(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """``own_host("2x80G")``: simulated GPUs of a host of the test's own, the same for all its homes. What names them for other programs.

    Without it each home has a host of its own. No other test has a host of this name, not even the next: a keeper may just be ending there.
    """
    name = f"t{secrets.token_hex(9)}"

    def simulate(gpus: str) -> str:
        text = f"{gpus},host={name}"
        monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", text)
        return text

    return simulate


@pytest.fixture(autouse=True)
def _no_residue(request: pytest.FixtureRequest, home: Path) -> Iterator[None]:
    """Integration and attack tests leave the machine as they found it; the others leave no descriptor open."""
    folder = request.node.path.relative_to(HERE).parts[0] if request.node.path.is_relative_to(HERE) else ""
    if request.node.get_closest_marker("leaves"):
        yield
        return
    if folder not in CHECKED_FOR_RESIDUE:
        if request.node.path.name.startswith(WITH_STAND_INS):
            yield
            return
        open_before = residue.open_descriptors()
        yield
        if still_open := residue.open_descriptors(but=open_before):
            pytest.fail("left open:\n  " + "\n  ".join(sorted(still_open)), pytrace=False)
        return
    before = residue.snapshot()
    yield
    left = residue.leftovers(before)
    if left:
        pytest.fail("left behind:\n  " + "\n  ".join(left), pytrace=False)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden("name.txt", text)``: the text is what tests/golden/name.txt says; --update-golden rewrites the file."""

    def compare(name: str, text: str) -> None:
        path = HERE / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        assert path.exists(), f"{path} is missing: run pytest --update-golden and review it like code"
        assert text == path.read_text(), f"differs from {path}: if that is meant, run pytest --update-golden and review the change"

    return compare


@pytest.fixture
def shared() -> Path:
    """The folder of real images and hostile tars, where there is one."""
    requirements.check("shared")
    place = requirements.shared()
    assert place is not None
    return place


@pytest.fixture
def scratch_disk() -> tuple[Path, str]:
    """A directory on a disk of its own and the disk's "major:minor", for io limits."""
    requirements.check("virtio-disk")
    place = Path(os.environ["DOCKLESS_TEST_DISK"])
    number = os.stat(place).st_dev
    return place, f"{os.major(number)}:{os.minor(number)}"


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The exit code, standard output and standard error of a command line."""
    from dockless.cli import main

    def say(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        return code, *capfd.readouterr()

    return say
