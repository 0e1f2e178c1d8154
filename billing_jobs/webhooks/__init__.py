"""Takes alerts to the addresses that asked for them: signed, repeated, at least once."""
