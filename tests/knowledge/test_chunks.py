"""Chunks of documents: where they end, what they carry, and how few of them a change changes."""

import random
import threading
import time

import pytest
from knowledge_documents import DOCUMENTS

from luxx.domain.files.names import extension_of
from luxx.features.knowledge.chunks import MOST_TOKENS, Chunk, chunks_of
from luxx.infra.documents.document_text import read
from luxx.infra.documents.parts import Part

WORDS = (
    "oven",
    "flour",
    "rye",
    "bread",
    "salt",
    "water",
    "yeast",
    "dough",
    "crust",
    "shelf",
    "crate",
    "shop",
)
HANZI = "面包酸团发酵烤箱温度时间盐水小麦全黑店街北河价钱"


def sentence(numbers: random.Random) -> str:
    words = [numbers.choice(WORDS) + numbers.choice(WORDS) for _ in range(numbers.randint(5, 16))]
    return " ".join(words).capitalize() + ". "


def hanzi_sentence(numbers: random.Random) -> str:
    return "".join(numbers.choice(HANZI) for _ in range(numbers.randint(8, 30))) + "。"


def text(numbers: random.Random, sentences: int) -> str:
    return "".join(sentence(numbers) for _ in range(sentences)).strip()


def chunk(*parts: Part) -> list[Chunk]:
    return list(chunks_of(parts))


@pytest.mark.parametrize("name", sorted(set(DOCUMENTS) - {"report.pdf"}))
def test_chunks_hold_the_whole_text_of_a_document_with_its_places(name: str) -> None:
    document = read(DOCUMENTS[name](), extension_of(name), 1_000_000, may_cut=False)
    chunks = chunk(*document.parts)
    assert [one.position for one in chunks] == list(range(len(chunks)))
    assert chunks == chunk(*document.parts)
    assert "".join("".join(one.text.split()) for one in chunks) == "".join(
        "".join(part.text.split()) for part in document.parts
    )
    places = {(part.page, part.slide, part.headings, part.columns) for part in document.parts}
    assert {(one.page, one.slide, one.headings, one.columns) for one in chunks} == places


def test_a_chunk_ends_with_a_paragraph_or_a_sentence() -> None:
    numbers = random.Random(1)
    paragraphs = [text(numbers, 6) for _ in range(60)]
    for part in (Part(text="\n\n".join(paragraphs)), Part(text=" ".join(paragraphs))):
        chunks = chunk(part)
        assert all(one.text.endswith(".") for one in chunks)
        assert all(MOST_TOKENS * 0.4 <= one.tokens <= MOST_TOKENS * 1.1 for one in chunks)
    ends = tuple(paragraph[-30:] for paragraph in paragraphs)
    chunks = chunk(Part(text="\n\n".join(paragraphs)))
    assert sum(one.text.endswith(ends) for one in chunks) > 0.6 * len(chunks)
    chinese = chunk(Part(text="".join(hanzi_sentence(numbers) for _ in range(200))))
    assert len(chinese) > 5
    assert all(one.text.endswith("。") and one.tokens <= MOST_TOKENS * 1.1 for one in chinese)


def test_rows_of_a_table_stay_whole_and_name_their_columns() -> None:
    rows = [f"Bread type {row} | {row * 7} | Ghent" for row in range(2, 1000)]
    chunks = chunk(
        Part(text="\n".join(rows), rows=(2, 999), headings=("Sales",), columns="Product | Units | City")
    )
    for one in chunks:
        assert one.rows is not None
        first, last = one.rows
        assert one.text.split("\n") == rows[first - 2 : last - 1]
        assert one.indexed_text == f"Sales\nProduct | Units | City\n{one.text}"
    long = chunk(Part(text="short\n" + "word " * 2000, rows=(5, 6)))
    assert {one.rows for one in long[1:]} == {(6, 6)}
    assert max(one.tokens for one in long) <= MOST_TOKENS * 1.1


def test_a_heading_without_text_is_found_too() -> None:
    (only,) = chunk(Part(text="", headings=("Rules", "Doors")))
    assert only.indexed_text == "Rules > Doors"
    assert chunk(Part(text=" \n ")) == []


def test_a_change_of_one_page_of_200_changes_at_most_three_chunks() -> None:
    numbers = random.Random(2)
    pages = [text(numbers, 20) for _ in range(200)]

    def hashes(pages: list[str]) -> set[str]:
        return {one.hash for one in chunk(*(Part(text=page, page=at) for at, page in enumerate(pages, 1)))}

    before = hashes(pages)
    assert 400 < len(before) <= 600
    for changed in range(0, 200, 40):
        pages_after = list(pages)
        pages_after[changed] = text(numbers, 20)
        assert 1 <= len(hashes(pages_after) - before) <= 3
    # A new page at the beginning moves all others, whose chunks stay equal.
    assert len(hashes([text(numbers, 20), *pages]) - before) <= 3


@pytest.mark.parametrize("is_table", [False, True])
def test_a_change_in_a_long_text_changes_the_chunks_around_it(is_table: bool) -> None:
    numbers = random.Random(3)
    lines = [sentence(numbers).strip() for _ in range(4000)]

    def hashes(lines: list[str]) -> set[str]:
        rows = (1, len(lines)) if is_table else None
        return {one.hash for one in chunk(Part(text="\n".join(lines), rows=rows))}

    before = hashes(lines)
    changes: list[int] = []
    for _ in range(12):
        at = numbers.randrange(len(lines))
        changes.append(len(hashes([*lines[:at], sentence(numbers).strip(), *lines[at:]]) - before))
    assert max(changes) <= 5
    assert sum(changes) <= 30


def test_the_hash_stands_for_headings_and_text_and_not_for_the_place() -> None:
    def hash_of(**values: object) -> str:
        (only,) = chunk(Part(**{"text": "Bread.", "headings": ("A",), **values}))  # type: ignore[arg-type]
        return only.hash

    assert hash_of(page=1) == hash_of(page=2) == hash_of()
    different = {hash_of(), hash_of(text="Bread!"), hash_of(headings=("B",)), hash_of(headings=("A", "B"))}
    assert len(different | {hash_of(rows=(1, 1), columns="C")}) == 5


HARD = {
    "one word": "x",
    "digits": "7",
    "dots": ".",
    "blanks": "a" + " " * 99,
    "line breaks": "\n \n",
    "sentences without letters": ".\n",
    "Chinese without an end": "面",
    "emoji": "🥖",
}


@pytest.mark.parametrize("name", HARD)
def test_chunks_are_bounded_and_take_linear_time(name: str) -> None:
    def seconds(size: int) -> float:
        part = Part(text=(HARD[name] * size)[:size])
        began = time.process_time()
        assert all(one.tokens <= MOST_TOKENS * 1.1 for one in chunks_of([part]))
        return time.process_time() - began

    seconds(20_000)
    assert seconds(320_000) < 64 * max(seconds(20_000), 0.002)


def test_a_long_text_without_an_end_keeps_no_other_thread_waiting() -> None:
    longest, is_done = 0.0, threading.Event()

    def tick() -> None:
        nonlocal longest
        last = time.monotonic()
        while not is_done.wait(0.001):
            last, before = time.monotonic(), last
            longest = max(longest, last - before)

    ticking = threading.Thread(target=tick)
    ticking.start()
    try:
        chunks = chunk(Part(text="[1,2,3]," * 2_500_000))
    finally:
        is_done.set()
        ticking.join()
    assert len(chunks) > 40_000
    assert longest < 0.5


@pytest.mark.parametrize("before", [99_800, 99_990, 100_000, 199_999])
def test_an_end_is_found_wherever_it_is_in_a_long_text(before: int) -> None:
    text = ("word " * 40_000)[:before] + "\n" + " " * 90 + "\n" + " " * 90 + "Next one. " + "word " * 300
    assert [one.text[:9] for one in chunk(Part(text=text)) if "Next" in one.text] == ["Next one."]
