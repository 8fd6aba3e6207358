"""How devices are named, ``VENDOR/CLASS=NAME``: patterns of the Container Device Interface, SPEC.md."""

KIND = "[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
NAME = "[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?"


def is_device(name: str) -> bool:
    """Whether something that is leased is a device of such a name: a GPU or a slice of one has a UUID."""
    return "=" in name
