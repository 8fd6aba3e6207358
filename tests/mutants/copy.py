"""A copy of the tree in which mutants live, with an environment of its own that imports it: the working tree is never changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

_BUILT = ("native/_native.abi3.so", "native/dockless-launcher", "native/dockless-agent", "native/simulated")


def make(top: Path, place: Path) -> Path:
    """The copy's Python. What is committed or could be is copied, and what was built."""
    listed = subprocess.run(
        ["git", "-C", str(top), "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True, check=True
    ).stdout
    for name in filter(None, os.fsdecode(listed).split("\0")):
        source, target = top / name, place / name
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    _built(top, _pristine(place))
    unbuild(place)
    return _environment(top, place)


def unbuild(place: Path) -> None:
    """The native part as it was built in the working tree, when the copy was made."""
    _built(_pristine(place), place)


def _pristine(place: Path) -> Path:
    return place.parent / "built"


def _built(source: Path, target: Path) -> None:
    (target / "native").mkdir(parents=True, exist_ok=True)
    for name in _BUILT:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, dirs_exist_ok=True)
        else:
            (target / name).unlink(missing_ok=True)  # a process that a mutant left may still run it
            shutil.copy2(source / name, target / name)


def _environment(top: Path, place: Path) -> Path:
    """A virtual environment with the packages of this one, where ``dockless`` is the copy's; also for what has a clean environment."""
    venv = place / ".venv"
    packages = venv / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    packages.mkdir(parents=True)
    (venv / "bin").mkdir()
    (venv / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    home = os.path.dirname(os.path.realpath(sys.executable))
    (venv / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\nversion = {sys.version.split()[0]}\n")
    here = sysconfig.get_paths()["purelib"]
    # Ours comes first: the other environment's own line for the working tree is read after it.
    (packages / "copy.pth").write_text(f"{place / 'src'}\nimport site; site.addsitedir({here!r})\n")
    script = venv / "bin" / "dockless"
    script.write_text(f"#!{venv / 'bin' / 'python'}\nimport sys\nfrom dockless.cli import main\nsys.exit(main())\n")
    script.chmod(0o755)
    return venv / "bin" / "python"


def build(python: Path, place: Path) -> str:
    """Compile what changed of the native part; the compiler's words where it does not."""
    objects = place.parent / "objects"
    objects.mkdir(exist_ok=True)
    compiler = f"{sys.executable} -I -S {Path(__file__).with_name('cc.py')}"
    done = subprocess.run(
        [str(python), "-P", "-W", "ignore", "setup.py", "--quiet", "build_ext", "--inplace", "--force"],
        cwd=place, capture_output=True, text=True,
        env={**os.environ, "PYTHONSAFEPATH": "1", "CC": compiler, "MUTANTS_OBJECTS": str(objects)},
    )  # fmt: skip
    return "" if done.returncode == 0 else done.stderr[-2000:] or "the build failed"
