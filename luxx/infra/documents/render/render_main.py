"""The process that renders one artifact; `process.RenderProcess` starts it.

Standard input is a RenderRequest, standard output a RenderAnswer, as MessagePack. Arguments: the limits of
memory and time, which the process sets on itself before it reads the request.
"""

import sys

import msgspec

from luxx.infra.documents.bounds import limit
from luxx.infra.documents.render.files import UnknownFormat, make_file
from luxx.infra.documents.render.request import RenderAnswer, RenderRequest
from luxx.infra.documents.render.sizes import TooLong


def main() -> None:
    memory, seconds = (int(word) for word in sys.argv[1:3])
    limit(memory, seconds)
    request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=RenderRequest)
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer(request)))
    sys.stdout.buffer.flush()


def answer(request: RenderRequest) -> RenderAnswer:
    """The file, or the reason why there is none."""
    try:
        return RenderAnswer(rendered=make_file(request))
    except (TooLong, UnknownFormat) as error:
        return RenderAnswer(error=str(error))
    except MemoryError:
        return RenderAnswer(error="Rendering this source takes more memory than it may take. Shorten it.")
    except BaseException as error:
        # Renderers raise errors of many kinds for what they did not expect; one in Rust that panics raises an
        # error that is no Exception.
        name = type(error).__name__
        return RenderAnswer(
            error=f"The renderer failed on this source, or needs more memory than it may take ({name}). "
            "Shorten or simplify the page that changed last."
        )


if __name__ == "__main__":
    main()
