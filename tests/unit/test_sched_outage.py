"""When a queue that could not be written counts as well again."""

from __future__ import annotations

from pathlib import Path

from support.requires import requires

from dockless.sched.outage import _room


@requires("root")
def test_a_file_system_without_unnamed_files_is_no_outage():
    """procfs is one, NFS another: there only the write itself tells."""
    _room(Path("/proc"))
