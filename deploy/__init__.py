"""Wiring: the local runner, the command line, provisioning of what a machine lacks."""
