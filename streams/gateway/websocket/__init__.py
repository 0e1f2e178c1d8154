"""The gateway over WebSocket: the protocol's bounds, sessions, and peers that stopped reading."""
