"""Training: state, objectives, the jitted update, the stages of a run, evaluation."""
