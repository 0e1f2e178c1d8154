"""The steps, in the order that `down_revision` says."""
