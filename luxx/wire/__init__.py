"""Pure values that travel between packages, processes and clients. No I/O, no rows, no HTTP."""
