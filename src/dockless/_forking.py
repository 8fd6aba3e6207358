"""``Sandbox.fork``: more sandboxes like one, with the files that it has now.

::

    box ─► snapshot ─► image ─┬─► fork 1        the copy is a layer of each, below an upper of its own
                              └─► fork n
"""

from __future__ import annotations

import contextlib
import os

from dockless._life import LifeCycle, refuse_job
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import BadInput, Unsupported

if TYPE_CHECKING:
    from dockless._box import Sandbox
    from dockless.sandbox.run.box import Box


def fork(box: LifeCycle, n: int) -> list[Sandbox[bytes]]:
    """See ``LifeCycle.fork``."""
    from dockless._box import Sandbox
    from dockless.base.dataclass import replace
    from dockless.images import Store
    from dockless.sandbox.run import detached

    if n < 1:
        raise BadInput(f"{n} forks of sandbox {box.id}", subject="n", hint="give a number of 1 or more")
    refuse_job(box._found)
    spec = box.inner.spec
    if spec.gpus:
        hint = "take a snapshot, and start sandboxes of it with GPUs of their own: dockless.start(box.snapshot().name, …, gpus=1)"
        raise Unsupported(f"sandbox {box.id} has GPUs, which cannot be in two sandboxes", subject=box.id, hint=hint)
    labels = box.labels
    image = box.snapshot()
    pin = Store().pin(image)  # until each keeps it itself
    made: list[Box] = []
    try:
        for _ in range(n):
            made.append(detached.start(replace(spec, image=image.digest), labels=labels))
    except BaseException:
        for one in made:
            with contextlib.suppress(Exception):
                one.remove()
        raise
    finally:
        os.close(pin)
    return [Sandbox.of(one) for one in made]
