"""The plan: what is done from the first mount to the exec, as data; made, explained, encoded."""
