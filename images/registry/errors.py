"""A registry's refusal as one of ours: status, its own words (escaped: they end on a terminal), and what to do next.

https://github.com/opencontainers/distribution-spec/blob/main/spec.md#error-codes
"""

from __future__ import annotations

from dockless.base import json
from dockless.base.text import escaped
from dockless.errors import NotFound, RateLimited, RegistryError, RegistryUnavailable, Unauthorized

BODY_MAX = 64 << 10
"""Bytes of an error's body that are read."""
_CODES_MAX = 8

LOGIN_REFUSED = "the login for {host} may not do this"
LOGIN_MISSING = "it does not exist or wants a login: dockless login {host}"
TOO_SLOW = "the registry, or something before it, is stuck or too slow; try again later, or name a mirror in registries.conf"
NO_LOGIN_GOES_THERE = "the registry redirected there, and logins are not sent to other hosts; try again"


def printable(text: str, limit: int = 300) -> str:
    """Foreign text on one line: white space is a blank, other control characters are escaped, cut to ``limit`` characters."""
    cleaned = escaped(" ".join(text[: limit * 4].split()))
    return cleaned if len(cleaned) <= limit else cleaned[: limit - 1] + "…"


def parse(body: bytes) -> tuple[tuple[str, ...], str]:
    """(codes, message) of an error's body; empty where it is not the JSON that registries send."""
    try:
        entries = json.loads(body)["errors"]
        found = [entry for entry in entries[:_CODES_MAX] if isinstance(entry, dict)]
    except (ValueError, KeyError, TypeError, RecursionError):
        return (), ""
    codes = tuple(printable(entry["code"], 60) for entry in found if isinstance(entry.get("code"), str))
    words = [printable(entry["message"]) for entry in found if isinstance(entry.get("message"), str)]
    return codes, printable("; ".join(word for word in words if word))


def refusal(
    status: int, body: bytes, *, method: str, what: str, host: str, login: str = LOGIN_MISSING, retry_after: float | None = None
) -> RegistryError:
    """The error for an unexpected answer. ``what``: the thing asked for; ``host``: who answered; ``login``: the hint if it wants one."""
    codes, words = parse(body)
    said = f": {words}" if words else f" ({', '.join(codes)})" if codes else ""
    common = {"status": status, "codes": codes, "subject": what}
    if status in (401, 403):
        return Unauthorized(f"{what}: {host} refuses access{said}", hint=login.format(host=host), **common)  # type: ignore[arg-type]
    if status == 404:
        return NotFound(f"{what}: not in the registry{said}", hint="check the name and the tag", **common)  # type: ignore[arg-type]
    if status == 429:
        wait = f"it asks to wait {retry_after:.0f} s" if retry_after else "wait a while"
        limited = RateLimited(f"{what}: too many requests for {host}{said}", hint=f"{wait}; logging in or a mirror helps", **common)  # type: ignore[arg-type]
        limited.retry_after = retry_after
        return limited
    if status >= 500:
        return RegistryUnavailable(f"{what}: {host} answers {status}{said}", hint="the registry has a problem; try again later", **common)  # type: ignore[arg-type]
    return RegistryError(f"{what}: {host} answers {status} to {method}{said}", hint="is this a registry?", **common)  # type: ignore[arg-type]
