"""Seccomp: from a profile to a filter program."""
