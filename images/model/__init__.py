"""Documents and names of images: digests, references, configurations, manifests, platforms. Data and parsing, no files."""
