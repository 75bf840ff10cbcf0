"""Parses a shell command line into its simple commands, so that rules can judge each of them. Runs nothing.

Two parsers read the line, the tree-sitter grammar of bash and Python's shlex, and must agree on the words.
Otherwise the result has a `problem` and the commands that were recognized. `programs` knows what programs do
with their arguments.
"""

import re
import shlex

import msgspec
import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from luxx.tools.permissions.programs import (
    CommandWords,
    nested_command_lines,
    program,
    shell_command_line,
    unsafe_reason,
)

MAX_COMMAND_CHARACTERS = 10_000
MAX_COMMAND_WORDS = 300
MAX_COMMANDS = 40
_MAX_NESTING = 3
_MAX_TOTAL_CHARACTERS = 4 * MAX_COMMAND_CHARACTERS
"""Limit for a line together with its nested lines."""

_STRUCTURE = frozenset(
    {"program", "list", "pipeline", "subshell", "compound_statement", "negated_command", "command_name"}
)
_CONTROL_OPERATORS = frozenset({";", "&&", "||", "|", "|&", "&", "\n", "(", ")", "{", "}", "!", ";;"})
_RESERVED_WORDS = frozenset({"{", "}", "!"})
_NULL_DEVICE = "/dev/null"
_FILE_REDIRECT_OPERATORS = frozenset({">", ">>", ">|", "<", "&>", "&>>", ">&"})
_EXPANSION_CHARACTERS = re.compile(r"[*?\[\]{}$`!]|^[~#]|[=:]~")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_OPERATORS = frozenset(";&|()<>\n")
_WORD_DELIMITERS = frozenset(b" \t\n;&|()")
_TRAILING_DESCRIPTOR = re.compile(rb"(?:^|[ \t\n;&|()<>])[0-9]+$")
_LANGUAGE = Language(tree_sitter_bash.language())
_AMBIGUOUS = "it is ambiguous: two shell parsers read it differently"


class CommandLine(msgspec.Struct, frozen=True, kw_only=True):
    """`commands` in order, each as its words without quotes. `problem`: why the line is ambiguous."""

    commands: tuple[CommandWords, ...] = ()
    problem: str | None = None


class _DynamicWord(Exception):
    """The value of this word is known only at run time."""


def read_command(text: str) -> CommandLine:
    """The distinct simple commands of `text`, including those of nested shells (`sh -c`)."""
    reader = _CommandReader()
    reader.read(text, 0)
    commands, problems = list(dict.fromkeys(reader.commands)), reader.problems
    if sum(map(len, commands)) > MAX_COMMAND_WORDS:
        problems.append("it has too many words")
        commands = [words[:MAX_COMMAND_WORDS] for words in commands[:MAX_COMMAND_WORDS]]
    if len(commands) > MAX_COMMANDS:
        problems.append(f"it has more than {MAX_COMMANDS} commands")
        commands = commands[:MAX_COMMANDS]
    return CommandLine(commands=tuple(commands), problem=problems[0] if problems else None)


class _CommandReader:
    """Reads a line and its nested lines, within a total limit of characters."""

    def __init__(self) -> None:
        self.commands: list[CommandWords] = []
        self.problems: list[str] = []
        self._remaining_characters = _MAX_TOTAL_CHARACTERS
        self._read_lines: set[str] = set()

    def read(self, text: str, depth: int) -> None:
        """Read the commands of `text`, then those of the nested command lines in their words."""
        self._remaining_characters -= len(text)
        if (problem := _unreadable(text)) is not None or self._remaining_characters < 0:
            self.problems.append(problem or "it is too long to be read")
            return
        source = text.encode()
        root = Parser(_LANGUAGE).parse(source).root_node
        scan = _CommandScan(source, root)
        if root.has_error:
            self.problems.append("it is not a valid shell command")
        self.problems += scan.problems
        if not (root.has_error or scan.problems or scan.is_confirmed_by_shlex()):
            self.problems.append(_AMBIGUOUS)
        self.problems += [problem for words in scan.commands if (problem := _problem_of_words(words, depth))]
        self.commands += scan.commands
        if depth < _MAX_NESTING:
            for line in (line for words in scan.commands for line in nested_command_lines(words)):
                if line not in self._read_lines:
                    self._read_lines.add(line)
                    self.read(line, depth + 1)


def _unreadable(text: str) -> str | None:
    if len(text) > MAX_COMMAND_CHARACTERS:
        return "it is too long to be read"
    if _CONTROL.search(text):
        return "it contains control characters"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "it is not text"
    return None


def _problem_of_words(words: CommandWords, depth: int) -> str | None:
    if shell_command_line(words) and depth + 1 < _MAX_NESTING:
        return None if len(words) == 3 else f"{program(words)} has arguments besides the command line"
    return unsafe_reason(words)


class _CommandScan:
    """The simple commands below a node, in order, and the problems of everything else below it."""

    def __init__(self, source: bytes, root: Node) -> None:
        self.commands: list[CommandWords] = []
        self.problems: list[str] = []
        self._source = source
        self._tokens: list[str] = []
        self._harmless: list[Node] = []
        pending = [root]
        while pending:
            pending += reversed(self._visit(pending.pop()))

    def _visit(self, node: Node) -> list[Node]:
        """Process a node and return the nodes to visit next. Each is visited once, so the time is linear."""
        if node.type == "command":
            return self._command(node)
        if node.type == "file_redirect":
            return self._redirect(node)
        if node.type == "redirected_statement":
            if any(child.type in ("heredoc_redirect", "herestring_redirect") for child in node.children):
                self.problems.append("it contains a here-document (<<)")
        elif node.type in _CONTROL_OPERATORS:
            self._tokens += [node.type] if node.type in _RESERVED_WORDS else []
        elif node.type not in _STRUCTURE:
            self.problems.append(f"it contains more than simple commands ({node.type.replace('_', ' ')})")
        return node.children

    def _command(self, command: Node) -> list[Node]:
        """Record the known words of a command; return the nodes in it that may contain further commands."""
        words: list[str] = []
        nested: list[Node] = []
        if self._has_line_break(command):
            self.problems.append(_AMBIGUOUS)
        for child in command.children:
            if child.type == "file_redirect":
                nested += self._redirect(child)
                continue
            for part in child.children if child.type == "command_name" else [child]:
                try:
                    words.append(_word(part))
                except _DynamicWord:
                    self.problems.append(f"{_shortened(part)} has a value that is known only at run time")
                    inner = _outermost_commands(part)
                    nested += inner
                    if part.type != "variable_assignment":
                        words.append(_shortened(part) if inner else _text(part))
        self.commands.append(tuple(words))
        self._tokens += words
        return nested

    def _has_line_break(self, command: Node) -> bool:
        """Whether a newline, which ends a command in a shell, is between its words."""
        ends = [child.end_byte for child in command.children[:-1]]
        begins = [child.start_byte for child in command.children[1:]]
        gaps = (self._source[end:begin] for end, begin in zip(ends, begins, strict=True))
        return any(b"\n" in gap.replace(b"\\\n", b"") for gap in gaps)

    def _redirect(self, node: Node) -> list[Node]:
        """Accept a redirection to /dev/null or to an open descriptor; report any other as a problem."""
        if _is_harmless(node) and self._is_separate_word(node):
            self._harmless.append(node)
            return []
        self.problems.append(f"it redirects to or from a file ({_shortened(node)})")
        return _outermost_commands(node)

    def _is_separate_word(self, node: Node) -> bool:
        """Whether no adjacent character could belong to the redirection: the 2 does in `2>&1`, but not in
        `a2>&1`."""
        before, after = self._source[: node.start_byte], self._source[node.end_byte :][:1]
        if after and after[0] not in _WORD_DELIMITERS:
            return False
        if node.children[0].type == "file_descriptor":
            return not before or before[-1] in _WORD_DELIMITERS
        return _TRAILING_DESCRIPTOR.search(before[-20:]) is None

    def is_confirmed_by_shlex(self) -> bool:
        """Whether shlex reads the same words, without the harmless redirections."""
        source = bytearray(self._source)
        for node in self._harmless:
            source[node.start_byte : node.end_byte] = b" " * (node.end_byte - node.start_byte)
        lexer = shlex.shlex(source.decode(), posix=True, punctuation_chars=";&|()<>")
        lexer.whitespace_split = True
        lexer.commenters = ""
        try:
            tokens = list(lexer)
        except ValueError:
            return False
        if any(set(token) & set("<>") and not set(token) - _OPERATORS for token in tokens):
            return False
        return [token for token in tokens if not token or set(token) - _OPERATORS] == self._tokens


def _word(node: Node) -> str:
    """A word without its quotes. Raises _DynamicWord if the shell would expand it."""
    text = _text(node)
    match node.type:
        case "word" | "number":
            if _EXPANSION_CHARACTERS.search(re.sub(r"\\.", "", text, flags=re.DOTALL)):
                raise _DynamicWord
            return re.sub(
                r"\\(.)", lambda escape: escape[1] if escape[1] != "\n" else "", text, flags=re.DOTALL
            )
        case "raw_string":
            return text[1:-1]
        case "string":
            is_plain = all(child.type in ('"', "string_content") for child in node.children)
            if not is_plain or "$" in text or "`" in text or "!" in text:
                raise _DynamicWord
            return re.sub(r"\\([\\\"\n])", lambda escape: escape[1].strip("\n"), text[1:-1])
        case "concatenation":
            return text if text == "{}" else "".join(_word(child) for child in node.children)
        case _:
            raise _DynamicWord


def _is_harmless(redirect: Node) -> bool:
    """Whether it has one operator and one target, which is /dev/null or an open descriptor."""
    targets = [child for child in redirect.children if child.is_named and child.type != "file_descriptor"]
    operators = [child for child in redirect.children if not child.is_named]
    if len(targets) != 1 or len(operators) != 1:
        return False
    target, operator = targets[0], _text(operators[0])
    numbers = [child for child in redirect.children if child.type in ("file_descriptor", "number")]
    # The grammar also reads `-2` and `2#3` as numbers.
    if not all((number.text or b"").isdigit() for number in numbers):
        return False
    if target.type == "number":
        return operator in (">&", "<&")
    is_null_device = target.type == "word" and _text(target) == _NULL_DEVICE
    return is_null_device and operator in _FILE_REDIRECT_OPERATORS


def _outermost_commands(node: Node) -> list[Node]:
    """The commands below a node without those nested in them, which `_command` visits."""
    commands: list[Node] = []
    pending = [node]
    while pending:
        current = pending.pop()
        if current.type == "command":
            commands.append(current)
        else:
            pending += reversed(current.children)
    return commands


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def _shortened(node: Node) -> str:
    text = _text(node)
    return text if len(text) <= 60 else f"{text[:60]}…"
