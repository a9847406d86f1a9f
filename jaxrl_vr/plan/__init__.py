"""What a run takes on devices that are not here: compiled for a TPU topology, or by a roofline."""
