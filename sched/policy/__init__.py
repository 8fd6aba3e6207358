"""Who starts, and who may ask for what: pure functions."""
