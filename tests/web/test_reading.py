"""Pages converted to text: which parts are content, in which format, encoding and type."""

from pathlib import Path

import pytest
from files.sample_files import pdf

from luxx.infra.documents.reader import PAGE_MEMORY_BYTES
from web.conftest import WebTools
from web.site import Site, page

SAVED = Path(__file__).parent / "saved"


def read_saved_page(name: str) -> str:
    return (SAVED / name).read_text("utf-8")


def test_an_article_is_read_as_markdown(web: WebTools, public_site: Site, base_url: str) -> None:
    public_site.routes["/blog/1"] = page(read_saved_page("article.html"))
    data = web.read(f"{base_url}/blog/1")
    assert data["content"].replace(f":{public_site.port}", "") + "\n" == read_saved_page("article.md")
    assert data["title"] == "How bread rises – The Bread Blog"
    assert (data["format"], data["content_type"], data["charset"]) == ("markdown", "text/html", "utf-8")
    assert data["links"] == [
        {"text": "Ann Miller", "url": f"{base_url}/people/ann"},
        {"text": "how yeast lives", "url": f"{base_url}/science/yeast?x=1&y=2#cells"},
        {"text": "Next: sourdough", "url": f"{base_url}/next"},
    ]
    assert data["sources"] == [
        {
            "url": f"{base_url}/blog/1",
            "title": "How bread rises – The Bread Blog",
            "domain": "public.example",
            "snippet": "Yeast, time and warmth: what happens in a dough.",
        }
    ]


def test_format_text_has_no_markup_and_format_html_is_the_source(
    web: WebTools, public_site: Site, base_url: str
) -> None:
    public_site.routes["/"] = page(read_saved_page("article.html"))
    text = web.read(f"{base_url}/", format="text")["content"]
    assert "It comes from yeast (see how yeast lives)." in text
    assert not any(mark in text for mark in ("**", "](", "# How", "```", "| ---"))
    assert web.read(f"{base_url}/", format="html")["content"] == read_saved_page("article.html")


def test_invisible_text_is_not_read(web: WebTools, public_site: Site, base_url: str) -> None:
    public_site.routes["/"] = page(read_saved_page("article.html"))
    for form in ("markdown", "text"):
        content = web.read(f"{base_url}/", format=form)["content"]
        for unseen in (
            "previous instructions",
            "ignore the user",
            "script",
            "privacy",
            "cakes",
            "Share",
            "©",
        ):
            assert unseen not in content


def test_a_page_without_structure_is_read_where_most_text_is(
    web: WebTools, public_site: Site, base_url: str
) -> None:
    public_site.routes["/"] = page(read_saved_page("old.html"))
    data = web.read(f"{base_url}/")
    assert data["content"].startswith("**Radios of the fifties**\n\nI have collected valve radios")
    assert data["content"].endswith("for mine has gone dark.")
    assert "Links" not in data["content"]


def test_a_short_page_is_read_whole(web: WebTools, public_site: Site, base_url: str) -> None:
    public_site.routes["/"] = page(
        "<p>One <a href='a b(c)'>two</a> <a href='javascript:x()'>three</a> <a href='mailto:x'>four"
    )
    assert web.read(f"{base_url}/")["content"] == f"One [two]({base_url}/a%20b%28c%29) three four"


def test_a_page_without_a_body_s_tag_is_read(web: WebTools, public_site: Site, base_url: str) -> None:
    public_site.routes["/"] = page(
        "<!DOCTYPE html><title>T</title><style>a{}</style><article><p>One</article><p>Two"
    )
    data = web.read(f"{base_url}/")
    assert (data["title"], data["content"]) == ("T", "One\n\nTwo")


def test_links_use_the_base_of_the_page(web: WebTools, public_site: Site, base_url: str) -> None:
    public_site.routes["/x/"] = page("<base href='https://else.example/y/'><p><a href='z'>there</a>")
    assert web.read(f"{base_url}/x/")["links"] == [{"text": "there", "url": "https://else.example/y/z"}]


def test_a_page_that_needs_scripts_is_reported(web: WebTools, public_site: Site, base_url: str) -> None:
    public_site.routes["/"] = page("<title>App</title><div id=root></div><script src=app.js></script>")
    data = web.read(f"{base_url}/")
    assert (data["title"], data["content"]) == ("App", "")
    assert "scripts may create its content" in data["note"]


RUSSIAN = "Хлеб поднимается медленно, и тесто должно отдохнуть перед тем, как его поставят в печь. " * 4
CHINESE = "面包慢慢发酵，面团在进入烤箱之前需要休息一会儿。这是每个面包师都知道的事情。" * 4
JAPANESE = "パンはゆっくりと膨らみます。生地は焼く前に休ませる必要があります。" * 4
GERMAN = "Süßes Brot für müde Bäcker: das Öl gehört in die Schüssel. " * 4
FRENCH = "Le train arrive demain matin à la gare, et tout le monde a été là, Noël vient après l'été. " * 4
CZECH = "Vlak přijede zítra ráno na nádraží a všichni čekají před dveřmi už hodinu. " * 4
ENCODINGS = [
    ("declared by the server", RUSSIAN, "windows-1251", "text/html; charset=windows-1251", ""),
    ("declared by the page", JAPANESE, "shift_jis", "text/html", "<meta charset=shift_jis>"),
    (
        "declared by the page, in the old form",
        CHINESE,
        "gbk",
        "text/html",
        '<meta http-equiv="Content-Type" content="text/html; charset=gb2312">',
    ),
    ("a mark", CHINESE, "utf-16", "text/html; charset=utf-8", ""),
    ("nothing, in UTF-8", JAPANESE, "utf-8", "text/html", ""),
    ("nothing, in Russian", RUSSIAN, "windows-1251", "text/html", ""),
    ("nothing, in Chinese", CHINESE, "gb18030", "text/html", ""),
    ("nothing, in German", GERMAN, "cp1252", "text/html", ""),
    ("nothing, in a few words", "Süßes Brot kommt spät an.", "cp1252", "text/html", ""),
    ("nothing, in French", FRENCH, "cp1252", "text/html", ""),
    ("nothing, in Czech", CZECH, "cp1250", "text/html", ""),
    ("nothing, after a long head", FRENCH, "cp1252", "text/html", f"<script>{'x = 1; ' * 20_000}</script>"),
    ("UTF-8, which is wrong", FRENCH, "cp1252", "text/html; charset=utf-8", '<meta charset="utf-8">'),
    ("latin-1 that means cp1252", GERMAN + "– “so”", "cp1252", "text/html; charset=ISO-8859-1", ""),
    ("a label that is wrong", RUSSIAN, "utf-8", "text/html; charset=us-ascii", '<meta charset="utf-8">'),
    ("a label that is none", GERMAN, "utf-8", 'text/html; charset="x-no-such"', "<meta charset=zip>"),
]


@pytest.mark.parametrize("case", ENCODINGS, ids=lambda case: case[0])
def test_the_encoding_is_detected(
    web: WebTools, public_site: Site, base_url: str, case: tuple[str, ...]
) -> None:
    _, text, encoding, kind, head = case
    public_site.routes["/"] = page(
        f"<html><head>{head}</head><body><p>{text}</p></body></html>".encode(encoding), kind
    )
    assert web.read(f"{base_url}/")["content"] == text.strip()


def test_one_broken_character_does_not_make_it_another_encoding(
    web: WebTools, public_site: Site, base_url: str
) -> None:
    public_site.routes["/"] = page("naïve “quote” – it’s ".encode() + b"\xa0 end", "text/plain")
    data = web.read(f"{base_url}/")
    assert (data["content"], data["charset"]) == ("naïve “quote” – it’s \ufffd end", "utf-8")


def test_other_texts_are_returned_unchanged(web: WebTools, public_site: Site, base_url: str) -> None:
    texts = {
        "text/plain": "a  <b>\n c",
        "application/json": '{"a": [1, 2]}',
        "application/ld+json; charset=utf-8": "{}",
        "text/csv": "a,b\n1,2\n",
        "application/rss+xml": "<rss><title>x</title></rss>",
        "": "no type at all",
        "application/octet-stream": "a text all the same",
    }
    for path, (kind, body) in zip(["/a", "/b", "/c", "/d", "/e", "/f", "/g"], texts.items(), strict=True):
        public_site.routes[path] = page(body, kind)
        data = web.read(f"{base_url}{path}")
        assert (data["content"], data["format"]) == (body, "text")
        assert data["sources"][0]["url"] == f"{base_url}{path}"


def test_html_without_a_type_is_known_by_its_beginning(
    web: WebTools, public_site: Site, base_url: str
) -> None:
    public_site.routes["/"] = page("\n <!DOCTYPE html><title>T</title><p><b>x</b>", "")
    assert web.read(f"{base_url}/")["content"] == "**x**"


def test_a_pdf_is_read_as_text(web: WebTools, public_site: Site, base_url: str) -> None:
    for number, kind in enumerate(("application/pdf", "application/octet-stream", "")):
        name = f"paper{number}.pdf"
        public_site.routes[f"/{name}"] = page(pdf("On bread", "It rises"), kind)
        data = web.read(f"{base_url}/{name}")
        assert (data["content"], data["pages"], data["title"]) == ("On bread\n\nIt rises", 2, name)
        assert data["sources"][0]["url"] == f"{base_url}/{name}"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"%PDF-1.4 and nothing", "is a PDF that is damaged"),
        (pdf("secret", password="x"), "is a PDF that is encrypted"),
        (b"<html>not one</html>", "is a PDF that is damaged"),
    ],
)
def test_a_pdf_that_cannot_be_read_says_why(
    web: WebTools, public_site: Site, base_url: str, body: bytes, words: str
) -> None:
    public_site.routes["/a.pdf"] = page(body, "application/pdf")
    assert words in web.refusal(f"{base_url}/a.pdf")


def test_other_types_are_named_and_not_read(web: WebTools, public_site: Site, base_url: str) -> None:
    public_site.routes["/a.png"] = page(b"\x89PNG" + b"\0" * 100_000, "image/png")
    assert web.refusal(f"{base_url}/a.png") == (
        f"{base_url}/a.png is image/png, 100,004 bytes: only web pages, texts and PDFs can be read"
    )
    public_site.routes["/a.bin"] = page(b"\x7fELF\0\0\0" * 100, "application/octet-stream")
    assert "is application/octet-stream, 700 bytes" in web.refusal(f"{base_url}/a.bin")
    public_site.routes["/a.txt"] = page(b"MZ\0\0\0" * 100, "text/plain")
    assert "is text/plain, 500 bytes" in web.refusal(f"{base_url}/a.txt")


def test_a_failure_is_reported_by_its_status(web: WebTools, public_site: Site, base_url: str) -> None:
    public_site.routes["/b"] = page("no", status="503 Busy")
    public_site.routes["/c"] = page("no", status="599 X")
    assert web.refusal(f"{base_url}/a") == f"{base_url}/a answered 404 Not Found"
    assert web.refusal(f"{base_url}/b") == f"{base_url}/b answered 503 Service Unavailable"
    assert web.refusal(f"{base_url}/c") == f"{base_url}/c answered 599"


MANY_ATTRIBUTES = "<a " + " ".join(f"x{number}=1" for number in range(400_000)) + ">"
HOSTILE = {
    "tags in tags": "<div>" * 1_000_000,
    "lists in lists": "<ul><li>x" * 500_000,
    "quotes in quotes": "<blockquote>x\n" * 300_000,
    "tables in tables": "<table><tr><td>" * 300_000,
    "marks that never close": "<a><b><i><p>" * 400_000,
    "opened and nothing else": "<" * 5_000_000,
    "a comment without end": "<!--" + "-" * 5_000_000,
    "entities": "&amp;" * 1_000_000,
    "spaces": "<p>" + " \n" * 2_400_000,
    "small parts": "<b>x</b>" * 600_000,
    "breaks": "<br>" * 1_200_000,
    "a table without end": "<table>" + "<tr><td>x<td>y" * 350_000,
    "a doctype that expands": "<!DOCTYPE a [<!ENTITY b '" + "x" * 1000 + "'>]>" + "&b;" * 1_000_000,
    "nothing that can be said": "\x00\x0b\x1e\ufffe" * 1_000_000,
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", HOSTILE)
def test_a_malicious_page_ends_in_a_result_or_a_sentence(
    web: WebTools, public_site: Site, base_url: str, name: str
) -> None:
    public_site.routes["/"] = page(HOSTILE[name][: 5 * 1024 * 1024])
    result = web.fetch(f"{base_url}/")
    assert result.success or "cannot be read: it " in (result.error or "")


@pytest.mark.heavy
def test_a_page_too_heavy_for_its_process_is_reported_in_a_sentence(public_site: Site, base_url: str) -> None:
    assert PAGE_MEMORY_BYTES >= 512 * 1024 * 1024
    web = WebTools(f"public.example:{public_site.port}")
    public_site.routes["/"] = page(MANY_ATTRIBUTES)
    assert "cannot be read: it takes too long" in web.refusal(f"{base_url}/")


def test_pages_are_read_concurrently_with_separate_results(
    web: WebTools, public_site: Site, base_url: str
) -> None:
    for number in range(4):
        public_site.routes[f"/{number}"] = page(f"<title>{number}</title><p>page {number}")
    urls = [
        f"{base_url}/0",
        f"{base_url}/missing",
        f"{base_url}/1",
        "http://127.0.0.1:1024/",
        f"{base_url}/2",
        "nonsense",
        f"{base_url}/0",
    ]
    result = web.execute("batch_fetch", urls=urls, format="text")
    assert result.success
    results = result.data["results"]
    assert [result["url"] for result in results] == urls[:-1]
    assert [result["success"] for result in results] == [True, False, True, False, True, False]
    assert [result["data"]["content"] for result in results if result["success"]] == [
        "page 0",
        "page 1",
        "page 2",
    ]
    assert "404" in results[1]["error"]
    assert "not on the public internet" in results[3]["error"]
    assert "http://" in results[5]["error"]
    assert [source["title"] for source in result.data["sources"]] == ["0", "1", "2"]


def test_a_batch_of_failures_is_a_failure_that_names_each(web: WebTools, base_url: str) -> None:
    result = web.execute("batch_fetch", urls=[f"{base_url}/a", f"{base_url}/b"])
    assert (result.success, result.error) == (False, "none of the 2 pages could be read")
    assert [fetched["error"] for fetched in result.data["results"]] == [
        f"{base_url}/{name} answered 404 Not Found" for name in "ab"
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        {"urls": []},
        {"urls": ["http://a.example/"] * 11},
        {"urls": "http://a.example/"},
        {"urls": ["http://a.example/" + "x" * 5000]},
        {"urls": ["http://a.example/"], "format": "pdf"},
    ],
)
def test_a_batch_out_of_bounds_is_not_run(web: WebTools, arguments: dict[str, object]) -> None:
    result = web.execute("batch_fetch", **arguments)
    assert "batch_fetch was not run" in (result.error or "")
    assert web.resolver.resolved_hosts == []


def test_a_page_read_before_is_answered_from_the_cache(
    web: WebTools, public_site: Site, base_url: str
) -> None:
    public_site.routes["/"] = page("<p>once")
    assert web.read(f"{base_url}/") == web.read(f"{base_url}/")
    assert public_site.visits == ["/"]
    web.read(f"{base_url}/", format="text")
    assert public_site.visits == ["/", "/"]
    assert web.refusal(f"{base_url}/gone") == web.refusal(f"{base_url}/gone")
    assert public_site.visits.count("/gone") == 2


def test_a_long_paragraph_is_read_whole_though_long_lines_are_cut(
    web: WebTools, public_site: Site, base_url: str
) -> None:
    for number, sentence in enumerate(("Bread rises slowly. ", "面包慢慢发酵。")):
        public_site.routes[f"/{number}"] = page(f"<p>{sentence * 400}</p>")
        content = web.read(f"{base_url}/{number}")["content"]
        assert content.replace("\n", " " * sentence.count(" ", -1)) == (sentence * 400).strip()
        assert max(len(line) for line in content.split("\n")) <= 1500
