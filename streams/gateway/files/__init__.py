"""Files that clients upload, and those that batches make of them: the port, over SQL, in memory; bytes are blobs."""
