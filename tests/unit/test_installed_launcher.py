"""Where AppArmor wants a launcher with a path (A57): only one that no job can write is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dockless import native
from dockless.errors import Unsupported


@pytest.mark.parametrize("mode", [0o755, 0o775, 0o757])
def test_a_launcher_that_its_user_could_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int):
    program = tmp_path / "launcher"
    program.write_bytes(b"x")
    program.chmod(mode)
    if os.geteuid() == 0 and mode == 0o755:
        os.chown(program, 1000, 1000)
    monkeypatch.setattr(native, "LAUNCHER_PATH", str(program))
    with pytest.raises(Unsupported) as caught:
        native._installed_launcher()
    assert str(program) in str(caught.value) and caught.value.hint


def test_roots_launcher_is_taken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(native, "LAUNCHER_PATH", "/usr/bin/env")
    fd = native._installed_launcher()
    assert os.fstat(fd).st_uid == 0
    os.close(fd)
