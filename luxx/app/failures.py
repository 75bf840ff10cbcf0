"""What ends a run of each kind that cannot be driven."""

from luxx.features.artifacts.regeneration import fail_regeneration
from luxx.features.knowledge.orchestration import fail_index
from luxx.features.memory.extraction.orchestration import fail_memory
from luxx.features.rooms.orchestration import fail_room
from luxx.features.tasks.proposals import fail_task
from luxx.runs.turn.chat import fail_chat
from luxx.wire.run import RunKind

FAILURES = {
    RunKind.CHAT: fail_chat,
    RunKind.ROOM: fail_room,
    RunKind.TASK: fail_task,
    RunKind.MEMORY: fail_memory,
    RunKind.INDEX: fail_index,
    RunKind.ARTIFACT: fail_regeneration,
}
