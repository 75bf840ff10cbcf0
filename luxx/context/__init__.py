"""What a model is sent: the prompt, and what is cut from it to fit."""
