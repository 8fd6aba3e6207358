"""A sandbox that runs: attached or detached, its process, its records, and what a crash left."""
