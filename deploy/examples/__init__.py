"""Programs to copy from: what a client of a running stack does."""
