"""Each format that clients speak, as the routes need it; the translations themselves are in `streams.dialects`."""
