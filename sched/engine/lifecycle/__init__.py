"""The way of a job from its start to its end, to another attempt, and to what is left of it."""
