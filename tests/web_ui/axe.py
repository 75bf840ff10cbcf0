"""Checks pages with axe: all rules in one theme, and those of colours in the other as well."""

from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import Page

from luxx.web.build import WEB, install_development
from web_ui.browser import LAPTOP, PHONE, Tab, take_screenshots

IS_STILL = "() => document.getAnimations().every((each) => each.playState !== 'running')"
AXE = WEB / "node_modules" / "axe-core" / "axe.min.js"
COLOUR_RULES = ("color-contrast", "link-in-text-block")
"""A theme changes nothing but colours."""


def serious_violations(page: Page, axe: Path = AXE, rules: Sequence[str] = ()) -> list[str]:
    """What axe finds that keeps people from using the page: by all its rules, or by these. The policy of the
    page forbids adding a script element, so that axe runs as evaluated text."""
    if not axe.exists():
        install_development()
    if not page.evaluate("'axe' in window"):
        page.evaluate(axe.read_text("utf-8"))
    options = {"resultTypes": ["violations"]}
    chosen = {"runOnly": {"type": "rule", "values": list(rules)}} if rules else {}
    found = page.evaluate("options => axe.run(document, options)", options | chosen)
    return [
        f"{each['id']}: {node['html'][:150]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


def check_both_themes(tab: Tab, name: str) -> None:
    take_screenshots(tab, name)
    # A colour that is half of one theme and half of the other has no contrast.
    tab.page.emulate_media(reduced_motion="reduce")
    for theme, rules in (("light", ()), ("dark", COLOUR_RULES)):
        tab.page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
        tab.page.wait_for_timeout(50)
        tab.page.wait_for_function(IS_STILL)
        found = serious_violations(tab.page, rules=rules)
        assert found == [], f"{name}, {theme}: {found}"
    tab.page.emulate_media(reduced_motion="no-preference")


def check_both_screens(tab: Tab, name: str) -> None:
    """Both themes on a laptop and then on a phone, where the page stays; nothing is wider than the screen."""
    for width, height in (LAPTOP, PHONE):
        tab.page.set_viewport_size({"width": width, "height": height})
        check_both_themes(tab, f"{name}-{width}")
        assert tab.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (name, width)
