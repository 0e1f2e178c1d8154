"""Bytes by name, as large as files are: a port, over a folder, in memory."""
