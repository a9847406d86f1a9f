"""jaxrl_vr: reinforcement learning from verifiable rewards in JAX. Importing it loads nothing."""
