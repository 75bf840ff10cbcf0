"""Skills: instructions that are loaded on demand."""
