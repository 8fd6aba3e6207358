"""Which of the mounts and cgroups that are there besides are another run's."""

from __future__ import annotations

import os
import tempfile
import zlib
from pathlib import Path

import pytest
from support import apart, residue

from dockless.base import paths


@pytest.mark.parametrize(
    ("place", "whose"),
    [
        ("{all}/tabcdefg/h/x", "another's"),
        ("{all}/tabcdefg", "another's"),
        ("{own}/x", "ours"),
        ("{own}", "ours"),
        ("{own}/tnested/x", "ours"),
        ("{pytest}/x", "ours"),
        ("/proc/x", "ours"),
        ("/sys/kernel", "ours"),
    ],
)
@pytest.mark.parametrize("begun_by_another", [False, True], ids=["by itself", "begun by another run"])
def test_mounts_of_other_runs_are_not_ours(place, whose, begun_by_another, monkeypatch, tmp_path):
    """Also for a run whose own directory lies below that of another run, as the walk of the suite."""
    everybodys = apart.everybodys_temporary_directory()
    own = Path(tempfile.gettempdir(), "tours") if begun_by_another else Path(tempfile.gettempdir())
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    monkeypatch.setattr(residue, "OWN_DIRECTORY", everybodys / "pytest-of-us")
    mount = f"mount {place.format(all=everybodys, own=own, pytest=everybodys / 'pytest-of-us')} (tmpfs)"
    assert [*residue._new_mounts(frozenset({mount}))] == ([mount] if whose == "ours" else [])


@pytest.mark.parametrize("name", ["d1.43e3c7.{}", "d1.43e3c7.{}/exec-557ea18fae"])
@pytest.mark.parametrize("ours", [True, False])
def test_empty_groups_are_known_by_the_state_directory_of_their_sandbox(name, ours, tmp_path):
    home = zlib.crc32(os.fsencode(paths.state() / "sandboxes"))
    group = tmp_path / "dockless" / name.format(f"{home if ours else home ^ 1:08x}")
    group.mkdir(parents=True)
    (group / "cgroup.procs").touch()
    assert [*residue._new_cgroups(frozenset({str(group)}))] == ([f"cgroup {group}"] if ours else [])
