"""The sampler: slots, prefill and decode programs, and the engine over them."""
