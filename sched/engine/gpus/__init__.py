"""The host's GPUs: what they are and do, who has them, who shares them, and which are kept out."""
