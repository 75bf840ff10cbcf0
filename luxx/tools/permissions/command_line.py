"""What a shell would run: a command line read into its simple commands, for rules to judge each of them.

Two parsers read it, the grammar of bash and Python's shlex; only words on which both agree are understood.
What is not surely understood is said to be so, with those commands that were seen in it. Nothing is run.
What programs do with their words is in `programs`.
"""

import re
import shlex

import msgspec
import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from luxx.tools.permissions.options import CommandWords
from luxx.tools.permissions.programs import nested_command_lines, program, shell_command_line, unsafe_reason

MAX_COMMAND_CHARACTERS = 10_000
MAX_COMMAND_WORDS = 300
MAX_COMMANDS = 40
_MAX_NESTING = 3
_MAX_TOTAL_CHARACTERS = 4 * MAX_COMMAND_CHARACTERS
"""Of one line together with those within it."""

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


class CommandLine(msgspec.Struct, frozen=True, kw_only=True):
    """`commands` in order, each as its words without quotes. `problem`: why not all of it is understood."""

    commands: tuple[CommandWords, ...] = ()
    problem: str | None = None


class _DynamicWord(Exception):
    """This part means something only when it is run."""


def read_command(text: str) -> CommandLine:
    """The simple commands of `text`, each once; also those that a shell within it (`sh -c`) would run."""
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
    """One line with all lines within it. What is read together is bounded, however deep they lie."""

    def __init__(self) -> None:
        self.commands: list[CommandWords] = []
        self.problems: list[str] = []
        self._remaining_characters = _MAX_TOTAL_CHARACTERS
        self._read_lines: set[str] = set()

    def read(self, text: str, depth: int) -> None:
        """The commands of `text`, then those of the lines that are words of these."""
        self._remaining_characters -= len(text)
        if (problem := _unreadable(text)) is not None or self._remaining_characters < 0:
            self.problems.append(problem or "it is too long to be read")
            return
        source = text.encode()
        root = Parser(_LANGUAGE).parse(source).root_node
        found = _CommandScan(source, root)
        if root.has_error:
            self.problems.append("it is not a command that can be read")
        self.problems += found.problems
        if not (root.has_error or found.problems or found.is_confirmed_by_shlex()):
            self.problems.append("it can be read in more than one way")
        self.problems += [problem for words in found.commands if (problem := _problem_of_words(words, depth))]
        self.commands += found.commands
        if depth < _MAX_NESTING:
            for line in (line for words in found.commands for line in nested_command_lines(words)):
                if line not in self._read_lines:
                    self._read_lines.add(line)
                    self.read(line, depth + 1)


def _unreadable(text: str) -> str | None:
    if len(text) > MAX_COMMAND_CHARACTERS:
        return "it is too long to be read"
    if _CONTROL.search(text):
        return "it holds control characters"
    return None if text.isascii() or _is_text(text) else "it is not text"


def _is_text(text: str) -> bool:
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False


def _problem_of_words(words: CommandWords, depth: int) -> str | None:
    if shell_command_line(words) and depth + 1 < _MAX_NESTING:
        return None if len(words) == 3 else f"{program(words)} is given more than a command"
    return unsafe_reason(words)


class _CommandScan:
    """The simple commands below a node in order, and what in between is more than that."""

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
        """What is to be looked at next: each node is once, so that depth costs no more than length."""
        if node.type == "command":
            return self._command(node)
        if node.type == "file_redirect":
            return self._redirect(node)
        if node.type == "redirected_statement":
            if any(each.type in ("heredoc_redirect", "herestring_redirect") for each in node.children):
                self.problems.append("it holds a text of its own (<<)")
        elif node.type in _CONTROL_OPERATORS:
            self._tokens += [node.type] if node.type in _RESERVED_WORDS else []
        elif node.type not in _STRUCTURE:
            self.problems.append(f"it holds more than plain commands ({node.type.replace('_', ' ')})")
        return node.children

    def _command(self, command: Node) -> list[Node]:
        """Notes a command's words as far as they are known; what within it may hold further commands."""
        words: list[str] = []
        nested: list[Node] = []
        if self._has_line_break(command):
            self.problems.append("it can be read in more than one way")
        for child in command.children:
            if child.type == "file_redirect":
                nested += self._redirect(child)
                continue
            for part in child.children if child.type == "command_name" else [child]:
                try:
                    words.append(_word(part))
                except _DynamicWord:
                    self.problems.append(f"{_shortened(part)} means something only when it is run")
                    inner = _outermost_commands(part)
                    nested += inner
                    if part.type != "variable_assignment":
                        words.append(_shortened(part) if inner else _text(part))
        self.commands.append(tuple(words))
        self._tokens += words
        return nested

    def _has_line_break(self, command: Node) -> bool:
        """Whether a line ends between its words, which the shell takes for its end."""
        ends = [child.end_byte for child in command.children[:-1]]
        begins = [child.start_byte for child in command.children[1:]]
        gaps = (self._source[end:begin] for end, begin in zip(ends, begins, strict=True))
        return any(b"\n" in gap.replace(b"\\\n", b"") for gap in gaps)

    def _redirect(self, node: Node) -> list[Node]:
        """Nothing is wrong with a redirection into nowhere or to an open descriptor."""
        if _is_harmless(node) and self._is_separate_word(node):
            self._harmless.append(node)
            return []
        self.problems.append(f"it reads or writes a file by itself ({_shortened(node)})")
        return _outermost_commands(node)

    def _is_separate_word(self, node: Node) -> bool:
        """Whether no neighbouring letter could belong to it: the 2 does in `2>&1`, and in `a2>&1` not."""
        before, after = self._source[: node.start_byte], self._source[node.end_byte :][:1]
        if after and after[0] not in _WORD_DELIMITERS:
            return False
        if node.children[0].type == "file_descriptor":
            return not before or before[-1] in _WORD_DELIMITERS
        return _TRAILING_DESCRIPTOR.search(before[-20:]) is None

    def is_confirmed_by_shlex(self) -> bool:
        """Whether shlex sees the same words, where the harmless redirections are left out."""
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
    """A word without its quotes. Raises _Unclear where the shell would put something else in its place."""
    text = _text(node)
    match node.type:
        case "word" | "number":
            if _EXPANSION_CHARACTERS.search(re.sub(r"\\.", "", text, flags=re.DOTALL)):
                raise _DynamicWord
            return re.sub(r"\\(.)", lambda found: found[1] if found[1] != "\n" else "", text, flags=re.DOTALL)
        case "raw_string":
            return text[1:-1]
        case "string":
            if any(child.type not in ('"', "string_content") for child in node.children):
                raise _DynamicWord
            if "$" in text or "`" in text or "!" in text:
                raise _DynamicWord
            return re.sub(r"\\([\\\"\n])", lambda found: found[1].strip("\n"), text[1:-1])
        case "concatenation":
            if text == "{}":
                return text
            return "".join(_word(child) for child in node.children)
        case _:
            raise _DynamicWord


def _is_harmless(redirect: Node) -> bool:
    """One sign and one target: nowhere, or an open descriptor."""
    targets = [each for each in redirect.children if each.is_named and each.type != "file_descriptor"]
    operators = [each for each in redirect.children if not each.is_named]
    if len(targets) != 1 or len(operators) != 1:
        return False
    target = targets[0]
    numbers = [each for each in redirect.children if each.type in ("file_descriptor", "number")]
    # The grammar takes `-2` and `2#3` for numbers, too.
    if not all((each.text or b"").isdigit() for each in numbers):
        return False
    if target.type == "number":
        return _text(operators[0]) in (">&", "<&")
    return (
        target.type == "word"
        and _text(target) == _NULL_DEVICE
        and _text(operators[0]) in _FILE_REDIRECT_OPERATORS
    )


def _outermost_commands(node: Node) -> list[Node]:
    """Commands below a node, but not those below them: these are found when they are looked at."""
    found: list[Node] = []
    pending = [node]
    while pending:
        one = pending.pop()
        if one.type == "command":
            found.append(one)
        else:
            pending += reversed(one.children)
    return found


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def _shortened(node: Node) -> str:
    text = _text(node)
    return text if len(text) <= 60 else f"{text[:60]}…"
