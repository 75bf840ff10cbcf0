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
"""

HOSTILE = (
    '<img src=x onerror="window.hacked=1"> <script>window.hacked=1</script> '
    "[click](javascript:window.hacked=1) ![pixel](https://evil.example/pixel.png) "
    "<iframe src='https://evil.example'></iframe> <a href='x' onclick='window.hacked=1'>a</a>"
)

RULES = [
    Rule(when=When(user="hello"), reply=[Text(text="Hello to you", pieces=3)]),
    Rule(when=When(user="markdown"), reply=[Text(text=MARKDOWN, pieces=40)]),
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
    Rule(when=When(user="hostile"), reply=[Text(text=HOSTILE, pieces=10)]),
]

SCRIPT = Script(rules=RULES)
