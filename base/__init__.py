"""The floor below all rooms: paths, units, text, checks, settings, locks, system call numbers. Imports nothing above."""
