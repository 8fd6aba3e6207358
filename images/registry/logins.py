"""login and logout."""

from __future__ import annotations

from pathlib import Path


def login(registry: str, username: str, password: str) -> Path:
    """Check a login against its registry and keep it. Returns the file it was written to."""
    raise NotImplementedError


def logout(registry: str) -> bool:
    """Forget a login. False where there was none."""
    raise NotImplementedError
