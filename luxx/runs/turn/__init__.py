"""One turn of an agent: the loop of model calls and tool calls until it yields."""
