"""Prompts: texts with variables that people insert into messages by a short name."""
