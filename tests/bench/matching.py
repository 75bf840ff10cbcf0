"""Matches requests with 1,000 skills and agents, in this process; prints ms as JSON: median and worst."""

import json
import random
import statistics
import time

from luxx.domain.routing.matching import RoutedItem, Router, Trigger, TriggerType

ITEMS, REQUESTS = 1_000, 500
WORDS = [
    f"{syllable}{ending}" for syllable in ("ra", "no", "mi", "tel", "gor", "pas") for ending in range(60)
]
WORDS_OF_ITEM, WORDS_OF_REQUEST = 25, 20


def main() -> None:
    chance = random.Random(1)
    items = tuple(
        RoutedItem(
            kind="skill" if number % 4 else "agent",
            id=str(number),
            name=f"item-{number}",
            description=" ".join(chance.choices(WORDS, k=WORDS_OF_ITEM)),
            scope="tenant",
            trigger_type=TriggerType.HYBRID,
            triggers=(Trigger(pattern=" ".join(chance.choices(WORDS, k=2)), weight=2.0),),
        )
        for number in range(ITEMS)
    )
    router = Router(items)
    took: list[float] = []
    for _ in range(REQUESTS):
        text = " ".join(chance.choices(WORDS, k=WORDS_OF_REQUEST))
        before = time.perf_counter()
        router.match(text)
        took.append((time.perf_counter() - before) * 1e3)
    print(json.dumps({"median": statistics.median(took), "worst": max(took)}))


if __name__ == "__main__":
    main()
