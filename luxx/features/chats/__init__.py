"""Chats: messages to a conversation, to an agent or to a model alone, and the runs that answer them."""
