"""The admission process: `python -m agents.admission`."""
