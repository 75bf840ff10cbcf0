"""Options of known programs, as data: those that only look, and those that run or write what they are given.

What only looks is listed, for "always" covers nothing else. What runs or writes is listed for rules that
people write, and is as complete as this list.
"""

import re
from collections.abc import Sequence

import msgspec

Words = tuple[str, ...]


class Looking(msgspec.Struct, frozen=True, kw_only=True):
    """A subcommand that only looks, or records in its own repository, with these options: `long` ones, each
    in full, with or without `=value`; single letters; and letters whose value may stand in the same word."""

    long: frozenset[str] = frozenset()
    letters: str = ""
    with_value: str = ""


def _looking(long: str, letters: str = "", with_value: str = "") -> Looking:
    return Looking(long=frozenset(long.split()), letters=letters, with_value=with_value)


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

LOOKING: dict[tuple[str, str], Looking] = {
    ("cargo", "metadata"): _looking("offline locked no-deps format-version quiet", "q"),
    ("cargo", "tree"): _looking("offline locked depth edges invert duplicates prefix quiet", "deiq"),
    ("docker", "images"): _looking("all digests filter format no-trunc quiet", "aqf"),
    ("docker", "logs"): _looking("details since tail timestamps until", "t", "n"),
    ("docker", "ps"): _looking("all filter format last latest no-trunc quiet size", "aqlsf", "n"),
    ("git", "add"): _looking("all update verbose dry-run intent-to-add", "AuvnN"),
    ("git", "blame"): _looking("date porcelain line-porcelain show-name show-email", "lewsctfp", "LMC"),
    ("git", "branch"): _looking(
        "all remotes list verbose show-current contains no-contains merged no-merged sort format column "
        "points-at color no-color abbrev",
        "arlv",
    ),
    ("git", "describe"): _looking(
        "tags all always long abbrev dirty exact-match match exclude first-parent contains"
    ),
    ("git", "diff"): _looking(_DIFF, _DIFF_LETTERS, _DIFF_VALUES),
    ("git", "grep"): _looking(
        "line-number ignore-case files-with-matches files-without-match name-only count word-regexp "
        "invert-match extended-regexp basic-regexp perl-regexp fixed-strings only-matching max-depth "
        "max-count show-function function-context context after-context before-context heading break color "
        "no-color cached untracked text column all-match and or not",
        "niIlLcwvhHEFGPaopWzq",
        "ABCem",
    ),
    ("git", "log"): _looking(_LOG, _DIFF_LETTERS + "iEFqgt", _DIFF_VALUES + "L"),
    ("git", "ls-files"): _looking(
        "cached deleted modified others ignored stage unmerged killed exclude-standard full-name "
        "error-unmatch abbrev eol",
        "cdmoisukztv",
    ),
    ("git", "rev-parse"): _looking(
        "show-toplevel abbrev-ref short verify quiet is-inside-work-tree is-bare-repository git-dir "
        "show-prefix show-cdup symbolic-full-name all branches tags remotes",
        "q",
    ),
    ("git", "shortlog"): _looking("summary numbered email group since until no-merges", "sne"),
    ("git", "show"): _looking(_LOG, _DIFF_LETTERS + "q", _DIFF_VALUES),
    ("git", "status"): _looking(
        "short branch porcelain long verbose untracked-files ignored show-stash ahead-behind no-ahead-behind "
        "renames no-renames find-renames column",
        "sbvz",
        "u",
    ),
    ("git", "tag"): _looking(
        "list sort contains no-contains points-at merged no-merged format column", "l", "n"
    ),
    ("npm", "ls"): _looking("all json long parseable depth omit", "al"),
    ("npm", "outdated"): _looking("all json long parseable", "al"),
    ("npm", "view"): _looking("json"),
    ("pip", "check"): Looking(),
    ("pip", "freeze"): _looking("all local user exclude-editable", "l"),
    ("pip", "list"): _looking(
        "outdated uptodate editable local user not-required format exclude exclude-editable pre", "ouel"
    ),
    ("pip", "show"): _looking("files verbose", "fv"),
}
"""Not here: what runs code of the directory it is used in (`cargo check`, `git commit` with its hooks)."""


class Acting(msgspec.Struct, frozen=True, kw_only=True):
    """Options with which a program runs or writes what it is given: `long` ones, which may be cut short, and
    single letters, which may stand among others. `script`: how such a thing looks in its other words."""

    long: tuple[str, ...] = ()
    letters: str = ""
    script: re.Pattern[str] | None = None


_AWK = Acting(
    long=("--file", "--exec", "--include", "--load", "--lint", "--profile", "--pretty-print", "--debug"),
    letters="fEilopD",
    script=re.compile(r"system|getline|[|>@]|close|printf?\b.*>"),
)
_SED = Acting(
    long=("--in-place", "--file"),
    letters="if",
    # A command `e` or `w`, and the flags `e` and `w` of `s`: too much rather than too little.
    script=re.compile(r"(?:^|[\s;{}!$,/|#:@0-9])[gpiIMm0-9]*[eEwW](?:$|[\s;}/])"),
)
_LESS = Acting(long=("--log-file", "--LOG-FILE", "--lesskey"), letters="oOk", script=re.compile(r"^\+"))
_TAR = Acting(
    long=(
        "--to-command", "--checkpoint-action", "--use-compress-program", "--rsh-command", "--info-script",
        "--new-volume-script", "--rmt-command", "--index-file", "--remove-files",
    ),
    letters="IF",
)  # fmt: skip
_PIP = Acting(long=("--log", "--log-file", "--python", "--config-settings", "--global-option"))
ACTING: dict[str, Acting] = {
    "ack": Acting(long=("--pager", "--ackrc")),
    "ag": Acting(long=("--pager",)),
    "awk": _AWK,
    "bat": Acting(long=("--pager", "--config-file")),
    "curl": Acting(
        long=(
            "--output", "--output-dir", "--remote-name", "--remote-name-all", "--config", "--cookie-jar",
            "--dump-header", "--trace", "--trace-ascii", "--libcurl", "--stderr", "--etag-save", "--hsts",
            "--alt-svc", "--engine", "--upload-file", "--netrc-file",
        ),
        letters="oOKcDT",
    ),
    "fd": Acting(long=("--exec", "--exec-batch"), letters="xX"),
    "fdfind": Acting(long=("--exec", "--exec-batch"), letters="xX"),
    "gawk": _AWK,
    "gsed": _SED,
    "gsort": Acting(long=("--output", "--compress-program"), letters="o"),
    "gtar": _TAR,
    "less": _LESS,
    "man": Acting(long=("--pager", "--html", "--preprocessor", "--config-file"), letters="PHCp"),
    "mawk": _AWK,
    "more": _LESS,
    "nawk": _AWK,
    "pip": _PIP,
    "pip3": _PIP,
    "rg": Acting(long=("--pre", "--hostname-bin")),
    "rsync": Acting(long=("--rsh", "--rsync-path", "--log-file"), letters="e"),
    "scp": Acting(letters="SoF"),
    "sed": _SED,
    "sftp": Acting(letters="SoFb"),
    "shuf": Acting(long=("--output",), letters="o"),
    "sort": Acting(long=("--output", "--compress-program"), letters="o"),
    "split": Acting(long=("--filter",)),
    "tar": _TAR,
    "tcpdump": Acting(letters="zw"),
    "tree": Acting(letters="o"),
    "wget": Acting(
        long=(
            "--output-document", "--output-file", "--append-output", "--directory-prefix", "--execute",
            "--use-askpass", "--config", "--save-cookies", "--warc-file",
        ),
        letters="OoaPe",
    ),
    "yq": Acting(long=("--inplace", "--in-place"), letters="i"),
    "zip": Acting(long=("--unzip-command",), letters="T"),
}  # fmt: skip


def only_looks(words: Words) -> bool:
    """Whether it is a known subcommand with no option but those that are known to do no harm."""
    known = LOOKING.get(words[:2]) if len(words) > 1 else None
    return known is not None and all(_is_known(known, word) for word in _options(words[2:]))


def is_looking(words: Words) -> bool:
    """Whether these are a program and a subcommand that only looks."""
    return words in LOOKING


def acts(program: str, words: Sequence[str]) -> bool:
    """Whether one of the words behind the program is known to have it run or write what it is given."""
    known = ACTING.get(program)
    if known is None:
        return False
    # `tar xIf …`: its first word may be letters without a sign.
    bundled = [f"-{words[0]}"] if known is _TAR and words and not words[0].startswith("-") else []
    return any(_acts(known, word) for word in (*bundled, *words))


def _options(words: Words) -> list[str]:
    end = words.index("--") if "--" in words else len(words)
    return [word for word in words[:end] if word.startswith("-") and word != "-"]


def _is_known(known: Looking, word: str) -> bool:
    if word.startswith("--"):
        return word[2:].partition("=")[0] in known.long
    for letter in word[1:]:
        if letter in known.with_value:
            return True
        if letter not in known.letters and not letter.isdigit():
            return False
    return True


def _acts(known: Acting, word: str) -> bool:
    if word.startswith("--"):
        name = word.partition("=")[0]
        return len(name) > len("--x") and any(option.startswith(name) for option in known.long)
    if word.startswith("-") and set(word[1:]) & set(known.letters):
        return True
    return known.script is not None and known.script.search(word) is not None
