"""The version, written here alone: pyproject.toml reads it."""

__version__ = "0.1.0"
