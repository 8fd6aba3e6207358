"""The directories that the settings give to every job."""

from __future__ import annotations

import pytest

from dockless.errors import BadInput
from dockless.sandbox.spec import Bind, Spec, Tmpfs
from dockless.sched.engine.host.volumes import with_volumes

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


def test_a_directory_of_each_group_that_has_one(tmp_path):
    """Not of those in which the user is not, nor of what is no part of a path or no group of this host."""
    for name in ("daemon", "bin", "sys", "no-such-group", "root"):
        (tmp_path / name).mkdir()
    volumes = {"/mnt/$GROUP": f"{tmp_path}/$GROUP", "/at/$GROUP/$USER": f"{tmp_path}/$GROUP/of/$USER"}
    made = with_volumes(
        Spec(host_groups=(7,)), volumes, "anna", {"bin": 2, "daemon": 1, "mail": 8, "no-such-group": 0, "..": 5, "a/b": 6, "root": 0}
    )
    assert made.mounts == (
        Bind(f"{tmp_path}/bin", "/mnt/bin"),
        Bind(f"{tmp_path}/daemon", "/mnt/daemon"),
        Bind(f"{tmp_path}/bin/of/anna", "/at/bin/anna"),
        Bind(f"{tmp_path}/daemon/of/anna", "/at/daemon/anna"),
    )
    assert made.host_groups == (2, 1)


def test_groups_that_a_user_names_herself_do_not_count():
    assert with_volumes(Spec(host_groups=(4,)), {}, "anna", {"adm": 4}) == Spec()
    assert with_volumes(Spec(host_groups=(4,)), VOLUMES, "anna", {"adm": 4}).host_groups == ()


def test_of_two_such_volumes_each_is_for_the_groups_that_it_has(tmp_path):
    for place in ("one/bin", "two/daemon"):
        (tmp_path / place).mkdir(parents=True)
    volumes = {f"/{place}/$GROUP": f"{tmp_path}/{place}/$GROUP" for place in ("one", "two")}
    made = with_volumes(Spec(), volumes, "anna", {"bin": 2, "daemon": 1})
    assert made.mounts == (Bind(f"{tmp_path}/one/bin", "/one/bin"), Bind(f"{tmp_path}/two/daemon", "/two/daemon"))
    assert made.host_groups == (2, 1)
