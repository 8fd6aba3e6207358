"""A job from its start to its end: attempts, jobs that start together, warnings, preemption, and the removal of what is left."""
