"""The queue on disk, and the output that is kept."""
