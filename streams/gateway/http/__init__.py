"""The gateway over HTTP: the edge, the routes, bodies and event streams."""
