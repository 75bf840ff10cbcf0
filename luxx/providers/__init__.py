"""Who serves models, and the code that speaks each dialect."""
