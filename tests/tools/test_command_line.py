"""A command line as rules see it: its simple commands, and whether all of it is understood."""

import pytest

from luxx.tools.command_line import MOST_CHARACTERS, MOST_WORDS, read_command

UNDERSTOOD: dict[str, list[list[str]]] = {
    "git status": [["git", "status"]],
    "git status; rm -rf /": [["git", "status"], ["rm", "-rf", "/"]],
    "a && b || c": [["a"], ["b"], ["c"]],
    "ls | wc -l": [["ls"], ["wc", "-l"]],
    "a |& b": [["a"], ["b"]],
    "(cd x; ls) && { pwd; } &": [["cd", "x"], ["ls"], ["pwd"]],
    "! true": [["true"]],
    "echo a\nrm b": [["echo", "a"], ["rm", "b"]],
    "echo 'a; rm b'": [["echo", "a; rm b"]],
    'r""m "x y"': [["rm", "x y"]],
    "\\rm x": [["rm", "x"]],
    "git log 2>&1": [["git", "log"]],
    "git log > /dev/null": [["git", "log"]],
    "git show HEAD~1": [["git", "show", "HEAD~1"]],
    "bash -c 'rm x'": [["bash", "-c", "rm x"], ["rm", "x"]],
    "sh -c \"bash -c 'rm x'\"": [["sh", "-c", "bash -c 'rm x'"], ["bash", "-c", "rm x"], ["rm", "x"]],
    "": [],
}


@pytest.mark.parametrize("text", UNDERSTOOD, ids=repr)
def test_each_simple_command_is_seen(text: str) -> None:
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
    'git "sta': ["git"],
    "git status; ; rm": ["git", "rm"],
    "(" * 400: [],
    "git\rstatus": [],
    "git \x01": [],
    "a" * (MOST_CHARACTERS + 1): [],
    "\ud800": [],
}


@pytest.mark.parametrize("text", NOT_UNDERSTOOD, ids=lambda text: repr(text)[:40])
def test_what_is_not_surely_understood_is_said_so_with_what_was_seen_in_it(text: str) -> None:
    line = read_command(text)
    assert line.problem
    assert [words[0] for words in line.commands if words] == NOT_UNDERSTOOD[text]


def test_a_very_long_list_of_words_is_cut_and_not_understood() -> None:
    line = read_command("ls " + "a " * 2000)
    assert line.problem == "it has too many words"
    assert sum(map(len, line.commands)) <= MOST_WORDS


@pytest.mark.parametrize(
    "text",
    ["git\xa0status", "git\u2003status", "git ⁏ rm x", "git；rm x"],
    ids=ascii,
)
def test_letters_that_look_like_spaces_or_signs_are_letters(text: str) -> None:
    line = read_command(text)
    words = [word for command in line.commands for word in command]
    assert line.problem or "".join(words) == text.replace(" ", "")
