"""Skills: instructions that a model loads on demand."""
