"""Programs, known by name, and their options: which run other programs, write files, or only read.

The names are in `programs.toml`. "Always" covers only its read-only subcommands; its unsafe options support
rules that users write. `command_line.py` parses command lines.
"""

import re
from collections.abc import Iterator, Sequence
from importlib.resources import files

import msgspec

from luxx.tools.pattern import join_words

CommandWords = tuple[str, ...]


class ReadOnlyOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options with which a subcommand is read-only. `long` and the others are separated by spaces."""

    long: str = ""
    letters: str = ""
    with_value: str = ""


class UnsafeOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options with which a program runs commands or writes files that its arguments name.

    `script` matches other unsafe arguments. `same_as` names a program with the same options.
    """

    long: str = ""
    letters: str = ""
    script: str | None = None
    same_as: str | None = None


class Runners(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Programs that run commands from their arguments, separated by spaces."""

    shells: str
    others: str


class ProgramTables(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`programs.toml`, which says what each table holds; `read_only` by "program subcommand"."""

    read_only: dict[str, ReadOnlyOptions]
    unsafe: dict[str, UnsafeOptions]
    runners: Runners


_TABLES = msgspec.toml.decode(
    files("luxx.tools.permissions").joinpath("programs.toml").read_bytes(), type=ProgramTables
)
READ_ONLY_SUBCOMMANDS = frozenset(tuple(name.split()) for name in _TABLES.read_only)
SHELLS = frozenset(_TABLES.runners.shells.split())
OTHER_PROGRAM_RUNNERS = frozenset(_TABLES.runners.others.split())


def is_read_only(words: CommandWords) -> bool:
    """Whether it is a listed subcommand with listed options only."""
    options = _TABLES.read_only.get(" ".join(words[:2])) if len(words) > 1 else None
    return options is not None and all(_is_known(options, word) for word in _options(words[2:]))


def _has_unsafe_option(program: str, words: Sequence[str]) -> bool:
    """Whether one of the program's arguments is listed as unsafe."""
    options = _TABLES.unsafe.get(program)
    if options is None:
        return False
    if options.same_as is not None:
        return _has_unsafe_option(options.same_as, words)
    # `tar xIf …`: the first argument may be option letters without a dash.
    bundled = [f"-{words[0]}"] if program == "tar" and words and not words[0].startswith("-") else []
    return any(_is_unsafe_option(options, word) for word in (*bundled, *words))


def _options(words: CommandWords) -> list[str]:
    """The words before `--` that are options."""
    end = words.index("--") if "--" in words else len(words)
    return [word for word in words[:end] if word.startswith("-") and word != "-"]


def _is_known(options: ReadOnlyOptions, word: str) -> bool:
    if word.startswith("--"):
        return word[2:].partition("=")[0] in options.long.split()
    for letter in word[1:]:
        if letter in options.with_value:
            return True
        if letter not in options.letters and not letter.isdigit():
            return False
    return True


def _is_unsafe_option(options: UnsafeOptions, word: str) -> bool:
    if word.startswith("--"):
        name = word.partition("=")[0]
        return len(name) > len("--x") and any(option.startswith(name) for option in options.long.split())
    if word.startswith("-") and set(word[1:]) & set(options.letters):
        return True
    return options.script is not None and re.search(options.script, word) is not None


_LOADERS = ("ld-linux", "ld-musl", "ld.so", "ld64.so")
_FIND_ACTIONS = frozenset(
    {"-exec", "-execdir", "-ok", "-okdir", "-delete", "-fprint", "-fprint0", "-fprintf", "-fls"}
)
_VARIABLE_SETTERS = frozenset({"printf", "test", "["})
"""Builtins with an option that names a variable; the shell evaluates the index of the variable."""

_GIT_GLOBAL_OPTIONS_WITH_VALUE = frozenset(
    {"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--config-env"}
)
_GIT_UNSAFE_GLOBAL_OPTIONS = ("-c", "--config-env", "--exec-path", "-p", "--paginate")
_GIT_UNSAFE_OPTIONS = (
    "--output", "--upload-pack", "--receive-pack", "--exec", "--ext-diff", "--open-files-in-pager",
)  # fmt: skip
"""Options before the subcommand (global) and after it, where git accepts abbreviations."""

_GIT_UNSAFE_SUBCOMMANDS = {
    "bisect": "run", "submodule": "foreach", "filter-branch": "", "difftool": "", "mergetool": "",
    "for-each-repo": "", "instaweb": "", "config": "",
}  # fmt: skip
"""Subcommands that run commands, or configure such commands, if this word is among their arguments."""


def always_pattern_words(words: CommandWords) -> CommandWords | None:
    """The words that "always" allows with any arguments; None unless the command is read-only."""
    return words[:2] if is_read_only(words) else None


def program(words: CommandWords) -> str:
    """The name of the program without its directory."""
    return words[0].rpartition("/")[2] if words else ""


def runs_other_programs(words: CommandWords) -> bool:
    """Whether the program is known to run commands from its arguments."""
    name = program(words)
    return name in OTHER_PROGRAM_RUNNERS or name in SHELLS or name == "find" or name.startswith(_LOADERS)


def unsafe_reason(words: CommandWords) -> str | None:
    """Why the words alone do not say what the command does; None for most. The caller handles `sh -c`."""
    name = program(words)
    if name in _VARIABLE_SETTERS and any(word.startswith(("-v", "-R")) for word in words[1:]):
        return f"{name} assigns to a variable that its arguments name"
    if _has_unsafe_option(name, words[1:]) or (name == "git" and _is_git_unsafe(words)):
        return f"{name} runs a command or writes a file that its arguments name"
    if runs_other_programs(words) and (name != "find" or _FIND_ACTIONS & set(words)):
        return f"{name} runs the command that its arguments name"
    return None


def variants(words: CommandWords) -> tuple[str, ...]:
    """The spellings of a command that ask and deny rules match, each made by `join_words`: as written,
    without the directories of programs, and without git's global options."""
    plain = (program(words), *words[1:])
    if runs_other_programs(words):
        plain = tuple(word.rpartition("/")[2] or word for word in words)
    bare = ("git", *_after_global_options(plain[1:])) if plain[:1] == ("git",) else plain
    return tuple(dict.fromkeys(join_words(variant) for variant in (words, plain, bare)))


def nested_command_lines(words: CommandWords) -> Iterator[str]:
    """Arguments that may be command lines, of a command that runs other programs."""
    name = program(words)
    if name == "eval":
        yield " ".join(words[1:])
    elif runs_other_programs(words):
        shell_line = shell_command_line(words)
        if shell_line is not None:
            yield shell_line
        for word in words[1:]:
            if word != shell_line and any(char.isspace() for char in word):
                yield word
                # A command line in the same word as its option: `env -S"…"`, `--split-string="…"`.
                if word.startswith("--"):
                    yield word.partition("=")[2]
                elif word.startswith("-"):
                    yield word[2:]


def shell_command_line(words: CommandWords) -> str | None:
    """The command line of `sh -c`."""
    if program(words) not in SHELLS:
        return None
    for index, word in enumerate(words[1:-1], 1):
        if word.startswith("-") and not word.startswith("--") and "c" in word:
            return words[index + 1]
    return None


def _is_git_unsafe(words: CommandWords) -> bool:
    rest = _after_global_options(words[1:])
    before = words[1 : len(words) - len(rest)]
    if rest and rest[0] in _GIT_UNSAFE_SUBCOMMANDS and _GIT_UNSAFE_SUBCOMMANDS[rest[0]] in ("", *rest[1:]):
        return True
    if rest[:1] == ("grep",) and any("O" in word for word in _options(rest) if not word.startswith("--")):
        return True
    return any(word.partition("=")[0] in _GIT_UNSAFE_GLOBAL_OPTIONS for word in before) or any(
        len(name) > len("--e") and any(option.startswith(name) for option in _GIT_UNSAFE_OPTIONS)
        for name in (word.partition("=")[0] for word in rest)
    )


def _after_global_options(words: CommandWords) -> CommandWords:
    """The words from git's subcommand on."""
    while words and words[0].startswith("-"):
        words = words[2 if words[0] in _GIT_GLOBAL_OPTIONS_WITH_VALUE else 1 :]
    return words
