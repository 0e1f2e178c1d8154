"""Post-safety: one order, one terminal and one bill per response; the single writer of what clients may see."""
