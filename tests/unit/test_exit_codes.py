"""Exit codes as a shell shows them."""

from __future__ import annotations

import subprocess

import pytest

from dockless import errors
from dockless.base import exit_codes


@pytest.mark.parametrize(
    ("returncode", "timed_out", "code"), [(0, False, 0), (255, False, 255), (-9, False, 137), (0, True, 124), (-9, True, 124)]
)
def test_of_a_command(returncode, timed_out, code):
    assert exit_codes.exit_code(returncode, timed_out) == code


@pytest.mark.parametrize("ending", ["exit 3", "kill -KILL $$"])
def test_a_shell_says_the_same(ending):
    returncode = subprocess.run(["sh", "-c", ending]).returncode
    shown = subprocess.run(["sh", "-c", f"sh -c '{ending}'; echo $?"], capture_output=True, text=True).stdout
    assert exit_codes.exit_code(returncode) == int(shown)


def test_errors_have_those_of_the_field():
    assert (errors.BadInput("x").exit_code, errors.CommandNotExecutable("x").exit_code, errors.CommandNotFound("x").exit_code) == (
        125,
        126,
        127,
    )
