"""What measures: each module is a command that prints JSON lines, or draws what a run wrote."""
