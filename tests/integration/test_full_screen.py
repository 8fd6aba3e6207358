"""An editor that fills the screen, of an image made of Debian's packages, on real terminals: drawn, drawn anew, left and come back to."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import debian
from support.boxes import load, until
from support.make_image import file
from support.requires import requires
from support.screens import Screen

import dockless

pytestmark = requires("userns", "overlay", "busybox", "package:vim")

TEXT = "".join(f"line{number:03}\n" for number in range(1, 101))
VIM = ("vim.tiny", "-u", "NONE", "-n", "--cmd", "set shortmess+=F", "/text")
LEAVE = "\x10\x11"


@pytest.fixture
def image(tmp_path: Path) -> str:
    return load(tmp_path, [*debian.entries("vim"), file("text", TEXT)], env={"PATH": "/bin:/usr/bin", "TERM": "xterm", "PS1": "> "})


@pytest.fixture
def detached(image: str) -> Iterator[str]:
    box = dockless.start(image, VIM, tty=True, id="editor")
    yield box.id
    box.rm(force=True)


def test_it_is_drawn_anew_when_the_size_changes(image):
    with Screen("run", image, "--", *VIM, size=(10, 40)) as screen:
        screen.expect("line009")
        assert b"line010" not in screen.shown
        for rows, columns in ((30, 60), (12, 30), (50, 100)):
            before = len(screen.shown)
            screen.resize(rows, columns)
            screen.expect(f"line{rows - 1:03}", after=before)
            assert f"line{rows:03}".encode() not in screen.shown[before:]
        screen.type(":q\r")
        assert screen.code() == 0 and screen.modes() == screen.before


@pytest.mark.parametrize("size", [(24, 1), (1, 1), (2, 500)])
def test_a_terminal_of_one_column(image, size):
    """Whatever it draws there, it does, and what is typed arrives."""
    with Screen("run", image, "--", *VIM, size=size) as screen:
        screen.until(lambda: screen.raw() and len(screen.shown) > 10, "it is drawn")
        screen.resize(20, 80)
        screen.expect("line019")
        screen.resize(*size)
        screen.type(":cq\r")
        assert screen.code() == 1 and screen.modes() == screen.before


def test_who_comes_back_sees_it_again(detached):
    for rows in (10, 20, 20):
        with Screen("attach", detached, size=(rows, 40)) as screen:
            screen.expect(f"line{rows - 1:03}")
            screen.until(screen.raw, "it is in raw mode")
            screen.type(LEAVE)
            assert screen.code() == 0 and screen.modes() == screen.before
    with Screen("attach", detached, size=(10, 40)) as screen:
        screen.expect("line009")
        screen.until(screen.raw, "it is in raw mode")
        before = len(screen.shown)
        screen.type("G")
        screen.expect("line100", after=before)
        screen.type(":cq\r")
        assert screen.code() == 1


def test_ctrl_z_and_fg(image):
    """With a plain run: the shell stops it and goes on with it, and it is drawn anew."""
    with Screen("run", image, "--", "sh", size=(10, 40)) as screen:
        screen.expect("> ")
        screen.type(shlex.join(VIM) + "\n")
        screen.expect("line009")
        screen.type("\x1a")
        screen.expect("Stopped")
        before = len(screen.shown)
        screen.type("fg\n")
        screen.expect("line009", after=before)
        before = len(screen.shown)
        screen.type(":q\r")
        screen.expect("> ", after=before)
        screen.type("exit 4\n")
        assert screen.code() == 4 and screen.modes() == screen.before


def test_a_client_that_is_killed_while_it_is_drawn(detached):
    with Screen("attach", detached, size=(10, 40)) as screen:
        screen.expect("line009")
        screen.until(screen.raw, "it is in raw mode")
        os.kill(screen.pid, signal.SIGKILL)
        until(lambda: screen.modes() == screen.before, "its terminal is as it was")
    with Screen("attach", detached, size=(15, 40)) as screen:
        screen.expect("line014")
        screen.until(screen.raw, "it is in raw mode")
        screen.type(":q\r")
        assert screen.code() == 0
