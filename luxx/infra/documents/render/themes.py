"""The designs of decks and documents: colours by their role, as RRGGBB."""

import msgspec


class Theme(msgspec.Struct, frozen=True, kw_only=True):
    """`cover` is the background of title pages. `series` are the colours of charts, in order."""

    name: str
    background: str
    surface: str
    """The background of code, cards and bands of tables."""
    text: str
    muted: str
    title: str
    accent: str
    accent_text: str
    """The colour of text on `accent`."""
    line: str
    cover: str
    cover_text: str
    cover_muted: str
    cover_shape: str
    series: tuple[str, str, str, str, str, str]


THEMES = {
    theme.name: theme
    for theme in (
        Theme(
            name="clear",
            background="FFFFFF",
            surface="F1F5F9",
            text="1E293B",
            muted="64748B",
            title="0F2A4A",
            accent="1D5FD1",
            accent_text="FFFFFF",
            line="D5DDE8",
            cover="0F2A4A",
            cover_text="FFFFFF",
            cover_muted="B8C9E3",
            cover_shape="1B3E6B",
            series=("1D5FD1", "17A2A2", "F2994A", "7A5AC8", "D64570", "7C8CA3"),
        ),
        Theme(
            name="night",
            background="0E1420",
            surface="1A2333",
            text="E3E9F2",
            muted="94A3B8",
            title="FFFFFF",
            accent="37C6D0",
            accent_text="06222B",
            line="2E3B50",
            cover="080C14",
            cover_text="FFFFFF",
            cover_muted="9FB2CC",
            cover_shape="141E2E",
            series=("37C6D0", "8AA4FF", "F6B352", "F27D8F", "8EDB8A", "A9B4C6"),
        ),
        Theme(
            name="paper",
            background="FBF8F3",
            surface="F1EADF",
            text="3A332B",
            muted="8A7E70",
            title="2B2118",
            accent="B4532A",
            accent_text="FFFFFF",
            line="DFD5C6",
            cover="2B2118",
            cover_text="FBF4E9",
            cover_muted="D3C2AC",
            cover_shape="40332A",
            series=("B4532A", "3F7277", "D9A441", "7B4B6E", "6B8E4E", "9A8F82"),
        ),
        Theme(
            name="forest",
            background="FFFFFF",
            surface="EEF5F0",
            text="22302A",
            muted="64766D",
            title="123D2B",
            accent="1F7A4F",
            accent_text="FFFFFF",
            line="D3E0D8",
            cover="123D2B",
            cover_text="FFFFFF",
            cover_muted="B5D3C3",
            cover_shape="1C5440",
            series=("1F7A4F", "E0A030", "2F7FB5", "B5523B", "86B049", "7F8F86"),
        ),
    )
}
DEFAULT_THEME = "clear"


def theme_named(name: str) -> Theme:
    """The theme, or the default one for an unknown name."""
    return THEMES.get(name, THEMES[DEFAULT_THEME])
