"""A connection to an HTTP server of ours, and its bounds, whoever serves."""
