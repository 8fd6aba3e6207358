"""Files of a sandbox: read, written, listed and copied by an agent inside it (``native/agent``), so that no path leads out."""
