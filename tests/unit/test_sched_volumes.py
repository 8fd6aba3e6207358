"""The directories that the settings give to every job."""

from __future__ import annotations

import pytest

from dockless.errors import BadInput
from dockless.sandbox.spec import Bind, Spec, Tmpfs
from dockless.sched.engine.volumes import with_volumes

VOLUMES = {"/mnt/$USER": "/srv/users/$USER", "/data": "/srv/data"}
ANNAS = (Bind("/srv/users/anna", "/mnt/anna"), Bind("/srv/data", "/data"))


def test_they_come_before_what_the_job_mounts():
    own = Bind("/srv", "/data/own")
    assert with_volumes(Spec(mounts=(own,)), VOLUMES, "anna").mounts == (*ANNAS, own)


def test_what_the_job_mounts_at_the_same_place_stays():
    own = Tmpfs("/data/")
    assert with_volumes(Spec(mounts=(own,)), VOLUMES, "anna").mounts == (ANNAS[0], own)


def test_what_nobody_trusts_gets_none():
    spec = Spec(profile="untrusted")
    assert with_volumes(spec, VOLUMES, "anna") is spec


def test_a_name_that_is_no_part_of_a_path():
    for name in ("../data", "..", "."):
        with pytest.raises(BadInput, match="cannot be part of a path"):
            with_volumes(Spec(), VOLUMES, name)
    assert with_volumes(Spec(), {}, "../data") == Spec()
