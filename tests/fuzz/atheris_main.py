"""Look for inputs that break one target: ``python tests/fuzz/atheris_main.py <target> [libFuzzer's options] <corpus directory> …``.

Needs atheris (``pip install dockless[fuzz]``). Unlike libFuzzer's habit, a finding does not end the run: each kind (what was raised, and
where) is kept once below ``$FUZZ_FINDINGS`` with its input and its traceback. A hang or too much memory still ends it.
"""

from __future__ import annotations

import os
import random
import re
import sys
import traceback
from pathlib import Path

import atheris

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "src")]

with atheris.instrument_imports(include=["dockless.images", "dockless.errors"]):
    import fuzz.targets as targets

    from dockless import images

from fuzz.mutators import MUTATORS  # noqa: E402
from fuzz.properties import Broken  # noqa: E402


def kind_of(error: BaseException) -> str:
    """What was raised and the innermost line of ours: one kind of finding."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/images/" in frame.filename or "/fuzz/" in frame.filename]
    last = frames[-1] if frames else None
    words = re.split(r"""['":0-9(]""", str(error))[0] if isinstance(error, Broken) else ""
    broken = re.sub(r"[^a-z]+", "-", words[:60].lower())
    return f"{type(error).__name__}-{Path(last.filename).stem if last else 'x'}-{last.lineno if last else 0}-{broken}".strip("-")


def main() -> None:
    name = sys.argv[1]
    target = targets.TARGETS[name]
    mutator = MUTATORS.get(name)
    findings = Path(os.environ.get("FUZZ_FINDINGS", "findings")) / name
    seen = {path.stem for path in findings.glob("*.txt")} if findings.is_dir() else set()

    def one(data: bytes) -> None:
        try:
            target(data)
        except Exception as error:
            kind = kind_of(error)
            if kind not in seen:
                seen.add(kind)
                findings.mkdir(parents=True, exist_ok=True)
                (findings / f"{kind}.bin").write_bytes(data)
                (findings / f"{kind}.txt").write_text("".join(traceback.format_exception(error)), errors="backslashreplace")
                print(f"finding: {name}: {kind}", flush=True)

    more = {}
    if mutator is not None:

        def custom(data: bytes, max_size: int, seed: int) -> bytes:
            rng = random.Random(seed)
            changed = mutator(bytes(data), rng, lambda piece: atheris.Mutate(piece, min(max_size, 2 * len(piece) + 64)))
            return changed[:max_size]

        more["custom_mutator"] = custom
    # -merge=1 runs itself again, by a shell and by this first word.
    again = f"{sys.executable} -P {HERE / 'atheris_main.py'} {name}"
    atheris.Setup([again, *sys.argv[2:]], one, **more)
    atheris.Fuzz()


if __name__ == "__main__":
    assert images
    main()
