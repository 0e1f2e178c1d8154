"""What a worker decides, without I/O: `worker_core.WorkerCore` is told what happened and answers with `effects`."""
