"""The queue on disk, its leases of GPUs, its one writer, and the output that is kept."""
