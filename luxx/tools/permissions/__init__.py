"""Who may call which tool with which arguments: rules, what they match, and the judge."""
