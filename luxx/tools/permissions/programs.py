"""Programs, known by name, and their options: which run other programs, write files, or only read.

"Always" covers only the listed read-only subcommands. The list of unsafe options supports rules that users
write; it may be incomplete. Programs that are not listed count as harmless. `command_line` parses lines.
"""

import re
from collections.abc import Iterator, Sequence

import msgspec

from luxx.tools.pattern import join_words

CommandWords = tuple[str, ...]


class ReadOnlyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options with which a subcommand is read-only or writes only to its own repository.

    `long`: full names, with or without `=value`. `letters`: single letters. `with_value`: letters whose value
    may follow in the same word.
    """

    long: frozenset[str] = frozenset()
    letters: str = ""
    with_value: str = ""


def _read_only(long: str, letters: str = "", with_value: str = "") -> ReadOnlyOptions:
    return ReadOnlyOptions(long=frozenset(long.split()), letters=letters, with_value=with_value)


_DIFF = (
    "stat shortstat numstat dirstat name-only name-status patch no-patch raw summary unified color no-color "
    "word-diff color-words abbrev ignore-all-space ignore-space-change ignore-blank-lines ignore-cr-at-eol "
    "find-renames find-copies no-renames diff-filter minimal patience histogram diff-algorithm relative "
    "no-ext-diff no-textconv quiet exit-code check cached staged merge-base function-context "
)
_LOG = _DIFF + (
    "oneline graph all branches tags remotes decorate no-decorate pretty format abbrev-commit "
    "no-abbrev-commit date since until after before author committer grep invert-grep regexp-ignore-case "
    "extended-regexp fixed-strings reverse merges no-merges first-parent follow max-count skip date-order "
    "topo-order left-right cherry-pick cherry-mark simplify-by-decoration no-walk parents children "
)
_DIFF_LETTERS, _DIFF_VALUES = "pusabwRWz", "UMCSGn"

READ_ONLY_SUBCOMMANDS: dict[tuple[str, str], ReadOnlyOptions] = {
    ("cargo", "metadata"): _read_only("offline locked no-deps format-version quiet", "q"),
    ("cargo", "tree"): _read_only("offline locked depth edges invert duplicates prefix quiet", "deiq"),
    ("docker", "images"): _read_only("all digests filter format no-trunc quiet", "aqf"),
    ("docker", "logs"): _read_only("details since tail timestamps until", "t", "n"),
    ("docker", "ps"): _read_only("all filter format last latest no-trunc quiet size", "aqlsf", "n"),
    ("git", "add"): _read_only("all update verbose dry-run intent-to-add", "AuvnN"),
    ("git", "blame"): _read_only("date porcelain line-porcelain show-name show-email", "lewsctfp", "LMC"),
    ("git", "branch"): _read_only(
        "all remotes list verbose show-current contains no-contains merged no-merged sort format column "
        "points-at color no-color abbrev",
        "arlv",
    ),
    ("git", "describe"): _read_only(
        "tags all always long abbrev dirty exact-match match exclude first-parent contains"
    ),
    ("git", "diff"): _read_only(_DIFF, _DIFF_LETTERS, _DIFF_VALUES),
    ("git", "grep"): _read_only(
        "line-number ignore-case files-with-matches files-without-match name-only count word-regexp "
        "invert-match extended-regexp basic-regexp perl-regexp fixed-strings only-matching max-depth "
        "max-count show-function function-context context after-context before-context heading break color "
        "no-color cached untracked text column all-match and or not",
        "niIlLcwvhHEFGPaopWzq",
        "ABCem",
    ),
    ("git", "log"): _read_only(_LOG, _DIFF_LETTERS + "iEFqgt", _DIFF_VALUES + "L"),
    ("git", "ls-files"): _read_only(
        "cached deleted modified others ignored stage unmerged killed exclude-standard full-name "
        "error-unmatch abbrev eol",
        "cdmoisukztv",
    ),
    ("git", "rev-parse"): _read_only(
        "show-toplevel abbrev-ref short verify quiet is-inside-work-tree is-bare-repository git-dir "
        "show-prefix show-cdup symbolic-full-name all branches tags remotes",
        "q",
    ),
    ("git", "shortlog"): _read_only("summary numbered email group since until no-merges", "sne"),
    ("git", "show"): _read_only(_LOG, _DIFF_LETTERS + "q", _DIFF_VALUES),
    ("git", "status"): _read_only(
        "short branch porcelain long verbose untracked-files ignored show-stash ahead-behind no-ahead-behind "
        "renames no-renames find-renames column",
        "sbvz",
        "u",
    ),
    ("git", "tag"): _read_only(
        "list sort contains no-contains points-at merged no-merged format column", "l", "n"
    ),
    ("npm", "ls"): _read_only("all json long parseable depth omit", "al"),
    ("npm", "outdated"): _read_only("all json long parseable", "al"),
    ("npm", "view"): _read_only("json"),
    ("pip", "check"): ReadOnlyOptions(),
    ("pip", "freeze"): _read_only("all local user exclude-editable", "l"),
    ("pip", "list"): _read_only(
        "outdated uptodate editable local user not-required format exclude exclude-editable pre", "ouel"
    ),
    ("pip", "show"): _read_only("files verbose", "fv"),
}
"""Excludes subcommands that run code of the working directory (`cargo check`, `git commit` with hooks)."""


class UnsafeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options with which a program runs commands or writes files that its arguments name.

    `long`: may be abbreviated. `letters`: may be combined. `script`: matches other unsafe arguments.
    """

    long: tuple[str, ...] = ()
    letters: str = ""
    script: re.Pattern[str] | None = None


_AWK = UnsafeOptions(
    long=("--file", "--exec", "--include", "--load", "--lint", "--profile", "--pretty-print", "--debug"),
    letters="fEilopD",
    script=re.compile(r"system|getline|[|>@]|close|printf?\b.*>"),
)
_SED = UnsafeOptions(
    long=("--in-place", "--file"),
    letters="if",
    # The commands `e` and `w` and the flags `e` and `w` of `s`; false positives are acceptable.
    script=re.compile(r"(?:^|[\s;{}!$,/|#:@0-9])[gpiIMm0-9]*[eEwW](?:$|[\s;}/])"),
)
_LESS = UnsafeOptions(
    long=("--log-file", "--LOG-FILE", "--lesskey"), letters="oOk", script=re.compile(r"^\+")
)
_TAR = UnsafeOptions(
    long=(
        "--to-command", "--checkpoint-action", "--use-compress-program", "--rsh-command", "--info-script",
        "--new-volume-script", "--rmt-command", "--index-file", "--remove-files",
    ),
    letters="IF",
)  # fmt: skip
_PIP = UnsafeOptions(long=("--log", "--log-file", "--python", "--config-settings", "--global-option"))
UNSAFE_OPTIONS: dict[str, UnsafeOptions] = {
    "ack": UnsafeOptions(long=("--pager", "--ackrc")),
    "ag": UnsafeOptions(long=("--pager",)),
    "awk": _AWK,
    "bat": UnsafeOptions(long=("--pager", "--config-file")),
    "curl": UnsafeOptions(
        long=(
            "--output", "--output-dir", "--remote-name", "--remote-name-all", "--config", "--cookie-jar",
            "--dump-header", "--trace", "--trace-ascii", "--libcurl", "--stderr", "--etag-save", "--hsts",
            "--alt-svc", "--engine", "--upload-file", "--netrc-file",
        ),
        letters="oOKcDT",
    ),
    "fd": UnsafeOptions(long=("--exec", "--exec-batch"), letters="xX"),
    "fdfind": UnsafeOptions(long=("--exec", "--exec-batch"), letters="xX"),
    "gawk": _AWK,
    "gsed": _SED,
    "gsort": UnsafeOptions(long=("--output", "--compress-program"), letters="o"),
    "gtar": _TAR,
    "less": _LESS,
    "man": UnsafeOptions(long=("--pager", "--html", "--preprocessor", "--config-file"), letters="PHCp"),
    "mawk": _AWK,
    "more": _LESS,
    "nawk": _AWK,
    "pip": _PIP,
    "pip3": _PIP,
    "rg": UnsafeOptions(long=("--pre", "--hostname-bin")),
    "rsync": UnsafeOptions(long=("--rsh", "--rsync-path", "--log-file"), letters="e"),
    "scp": UnsafeOptions(letters="SoF"),
    "sed": _SED,
    "sftp": UnsafeOptions(letters="SoFb"),
    "shuf": UnsafeOptions(long=("--output",), letters="o"),
    "sort": UnsafeOptions(long=("--output", "--compress-program"), letters="o"),
    "split": UnsafeOptions(long=("--filter",)),
    "tar": _TAR,
    "tcpdump": UnsafeOptions(letters="zw"),
    "tree": UnsafeOptions(letters="o"),
    "wget": UnsafeOptions(
        long=(
            "--output-document", "--output-file", "--append-output", "--directory-prefix", "--execute",
            "--use-askpass", "--config", "--save-cookies", "--warc-file",
        ),
        letters="OoaPe",
    ),
    "yq": UnsafeOptions(long=("--inplace", "--in-place"), letters="i"),
    "zip": UnsafeOptions(long=("--unzip-command",), letters="T"),
}  # fmt: skip


def is_read_only(words: CommandWords) -> bool:
    """Whether it is a listed subcommand with listed options only."""
    options = READ_ONLY_SUBCOMMANDS.get(words[:2]) if len(words) > 1 else None
    return options is not None and all(_is_known(options, word) for word in _options(words[2:]))


def _has_unsafe_option(program: str, words: Sequence[str]) -> bool:
    """Whether one of the program's arguments is listed as unsafe."""
    options = UNSAFE_OPTIONS.get(program)
    if options is None:
        return False
    # `tar xIf …`: the first argument may be option letters without a dash.
    bundled = [f"-{words[0]}"] if options is _TAR and words and not words[0].startswith("-") else []
    return any(_is_unsafe_option(options, word) for word in (*bundled, *words))


def _options(words: CommandWords) -> list[str]:
    """The words before `--` that are options."""
    end = words.index("--") if "--" in words else len(words)
    return [word for word in words[:end] if word.startswith("-") and word != "-"]


def _is_known(options: ReadOnlyOptions, word: str) -> bool:
    if word.startswith("--"):
        return word[2:].partition("=")[0] in options.long
    for letter in word[1:]:
        if letter in options.with_value:
            return True
        if letter not in options.letters and not letter.isdigit():
            return False
    return True


def _is_unsafe_option(options: UnsafeOptions, word: str) -> bool:
    if word.startswith("--"):
        name = word.partition("=")[0]
        return len(name) > len("--x") and any(option.startswith(name) for option in options.long)
    if word.startswith("-") and set(word[1:]) & set(options.letters):
        return True
    return options.script is not None and options.script.search(word) is not None


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
