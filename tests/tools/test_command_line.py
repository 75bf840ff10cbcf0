"""The parser of command lines for rules: its simple commands, and whether it understands the whole line."""

import time

import pytest

from luxx.tools.permissions.command_line import (
    MAX_COMMAND_CHARACTERS,
    MAX_COMMAND_WORDS,
    MAX_COMMANDS,
    read_command,
)

UNDERSTOOD: dict[str, list[list[str]]] = {
    "git status": [["git", "status"]],
    "git status; rm -rf /": [["git", "status"], ["rm", "-rf", "/"]],
    "a && b || c": [["a"], ["b"], ["c"]],
    "ls | wc -l": [["ls"], ["wc", "-l"]],
    "a |& b": [["a"], ["b"]],
    "(cd x; ls) && { pwd; } &": [["cd", "x"], ["ls"], ["pwd"]],
    "! true": [["true"]],
    "git log \\\n -3": [["git", "log", "-3"]],
    "echo a\nrm b": [["echo", "a"], ["rm", "b"]],
    "echo 'a; rm b'": [["echo", "a; rm b"]],
    'r""m "x y"': [["rm", "x y"]],
    "\\rm x": [["rm", "x"]],
    "git log 2>&1": [["git", "log"]],
    "git log > /dev/null": [["git", "log"]],
    "git log -c --oneline": [["git", "log", "-c", "--oneline"]],
    "git show HEAD~1": [["git", "show", "HEAD~1"]],
    "git log >/dev/null 2>&1 | wc": [["git", "log"], ["wc"]],
    "kill 2 >/dev/null": [["kill", "2"]],
    "{ ls; } 2>&1 && ! true": [["ls"], ["true"]],
    "a; a; b; a": [["a"], ["b"]],
    "find . -name 1 >&2": [["find", ".", "-name", "1"]],
    "bash -c 'rm x'": [["bash", "-c", "rm x"], ["rm", "x"]],
    "sh -c \"bash -c 'rm x'\"": [["sh", "-c", "bash -c 'rm x'"], ["bash", "-c", "rm x"], ["rm", "x"]],
    "": [],
}


@pytest.mark.parametrize("text", UNDERSTOOD, ids=repr)
def test_each_simple_command_is_extracted(text: str) -> None:
    line = read_command(text)
    assert line.problem is None
    assert [list(words) for words in line.commands] == UNDERSTOOD[text]


NOT_UNDERSTOOD: dict[str, list[str]] = {
    "echo $(rm x)": ["echo", "rm"],
    "echo `rm x`": ["echo", "rm"],
    'echo "$(rm x)"': ["echo", "rm"],
    "echo $HOME": ["echo"],
    "ls *.py": ["ls"],
    "ls ~/x": ["ls"],
    "echo {a,b}": ["echo"],
    "echo {1..9}": ["echo"],
    "A=1 git status": ["git"],
    "PATH=/tmp": [],
    "git log > out": ["git"],
    "cat < secret": ["cat"],
    "echo x >> ~/.bashrc": ["echo"],
    "cat <<EOF\nrm x\nEOF": ["cat"],
    "cat <<< rm": ["cat"],
    "echo <(rm x)": ["echo", "rm"],
    "git log > $(rm x)": ["git", "rm"],
    "if true; then rm x; fi": ["true", "rm"],
    "for a in b; do rm x; done": ["rm"],
    "git() { rm x; }; git": ["rm", "git"],
    "[ -f x ] && rm x": ["rm"],
    "((1))": [],
    "echo $'a'": ["echo"],
    "echo # rm": ["echo"],
    "time rm x": ["time"],
    "env rm x": ["env"],
    "xargs rm": ["xargs"],
    "find . -exec rm {} +": ["find"],
    "find . -delete": ["find"],
    "bash x.sh": ["bash"],
    "bash -c 'rm x' y": ["bash", "rm"],
    "eval 'rm x'": ["eval", "rm"],
    ". x.sh": ["."],
    "timeout 5 bash -c 'rm x'": ["timeout", "rm"],
    "xargs sh -c 'rm x'": ["xargs", "rm"],
    "trap 'rm x' EXIT": ["trap", "rm"],
    "env -S'rm x'": ["env", "-Srm", "rm"],
    "bash -c -- 'rm x'": ["bash", "--", "rm"],
    "let 'x[$(rm y)]=1'": ["let", "rm"],
    "printf -v 'a[$(rm x)]' y": ["printf"],
    "test -v 'a[$(rm y)]'": ["test"],
    "mapfile -C rm -c 1": ["mapfile"],
    "hash -p /bin/rm git\ngit x": ["hash", "git"],
    "alias ll=rm\nll x": ["alias", "ll"],
    "prlimit rm": ["prlimit"],
    "/lib64/ld-linux-x86-64.so.2 /bin/rm x": ["/lib64/ld-linux-x86-64.so.2"],
    "find . -fprint0 .bashrc": ["find"],
    "git log --output=x": ["git"],
    "git diff --outp x": ["git"],
    "git -c alias.x='!rm' x": ["git"],
    "git log > 1 /dev/null": ["git"],
    "git log >&{ /dev/null": ["git"],
    "kill >&2 1": ["kill"],
    "git log 2>&1x": ["git"],
    "git log -2>&1": ["git"],
    "git log >&2#x": ["git"],
    "git log>&-/dev/null": ["git"],
    "git log\n\n\\\n rm x": ["git"],
    'git "sta': ["git"],
    "git status; ; rm": ["git", "rm"],
    "(" * 400: [],
    "git\rstatus": [],
    "git \x01": [],
    "a" * (MAX_COMMAND_CHARACTERS + 1): [],
    "\ud800": [],
}


@pytest.mark.parametrize("text", NOT_UNDERSTOOD, ids=lambda text: repr(text)[:40])
def test_a_line_that_is_not_fully_understood_is_marked_and_keeps_its_commands(text: str) -> None:
    line = read_command(text)
    assert line.problem
    assert [words[0] for words in line.commands if words] == NOT_UNDERSTOOD[text]


def test_deep_nesting_does_not_make_parsing_slow() -> None:
    deep = {
        "a $(": ")",
        "eval $(": ")",
        'sh -c "$(': ')"',
        ">$(a ": ")",
        "a >$(": ")",
        "`a ": "",
        "if a; then ": "",
        "xargs 'b c' ": "",
    }
    began = time.monotonic()
    for begin, end in deep.items():
        count = MAX_COMMAND_CHARACTERS // len(begin + end)
        assert read_command(begin * count + end * count).problem
    assert time.monotonic() - began < 5


def test_a_line_of_very_many_commands_is_not_understood() -> None:
    line = read_command(";".join(f"a{number}" for number in range(MAX_COMMANDS + 1)))
    assert line.problem == f"it has more than {MAX_COMMANDS} commands"
    assert len(line.commands) == MAX_COMMANDS


def test_a_very_long_list_of_words_is_cut_and_not_understood() -> None:
    line = read_command("ls " + "a " * 2000)
    assert line.problem == "it has too many words"
    assert sum(map(len, line.commands)) <= MAX_COMMAND_WORDS


@pytest.mark.parametrize(
    "text",
    ["git\xa0status", "git\u2003status", "git ⁏ rm x", "git；rm x"],
    ids=ascii,
)
def test_letters_that_look_like_spaces_or_signs_are_letters(text: str) -> None:
    line = read_command(text)
    words = [word for command in line.commands for word in command]
    assert line.problem or "".join(words) == text.replace(" ", "")
