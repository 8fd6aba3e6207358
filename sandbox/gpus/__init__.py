"""GPUs: what the host has, who may have which, and what that puts into a sandbox."""
