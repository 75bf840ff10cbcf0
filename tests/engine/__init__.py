"""The run engine on both databases: processes that start and end, slots and the queue, and stops."""
