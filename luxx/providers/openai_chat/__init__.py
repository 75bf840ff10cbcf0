"""The dialect of OpenAI chat completions, which compatible servers speak too."""
