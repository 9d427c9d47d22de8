"""How fast this machine is: one file a measurement, and a file of earlier figures to compare with."""

from fedloom.bench.bench import MEASUREMENTS, bench
from fedloom.bench.figure import Effort, Figure
from fedloom.bench.stored import machine, read_stored, save_stored, speed_up

__all__ = ["MEASUREMENTS", "Effort", "Figure", "bench", "machine", "read_stored", "save_stored", "speed_up"]
