"""Tokens and money: the usage ledger, reserves, daily limits and reports."""
