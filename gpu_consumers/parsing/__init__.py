"""From the token ids of an answer to rows of its kinds: text, reasoning, calls of tools."""
