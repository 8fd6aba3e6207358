"""Builds what setuptools cannot know of: the static launcher, which the extension embeds, and the stand-in for NVML."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("src/dockless/native")
LAUNCHER = NATIVE / "launcher"
LAUNCHER_SOURCES = ["launcher.c", "init.c", "keeper.c", "log.c", "report.c", "ops.c", "remove.c", "plan.c"]
LAUNCHER_FLAGS = (
    "-O2 -Wall -Wextra -static -nostdlib -ffreestanding -fno-stack-protector -fno-asynchronous-unwind-tables -fno-strict-aliasing"
    " -fno-tree-loop-distribute-patterns -fno-pie -no-pie -Wl,--build-id=none -Wl,-z,noexecstack"
).split()


def compile_c(output: Path, flags: list[str], sources: list[Path]) -> None:
    compiler = os.environ.get("CC", "gcc").split()
    if shutil.which(compiler[0]) is None:
        raise SystemExit(
            f"dockless: no C compiler ({compiler[0]})\n  hint: install gcc and Python's headers: apt-get install gcc python3-dev"
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([*compiler, *flags, "-o", str(output), *map(str, sources)], check=True)


class BuildNative(build_ext):
    def run(self) -> None:
        launcher = NATIVE / "dockless-launcher"
        simulated = NATIVE / "simulated" / "libnvidia-ml.so.1"
        compile_c(launcher, LAUNCHER_FLAGS, [LAUNCHER / name for name in LAUNCHER_SOURCES])
        compile_c(simulated, ["-O2", "-Wall", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"], [NATIVE / "simulated_nvml.c"])
        for extension in self.extensions:
            extension.define_macros.append(("LAUNCHER_PATH", f'"{launcher.resolve()}"'))
            extension.depends = [str(p) for p in NATIVE.rglob("*.[ch]")] + [str(launcher)]
        super().run()
        if not self.inplace:
            for built in (launcher, simulated):
                target = Path(self.build_lib) / built.relative_to("src")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(built, target)


setup(cffi_modules=["src/dockless/native/build.py:ffi"], cmdclass={"build_ext": BuildNative})
