"""Whether what was billed is what the log says, found out by programs that share nothing with the sink."""
