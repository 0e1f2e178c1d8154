"""Runs `sluice`: `python -m deploy.cli`."""

from deploy.cli.commands import main

main()
