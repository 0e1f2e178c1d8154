"""The database of what outlives the log: how it is connected to, its tables, their migrations."""
