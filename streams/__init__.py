"""The log, the topic table, settings, ids, the accepted-prefix rule, and the gateway with its fan-out."""
