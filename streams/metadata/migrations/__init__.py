"""How the tables came to be, step by step. A step that has been released is never changed."""
