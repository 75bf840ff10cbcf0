"""The engine that drives runs: leases, heartbeat, slots, recovery, cancel."""
