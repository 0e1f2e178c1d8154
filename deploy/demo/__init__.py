"""A scripted tour of a stack of its own, which checks each of its steps."""
