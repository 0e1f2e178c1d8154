"""The admission stages and their Faust binding, post-safety, settlement."""
