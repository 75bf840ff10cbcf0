"""The labelled requests and items of `queries.json`, and requests that were written before anything was
measured: 30 that name the work of an item, and 30 of which none asks for one.
"""

import json
from pathlib import Path
from typing import Any

import msgspec

from luxx.domain.routing.matching import RoutedItem, Trigger

FILE = Path(__file__).with_name("queries.json")


def labelled() -> dict[str, Any]:
    return json.loads(FILE.read_text("utf-8"))


def items() -> list[RoutedItem]:
    return [
        RoutedItem(
            kind=item["kind"],
            name=item["name"],
            description=item["description"],
            triggers=tuple(Trigger(pattern=pattern) for pattern in item["trigger_patterns"]),
        )
        for item in labelled()["items"]
    ]


class Labelled(msgspec.Struct, frozen=True):
    """`expected`: the name of an item; None if nothing may activate."""

    text: str
    expected: str | None


OWN = [
    Labelled("Please merge these three PDF files into one document", "pdf-processing"),
    Labelled("Fill in the attached PDF form with my address", "pdf-processing"),
    Labelled("把这两个pdf合并pdf文件", "pdf-processing"),
    Labelled("Make a pivot table of sales by region from this xlsx", "spreadsheet-analysis"),
    Labelled("Clean the spreadsheet and draw a chart of the totals", "spreadsheet-analysis"),
    Labelled("Create a presentation with five slides about our roadmap", "slide-deck"),
    Labelled("帮我做一份演示文稿,主题是年度总结,要幻灯片十页", "slide-deck"),
    Labelled("Write the release notes for version 3.2 from the git log", "release-notes"),
    Labelled("根据git提交写一份更新日志和发布说明", "release-notes"),
    Labelled("Do a code review of this diff before I open the pull request", "code-review"),
    Labelled("请对这段代码做代码审查", "code-review"),
    Labelled("Check this invoice against the purchase order for duplicates", "invoice-check"),
    Labelled("核对发票和采购订单的金额", "invoice-check"),
    Labelled("Write a post-mortem of last night's outage with the root cause", "incident-report"),
    Labelled("写一份故障报告,包括根因和时间线", "incident-report"),
    Labelled("This SQL query is slow, look at the execution plan and add an index", "sql-tuning"),
    Labelled("Create a task to call the bank and remind me on Friday", "task-manager"),
    Labelled("提醒我明天交报告,创建任务", "task-manager"),
    Labelled("Turn this transcript of the meeting into minutes with action items", "meeting-minutes"),
    Labelled("Rewrite the flyer in our tone of voice, with the brand colours", "brand-guidelines"),
    Labelled("Write API documentation for these HTTP endpoints from the OpenAPI file", "api-docs"),
    Labelled("Take a screenshot of the page with Playwright and click through the form", "web-testing"),
    Labelled("Summarise this contract: parties, deadlines, termination", "contract-summary"),
    Labelled("总结这份合同的条款和风险", "contract-summary"),
    Labelled("Research the newest battery prices on the web, with sources and citations", "web-researcher"),
    Labelled("Implement the parser and run the tests", "coder"),
    Labelled("Look in the knowledge graph for what we decided about the database", "memory-explorer"),
    Labelled("Translate this letter from English to Chinese", "translator"),
    Labelled("Fit a regression model and forecast next quarter from the data", "data-scientist"),
    Labelled("Deploy the new version, restart the service and look at the logs", "operator"),
    Labelled("Good morning, how was your night?", None),
    Labelled("What is a pull request?", None),
    Labelled("Who wrote the first spreadsheet program?", None),
    Labelled("Tell me a joke about lawyers", None),
    Labelled("今天天气怎么样?", None),
    Labelled("How many people live in Lisbon?", None),
    Labelled("Thanks, that was helpful", None),
    Labelled("什么是回归分析?", None),
    Labelled("Which film won the most Oscars?", None),
    Labelled("My meeting was boring today", None),
    Labelled("Recommend a novel for the train", None),
    Labelled("给我讲一个睡前故事", None),
    Labelled("I forgot my umbrella in the office", None),
    Labelled("What does SQL stand for?", None),
    Labelled("Give me a recipe for lentil soup", None),
    Labelled("Why is the sky blue?", None),
    Labelled("她的合同工作很辛苦", None),
    Labelled("Is Python older than Java?", None),
    Labelled("Say hello in three languages", None),
    Labelled("I like the colours of autumn", None),
    Labelled("帮我起一个猫的名字", None),
    Labelled("What is the difference between a brand and a logo?", None),
    Labelled("How tall is the Eiffel tower?", None),
    Labelled("Stop", None),
    Labelled("I would rather not deploy anything on Friday", None),
    Labelled("Explain photosynthesis to a child", None),
    Labelled("你最喜欢什么颜色?", None),
    Labelled("Can you play chess with me?", None),
    Labelled("The invoice came late again", None),
    Labelled("Write a poem about the sea", None),
]
