"""What a run measures, and where it goes: accumulation, sinks, throughput, the console."""
