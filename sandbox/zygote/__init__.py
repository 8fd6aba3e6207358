"""Calls in a Python that has imported its modules: each in a process forked off it, in a sandbox of its own.

::

    server    a zygote's process and its branches, seen from the host: begun, asked to fork, ended
    seats     sandboxes that wait for calls, each with a process in it
    running   a call that goes on
    answers   what comes back of it, read and never trusted
    plans     the plans of the sandboxes, and what cannot be had in one
    values    how values cross
    inside    what runs inside, with the text of values before it: the zygote itself, and what its forks do
"""
