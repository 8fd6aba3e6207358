"""Terminals: what is typed here goes in there, what is shown there is shown here. Our side is a real terminal, pty(7)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import termios
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.boxes import alive, load, until
from support.requires import requires
from support.screens import Screen

import dockless
from dockless import DEVNULL, PIPE, Sandbox, aio
from dockless.cli import terminal
from dockless.errors import BadInput
from dockless.sandbox.run import door

pytestmark = requires("userns", "overlay")


@contextlib.contextmanager
def detached(name: str = "host", args: Any = ("sleep", "1000"), **options: Any) -> Iterator[Sandbox[bytes]]:
    found = dockless.start(name, args, **options)
    try:
        yield found
    finally:
        found.kill()
        found.wait(20)
        found.rm()


@pytest.fixture
def box() -> Iterator[Sandbox[bytes]]:
    with detached() as found:
        yield found


@contextlib.contextmanager
def shells(box: Sandbox[Any]) -> Iterator[Screen]:
    with Screen("exec", "-t", "-e", "PS1=> ", box.id, "--", "sh") as screen:
        screen.expect("> ")
        yield screen


def modes_are_back(screen: Screen) -> bool:
    return screen.modes() == screen.before


# -- a command's own terminal --------------------------------------------------------------------------------------------------------------


def test_a_shell(box):
    """It is a terminal for who looks, of our kind and size; the exit code is the shell's, and ours has its modes back."""
    with shells(box) as screen:
        assert screen.raw()
        screen.type("test -t 0 && test -t 1 && test -t 2 && echo a $TERM b; stty size; tty\n")
        screen.expect("a xterm b\r\n24 80\r\n/dev/pts/")
        screen.type("echo x > /dev/tty; exit 3\n")
        screen.expect("x\r\n")
        assert screen.code() == 3
        assert modes_are_back(screen)


def test_it_follows_our_size(box):
    script = "trap 'echo now $(stty size)' WINCH; echo on; while :; do sleep 0.05; done"
    with Screen("exec", "-t", box.id, "--", "sh", "-c", script) as screen:
        screen.expect("on\r\n")
        screen.resize(33, 111)
        screen.expect("now 33 111")


def test_no_change_of_size_is_missed():
    """Whenever it comes. Handlers in Python run only when what the main thread waits for has returned."""
    with terminal._Resized() as resized:
        elsewhere = threading.Timer(0.2, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGWINCH))
        elsewhere.start()
        assert select.select([resized.fd], [], [], 20)[0] == [resized.fd]
        elsewhere.join()
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.parametrize("size", [(1, 1), (0, 0), (1, 80), (5000, 5000)])
def test_odd_sizes(box, size):
    with Screen("exec", "-t", box.id, "--", "stty", "size", size=size) as screen:
        screen.expect(f"{size[0]} {size[1]}")
        assert screen.code() == 0


def test_ctrl_c_is_for_the_program_inside(box):
    """And Ctrl-D is the end of its input."""
    with shells(box) as screen:
        screen.type("sleep 791\n")
        until(lambda: _runs(box, "sleep 791"), "it runs")
        screen.type("\x03")
        until(lambda: not _runs(box, "sleep 791"), "it was interrupted")
        screen.type("echo $?\n")
        screen.expect("130\r\n")
        screen.type("\x04")
        assert screen.code() == 0


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash for job control")
def test_job_control(box):
    """Ctrl-Z stops the program in there, and fg goes on with it."""
    with Screen("exec", "-t", "-e", "PS1=> ", box.id, "--", "bash", "--norc") as screen:
        screen.expect("> ")
        screen.type("sleep 792\n")
        until(lambda: _runs(box, "sleep 792"), "it runs")
        screen.type("\x1a")
        screen.expect("Stopped")
        screen.type("jobs; bg; fg\n")
        screen.expect("sleep 792 &")
        until(lambda: _in_front(box, "sleep"), "it has the terminal again")
        screen.type("\x03")
        screen.type("exit 4\n")
        assert screen.code() == 4
        assert "no job control" not in screen.shown.decode()


def test_much_of_it_arrives(box):
    """Both ways at once: nothing is lost, doubled or in another order."""
    with Screen(
        "exec", "-t", box.id, "--", "sh", "-c", "stty -echo -icanon -opost; echo on; head -c 200000 | cat -v; seq 1 30000"
    ) as screen:
        screen.expect("on\n")
        typed = ("0123456789" * 20 + "\n") * (200000 // 201 + 1)
        writer = os.dup(screen.ours)
        os.set_blocking(writer, False)
        left = memoryview(typed.encode())

        def step() -> bool:
            nonlocal left
            with contextlib.suppress(BlockingIOError):
                left = left[os.write(writer, left[:4096]) :] if left else left
            return b"\n30000\n" in screen.shown

        screen.until(step, "all of it")
        os.close(writer)
        shown = screen.shown.partition(b"on\n")[2]
        assert shown[:200000] == typed.encode()[:200000]
        assert shown[200000:].split() == [b"%d" % number for number in range(1, 30001)]


def test_a_client_that_is_killed(box):
    """Its terminal has its modes back, and the command has ended."""
    with shells(box) as screen:
        screen.type("exec sleep 790\n")
        until(lambda: _runs(box, "sleep 790"), "it runs")
        assert screen.raw() and not modes_are_back(screen)
        os.kill(screen.pid, signal.SIGKILL)
        until(lambda: modes_are_back(screen), "its terminal is as it was")
        until(lambda: not _runs(box, "sleep 790"), "the command has ended")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_client_that_is_asked_to_end(box, number):
    with shells(box) as screen:
        os.kill(screen.pid, number)
        assert screen.code() != 0
        until(lambda: modes_are_back(screen), "its terminal is as it was")
        until(lambda: _runs(box, "sh") == 0, "the command has ended")


def test_a_window_that_is_closed(box):
    """The client's terminal hangs up, and nothing of it stays."""
    with shells(box) as screen:
        ours, screen.ours = screen.ours, os.open(os.devnull, os.O_RDWR)
        os.close(ours)
        until(screen._ended, "the client has ended")
        until(lambda: _runs(box, "sh") == 0, "the command has ended")


def _runs(box: Sandbox[Any], command: str) -> int:
    """How many processes inside have this command line."""
    script = f"n=0; for p in /proc/[0-9]*; do [ \"$(tr '\\0' ' ' 2>/dev/null < $p/cmdline)\" = '{command} ' ] && n=$((n+1)); done; echo $n"
    return int(box.exec("sh", "-c", script, text=True).stdout)


def _in_front(box: Sandbox[Any], program: str) -> bool:
    """Whether what a terminal's keys stop is this program. proc_pid_stat(5): the third field after its name, and the sixth."""
    script = f"for p in /proc/[0-9]*; do read -r line 2>/dev/null < $p/stat && set -- $line && [ $2$5 = '({program})'$8 ] && echo yes; done"
    return "yes" in box.exec("sh", "-c", script, text=True).stdout


def test_by_the_library(box):
    with box.spawn("sh", "-c", "stty size; read line; echo got $line", tty=True, size=(7, 9), text=True) as command:
        assert command.stdout.readline() == "7 9\n"
        command.resize(8, 10)
        assert termios.tcgetwinsize(command.terminal) == (8, 10)
        command.stdin.write("word\n")
        command.stdin.flush()
        assert command.stdout.read().endswith("got word\n")
        assert command.wait(20).code == 0
        assert command.stderr is None
    with box.spawn("true") as command, pytest.raises(BadInput):
        command.terminal  # noqa: B018
    with Sandbox("host", ["sh", "-c", "stty size; tty"], tty=True, size=(5, 6), text=True) as own:
        assert own.stdout.read().splitlines()[0] == "5 6"


def test_what_a_program_showed_that_is_quicker_than_its_starter(monkeypatch):
    """Which asks for the terminal when it knows that the program runs."""

    def asked_late(entrance, ask=door.terminal):
        keeper = entrance.keeper_pid
        children = Path(f"/proc/{keeper}/task/{keeper}/children")  # who waits at the door may be one, too
        until(lambda: not all(map(alive, map(int, children.read_text().split()))), "it has ended")
        return ask(entrance)

    monkeypatch.setattr(door, "terminal", asked_late)
    with Sandbox("host", ["echo", "said"], tty=True, text=True) as own:
        assert own.stdout.read().splitlines() == ["said"]
        assert own.wait(20).code == 0


def test_a_starter_that_never_asks_for_the_terminal(monkeypatch):
    def never(entrance):
        raise KeyboardInterrupt

    monkeypatch.setattr(door, "terminal", never)
    with pytest.raises(KeyboardInterrupt), Sandbox("host", ["true"], tty=True):
        pass
    assert dockless.list() == []


@pytest.mark.parametrize("how", ["read", "lines", "communicate", "awaited"])
def test_nothing_of_what_it_showed_last_is_lost(box, how):
    """The kernel keeps more of it than it says, and there is nobody left to wait for."""
    script = ("sh", "-c", "stty -opost; seq 1 2000")
    wanted = b"".join(b"%d\n" % number for number in range(1, 2001))

    async def awaited() -> bytes:
        async with aio.Sandbox.of(box).spawn(*script, tty=True) as command:
            await command.wait()
            return await command.stdout.read()

    if how == "awaited":
        assert asyncio.run(awaited()) == wanted
        return
    with box.spawn(*script, tty=True) as command:
        command.process.wait()
        shown = {
            "read": command.stdout.read, "lines": lambda: b"".join(command.stdout), "communicate": lambda: command.communicate()[0],
        }[how]()  # fmt: skip
    assert shown == wanted


@pytest.mark.parametrize("how", ["start", "exec"])
def test_a_program_that_closes_its_terminal_for_a_moment(box, how):
    """Whoever reads from our side finds an error while nobody has its side open, which is no end."""
    script = "echo before; exec <&- >&- 2>&-; sleep 0.5; exec </dev/tty >/dev/tty 2>&1; echo after; sleep 0.1"
    if how == "exec":
        with box.spawn("sh", "-c", script, tty=True) as command:
            shown = command.stdout.read()
    else:
        with detached(args=("sh", "-c", script), tty=True) as found:
            found.wait(20)
            shown = b"".join(line.text for line in found.logs())
    assert shown.split() == [b"before", b"after"]


def test_our_side_is_not_for_what_we_execute(box):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with box.spawn("true", tty=True) as command:
            assert not os.get_inheritable(command.terminal)
    assert not [one for one in said if one.category is ResourceWarning], "of the socket that it came by nothing is left"


def test_terminals_are_not_used_up(box):
    """Each is given back: there are more turns than the sandbox may have terminals open."""
    for _ in range(40):
        with box.spawn("tty", tty=True, text=True) as command:
            assert command.stdout.read() == "/dev/pts/0\n"


# -- a sandbox's own terminal --------------------------------------------------------------------------------------------------------------


def test_run_with_a_terminal():
    for words in (("run", "-t"), ("run",), ("run", "-i", "-t")):
        with Screen(*words, "-e", "PS1=> ", "host", "--", "sh") as screen:
            screen.expect("> ")
            screen.type("stty size; exit 5\n")
            screen.expect("24 80\r\n")
            assert screen.code() == 5
            assert modes_are_back(screen)


def test_streams_as_they_are():
    """-i alone is never a terminal."""
    with Screen("run", "-i", "host", "--", "sh", "-c", "ls -l /proc/self/fd/0; test -e /dev/pts/0 || echo none") as screen:
        screen.expect("none\r\n")
        assert screen.code() == 0


def test_attach_and_leave():
    """What is shown meanwhile is seen again; two look on; the keys that leave it are not typed into it."""
    with detached("host", ["sh"], tty=True, env={"PS1": "> "}) as box:
        with Screen("attach", box.id) as screen, Screen("attach", box.id) as other:
            screen.expect("> ")
            screen.type("echo a$((1+1))b\n")
            screen.expect("a2b\r")
            other.expect("a2b\r")
            for one in (screen, other):
                one.type("\x10\x11")
                assert one.code() == 0
                assert modes_are_back(one)
                assert b"left" in one.shown
        assert box.state == "running"
        with Screen("attach", "--detach-keys", "ctrl-a,x", box.id) as screen:
            screen.expect("a2b\r")
            screen.type("echo \x10c$((1+2))d\n")  # ctrl-p is nothing special now
            screen.expect("c3d")
            screen.type("\x01y\x7f\x7f\n\x01x")  # the first half of the keys, and then another
            assert screen.code() == 0
        with Screen("attach", box.id) as screen:
            screen.expect("c3d")
            screen.type("exit 6\n")
            assert screen.code() == 6


def test_a_client_that_is_killed_while_attached():
    with detached("host", ["sh"], tty=True, env={"PS1": "> "}) as box:
        with Screen("attach", box.id) as screen:
            screen.expect("> ")
            until(screen.raw, "it is in raw mode")
            os.kill(screen.pid, signal.SIGKILL)
            until(lambda: modes_are_back(screen), "its terminal is as it was")
        assert box.state == "running"
        with Screen("attach", box.id) as screen:
            screen.type("echo e$((2+2))f; exit 7\n")
            screen.expect("e4f")
            assert screen.code() == 7


@pytest.mark.skipif(not shutil.which("less"), reason="no program that fills the screen")
def test_a_program_that_fills_the_screen_is_drawn_anew(tmp_path):
    """Also when what it drew is no longer in the log's last part."""
    with detached("host", ["sh", "-c", "seq 1000 | less"], tty=True, env={"TERM": "xterm", "LESS": ""}) as box:
        with Screen("attach", box.id, size=(10, 40)) as screen:
            screen.expect("\r\n9\r\n")
            screen.press("G", "1000")
            screen.type("\x10\x11")
            assert screen.code() == 0
        with Screen("attach", box.id, size=(12, 40)) as screen:
            screen.until(lambda: screen.shown.count(b"\r\n1000") >= 1 or b"1000\r\n" in screen.shown, "the last page again")
            screen.until(screen.raw, "it is in raw mode")
            screen.press("g", "11")
            screen.press("q", "\x1b[?1049l")  # the screen of before
            assert screen.code() == 0


def test_attach_says_why_not(box, say):
    silent = dockless.start(["sleep", "100"], keep_log=False)
    code, _, err = say("attach", silent.id)
    assert code and "is not kept" in err and "hint" in err
    silent.rm(force=True)
    code, _, err = say("attach", "--detach-keys", "ctrl-", box.id)
    assert code and "--detach-keys" in err
    assert say("attach", "no-such-id")[0]


def test_without_a_terminal_of_ours(box):
    """Streams of the client that are pipes: the command's is a terminal anyway, and the end of ours is the end of its input."""
    command = [sys.executable, "-P", "-m", "dockless", "exec", "-t", box.id, "--", "sh", "-c", "test -t 1 && cat"]
    done = subprocess.run(command, input=b"word\n", stdout=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 0 and done.stdout.count(b"word\r\n") == 2, done  # its echo, and what cat says


def test_an_images_own_terminal(tmp_path):
    """Of an ordinary user inside: /dev/tty opens, and the terminal is hers."""
    with detached(load(tmp_path), ["sleep", "1000"], user="1000:1000") as box:
        with box.spawn("sh", "-c", "echo x > /dev/tty; stat -c %u $(tty)", tty=True, text=True) as command:
            assert command.stdout.read().split() == ["x", "1000"]
        ran = box.exec("sh", "-c", "echo x > /dev/tty", stderr=PIPE, stdin=DEVNULL)
        assert ran.returncode != 0  # it has none
