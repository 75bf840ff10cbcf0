"""Permissions of tool calls: rules, subjects, skill restrictions, and the judge."""
