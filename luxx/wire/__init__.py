"""Words: the pure values that travel between rooms of the house. No I/O, no rows, no HTTP."""
