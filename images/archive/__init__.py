"""Images as files: read, written, made of a tree or of a sandbox's changes."""
