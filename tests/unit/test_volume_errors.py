"""A volume that cannot be made is an error that names it, whatever call failed."""

from __future__ import annotations

import errno
import os

import pytest

from dockless.errors import Unwritable
from dockless.sandbox import volumes


@pytest.mark.parametrize("call", ["mkdir", "rename"])
def test_a_volume_that_cannot_be_made(home, monkeypatch, call):
    real = getattr(os, call)

    def refused(*args, **how):
        if how:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(*args, **how)

    monkeypatch.setattr(os, call, refused)
    with pytest.raises(Unwritable, match="data") as caught:
        volumes.volume_path("data")
    assert caught.value.hint
