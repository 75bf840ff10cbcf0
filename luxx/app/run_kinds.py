"""What reads a run of each kind at the start of a drive, and what ends one that cannot be driven."""

from collections.abc import Callable, Mapping
from functools import partial

from luxx.features.artifacts.new_page import PageRegeneration
from luxx.features.artifacts.regeneration import fail_regeneration, load_regeneration
from luxx.features.chats.follow_ups import FOLLOW_UP_WORK, FollowUpOrchestration, load_follow_ups
from luxx.features.chats.orchestration import load_planned_chat
from luxx.features.chats.titles import TITLE_WORK, TitleOrchestration, load_title
from luxx.features.knowledge.orchestration import fail_index, load_index_run
from luxx.features.knowledge.vectors import VectorProgress
from luxx.features.memory.extraction.orchestration import fail_memory, load_memory_run
from luxx.features.memory.extraction.resolution import EpisodeRows
from luxx.features.memory.vectors.source import EmbeddingSource
from luxx.features.patterns.extraction import ExtractionOrchestration, load_extraction
from luxx.features.rooms.orchestration import fail_room
from luxx.features.tasks.planning import Planner
from luxx.features.tasks.proposals import fail_task, load_task_run
from luxx.infra.config.schema import MemoryConfig
from luxx.infra.documents.reader import DocumentProcess
from luxx.runs.log.endings import FOLLOW_UPS, TITLES
from luxx.runs.orchestration.drive import load_orchestrated
from luxx.runs.orchestration.interface import OrchestrationLoader, ResolveTurn
from luxx.runs.turn.chat import fail_chat, load_chat
from luxx.runs.turn.context import LoadDrive
from luxx.runs.turn.resources import TurnServices
from luxx.wire.run import RunKind

FAILURES = {
    RunKind.CHAT: fail_chat,
    RunKind.ROOM: fail_room,
    RunKind.TASK: fail_task,
    RunKind.MEMORY: fail_memory,
    RunKind.INDEX: fail_index,
    RunKind.ARTIFACT: fail_regeneration,
    RunKind.PATTERN: ExtractionOrchestration.fail,
    RunKind.TITLE: TitleOrchestration.fail,
    RunKind.FOLLOW_UPS: FollowUpOrchestration.fail,
}

SIDE_WORKS = {TITLES: TITLE_WORK, FOLLOW_UPS: FOLLOW_UP_WORK}


def run_loaders(
    turn_services: TurnServices,
    resolve: ResolveTurn,
    *,
    planner: Planner,
    load_room: OrchestrationLoader,
    episodes: EpisodeRows,
    memory: MemoryConfig,
    pages: Callable[[], PageRegeneration],
    reader: DocumentProcess,
    embedding: EmbeddingSource,
) -> Mapping[RunKind, LoadDrive]:
    """What reads a run of each kind at the start of a drive."""

    def orchestrated(load: OrchestrationLoader) -> LoadDrive:
        return partial(load_orchestrated, turn_services, load)

    load_memory = partial(load_memory_run, episodes=episodes, resolve=resolve, config=memory)
    return {
        RunKind.CHAT: partial(load_chat, turn_services, partial(load_planned_chat, turn_services, planner)),
        RunKind.ROOM: orchestrated(load_room),
        RunKind.TASK: orchestrated(partial(load_task_run, planner=planner)),
        RunKind.MEMORY: orchestrated(load_memory),
        RunKind.ARTIFACT: orchestrated(partial(load_regeneration, pages=pages)),
        RunKind.PATTERN: orchestrated(load_extraction),
        RunKind.TITLE: orchestrated(load_title),
        RunKind.FOLLOW_UPS: orchestrated(load_follow_ups),
        RunKind.INDEX: partial(load_index_run, reader, VectorProgress(embedding)),
    }
