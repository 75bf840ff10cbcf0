"""python_eval: valid expressions, and attacks that read nothing and use little."""

import asyncio
import threading
import time
from typing import Any

import pytest

from luxx.errors import ToolFailed
from luxx.tools.builtin.expression import evaluate
from luxx.tools.builtin.programs import python_eval


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", 7),
        ("2 ** 100", 2**100),
        ("7 // 2, 7 % 2, -7", (3, 1, -7)),
        ("sum(x ** 2 for x in range(10) if x % 2)", 165),
        ("[a * b for a in range(3) for b in range(a)]", [0, 0, 2]),
        ("{k: v for k, v in zip('ab', [1, 2])}", {"a": 1, "b": 2}),
        ("{x % 3 for x in range(9)}", {0, 1, 2}),
        ("math.sqrt(16) + sqrt(9)", 7.0),
        ("round(math.pi, 2)", 3.14),
        ("f'{1/3:.3f} {\"x\":>3} {[1]!r}'", "0.333   x [1]"),
        ("'a,b'.upper().split(',')", ["A", "B"]),
        ("'-'.join(sorted(['b', 'a'], reverse=True))", "b-a"),
        ("'hello'[1:4:2], [1, 2, 3][-1]", ("el", 3)),
        ("{'a': 1}.get('b', 2) if 1 < 2 < 3 else None", 2),
        ("not [] and 'x' in 'xyz'", True),
        ("max([3, 1]) - min(3, 1)", 2),
        ("statistics.mean([1, 2, 3])", 2.0),
        ("0xff ^ 0b1 | 1 << 4", 254),
        ("len(set([1, 1, 2]))", 2),
        ("factorial(20) // comb(5, 2)", 243290200817664000),
        ("int('ff', 16) + ord('a')", 352),
        ("list(enumerate('ab', start=1))", [(1, "a"), (2, "b")]),
        ("+".join(["1"] * 1900), 1900),
    ],
)
def test_a_valid_expression_is_evaluated(expression: str, value: Any) -> None:
    assert evaluate(expression) == value


ATTACKS = [
    "__import__('os')",
    "__import__('os').system('id')",
    "open('/etc/passwd').read()",
    "eval('1')",
    "exec('1')",
    "compile('1', '', 'eval')",
    "globals()",
    "locals()",
    "vars()",
    "dir()",
    "getattr(1, 'real')",
    "type(1)",
    "().__class__",
    "().__class__.__bases__[0].__subclasses__()",
    "''.__class__.__mro__",
    "(1).__class__",
    "[].append",
    "str.__subclasses__()",
    "math.__loader__",
    "math.__dict__",
    "statistics.sys.modules",
    "statistics.math",
    "[x for x in (1,)].__class__",
    "(lambda: 1)()",
    "(x := 1)",
    "[y for x in [1] if (y := x)]",
    "'{0.__class__}'.format(1)",
    "'{0.__class__}'.format_map({})",
    "f'{().__class__}'",
    "f'{1:{10**9}}'",
    "f'{1:1000000000}'",
    "f'{1:.1000000000f}'",
    "format(1, '1000000000')",
    "'%1000000000d' % 1",
    "'%(a)s' % {'a': 1}",
    "9**9**9",
    "(9**9)**(9**9)",
    "2**20000",
    "1 << 10**10",
    "pow(9, 9**9)",
    "pow(3, 2**13000, 2**13000 - 1)",
    "10**4000 * 10**4000",
    "factorial(10**6)",
    "math.perm(10**6, 10**5)",
    "math.comb(10**6, 10**5)",
    "math.prod(range(1, 50000))",
    "round(1, -10**9)",
    "'a' * 10**10",
    "10**10 * 'a'",
    "[0] * 10**10",
    "(0,) * 10**10",
    "[[0] * 10**4] * 10**4",
    "'a' * 10**5 * 10**5",
    "('a' * 10**5).replace('a', 'b' * 10**5)",
    "('a' * 10**5).join(['b'] * 10**4)",
    "('a' * 10**5).join('b' * 10**5)",
    "'x'.center(10**10)",
    "'x'.ljust(10**10)",
    "'1'.zfill(10**10)",
    "'\\t'.expandtabs(10**10)",
    "list(range(10**12))",
    "sum(range(10**12))",
    "10.5 in range(10**12)",
    "range(10**30)",
    "[x for x in range(10**9)]",
    "[1 for a in range(9999) for b in range(9999)]",
    "[[1 for a in range(9999)] for b in range(9999)]",
    "[a for a in [list(range(40000))] for i in range(40000) if a == a]",
    "[a for a in ['x' * 200000] for i in range(40000) if a + 'y' == a + 'z']",
    "[a for a in ['x' * 100000] for i in range(40000) if 'y' in a]",
    "{k * (2**61 - 1) for k in range(20000)}",
    "set([k * (2**61 - 1) for k in range(20000)])",
    "dict([(k * (2**61 - 1), 1) for k in range(20000)])",
    "[0 for s in [{k * (2**61 - 1) for k in range(1900)}] for i in range(40000) if -1 in s]",
    "[0 for s in [{k * (2**61 - 1) for k in range(1900)}] for i in range(40000) if s == s | {-1}]",
    "[[c, c] for c in [[b, b] for b in [[a, a] for a in [[0] * 9000]]]]",
    "int('9' * 100000)",
    "int('f' * 200000, 16)",
    "str(10**4290) * 100",
    "(-1) ** 0.5",
    "1j",
    "b'x'",
    "...",
    "-" * 3999 + "1",
    "(" * 1999 + "1" + ")" * 1999,
    "[" * 1999 + "]" * 1999,
    "1 if " * 500 + "1" + " else 1" * 500,
    "not " * 900 + "1",
    "1" * 5000,
    "1; 2",
    "x = 1",
    "import os",
    "",
    "\0",
    "await x",
    "(yield)",
    "print(1)",
    "[*range(10)]",
    "max(*[1, 2])",
    "dict(**{'a': 1})",
    "[x async for x in []]",
    "input()",
    "breakpoint()",
    "help()",
    "sorted([1, 2], key=str)",
    "math",
    "sqrt",
    "None.x",
    "1 @ 2",
]


@pytest.mark.parametrize("expression", ATTACKS)
def test_an_attack_reads_nothing_and_uses_little(expression: str) -> None:
    start = time.thread_time()
    result = python_eval({"expression": expression})
    assert not result.success, result.data
    assert time.thread_time() - start < 3


def test_deep_nesting_is_refused_in_a_small_thread_too() -> None:
    answers: list[Any] = []
    deep = "[" * 190 + "]" * 190

    def work() -> None:
        try:
            answers.append(evaluate(deep))
        except ToolFailed as error:
            answers.append(error.message)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert answers == ["the expression is nested too deeply"]


@pytest.mark.heavy
def test_the_most_expensive_allowed_expression_takes_about_a_second() -> None:
    dear = [
        "[x for x in range(20000) if x * x % 7 == 3]",
        "[10**4200 * i % (10**4199 + i) for i in range(20000)]",
        "[gcd(2**13999 - i, 3**8000 + i) for i in range(20000)]",
        "[pow(3, 2**100, 2**300 - i) for i in range(20000)]",
        "[str(10**4200 + i) for i in range(20000)]",
        "[factorial(1000) for i in range(20000)]",
        "[sorted(range(20000)) for i in range(20000)]",
        "[statistics.stdev([0.1, 1e300, 1e-300] * 1000) for i in range(20000)]",
        "[isqrt(2**13999) for i in range(40000)]",
        "[perm(1000, 999) for i in range(40000)]",
    ]
    for expression in dear:
        start = time.thread_time()
        python_eval({"expression": expression})
        assert time.thread_time() - start < 5, expression


def test_values_that_json_lacks_are_returned_as_text_or_lists(
    builtin_executor: Any, context_of: Any, call: Any
) -> None:
    def run(expression: str) -> Any:
        executed = asyncio.run(
            builtin_executor.execute(call("python_eval", {"expression": expression}), context_of())
        )
        assert executed.result.success, executed.result.error
        return executed.result.data

    assert run("{1: (1, 2), 'a': {3, 1, 2}}")["result"] == {"1": [1, 2], "a": [1, 2, 3]}
    assert run("[inf, -inf, nan]")["result"] == ["inf", "-inf", "nan"]
    assert run("chr(0xd800)") == {"result": "\ufffd", "type": "str"}
    assert run("2**200") == {"result": 2**200, "type": "int"}


def test_an_error_in_the_expression_is_reported_as_python_reports_it() -> None:
    assert python_eval({"expression": "1/0"}).error == "ZeroDivisionError: division by zero"
