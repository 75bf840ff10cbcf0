"""Programs that are not trusted: the one way they are started, what holds them in, and how they end."""
