"""Who drives a run: leases, heartbeat, queue, recovery, cancel."""
