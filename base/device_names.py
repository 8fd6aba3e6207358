"""How devices are named, ``VENDOR/CLASS=NAME``: patterns of the Container Device Interface, SPEC.md."""

KIND = "[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
NAME = "[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?"
