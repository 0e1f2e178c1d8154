"""The settlement process: `python -m agents.settlement`."""
