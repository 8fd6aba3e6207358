"""Builds what setuptools cannot know of: the static launcher and agent, which the extension embeds, the stand-in for NVML, the seccomp
filters."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("src/dockless/native")
FILTERS = Path("src/dockless/sandbox/seccomp/built")
LAUNCHER = NATIVE / "launcher"
LAUNCHER_SOURCES = [
    "launcher.c",
    "init.c",
    "keeper.c",
    "deadlines.c",
    "health.c",
    "door.c",
    "message.c",
    "terminal.c",
    "restarter.c",
    "numbers.c",
    "group.c",
    "barrier.c",
    "marked.c",
    "log.c",
    "report.c",
    "ops.c",
    "remove.c",
    "plan.c",
]
AGENT_SOURCES = ["agent/agent.c", "launcher/remove.c", "launcher/report.c"]
SIMULATED_SOURCES = ["simulated_nvml.c", "simulated_slices.c", "simulated_use.c"]
FREESTANDING = (
    "-O2 -Wall -Wextra -static -nostdlib -ffreestanding -fno-stack-protector -fno-asynchronous-unwind-tables -fno-strict-aliasing"
    " -fno-tree-loop-distribute-patterns -fno-pie -no-pie -Wl,--build-id=none -Wl,-z,noexecstack"
).split()
LIBRARY = "-O2 -Wall -shared -fPIC -Wl,-soname,libnvidia-ml.so.1".split()


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
        launcher, agent = NATIVE / "dockless-launcher", NATIVE / "dockless-agent"
        simulated = NATIVE / "simulated" / "libnvidia-ml.so.1"
        compile_c(launcher, FREESTANDING, [LAUNCHER / name for name in LAUNCHER_SOURCES])
        compile_c(agent, [*FREESTANDING, f"-I{LAUNCHER}"], [NATIVE / name for name in AGENT_SOURCES])
        compile_c(simulated, LIBRARY, [NATIVE / name for name in SIMULATED_SOURCES])
        for extension in self.extensions:
            extension.define_macros += [("LAUNCHER_PATH", f'"{launcher.resolve()}"'), ("AGENT_PATH", f'"{agent.resolve()}"')]
            extension.depends = [str(p) for p in NATIVE.rglob("*.[ch]")] + [str(launcher), str(agent)]
        super().run()
        sys.path.insert(0, "src")
        from dockless.sandbox.seccomp import default

        default.build(str(FILTERS))
        if not self.inplace:
            for built in (launcher, simulated, *FILTERS.iterdir()):
                target = Path(self.build_lib) / built.relative_to("src")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(built, target)


# No entry point: what pip before 25 writes for one imports `re`, which takes as long as all else that `dockless --version` does.
setup(cffi_modules=["src/dockless/native/build.py:ffi"], cmdclass={"build_ext": BuildNative}, scripts=["bin/dockless"])
