"""Batches: lines of a file that run through the intake, and whose results become files. What is decided is pure."""
