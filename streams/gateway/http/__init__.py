"""The gateway over HTTP: routes, bodies, answers and event streams."""
