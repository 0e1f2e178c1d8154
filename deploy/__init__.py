"""Wiring: the local runner, the command line, installation of what a machine lacks."""
