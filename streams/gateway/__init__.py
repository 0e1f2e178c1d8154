"""The edge: HTTP, SSE and WebSocket in front of the log, and the fan-out of `responses` to every viewer."""
