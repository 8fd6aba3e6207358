"""What a start imports, of the command line and from Python. Each of these modules took it longer than the kernel takes to make the
sandbox."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.make_image import busybox_image, config, file, make_oci_layout, rootfs_entries
from support.requires import requires

import dockless

pytestmark = requires("userns")

NOT_NEEDED = """
    dataclasses inspect decimal base64 subprocess asyncio locale shutil tempfile importlib.metadata dockless.sched
    dockless.sandbox.seccomp.seccomp dockless.sandbox.plan.operations dockless.sandbox.gpus.nvml dockless.images.transfer.pull
"""


SLOW = "typing re enum signal threading pathlib urllib.parse ipaddress json argparse datetime hashlib"
"""Of the standard library: dockless.base has what stands for them."""

if os.geteuid():  # newuidmap and newgidmap are run
    NOT_NEEDED = NOT_NEEDED.replace("subprocess", "").replace("locale", "")


def _imported(code: str) -> set[str]:
    code = f"import sys\n{code}\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_the_first_run_from_python_imports_what_it_needs():
    modules = _imported("import dockless\ndockless.run(['true'])")
    assert "dockless._call" in modules
    assert sorted(set(NOT_NEEDED.split()) & modules) == []


def test_awaiting_a_run_imports_asyncio_beside_that_and_no_queue():
    modules = _imported("from dockless import aio\nimport asyncio\nasyncio.run(aio.run(['true']))")
    assert "dockless.aio" in modules
    assert sorted({name for name in NOT_NEEDED.split() if name.startswith("dockless.")} & modules) == []


@pytest.mark.parametrize("image", ["host", "busybox"])
def test_a_start_imports_what_it_needs(image, tmp_path):
    if image != "host":
        dockless.Store().load(busybox_image(tmp_path))
    modules = _imported(f"from dockless.cli import main\nassert main(['run', {image!r}, '--', 'true']) == 0")
    assert sorted(set(NOT_NEEDED.split()) & modules) == []


@pytest.fixture
def box():
    found = dockless.start(["sleep", "1000"])
    yield found.id
    found.rm(force=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="newuidmap and newgidmap are run, by subprocess")
@pytest.mark.parametrize("line", ["run host -- true", "run busybox -- true", "exec BOX -- true", "ps", "logs BOX", "stop BOX"])
def test_a_command_imports_nothing_slow(line, box, tmp_path):
    if "busybox" in line:
        dockless.Store().load(busybox_image(tmp_path))
    words = line.replace("BOX", box).split()
    code = f"import sys; sys.argv[1:] = {words!r}; had = set(sys.modules)\nfrom dockless.cli import main\n"
    modules = _imported(f"{code}assert main(sys.argv[1:]) == 0\nfor name in had: sys.modules.pop(name)")
    assert sorted({*SLOW.split(), *NOT_NEEDED.split()} & modules) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="a user's start asks for ids")
def test_an_image_of_many_layers_imports_no_more(tmp_path):
    layers = [rootfs_entries(), *([file(f"f{number}", b"x")] for number in range(400))]
    dockless.Store().load(make_oci_layout(tmp_path / "many", layers, config(), "many:latest", compression="none"))
    modules = _imported("from dockless.cli import main\nassert main(['run', 'many', '--', 'true']) == 0")
    assert sorted(set(NOT_NEEDED.split()) & modules) == []
