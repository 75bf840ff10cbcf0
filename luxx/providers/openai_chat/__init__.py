"""The OpenAI chat completions dialect, which compatible servers speak too."""
