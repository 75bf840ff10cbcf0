"""What a model is sent: the messages of a conversation as prompts, and their sections within a window."""
