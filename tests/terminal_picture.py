"""Draws docs/images/terminal.svg: a chat with a scripted model, as a real terminal shows it.

`python -m tests.terminal_picture` writes it; `test_terminal_picture.py` compares it.
"""

import re
import sys
import tempfile
from itertools import groupby
from pathlib import Path

from api.server_process import ADMIN_PASSWORD, ServerProcess, model_settings

sys.path.insert(0, str(Path(__file__).parent))

import httpx
from process_environment import ROOT, scripted_models
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.color import ColorParseError
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import MONOKAI
from rich.text import Text as StyledText
from screen_terminal import ScreenTerminal

from luxx.providers.scripted import Call, Rule, Script, Text, Thinking, When

PICTURE = ROOT / "docs" / "images" / "terminal.svg"
COLUMNS, LINES = 84, 36
FONTS = "Fira Code, Menlo, Consolas, DejaVu Sans Mono,"
CREDIT = re.compile(r"<!--.*?-->\s*", re.DOTALL)
FONT_FACE = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)
"""Rich's template loads fonts from the network; the picture uses the reader's own."""

LIST = "- tent and sleeping bag\n- rain jacket\n- 2 litres of water a day\n- map, headlamp\n"
ANSWER = """The list is in **packing.md**. By weight:

| item | weight |
| --- | ---: |
| tent and sleeping bag | 3.1 kg |
| water for one day | 2.0 kg |
| rain jacket | 0.4 kg |

Leave the second bottle at home: there is a spring at *kilometre 9*.
"""
SCRIPT = Script(
    rules=[
        Rule(
            when=When(has_tool_result=False),
            reply=[
                Thinking(text="A short list, saved as a file."),
                Call(name="file_write", arguments={"path": "packing.md", "content": LIST}),
            ],
        ),
        Rule(when=When(has_tool_result=True), reply=[Text(text=ANSWER)]),
    ]
)


def draw() -> str:
    """The picture as SVG."""
    with (
        tempfile.TemporaryDirectory() as folder,
        scripted_models(SCRIPT) as model,
        ServerProcess(Path(folder), **model_settings(model.url)) as server,
    ):
        token = sign_in(server.url)
        terminal = ScreenTerminal(
            "chat",
            "--tools",
            url=server.url,
            cwd=Path(folder),
            columns=COLUMNS,
            lines=LINES,
            LUXX_TOKEN=token,
            COLORTERM="truecolor",
        )
        terminal.expect_prompt()
        terminal.type("Save a packing list for two days of hiking\r")
        terminal.expect("answer>")
        terminal.type("1\r")
        terminal.expect("kilometre 9")
        terminal.expect_prompt()
        lines = screen_lines(terminal)
        terminal.type("/exit\r")
        terminal.end()
    return svg_of(lines)


def sign_in(url: str) -> str:
    """The token of the administrator, whose calls of file_write ask."""
    with httpx.Client(base_url=url, trust_env=False) as client:
        answer = client.post("/auth/login", json={"username": "admin", "password": ADMIN_PASSWORD})
        token = str(answer.json()["data"]["access_token"])
        client.headers["authorization"] = f"Bearer {token}"
        rules = [{"tool": "file_write", "action": "ask"}]
        assert client.put("/permissions/rules", json=rules).is_success
    return token


def screen_lines(terminal: ScreenTerminal) -> list[StyledText]:
    """The lines of the screen with their styles, and always the same durations."""
    rows = [terminal.screen.buffer[number] for number in range(terminal.screen.lines)]
    lines: list[StyledText] = []
    for row in rows:
        text = StyledText()
        chars = [row[column] for column in range(COLUMNS)]
        for (color, is_bold, is_italic), run in groupby(chars, lambda one: (one.fg, one.bold, one.italics)):
            style = style_of(color, bold=is_bold, italic=is_italic)
            text.append("".join(char.data for char in run), style=style)
        lines.append(with_fixed_times(text))
    while lines and not lines[-1].plain.strip():
        lines.pop()
    return lines


def style_of(color: str, *, bold: bool, italic: bool) -> Style:
    # pyte calls a color by its name or by six hexadecimal digits; brown is its name for yellow.
    name = {"default": None, "brown": "yellow"}.get(color, color)
    try:
        return Style(color=name, bold=bold or None, italic=italic or None)
    except ColorParseError:
        return Style(color=f"#{color}", bold=bold or None, italic=italic or None)


def with_fixed_times(text: StyledText) -> StyledText:
    """The line with the times of the machine replaced by others of the same length."""
    plain = re.sub(r"─*(?<=─) \d+ ms ─╯", lambda match: "─" * (len(match[0]) - 8) + " 4 ms ─╯", text.plain)
    plain = re.sub(r"thought for \d\.\d s", "thought for 0.9 s", plain)
    if plain == text.plain:
        return text
    # Both lines have one style.
    return StyledText(plain, style=text.spans[0].style if text.spans else "")


def svg_of(lines: list[StyledText]) -> str:
    with open("/dev/null", "w") as nothing:
        console = Console(
            record=True, width=COLUMNS, file=nothing, force_terminal=True, color_system="truecolor"
        )
        for line in lines:
            console.print(line, no_wrap=True, crop=True)
        template = CREDIT.sub("", FONT_FACE.sub("", CONSOLE_SVG_FORMAT)).replace("Fira Code,", FONTS)
        return console.export_svg(
            title="luxx chat", theme=MONOKAI, code_format=template, unique_id="terminal"
        )


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(), "utf-8")
    print(f"wrote {PICTURE}")
