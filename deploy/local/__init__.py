"""A whole stack on one machine: planned, started, watched and stopped."""
