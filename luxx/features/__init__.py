"""Features on top of the engine: rooms of agents, and tasks."""
