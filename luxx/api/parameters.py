"""Query parameters and bounds that many routes share, and what they are given by name."""

from typing import Annotated

from litestar.di import NamedDependency
from litestar.params import FromPath, PathParameter, QueryParameter

from luxx.accounts.caller import Caller

GivenCaller = NamedDependency[Caller]

PageNumber = Annotated[int, QueryParameter(ge=1, le=1_000_000, description="counts from 1")]
PageSize = Annotated[int, QueryParameter(ge=1, le=100, description="items per page")]
Limit = Annotated[int | None, QueryParameter(ge=1, le=100, description="with `before`: how many")]
Before = Annotated[
    str | None, QueryParameter(min_length=1, max_length=64, description="only items before this id")
]
Seq = Annotated[int, QueryParameter(ge=0, le=2**31 - 1)]
TextId = FromPath[str]
RowId = Annotated[int, PathParameter(ge=0, le=2**31 - 1)]
"""An integer id in a path; past 31 bits no database has one."""
