"""From usage events to tables, prices and answers."""
