"""Language models: parameters, the transformer, and Hugging Face folders in and out."""
