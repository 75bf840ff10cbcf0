"""What leaves this server on behalf of others: which addresses may be reached, and how."""
