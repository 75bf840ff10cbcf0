"""Which skills and agents a request asks for, found by its words, without a model call."""
