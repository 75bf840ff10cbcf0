"""Programs, known by name, that run other programs or write files as their arguments say.

Programs that are not listed count as harmless. `options` lists options of single programs; `command_line`
parses lines.
"""

from collections.abc import Iterator

from luxx.tools.pattern import join_words
from luxx.tools.permissions.options import CommandWords, has_unsafe_option, is_read_only

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "rbash", "fish", "csh", "tcsh"})
OTHER_PROGRAM_RUNNERS = frozenset(
    {
        ".", "alias", "at", "batch", "bind", "builtin", "busybox", "bwrap", "caller", "capsh",
        "choom", "chpst", "chroot", "chrt", "command", "compgen", "complete", "coproc", "cpulimit",
        "daemonize", "dbus-launch", "dbus-run-session", "doas", "eatmydata", "ed", "emacs",
        "enable", "entr", "env", "envdir", "eval", "ex", "exec", "expect", "fakeroot", "faketime",
        "fc", "firejail", "flock", "gdb", "getopts", "hash", "i386", "ionice", "jobs", "let",
        "linux32", "linux64", "ltrace", "mapfile", "newgrp", "nice", "nohup", "nsenter", "numactl",
        "nvim", "parallel", "perf", "pkexec", "prlimit", "proot", "read", "readarray", "rlwrap",
        "runcon", "runuser", "screen", "script", "setarch", "setpriv", "setsid", "setuidgid", "sg",
        "softlimit", "source", "ssh", "ssh-agent", "start-stop-daemon", "stdbuf", "strace", "su",
        "sudo", "systemd-inhibit", "systemd-run", "taskset", "time", "timeout", "tmux", "toybox",
        "trap", "uclampset", "unbuffer", "unset", "unshare", "valgrind", "vi", "view", "vim",
        "wait", "watch", "watchexec", "x86_64", "xargs", "xvfb-run",
    }
)  # fmt: skip
"""Programs and shell builtins that run commands from their arguments, some through a variable's index."""

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
    "--output",
    "--upload-pack",
    "--receive-pack",
    "--exec",
    "--ext-diff",
    "--open-files-in-pager",
)
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
    if has_unsafe_option(name, words[1:]) or (name == "git" and _is_git_unsafe(words)):
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
    return tuple(dict.fromkeys(join_words(each) for each in (words, plain, bare)))


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
    if rest[:1] == ("grep",) and any(
        "O" in word for word in _before_double_dash(rest) if _is_short_options(word)
    ):
        return True
    return any(word.partition("=")[0] in _GIT_UNSAFE_GLOBAL_OPTIONS for word in before) or any(
        len(name) > len("--e") and any(option.startswith(name) for option in _GIT_UNSAFE_OPTIONS)
        for name in (word.partition("=")[0] for word in rest)
    )


def _before_double_dash(words: CommandWords) -> CommandWords:
    return words[: words.index("--")] if "--" in words else words


def _is_short_options(word: str) -> bool:
    """Whether the word consists of single-letter options."""
    return word.startswith("-") and not word.startswith("--")


def _after_global_options(words: CommandWords) -> CommandWords:
    """The words from git's subcommand on."""
    while words and words[0].startswith("-"):
        words = words[2 if words[0] in _GIT_GLOBAL_OPTIONS_WITH_VALUE else 1 :]
    return words
