"""Links to conversations, rooms and results of tasks, for people who do not own them."""
