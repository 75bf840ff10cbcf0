"""Tools: what they are, how one is written, and the executor that every call goes through."""
