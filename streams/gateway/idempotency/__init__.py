"""Idempotency keys: which response a tenant's key stands for, so that nothing is generated twice for one."""
