"""A sandbox that runs: foreground or detached, its process, its records, and what a crash left."""
