"""The log port in memory, single-threaded and deterministic, with faults written as data.

Nothing happens in the background: records reach the log when their producer polls or flushes, and a consumer takes part
in the balance of its group only while it polls. Time is the `clock_ms` that the log was given.
"""

from streams.log.memory.consumer import MemoryConsumer
from streams.log.memory.faults import Crashed, Fault, FaultKind
from streams.log.memory.log import MemoryLog
from streams.log.memory.producer import MemoryProducer

__all__ = ["Crashed", "Fault", "FaultKind", "MemoryConsumer", "MemoryLog", "MemoryProducer"]
