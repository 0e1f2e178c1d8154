"""Usage by the hour, kept beside the events and never trusted over them."""
