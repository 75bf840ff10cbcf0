"""The pure core of runs: logs, completions, the live tail and the prompt, under whatever may come."""
