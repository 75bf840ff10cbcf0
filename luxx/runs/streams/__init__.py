"""Live streams of a run: the tail in this process, and its relay between processes."""
