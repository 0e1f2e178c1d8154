"""The parts of a worker's shell, by what they are connected to. `gpu_consumers.worker.Worker` joins them."""
