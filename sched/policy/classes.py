"""How the GPUs are called of which a job may have any: ``1g.10gb``, ``H100,memory=60G``, ``memory=20G``; "" for the whole ones."""

from __future__ import annotations

from dockless.base.units import exact_size, parse_size

_MEMORY = "memory="


def named(model: str, memory: int) -> str:
    """``model``: as after ``class=``, "" for any; ``memory``: bytes that each has at least, 0 for any."""
    return ",".join(filter(None, (model, f"{_MEMORY}{exact_size(memory)}" if memory else "")))


def request(gpu_class: str) -> str:
    """Any of them, as ``--gpus`` says it."""
    return gpu_class if gpu_class.startswith(_MEMORY) else f"class={gpu_class}"


def model(gpu_class: str) -> str:
    """Without the memory."""
    return gpu_class.partition(_MEMORY)[0].rstrip(",")


def memory(gpu_class: str) -> int:
    """Bytes that each of them has at least, 0 for any."""
    return parse_size(gpu_class.partition(_MEMORY)[2] or "0", "memory of a GPU")


def in_words(gpu_class: str) -> str:
    """What follows "a GPU": `` of class H100 with 60G``."""
    memory = gpu_class.partition(_MEMORY)[2]
    return (f" of class {model(gpu_class)}" if model(gpu_class) else "") + (f" with {memory}" if memory else "")
