"""Features on top of the engine: rooms of agents, tasks, and saved prompts."""
