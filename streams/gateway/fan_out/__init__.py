"""From the log to viewers: the pump reads, the hub knows who watches, deliveries keep each viewer's pace."""
