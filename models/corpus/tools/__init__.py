"""Conversations in which tools are offered, called, and answered from."""
