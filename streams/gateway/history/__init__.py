"""What was released before: packed in Redis, and in the log behind it."""
