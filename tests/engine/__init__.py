"""Who drives what, when: processes that live and die, places and the queue, stops, on both databases."""
