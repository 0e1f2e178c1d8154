"""The log: one port, over librdkafka and in memory, and what every reader of it needs."""
