"""Every event that travels on a topic, as a versioned pydantic model, and the catalogue of endings.

This package holds data and nothing else: no I/O, no clock, no randomness.
"""
