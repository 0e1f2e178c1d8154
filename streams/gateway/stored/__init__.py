"""Responses that are kept beyond replay: for who goes on with them by their id, or comes for them weeks later."""
