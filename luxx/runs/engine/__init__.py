"""The engine that drives runs: leases, heartbeat, the queue, recovery."""
