"""Conversations as things of their own: what is kept of one beside its turns, which are stored responses."""
