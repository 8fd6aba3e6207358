"""What jobs have of the host beside its GPUs: cores, memory, disk, directories."""
