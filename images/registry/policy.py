"""policy.json: which images may be pulled at all, as containers-policy.json(5) says it.

The user's file replaces the system's; without any, everything may be pulled, as with docker. The most specific scope decides: the full
reference, the repository, each namespace above it, the host, ``*.`` domains from the longest, then ``""`` and ``default``. All of its
requirements must hold. ``reject`` and ``insecureAcceptAnything`` are obeyed; a signature cannot be checked here, so a scope that demands
one (``signedBy``, ``sigstoreSigned``) is refused rather than believed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from dockless.base import paths
from dockless.base.path import Path
from dockless.base.typing import Any
from dockless.errors import BadInput, RegistryError
from dockless.images.model import manifest
from dockless.images.model.reference import Reference
from dockless.images.registry.configuration import SYSTEM, status

ACCEPT, REJECT = "insecureAcceptAnything", "reject"
SIGNED = ("signedBy", "sigstoreSigned", "signedBaseLayer")
_NAME = "policy.json"


def check(reference: Reference, *, env: Mapping[str, str] | None = None, system: Path = SYSTEM) -> None:
    """``RegistryError`` unless the policy lets ``reference`` be pulled; ``BadInput`` where the policy cannot be understood."""
    try:
        path = _path(os.environ if env is None else env, system)
    except OSError as error:
        raise _bad(Path(str(error.filename)), error.strerror or str(error)) from None
    if path is None:
        return
    scope, requirements = _decisive(path, reference)
    for requirement in requirements:
        kind = requirement.get("type") if isinstance(requirement, dict) else None
        if kind == ACCEPT:
            continue
        where = f"{path} says so for {scope!r}" if scope else f"{path} says so by default"
        if kind == REJECT:
            raise RegistryError(f"{reference}: the policy rejects it", subject=str(reference), hint=where)
        if kind in SIGNED:
            raise RegistryError(
                f"{reference}: the policy demands a signature ({kind}), which dockless cannot check",
                subject=str(reference),
                hint=f"{where}; have skopeo check and copy it (skopeo copy docker://… oci:…), then dockless load",
            )
        raise _bad(path, f"the requirement {str(kind)[:80]!r} is unknown")


def _path(env: Mapping[str, str], system: Path) -> Path | None:
    home = Path(env["HOME"]) if env.get("HOME") else paths.user_home()
    base = env.get("XDG_CONFIG_HOME", "")
    own = (Path(base) if os.path.isabs(base) else home / ".config") / "containers" / _NAME
    return next((path for path in (own, system / _NAME) if status(path) is not None), None)


def _decisive(path: Path, reference: Reference) -> tuple[str, list[Any]]:
    """The scope that fits best, and its requirements."""
    document = _read(path)
    scopes = document.get("transports", {}).get("docker", {})
    for scope in _scopes(reference):
        if scope in scopes:
            return scope, _requirements(path, scope, scopes[scope])
    if "" in scopes:
        return "", _requirements(path, "docker", scopes[""])
    return "", _requirements(path, "default", document["default"])


def _scopes(reference: Reference) -> Iterator[str]:
    if reference.digest is not None:
        yield f"{reference.name}@{reference.digest}"
    if reference.tag is not None:
        yield f"{reference.name}:{reference.tag}"
    name = reference.name
    while name:
        yield name
        name = name.rpartition("/")[0]
    labels = reference.domain.partition(":")[0].split(".")
    for at in range(1, len(labels)):
        yield "*." + ".".join(labels[at:])


def _read(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as stream:
            raw = stream.read(manifest.DOCUMENT_MAX + 1)
    except OSError as error:
        raise _bad(path, error.strerror or str(error)) from None
    document = manifest.load_json(raw, str(path))
    if not isinstance(document, dict) or "default" not in document or set(document) - {"default", "transports"}:
        raise _bad(path, "it must have 'default' and may have 'transports', nothing else")
    transports = document.get("transports", {})
    if not isinstance(transports, dict) or not all(isinstance(scopes, dict) for scopes in transports.values()):
        raise _bad(path, "'transports' is not an object of objects")
    return document


def _requirements(path: Path, where: str, found: Any) -> list[Any]:
    if not isinstance(found, list) or not found:
        raise _bad(path, f"{where!r} has no list of requirements")
    return found


def _bad(path: Path, why: str) -> BadInput:
    return BadInput(f"{path} is not sound: {why}", subject=str(path), hint="see containers-policy.json(5)")
