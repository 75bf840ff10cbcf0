"""Documents of all formats that can be read, each with facts whose page, slide, row or heading is known; and
hostile ones."""

import base64
import io
import zipfile
import zlib
from collections.abc import Callable
from datetime import date

from docx import Document as WordDocument
from files.sample_files import pdf, pdf_of
from pptx import Presentation
from xlsxwriter import Workbook

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
WORKSHEET = '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>'
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def zip_of(entries: dict[str, str | bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return out.getvalue()


def entries_of(data: bytes) -> dict[str, str | bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def changed(data: bytes, **entries: str | bytes) -> bytes:
    """An archive with other or more entries; `__` stands for a slash and `_dot_` for a dot in their names."""
    named = {name.replace("__", "/").replace("_dot_", "."): entry for name, entry in entries.items()}
    return zip_of(entries_of(data) | named)


def handbook_docx() -> bytes:
    document = WordDocument()
    document.core_properties.title = "Bakery handbook"
    document.add_heading("Bakery handbook", 0)
    document.add_paragraph("This handbook is for new bakers.")
    document.add_heading("Ovens", 1)
    document.add_paragraph("The stone oven is heated to 260 degrees.")
    document.add_heading("Cleaning", 2)
    document.add_paragraph("Ovens are cleaned every Thursday.")
    document.add_paragraph("Use the brass brush", style="List Bullet")
    table = document.add_table(2, 2)
    for index, text in enumerate(("Oven", "Keeper", "North", "Maria Okafor")):
        table.cell(index // 2, index % 2).text = text
    document.add_heading("面包", 1)
    document.add_paragraph("酸面团需要发酵十八个小时。")
    hidden = document.add_paragraph("Secret recipe").runs[0]
    hidden.font.hidden = True
    return _saved(document)


def _saved(document: object) -> bytes:
    out = io.BytesIO()
    document.save(out)  # type: ignore[attr-defined]
    return out.getvalue()


def word_xml(body: str, doctype: str = "") -> bytes:
    """A Word file with this body, of which the relationships are those that a file has at least."""
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    return zip_of(
        {
            "[Content_Types].xml": f'<Types><Override PartName="/d.xml" ContentType="{kind}"/></Types>',
            "_rels/.rels": f'<Relationships xmlns="{RELATIONS}"><Relationship Id="a" '
            f'Type="{OFFICE}/officeDocument" Target="d.xml"/></Relationships>',
            "d.xml": f"{doctype}<w:document {W}><w:body>{body}</w:body></w:document>",
        }
    )


def paragraph(text: str, before: str = "") -> str:
    return f"<w:p><w:r>{before}<w:t>{text}</w:t></w:r></w:p>"


def plan_pptx() -> bytes:
    slides = Presentation()
    slides.core_properties.title = "Plan for 2027"
    for title, lines in (
        ("Plan for 2027", ["Two new shops"]),
        ("Budget", ["Rent is 84,000 euros", "Flour is 31,500 euros"]),
        ("Opening hours", ["The shop in Ghent opens at 6:30"]),
    ):
        slide = slides.slides.add_slide(slides.slide_layouts[1])
        slide.shapes.title.text = title
        slide.placeholders[1].text_frame.text = "\n".join(lines)
    slides.slides[1].notes_slide.notes_text_frame.text = "Ask the bank in March."
    table = slides.slides[2].shapes.add_table(2, 2, 0, 0, 999_999, 999_999).table
    for index, text in enumerate(("Day", "Staff", "Sunday", "four bakers")):
        table.cell(index // 2, index % 2).text = text
    return _saved(slides)


def sales_xlsx() -> bytes:
    out = io.BytesIO()
    book = Workbook(out, {"in_memory": True})
    book.set_properties({"title": "Sales"})
    sheet = book.add_worksheet("Sales 2026")
    sheet.write_row(0, 0, ["Product", "Units", "Sold on", "In stock"])
    day = book.add_format({"num_format": "yyyy-mm-dd"})
    for row in range(1, 400):
        sheet.write_row(row, 0, [f"Bread type {row}", row * 7])
        sheet.write_datetime(row, 2, date(2026, 1, 1 + row % 28), day)
        sheet.write_boolean(row, 3, row % 2 == 0)
    sheet.write_formula(402, 1, "=SUM(B2:B400)", None, 558_600)
    sheet.write_string(402, 0, "Total")
    people = book.add_worksheet("People")
    people.write_row(2, 1, ["Name", "City"])
    people.write_row(3, 1, ["Ann", "Ghent"])
    people.write_row(4, 1, ["李雷", "上海"])
    hidden = book.add_worksheet("Drafts")
    hidden.write_string(0, 0, "hidden draft")
    hidden.hide()
    book.close()
    return out.getvalue()


def stock_ods() -> bytes:
    cell = '<table:table-cell office:value-type="string"><text:p>{}</text:p></table:table-cell>'
    number = (
        '<table:table-cell office:value-type="float" office:value="{}"><text:p>{}</text:p></table:table-cell>'
    )
    rows = [cell.format("Item") + cell.format("Kilograms")]
    rows += [
        cell.format(item) + number.format(kilograms, kilograms)
        for item, kilograms in (("Rye", 40), ("Oats", 25.5))
    ]
    body = "".join(f"<table:table-row>{row}</table:table-row>" for row in rows)
    spaces = "".join(
        f' xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
        for name in ("office", "table", "text")
    )
    return zip_of(
        {
            "mimetype": "application/vnd.oasis.opendocument.spreadsheet",
            "META-INF/manifest.xml": '<manifest xmlns="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"/>',
            "content.xml": f"<office:document-content{spaces}><office:body><office:spreadsheet>"
            f'<table:table table:name="Store">{body}</table:table></office:spreadsheet></office:body>'
            "</office:document-content>",
        }
    )


_XLS = (
    "c-p&gUhu)fjZzO8(10BSGsD0CoD6J8VvIn{3F8Pb0OkMx2QgtZ2N3@s1w#sOasVTejg?_H?-_Pb9D?HeAp;Y`29|?B"
    "l7Zn75XUeSF!<%?r7F-7IDy@e$Ov+SEs$hnm;)5yV~_;9N(f9QgGpg9xgM-?514cSi}Zp?TcFwpj8P2d?ftYYps6^5"
    "NeL{+#{e>SJ6O*xu!tdpD8mU*Dz2Zv2vN(*;8>KIm@_yf<XCtZmM{S0%{?_QwJ0&?0fPuI0+%p+{jb2l@CBAr4=9X^"
    "(^s640Vw_hRh%7*_+%y)28ITP{|Vp(-patsaFiJ&!^#j`l3$eihe446#0O!ZLeG-aTww9*otcxLUX++y3=|HkOyvR<"
    "%HT{afRc%M!HJs(NTx9GgV}=MBrX6frvI$`c*!>@z&;)<(f}^FA;r5Y$VCkQ85%)4fSUQhGE8t%3ruQ*$tJL=(qOg}"
    "m=poJ97wALh(Z}|&0sYxU|BVwJ;q>g*<KxqtpQ}Wz7E_W*ZSCA6UbiY{;*19-F5qg3`)T2CIzS;1e+Oj7<CwD%>;p+"
    "_Ar_eS`^#`lad(40tb@-)b0PFbr?UxUj{BPQxHr-c%aZ>gsNx6qMi|~9%N!26BpP$f((m5)g+S;!!~g6I3QJ&TnwXN"
    "6pVsVFbYP&C>RB!U=$2WzzA*FL;D!Ob~~i|zz!YP`3uDVMu$m;EeK-B2f`9y$JCV}4@eg=RFaf_#28o^VP-KBsRuS*"
    "2m;|i+lv^o8Ir*6$R;`c0=s{V$o?T(qX6}?5UKY6BgLIGwjTicJ;I3"
)


def stock_xls() -> bytes:
    """An old Excel file: Item, Kilograms; Rye, 40."""
    return zlib.decompress(base64.b85decode(_XLS))


def novel_epub() -> bytes:
    def chapter(title: str, body: str) -> str:
        head = '<head><title/><script/><meta charset="utf-8"/></head>'
        heading = f"<h1>{title}</h1>" if title else ""
        return (
            f'<html xmlns="http://www.w3.org/1999/xhtml">{head}<body><a id="x"/>{heading}{body}</body></html>'
        )

    items = "".join(
        f'<item id="c{one}" href="text/c%20{one}.xhtml" media-type="application/xhtml+xml"/>'
        for one in (1, 2, 3)
    )
    spine = "".join(f'<itemref idref="c{one}"/>' for one in (2, 1, 3))
    return zip_of(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": '<c><rootfile full-path="OEBPS/book.opf"/></c>',
            "META-INF/encryption.xml": "<encryption><EncryptedData><CipherData>"
            '<CipherReference URI="OEBPS/font.otf"/></CipherData></EncryptedData></encryption>',
            "OEBPS/book.opf": '<package xmlns:dc="http://purl.org/dc/elements/1.1/"><metadata>'
            f"<dc:title>The Lamp</dc:title></metadata><manifest>{items}</manifest>"
            f"<spine>{spine}</spine></package>",
            "OEBPS/text/c 1.xhtml": chapter("Second night", "<p>The lamp went out at <b>nine</b>.</p>"),
            "OEBPS/text/c 2.xhtml": chapter(
                "First night", "<p>Ida lit the lamp &amp; waited.</p><aside>A note</aside>"
            ),
            "OEBPS/text/c 3.xhtml": chapter("", "<h2>第三夜</h2><p>灯又亮了。</p>"),
        }
    )


def report_pdf() -> bytes:
    """A page has a line of its number and a fact."""
    return pdf(
        *(
            f"Page {number} tells that crate {number} weighs {number * 3} kilograms."
            for number in range(1, 13)
        )
    )


TEXTS: dict[str, bytes] = {
    "orders.csv": 'Customer;City;Amount\nAnn;Gent;12,5\n"Bob; Sons";Liège;7\n\nTotal;;19,5\n'.encode(
        "cp1252"
    ),
    "notes.md": b"Before\n\n# Rules\n\nBe kind.\n\n## Doors\n\nLock door 7.\n\n```\n# no heading\n```\n\n"
    b"# Empty\n\nTitle\n=====\n\nEnd.\n",
    "plain.txt": "The code of the gate is 4711.\r\n\r\nAsk Zoë.".encode("utf-16"),
    "page.html": b"<title>Shop</title><nav><a href=/>Home</a></nav><main><h1>Shop</h1><p>We sell "
    + b"rye bread and oat bread on all days of the week. " * 5
    + b"</p><h2>Delivery</h2><p>Within two days.</p></main><script>evil()</script>",
    "data.json": '{"shop": {"name": "北店", "tables": 14}}'.encode(),
    "code.py": b"def bake(minutes):\n    return minutes * 2\n",
}
DOCUMENTS: dict[str, Callable[[], bytes]] = {
    "handbook.docx": handbook_docx,
    "plan.pptx": plan_pptx,
    "sales.xlsx": sales_xlsx,
    "stock.ods": stock_ods,
    "stock.xls": stock_xls,
    "novel.epub": novel_epub,
    "report.pdf": report_pdf,
    **{name: (lambda data=data: data) for name, data in TEXTS.items()},
}
"""The documents by name."""


def with_declared_size(data: bytes, size: int) -> bytes:
    """An archive whose directory declares another unpacked size for its first entry."""
    at = data.index(b"PK\x01\x02") + 24
    return data[:at] + size.to_bytes(4, "little") + data[at + 4 :]


LAUGHS = (
    "<!DOCTYPE a [<!ENTITY a 'ha'>"
    + "".join(f"<!ENTITY {chr(98 + one)} '{f'&{chr(97 + one)};' * 10}'>" for one in range(12))
    + "]>"
)
XXE = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)


def ole(stream: str) -> bytes:
    return OLE + stream.encode("utf-16-le") + bytes(200)


MACRO_TYPES = {
    "docm": "application/vnd.ms-word.document.macroEnabled.main+xml",
    "xlsm": "application/vnd.ms-excel.sheet.macroEnabled.main+xml",
    "pptm": "application/vnd.ms-powerpoint.presentation.macroEnabled.main+xml",
}


def with_content_type(kind: str) -> bytes:
    return zip_of(
        {"[Content_Types].xml": f'<Types><Override PartName="/d.xml" ContentType="{kind}"/></Types>'}
    )


HOSTILE: list[tuple[str, Callable[[], bytes], str]] = [
    ("laughs.docx", lambda: word_xml(paragraph("&m;"), LAUGHS), "is damaged: d.xml in it"),
    ("xxe.docx", lambda: word_xml(paragraph("&x;"), XXE), "d.xml in it has a DOCTYPE"),
    ("deep.docx", lambda: word_xml("<w:sdt>" * 5000 + "</w:sdt>" * 5000), "d.xml in it is not valid XML"),
    ("bomb.docx", lambda: word_xml(" " * 60_000_000), "unpacked it has more than 200 times its size"),
    ("liar.docx", lambda: with_declared_size(handbook_docx(), 2**31), "unpacked it has more than 512 MiB"),
    ("small.docx", lambda: with_declared_size(handbook_docx(), 5), "is damaged: [Content_Types].xml in it"),
    ("many.docx", lambda: zip_of({f"{one}": "" for one in range(10_001)}), "more than 10,000 entries"),
    ("cut.docx", lambda: handbook_docx()[:-500], "is damaged: its ZIP archive is incomplete"),
    ("noise.docx", lambda: b"PK\x03\x04" + bytes(range(256)) * 20, "is damaged: its ZIP archive"),
    ("empty.docx", lambda: b"", "is not what its name says: it is empty"),
    ("text.docx", lambda: b"just a text", "is not what its name says: it is a text"),
    ("zip.docx", lambda: zip_of({"a.txt": "a"}), "is not what its name says: it is a ZIP archive"),
    (
        "odt.docx",
        lambda: zip_of({"mimetype": "application/vnd.oasis.opendocument.text"}),
        "another OpenDocument file",
    ),
    ("locked.docx", lambda: ole("EncryptedPackage"), "is encrypted; use a copy without a password"),
    ("macros.docx", lambda: changed(handbook_docx(), word__vbaProject_dot_bin=b"x"), "has macros"),
    *(
        (f"a.{kind}", lambda kind=kind: with_content_type(MACRO_TYPES[kind]), "has macros")
        for kind in MACRO_TYPES
    ),
    *(
        (f"a.{new}", lambda old=old: with_content_type(MACRO_TYPES[old]), "has macros")
        for old, new in (("docm", "docx"), ("xlsm", "xlsx"), ("pptm", "pptx"))
    ),
    ("macros.ods", lambda: changed(stock_ods(), Basic__x_dot_xml="<a/>"), "has macros"),
    ("macros.xls", lambda: ole("Workbook\0_VBA_PROJECT_CUR"), "has macros"),
    (
        "locked.ods",
        lambda: changed(stock_ods(), **{"META-INF__manifest_dot_xml": "<m encryption-data=''/>"}),
        "is encrypted",
    ),
    ("broken.xls", lambda: ole("Workbook\0"), "is damaged"),
    ("old.doc", lambda: ole("WordDocument"), "is an old Word file (doc); what can be read is PDF"),
    (
        "broken.xlsx",
        lambda: changed(sales_xlsx(), xl__worksheets__sheet1_dot_xml="<worksheet><sheetData><row"),
        "is damaged",
    ),
    (
        "no-sheet.pptx",
        lambda: changed(plan_pptx(), ppt__slides__slide2_dot_xml="<p:sld"),
        "slide2.xml in it is not valid",
    ),
    (
        "protected.epub",
        lambda: changed(
            novel_epub(),
            **{"META-INF__encryption_dot_xml": '<e><CipherReference URI="OEBPS/text/c%201.xhtml"/></e>'},
        ),
        "is encrypted",
    ),
    (
        "outside.epub",
        lambda: changed(
            novel_epub(), **{"META-INF__container_dot_xml": '<c><rootfile full-path="../../etc/passwd"/></c>'}
        ),
        "../../etc/passwd is missing",
    ),
    (
        "laughs.epub",
        lambda: changed(novel_epub(), OEBPS__book_dot_opf=f"{LAUGHS}<package a='&m;'/>"),
        "book.opf in it",
    ),
    ("binary.txt", lambda: b"MZ\0\0" * 100, "is not what its name says: it is a file of an unknown type"),
    ("a.exe", lambda: b"MZ text", "is a file of an unknown type (.exe); what can be read is PDF, Word"),
    ("scan.pdf", lambda: pdf_of(b"", b""), "contains no text; its pages are images"),
    ("broken.pdf", lambda: b"%PDF-1.7\nnothing more", "is damaged or not a PDF"),
    ("blank.txt", lambda: b" \n ", "contains no text"),
]
"""Names, contents and what the sentence about each says."""  # fmt: skip


def far_cells() -> bytes:
    """A sheet with one cell in each of two opposite corners."""
    return changed(
        sales_xlsx(),
        xl__worksheets__sheet1_dot_xml=f'{WORKSHEET}<row r="1"><c r="A1"><v>1</v></c></row>'
        '<row r="1048576"><c r="XFD1048576"><v>1</v></c></row></sheetData></worksheet>',
    )
