"""A process that writes until it is killed, and prints every write that has returned."""

import asyncio
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from luxx.infra.store.engine import Store, open_engine, resolve_url
from store.databases import metadata, notes


async def main(url: str) -> None:
    engine = open_engine(resolve_url(url, Path()))
    metadata.create_all(engine)
    store = Store(engine)

    async def write(writer: int) -> None:
        number = 0
        while True:
            said = f"{writer}-{number}"

            def work(session: Any, said: str = said) -> None:
                session.execute(insert(notes).values(text=said))

            await store.write(work)
            sys.stdout.write(f"{said}\n")
            sys.stdout.flush()
            number += 1

    await asyncio.gather(*(write(writer) for writer in range(8)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
