"""The prompt of a conversation for a model."""
