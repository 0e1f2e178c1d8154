"""Runs the tour: `python -m deploy.demo`."""

import sys

from deploy.demo.tour import main

sys.exit(main())
