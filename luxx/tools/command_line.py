"""What a shell would run: a command line read into its simple commands, for rules to judge each of them.

Two parsers read it, the grammar of bash and Python's shlex; only words on which both agree are understood.
What is not surely understood is said to be so, with those commands that were seen in it. Nothing is run.
"""

import re
import shlex
from collections.abc import Iterator

import msgspec
import tree_sitter_bash
from tree_sitter import Language, Node, Parser

MOST_CHARACTERS = 10_000
MOST_WORDS = 300
_MOST_NESTED = 3

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "rbash", "fish"})
RUNS_OTHERS = frozenset(
    {
        "builtin", "busybox", "caller", "chroot", "command", "coproc", "doas", "env", "eval",
        "exec", "flock", "ionice", "ltrace", "nice", "nohup", "nsenter", "parallel", "proot",
        "script", "setarch", "setpriv", "setsid", "source", "ssh", "stdbuf", "strace", "su", "sudo",
        "systemd-run", "time", "timeout", "toybox", "trap", "unshare", "watch", "xargs", ".",
    }
)  # fmt: skip
"""Programs and words of the shell that run what they are given."""

_FIND_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir", "-delete", "-fprint", "-fprintf", "-fls"})
_STRUCTURE = frozenset(
    {"program", "list", "pipeline", "subshell", "compound_statement", "negated_command", "command_name"}
)
_MARKS = frozenset({";", "&&", "||", "|", "|&", "&", "\n", "(", ")", "{", "}", "!", ";;"})
_HARMLESS_TARGET = "/dev/null"
_UNQUOTED_MAGIC = re.compile(r"[*?\[\]{}$`!]|^[~#]|[=:]~")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_OPERATORS = frozenset(";&|()<>\n")
_LANGUAGE = Language(tree_sitter_bash.language())

Words = tuple[str, ...]


class CommandLine(msgspec.Struct, frozen=True, kw_only=True):
    """`commands` in order, each as its words without quotes. `problem`: why not all of it is understood."""

    commands: tuple[Words, ...] = ()
    problem: str | None = None


class _Unclear(Exception):
    """This part means something only when it is run."""


def read_command(text: str, *, depth: int = 0) -> CommandLine:
    """The simple commands of `text`; also those that a shell within it (`sh -c`) would run."""
    if len(text) > MOST_CHARACTERS:
        return CommandLine(problem="it is too long to be read")
    if _CONTROL.search(text):
        return CommandLine(problem="it holds control characters")
    try:
        source = text.encode()
    except UnicodeEncodeError:
        return CommandLine(problem="it is not text")
    root = Parser(_LANGUAGE).parse(source).root_node
    commands, problems = _commands(root)
    if root.has_error:
        problems.insert(0, "it is not a command that can be read")
    elif not problems and not _agrees(text, commands):
        problems.append("it can be read in more than one way")
    inner = [read_command(one, depth=depth + 1) for one in _inner(commands)] if depth < _MOST_NESTED else []
    problems += [problem for words in commands if (problem := _runs_others(words, depth))]
    problems += [one.problem for one in inner if one.problem is not None]
    seen = [*commands, *(words for one in inner for words in one.commands)]
    if sum(map(len, seen)) > MOST_WORDS:
        problems.append("it has too many words")
        seen = [words[:MOST_WORDS] for words in seen[:MOST_WORDS]]
    return CommandLine(commands=tuple(seen), problem=problems[0] if problems else None)


def _commands(root: Node) -> tuple[list[Words], list[str]]:
    """All simple commands below `root` in order, and what in between is more than that."""
    commands: list[Words] = []
    problems: list[str] = []
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.type == "command":
            words, nested, found = _words(node)
            commands.append(words)
            problems += found
            waiting += reversed(nested)
            continue
        if node.type in ("redirected_statement", "file_redirect"):
            problems += [found] if (found := _redirection(node)) else []
        elif node.type not in _STRUCTURE and node.type not in _MARKS:
            problems += [f"it holds more than plain commands ({node.type.replace('_', ' ')})"]
        if node.type != "file_redirect" or _holds_command(node):
            waiting += reversed(node.children)
    return commands, problems


def _words(command: Node) -> tuple[Words, list[Node], list[str]]:
    """A command's words as far as they are known, what may hold further commands, and what is unclear."""
    words: list[str] = []
    nested: list[Node] = []
    problems: list[str] = []
    for child in command.children:
        if child.type == "file_redirect":
            problems += [found] if (found := _redirection(child)) else []
            nested += child.children if _holds_command(child) else []
            continue
        parts = child.children if child.type == "command_name" else [child]
        for part in parts:
            try:
                words.append(_word(part))
            except _Unclear:
                problems.append(f"{_short(part)} means something only when it is run")
                nested += [inner for inner in _below(part) if inner.type == "command"]
                words += [] if part.type == "variable_assignment" else [_text(part)]
    return tuple(words), nested, problems


def _word(node: Node) -> str:
    """A word without its quotes. Raises _Unclear where the shell would put something else in its place."""
    text = _text(node)
    match node.type:
        case "word" | "number":
            if _UNQUOTED_MAGIC.search(re.sub(r"\\.", "", text, flags=re.DOTALL)):
                raise _Unclear
            return re.sub(r"\\(.)", lambda found: found[1] if found[1] != "\n" else "", text, flags=re.DOTALL)
        case "raw_string":
            return text[1:-1]
        case "string":
            if any(child.type not in ('"', "string_content") for child in node.children):
                raise _Unclear
            if "$" in text or "`" in text or "!" in text:
                raise _Unclear
            return re.sub(r"\\([\\\"\n])", lambda found: found[1].strip("\n"), text[1:-1])
        case "concatenation":
            if text == "{}":
                return text
            return "".join(_word(child) for child in node.children)
        case _:
            raise _Unclear


def _redirection(node: Node) -> str | None:
    """What is wrong with a redirection; nothing with one into nowhere or to an open descriptor."""
    if node.type == "redirected_statement":
        odd = [each for each in node.children if each.type in ("heredoc_redirect", "herestring_redirect")]
        return "it holds a text of its own (<<)" if odd else None
    target = node.children[-1]
    signs = "".join(
        _text(each) for each in node.children if each.type not in ("file_descriptor", target.type)
    )
    is_descriptor = target.type == "number" and signs in (">&", "<&")
    if is_descriptor or (target.type == "word" and _text(target) == _HARMLESS_TARGET):
        return None
    return f"it reads or writes a file by itself ({_short(node)})"


def _holds_command(node: Node) -> bool:
    return any(inner.type == "command" for inner in _below(node))


def _below(node: Node) -> Iterator[Node]:
    waiting = [node]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += reversed(one.children)


def _agrees(text: str, commands: list[Words]) -> bool:
    """Whether shlex sees the same words."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        tokens = list(lexer)
    except ValueError:
        return False
    words = [token for token in tokens if not token or set(token) - _OPERATORS]
    expected = [word for command in commands for word in command]
    # What stands around commands is no word of theirs.
    around = [word for word in words if word not in ("{", "}", "!")]
    if not set(text) & set("<>"):
        return around == [word for word in expected if word not in ("{", "}", "!")]
    return _without_targets(around) == expected


def _without_targets(words: list[str]) -> list[str]:
    """Without what stands after `>` and before `>&1`: only redirections into nowhere come this far."""
    return [word for word in words if word not in (_HARMLESS_TARGET, "1", "2")]


def _inner(commands: list[Words]) -> Iterator[str]:
    """Command lines that are words of commands."""
    for words in commands:
        name = program(words)
        if name == "eval":
            yield " ".join(words[1:])
        elif name in SHELLS:
            yield from _given_to_shell(words)


def _given_to_shell(words: Words) -> Iterator[str]:
    for index, word in enumerate(words[1:-1], 1):
        if word.startswith("-") and not word.startswith("--") and "c" in word:
            yield words[index + 1]
            return


def _runs_others(words: Words, depth: int) -> str | None:
    name = program(words)
    if name in SHELLS and any(_given_to_shell(words)) and depth + 1 < _MOST_NESTED:
        return None if len(words) == 3 else f"{name} is given more than a command"
    if name in RUNS_OTHERS or name in SHELLS or (name == "find" and _FIND_RUNS & set(words)):
        return f"{name} runs what it is given"
    return None


def program(words: Words) -> str:
    """The name of the program without its directory."""
    return words[0].rpartition("/")[2] if words else ""


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def _short(node: Node) -> str:
    text = _text(node)
    return text if len(text) <= 60 else f"{text[:60]}…"
