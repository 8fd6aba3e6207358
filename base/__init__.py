"""The floor below all packages: paths, units, text, checks, tables of keywords, settings, locks, id maps, exit codes, system call numbers.
Imports nothing of ours but ``errors``."""
