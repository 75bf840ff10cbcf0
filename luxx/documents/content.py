"""What of a page is its content: not its menus, its banners, its scripts, nor what nobody sees.

Works on the parser's tree; text is made of it by `markdown.py`.
"""

import re
from collections.abc import Callable, Iterator

from luxx.documents.tree import Element

_NEVER = frozenset(
    (
        *("script", "style", "noscript", "template", "svg", "canvas", "iframe", "frame", "object", "embed"),
        *("applet", "audio", "video", "source", "track", "map", "button", "input", "select", "textarea"),
        *("option", "datalist", "dialog", "link", "meta", "base", "title", "math"),
    )
)
_AROUND = frozenset(("nav", "aside", "footer", "header", "form", "menu"))
_AROUND_ROLES = frozenset(
    (
        *("navigation", "banner", "contentinfo", "complementary", "search", "dialog", "alertdialog"),
        *("menu", "menubar", "toolbar"),
    )
)
_CHROME = re.compile(
    r"(?:^|[\s_-])(?:cookies?|consent|gdpr|newsletter|subscribe|breadcrumbs?|share|sharing|social|sidebar|"
    r"navbar|navigation|menu|advert(?:s|isement)?|ads|promo|popup|modal|related|recommended|footer|masthead|"
    r"skip-link|pagination|toc-container|sr-only|visually-hidden)(?:$|[\s_-])"
)
_CHROME_TAGS = frozenset(("div", "section", "ul", "ol", "p", "span", "a", "table"))
_HIDDEN = re.compile(
    r"display\s*:\s*none|visibility\s*:\s*hidden|(?:font-size|opacity)\s*:\s*(?:0+\.?0*|\.0+)(?![.\d])"
)
# A part that looks like chrome by its name is content all the same if it holds this share of the text.
_TOO_MUCH = 0.4
_MAIN_SHARE = 0.25
_MAIN_LEAST = 140
_PARAGRAPH_LEAST = 25
_BLOCK_SHARE = 0.35


def content_of(root: Element) -> Element:
    """The element that holds the content, cleaned; the tree is changed."""
    body = root if root.tag == "body" else root.find(".//body")
    _drop(root, _is_never_seen)
    # A page may leave out its body's tag, and the parser takes younger elements for the head's.
    head = root.find("head")
    if body is None or (head is not None and head.text_content().strip()):
        body = root
    sizes = _sizes(body)
    total = sizes.get(body, 0)
    main = _marked(body, sizes, total)
    if main is None:
        main = body
    whole = max(sizes.get(main, 0), 1)
    _drop(main, lambda element: _is_around(element, sizes, whole))
    if main is not body:
        return main
    densest = _densest(body, _sizes(body))
    return body if densest is None else densest


def _drop(top: Element, is_unwanted: Callable[[Element], bool]) -> None:
    """Takes parts out, keeping the text that follows them."""
    for element in [one for one in top.iterdescendants() if is_unwanted(one)]:
        if element.getparent() is not None:
            element.drop_tree()


def _is_never_seen(element: Element) -> bool:
    if element.tag in _NEVER:
        return True
    attributes = element.attrib
    if not attributes:
        return False
    if "hidden" in attributes or attributes.get("aria-hidden") == "true":
        return True
    style = attributes.get("style")
    return style is not None and _HIDDEN.search(style[:2000].lower()) is not None


def _is_around(element: Element, sizes: dict[Element, int], whole: int) -> bool:
    get = element.attrib.get
    if sizes.get(element, 0) > _TOO_MUCH * whole:
        return False
    if element.tag in _AROUND:
        # An article's own header holds its title.
        return element.tag != "header" or element.find(".//h1") is None
    if get("role") in _AROUND_ROLES:
        return True
    if element.tag not in _CHROME_TAGS:
        return False
    named = f"{get('class', '')} {get('id', '')}"[:300].lower()
    return _CHROME.search(named) is not None and element.find(".//h1") is None


def _sizes(top: Element) -> dict[Element, int]:
    """Characters of text in each element."""
    sizes: dict[Element, int] = {}
    for element in _from_the_leaves(top):
        size = len((element.text or "").strip())
        for child in element:
            size += sizes.get(child, 0) + len((child.tail or "").strip())
        sizes[element] = size
    return sizes


def _from_the_leaves(top: Element) -> Iterator[Element]:
    return reversed(list(top.iter()))


def _marked(body: Element, sizes: dict[Element, int], total: int) -> Element | None:
    """What the page itself calls its content, if that is a fair part of it."""
    found = [
        element
        for element in body.iter()
        if element.tag in ("main", "article")
        or element.attrib.get("role") in ("main", "article")
        or element.attrib.get("itemprop") == "articleBody"
    ]
    best = max(found, key=lambda element: sizes.get(element, 0), default=None)
    if best is None or sizes[best] < max(_MAIN_LEAST, _MAIN_SHARE * total):
        return None
    return best


def _densest(body: Element, sizes: dict[Element, int]) -> Element | None:
    """The element around most of the page's running text, if most of it is inside one."""
    scores: dict[Element, float] = {}
    for paragraph in body.iter("p", "pre", "blockquote", "td"):
        size = sizes.get(paragraph, 0) - sum(sizes.get(link, 0) for link in paragraph.iter("a"))
        # What holds paragraphs is judged by them.
        is_around = paragraph.tag in ("td", "blockquote") and paragraph.find(".//p") is not None
        if size < _PARAGRAPH_LEAST or is_around:
            continue
        parent = paragraph.getparent()
        for share in (1.0, 0.5):
            if parent is None or parent is body.getparent():
                break
            scores[parent] = scores.get(parent, 0.0) + size * share
            parent = parent.getparent()
    best = max(scores, key=lambda element: scores[element], default=None)
    if best is None or sizes.get(best, 0) < _BLOCK_SHARE * sizes.get(body, 0):
        return None
    return best
