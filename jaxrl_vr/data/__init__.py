"""Examples, tokenizers, templates, sources and the order in which examples are drawn. No jax."""
