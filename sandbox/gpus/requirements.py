"""What an image asks of the driver and the GPUs: ``NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=tesla,driver>=535,driver<536``.

Each variable ``NVIDIA_REQUIRE_…`` must hold. In one, a space means or and a comma means and; a condition is a name, an operator and a
value. ``cuda``, ``driver`` and ``arch`` (the compute capability) compare as versions, ``brand`` as text; other names are not looked at.
``NVIDIA_DISABLE_REQUIRE=1`` switches all of it off.

The grammar is that of NVIDIA's container toolkit, ``internal/requirements``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

from dockless.base.typing import Any
from dockless.errors import BadInput, GpuError
from dockless.sandbox.gpus.driver_files import version_numbers

_CONDITION = re.compile(r"([a-z][a-z0-9_-]*)(=|!=|<=|>=|<|>)(.+)\Z")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_TRUE = ("1", "t", "T", "TRUE", "true", "True")
_LONGEST = 16_384
"""Characters of all requirements together; the longest of NVIDIA's own images have 800."""
_PREFIX, _DISABLE = "NVIDIA_REQUIRE_", "NVIDIA_DISABLE_REQUIRE"


def is_legacy(variables: Mapping[str, str]) -> bool:
    """Whether an image is from before there were requirements: it says which CUDA it has, and not what that needs."""
    return bool(variables.get("CUDA_VERSION")) and not variables.get(_PREFIX + "CUDA")


def requirements(variables: Mapping[str, str]) -> dict[str, str]:
    """Those of an environment, by variable; of a legacy image CUDA_VERSION is one."""
    if variables.get(_DISABLE) in _TRUE:
        return {}
    found = {name: text for name, text in variables.items() if name.startswith(_PREFIX) and name != _PREFIX + "JETPACK" and text.strip()}
    older = re.match(r"[0-9]{1,4}\.[0-9]{1,4}", variables.get("CUDA_VERSION", ""))
    if older and is_legacy(variables):
        found["CUDA_VERSION"] = f"cuda>={older[0]}"
    return found


def check(wanted: Mapping[str, str], facts: Mapping[str, str], *, note: str = "") -> None:
    """``facts``: cuda, driver, arch, brand, as far as they are known. ``GpuError`` names the first that does not hold, ``BadInput`` one
    that cannot be read."""
    if (length := sum(map(len, wanted.values()))) > _LONGEST:
        hint = "take another image; -e NVIDIA_DISABLE_REQUIRE=1 ignores them"
        raise BadInput(f"{_PREFIX}* have {length} characters, at most {_LONGEST} are read", subject=_PREFIX, hint=hint)
    for name, text in wanted.items():
        variable = name[:80]
        if not any(all(_holds(variable, condition, facts) for condition in one.split(",")) for one in text.split()):
            has = ", ".join(f"{name} {value}" for name, value in facts.items() if value) or "GPUs"
            raise GpuError(
                f"the image needs {' or '.join(text.split())[:200]} ({variable}); this host has {has}{note}",
                subject=variable,
                hint="take an image for an older CUDA, or update the driver; -e NVIDIA_DISABLE_REQUIRE=1 tries all the same",
            )


def _holds(variable: str, condition: str, facts: Mapping[str, str]) -> bool:
    found = _CONDITION.match(condition)
    if found is None:
        hint = "write NAME>=VALUE; -e NVIDIA_DISABLE_REQUIRE=1 ignores it"
        raise BadInput(f"{variable}: {condition[:80]!r} is no condition", subject=variable, hint=hint)
    name, compare, value = found.groups()
    fact = facts.get(name, "")
    if not fact:  # a name that is not known, or a GPU that does not say
        return True
    if name == "brand":
        return _COMPARE[compare](fact.lower(), value.lower())
    numbers, here = version_numbers(value), version_numbers(fact)
    if not numbers:
        hint = "write numbers with dots; -e NVIDIA_DISABLE_REQUIRE=1 ignores it"
        raise BadInput(f"{variable}: {value[:40]!r} is no version", subject=variable, hint=hint)
    length = max(len(numbers), len(here))
    return _COMPARE[compare](here + (0,) * (length - len(here)), numbers + (0,) * (length - len(numbers)))
