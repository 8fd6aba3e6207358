"""Layers: from a compressed stream to what overlayfs takes, and reading what lies there."""
