"""Tasks: goals as graphs of steps, planned by a model and executed as turns of one run."""
