"""Calls in a Python that has imported its modules: each in a process forked off it, in a sandbox of its own."""
