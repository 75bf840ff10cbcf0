"""What completions cost: the ledger, its sums and limits."""
