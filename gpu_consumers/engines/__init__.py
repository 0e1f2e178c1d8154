"""Engines beside each other, behind one port: vLLM, and a simulated one that is deterministic."""
