"""The daemon's middle: starts, ends, what goes wrong."""
