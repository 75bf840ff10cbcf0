"""Whether a message asks for so much that a plan is made first, by signs in its text. Pure."""

import re

MIN_SIGNS = 3
MAX_CHARACTERS = 20_000
"""The beginning of a message that is read: a pasted book is no list of requests."""

LONG_TOKENS = 60

_WIDE = re.compile(r"[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]")
_JOINED = re.compile(
    r"另外|还有|此外|同时|然后|以及|并且|接着|最后|和"
    r"|\b(?:and|also|then|additionally|furthermore|afterwards|as well as|finally|plus)\b"
    r"|^\s*(?:[-*•]|\d+[.)、])\s",
    re.IGNORECASE | re.MULTILINE,
)
_ANALYSIS = re.compile(
    r"分析|比较|对比|综合|报告|评估|总结|调研|研究|规划"
    r"|\b(?:analy[sz]\w*|compar\w+|contrast\w*|evaluat\w+|assess\w*|summari[sz]\w*|review\w*|report\w*"
    r"|investigat\w+|research\w*|synthesi[sz]\w*|recommend\w*)\b",
    re.IGNORECASE,
)
_RANGE = re.compile(
    r"(?:过去|最近|近|未来|前|后)\s*[\d一二两三四五六七八九十几]+\s*(?:个?月|年|季度|周|天)"
    r"|\b(?:past|last|next|previous|coming|recent)\s+(?:\d+|two|three|four|five|six|several|few|twelve)\s+"
    r"(?:day|week|month|quarter|year)s\b",
    re.IGNORECASE,
)
_PERIOD = re.compile(
    r"\bQ[1-4]\b|第?[一二三四]季度|(?<!\d)(?:19|20)\d\d(?!\d)|(?:今|去|明|前|本|上)(?:年|月|季度|周)"
    r"|\b(?:January|February|March|April|June|July|August|September|October|November|December)\b"
    r"|\b(?:this|last|next)\s+(?:week|month|quarter|year)\b",
    re.IGNORECASE,
)
_DOMAINS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"财务|收入|成本|预算|利润|价格|\b(?:financ\w+|revenue|costs?|budgets?|profits?|pric(?:e|es|ing)|tax\w*)\b",
        r"客户|用户|销售|市场|竞争|营销|\b(?:customers?|users?|sales|markets?|marketing|competitors?)\b",
        r"员工|团队|招聘|人员|组织|\b(?:employees?|staff|teams?|hiring|people|organi[sz]ations?)\b",
        r"代码|软件|系统|数据库|接口|架构|\b(?:code|software|systems?|databases?|apis?|architecture|servers?)\b",
        r"法律|合同|合规|隐私|\b(?:legal|laws?|contracts?|compliance|privacy|licen[sc]es?)\b",
        r"产品|设计|功能|质量|\b(?:products?|designs?|features?|quality)\b",
        r"物流|供应|库存|生产|\b(?:logistics|suppl(?:y|ies|iers?)|inventory|production|manufactur\w+)\b",
        r"健康|医学|教育|环境|能源|\b(?:health|medic\w+|education|environment\w*|energy|climate)\b",
    )
)


def is_complex(text: str) -> bool:
    """Whether a message shows at least MIN_SIGNS of the signs."""
    return len(signs_of(text)) >= MIN_SIGNS


def signs_of(text: str) -> list[str]:
    """The signs that a message shows: it is long, has several requests, asks for an analysis, names two
    periods or a range of time, or is about two domains."""
    text = text[:MAX_CHARACTERS]
    periods = {found.group().lower() for found in _PERIOD.finditer(text)}
    signs = {
        "long": _tokens(text) > LONG_TOKENS,
        "requests": _JOINED.search(text) is not None,
        "analysis": _ANALYSIS.search(text) is not None,
        "periods": len(periods) > 1 or _RANGE.search(text) is not None,
        "domains": sum(domain.search(text) is not None for domain in _DOMAINS) > 1,
    }
    return [name for name, is_shown in signs.items() if is_shown]


def _tokens(text: str) -> float:
    """About the tokens of a text: a wide character is two thirds of one, four others are one."""
    wide = len(_WIDE.findall(text))
    return wide * 2 / 3 + (len(text) - wide) / 4
