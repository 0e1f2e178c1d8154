"""Workers: engines, scheduling, claims, and the loop that turns lanes into frames."""
