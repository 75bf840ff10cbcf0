"""What is used of PyStemmer, which has no types of its own."""

class Stemmer:
    def __init__(self, algorithm: str) -> None: ...
    def stemWord(self, word: str, /) -> str: ...  # noqa: N802
