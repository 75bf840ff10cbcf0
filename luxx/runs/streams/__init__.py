"""Live streams of runs: channels in this process, and the relay between processes."""
