"""Corpora: every format, stable ids, and one clear sentence for everything that cannot be read."""

from __future__ import annotations

import gzip
import json
import re
import sys
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dubito.errors import UserFault, extra_command
from dubito.retrieval.chunking import slices
from dubito.retrieval.corpus import Corpus, Document, read_corpus
from dubito.settings import settings
from hypothesis import given
from hypothesis import strategies as st


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def lines(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def titled(corpus: Corpus) -> list[tuple[str, str]]:
    return [(document.title, document.text) for document in corpus.documents]


ADA, ALAN = ("Ada", "Ada wrote notes."), ("Alan", "Alan broke codes.")
BOTH = [ADA, ALAN]
RECORDS = [{"title": title, "text": text} for title, text in BOTH]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("c.jsonl", lines(*RECORDS)),
        ("c.jsonl", "\n" + lines(*RECORDS).replace("\n", "\r\n\r\n")),
        ("c.json", json.dumps(RECORDS)),
        ("c.json", json.dumps(RECORDS, indent=2)),
        ("c.json", lines(*RECORDS)),  # the content decides, not the name
        ("c.jsonl", json.dumps(RECORDS, indent=2)),
        ("no-ending", lines(*RECORDS)),
        ("c.txt", json.dumps(RECORDS)),
        ("c.json", "\ufeff" + json.dumps(RECORDS)),
        ("c.jsonl", lines({"Title": ADA[0], "Contents": ADA[1]}, {"name": ALAN[0], "body": ALAN[1]})),
        ("c.jsonl", lines({"title": "Ada", "text": ["Ada wrote", "notes."]}, {"title": "Alan", "passage": ALAN[1]})),
        ("c.csv", "title,text\nAda,Ada wrote notes.\nAlan,Alan broke codes.\n"),
        ("c.csv", "Text;Title\nAda wrote notes.;Ada\n\nAlan broke codes.;Alan\n"),
        ("c.tsv", "title\tbody\nAda\tAda wrote notes.\nAlan\tAlan broke codes.\n"),
        ("c", "title\tparagraph_text\r\nAda\tAda wrote notes.\r\nAlan\tAlan broke codes.\r\n"),
        ("c.csv", 'title,text\n"Ada","Ada wrote notes."\n"Alan","Alan broke codes."'),
    ],
)
def test_reads_records(tmp_path: Path, name: str, content: str) -> None:
    corpus = read_corpus(write(tmp_path / name, content))
    assert titled(corpus) == BOTH
    assert [document.id for document in corpus.documents] == ["Ada", "Alan"]
    assert corpus.problems == ()


def test_a_record_that_fills_the_file(tmp_path: Path) -> None:
    assert titled(read_corpus(write(tmp_path / "c.json", json.dumps(RECORDS[0], indent=2)))) == [ADA]


def test_the_other_fields_of_a_record_are_its_metadata(tmp_path: Path) -> None:
    record = {
        "ID": "lune", "Title": "Lune", "text": "It rises at Wath.", "URL": "https://a.example/lune", "year": 2020,
        "score": 0.5, "tags": ["river", "ünder"], "empty": "", "nothing": None, "text_id": "<b>\x1b[31m",
        "name": "afon Lune", "pid": 7, "doc_id": "other",
    }  # fmt: skip
    (document,) = read_corpus(write(tmp_path / "c.jsonl", lines(record))).documents
    assert (document.id, document.title) == ("lune", "Lune")
    assert document.metadata == {
        "URL": "https://a.example/lune", "year": 2020, "score": 0.5, "tags": '["river", "ünder"]',
        "text_id": "<b>\x1b[31m", "name": "afon Lune", "pid": 7,
    }  # fmt: skip
    table = write(tmp_path / "c.csv", "title,text,url\nLune,It rises at Wath.,https://a.example\nWyre,It flows.,\n")
    assert [one.metadata for one in read_corpus(table).documents] == [{"url": "https://a.example"}, {}]


def test_huge_metadata_is_cut(tmp_path: Path) -> None:
    record: dict[str, Any] = {"text": "x", "long": "y" * 10_000, "n" * 500: 1, "large": 10**30}
    record |= {f"field {i}": i for i in range(100)}
    (document,) = read_corpus(write(tmp_path / "c.jsonl", lines(record))).documents
    assert len(document.metadata) == 50
    assert document.metadata["long"] == "y" * 2000
    assert document.metadata["n" * 100] == 1
    assert "large" not in document.metadata


def test_a_title_in_quotation_marks_is_taken_off_flashrags_contents(tmp_path: Path) -> None:
    records = [
        {"id": "0", "contents": '"River Lune"\nIt rises at Wath.'},
        {"id": "1", "contents": '"It rises," she said.\nHe left.'},
        {"id": "2", "text": '"River Lune"\nIt rises at Wath.'},
    ]
    assert titled(read_corpus(write(tmp_path / "c.jsonl", lines(*records)))) == [
        ("River Lune", "It rises at Wath."),
        ("", '"It rises," she said.\nHe left.'),
        ("", '"River Lune"\nIt rises at Wath.'),
    ]


def test_fields_of_a_table_may_be_long_and_hold_line_ends(tmp_path: Path) -> None:
    text = 'long, "quoted" and\nbroken ' * 20_000
    quoted = text.replace('"', '""')
    assert titled(read_corpus(write(tmp_path / "c.csv", f'title,text\nAda,"{quoted}"\n'))) == [("Ada", text)]


def test_a_table_of_texts_alone(tmp_path: Path) -> None:
    corpus = read_corpus(write(tmp_path / "c.csv", "text\none\ntwo\n"))
    assert corpus.documents == (Document("1", "", "one"), Document("2", "", "two"))


NATIVE = {
    "_id": "q1",
    "question": "?",
    "context": [["Ada", ["Ada wrote", " notes."]], ["Alan", ["Alan", "broke codes."]]],
}
HUB = {"id": "q1", "context": {"title": ["Ada", "Alan"], "sentences": [["Ada wrote notes."], ["Alan broke codes."]]}}
MUSIQUE = {
    "id": "2hop__1",
    "paragraphs": [{"idx": i, "title": t, "paragraph_text": x} for i, (t, x) in enumerate(BOTH)],
}


@pytest.mark.parametrize("record", [NATIVE, HUB, MUSIQUE], ids=["native", "hub", "musique"])
def test_pools_the_paragraphs_of_questions(tmp_path: Path, record: dict[str, object]) -> None:
    again = {**record, "id": "another question"}
    for path in (
        write(tmp_path / "questions.json", json.dumps([record, again])),
        write(tmp_path / "questions.jsonl", lines(record, again)),
    ):
        corpus = read_corpus(path)
        assert titled(corpus) == BOTH
        assert [document.id for document in corpus.documents] == ["Ada", "Alan"]


def test_records_that_are_equal_are_kept_but_paragraphs_that_are_equal_are_not(tmp_path: Path) -> None:
    assert len(read_corpus(write(tmp_path / "c.jsonl", lines(RECORDS[0], RECORDS[0]))).documents) == 2
    same_title = {"context": [["Ada", ["one"]], ["Ada", ["two"]], ["Ada", ["one"]]]}
    corpus = read_corpus(write(tmp_path / "q.jsonl", lines(same_title)))
    assert [(d.id, d.text) for d in corpus.documents] == [("Ada", "one"), ("Ada (2)", "two")]


def test_a_folder(tmp_path: Path) -> None:
    write(tmp_path / "b.txt", "no heading here")
    write(tmp_path / "a" / "z.md", "---\nx: 1\n---\n```\n# not a heading\n```\n## The *heading* ##\ntext")
    write(tmp_path / "a" / "y.markdown", "Underlined\n==========\ntext")
    write(tmp_path / "list.txt", '{"title": "prose in a folder", "text": "is not parsed"}')
    write(tmp_path / "a" / "code.py", "ignored = True")
    write(tmp_path / ".hidden" / "c.txt", "hidden")
    write(tmp_path / ".hidden.txt", "hidden")
    corpus = read_corpus(tmp_path)
    assert [d.title for d in corpus.documents] == ["Underlined", "The *heading*", "b", "list"]
    assert corpus.documents[1].text.startswith("---")


@pytest.mark.parametrize("kept", ["c.txt", "c.md"])
def test_a_file_of_prose(tmp_path: Path, kept: str) -> None:
    assert titled(read_corpus(write(tmp_path / kept, "Plain, text\nof two lines."))) == [
        ("c", "Plain, text\nof two lines.")
    ]


def test_ids(tmp_path: Path) -> None:
    records = [
        {"id": 7, "title": "A", "text": "x"},
        {"id": "dup", "title": "A", "text": "x"},
        {"id": "dup", "title": "A", "text": "x"},
        {"title": "7", "text": "x"},
        {"text": "x"},
        {"id": True, "title": "A (2)", "text": "x"},
    ]
    path = write(tmp_path / "c.jsonl", lines(*records))
    assert [d.id for d in read_corpus(path).documents] == ["7", "A", "A (2)", "7 (2)", "5", "A (2) (2)"]


small = st.sampled_from(["a", "b", "a (2)", "1", "2", ""])


@given(records=st.lists(st.fixed_dictionaries({"id": small, "title": small, "text": st.just("x")}), min_size=1))
def test_ids_are_unique_and_own_ones_are_kept(
    records: list[dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write(tmp_path_factory.mktemp("ids") / "c.jsonl", lines(*records))
    ids = [document.id for document in read_corpus(path).documents]
    assert len(set(ids)) == len(records)
    assert ids == [document.id for document in read_corpus(path).documents]
    given_ids = [record["id"] for record in records]
    for own, got in zip(given_ids, ids, strict=True):
        assert own == got or not own or given_ids.count(own) > 1


def test_the_fingerprint_depends_on_what_is_known_of_the_documents_and_their_order(tmp_path: Path) -> None:
    a, b = Document("1", "t", "x"), Document("2", "t", "y")
    dated, paged = Document("1", "t", "x", {"year": 2020}), Document("1", "t", "x", {}, (0,))
    others = [(Document("1", "tx", ""), b), (Document("1t", "", "x"), b), (dated, b), (paged, b)]
    prints = [Corpus(documents).fingerprint for documents in [(a, b), (b, a), (a,), *others]]
    assert len(set(prints)) == len(prints)
    assert Corpus((a, b), ("a problem",)).fingerprint == prints[0]
    as_table = write(tmp_path / "c.csv", "title,text\nAda,Ada wrote notes.\nAlan,Alan broke codes.\n")
    as_lines = write(tmp_path / "c.jsonl", lines(*RECORDS))
    assert read_corpus(as_table).fingerprint == read_corpus(as_lines).fingerprint


BROKEN_LINE = lines(RECORDS[0]) + '{"title": "half", "te\n' + lines(RECORDS[1])
BAD = {
    "half a line": ("c.jsonl", BROKEN_LINE, r"line 2: the JSON is broken \(.*, column \d+\)"),
    "no text": (
        "c.jsonl",
        lines(*RECORDS, {"title": "x", "url": "y"}),
        r"line 3: the record has no text \(its fields are title, url",
    ),
    "empty text": ("c.jsonl", lines(*RECORDS, {"title": "x", "text": " \n"}), "line 3: the text is empty"),
    "no object": ("c.jsonl", lines(*RECORDS, [1]), "line 3: the record is not a JSON object"),
    "half a pair": ("c.jsonl", lines(*RECORDS, {"text": "\ud800"}), "line 3: the text is not valid Unicode"),
    "nested": ("c.jsonl", lines(*RECORDS) + "[" * 100_000, "line 3: the JSON is broken"),
    "huge number": ("c.jsonl", lines(*RECORDS) + "9" * 10_000, "line 3: the JSON is broken"),
    "cut array": (
        "c.json",
        json.dumps(RECORDS, indent=1)[:-1] + ', {"tit',
        r"line 10: the JSON is broken .* and the rest",
    ),
    "no comma": (
        "c.json",
        "[" + lines(*RECORDS).replace("\n", ",\n", 1) + '{"text": "z"}]',
        "line 3: the JSON is broken",
    ),
    "more after": ("c.json", json.dumps(RECORDS) + "\n{}", "line 2: there is text after the end"),
    "no paragraph text": (
        "q.jsonl",
        lines(NATIVE, {"context": [["x", []]]}),
        "line 2, paragraph 1: the paragraph has no text",
    ),
    "empty paragraph": ("q.jsonl", lines(NATIVE, {"context": [["x", [""]]]}), "line 2, paragraph 1: the text is empty"),
    "no paragraphs": (
        "q.jsonl",
        lines(HUB, {"context": {"title": ["a"], "sentences": []}}),
        "line 2: the record has no paragr",
    ),
    "short row": (
        "c.csv",
        "title,text\nAda,Ada wrote notes.\nAlan,Alan broke codes.\nlonely\n",
        "line 4: the record has no text",
    ),
    "long row": (
        "c.csv",
        "title,text\nAda,Ada wrote notes.\nAlan,Alan broke codes.\na,b,c\n",
        "line 4: the row has 3 fields",
    ),
    "open quote": (
        "c.csv",
        'title,text\nAda,Ada wrote notes.\nAlan,Alan broke codes.\na,"b\n\nc',
        "line 4: the row cannot be",
    ),
    "latin-1": (
        "c.jsonl",
        lines(*RECORDS).encode() + '{"text": "caf\xe9"}'.encode("latin-1"),
        r"line 3: byte \d+ \(0xE9\) is not UTF-8: save the file as UTF-8",
    ),
}


@pytest.mark.parametrize(("name", "content", "message"), BAD.values(), ids=BAD)
def test_a_broken_record_is_refused_or_left_out(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(UserFault, match=re.escape(f"{path}, ") + f"({message})") as refused:
        read_corpus(path)
    assert_one_sentence(refused.value)
    assert "on_bad_record='skip'" in str(refused.value)
    kept = read_corpus(path, on_bad_record="skip")
    assert titled(kept) == BOTH
    assert kept.problems
    assert re.match(re.escape(f"{path}, ") + f"({message})", kept.problems[0])


UNREADABLE = {
    "empty": ("c.jsonl", b"", "the file is empty"),
    "blank": ("c.jsonl", b" \n\n", "the file is empty"),
    "binary": ("c.jsonl", b"\x7fELF\x02\x00\x01", "the file is binary (byte 5 is 0)"),
    "utf-16": ("c.csv", "title,text\na,b".encode("utf-16"), "the file is UTF-16: save it as UTF-8"),
    "latin-1": ("c.txt", b"one\ncaf\xe9", "line 2: byte 7 (0xE9) is not UTF-8: save the file as UTF-8"),
    "only broken": ("c.jsonl", b'{"title": \n{"text"\n', "line 1: the JSON is broken"),
    "broken object": ("c.json", b'{\n "title": "x",\n "text": \n}', "line 4: the JSON is broken"),
    "empty list": ("c.json", b"[]", "holds no documents"),
    "a number": ("c.json", b"5", "the file is not a JSON list of records"),
    "no column": ("c.csv", b"question,answer\na,b\n", "line 1: the header has no text column"),
    "questions": ("q.json", b'[{"question": "?"}]', "line 1: the record has no text (its fields are question"),
}


@pytest.mark.parametrize("on_bad_record", ["refuse", "skip"])
@pytest.mark.parametrize(("name", "content", "message"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_without_a_document_is_always_refused(
    tmp_path: Path, name: str, content: bytes, message: str, on_bad_record: str
) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(UserFault, match=re.escape(message)) as refused:
        read_corpus(path, on_bad_record=on_bad_record)  # type: ignore[arg-type]
    assert str(path) in str(refused.value)
    assert_one_sentence(refused.value)


def test_missing_paths_and_folders_without_documents(tmp_path: Path) -> None:
    with pytest.raises(UserFault, match="There is no corpus at"):
        read_corpus(tmp_path / "nowhere.jsonl")
    write(tmp_path / "data.jsonl", lines(*RECORDS))
    with pytest.raises(UserFault, match=r"holds no file that can be read as documents \(\.txt") as refused:
        read_corpus(tmp_path)
    assert_one_sentence(refused.value)


def test_a_bad_file_in_a_folder(tmp_path: Path) -> None:
    write(tmp_path / "good.txt", "text")
    write(tmp_path / "empty.txt", "")
    write(tmp_path / "latin.md", b"caf\xe9")
    with pytest.raises(UserFault, match=r"empty\.txt: the file is empty \(and 2 more problems\); correct it"):
        read_corpus(tmp_path)
    corpus = read_corpus(tmp_path, on_bad_record="skip")
    assert titled(corpus) == [("good", "text")]
    assert [problem.split(": ")[0] for problem in corpus.problems] == [
        str(tmp_path / "empty.txt"),
        f"{tmp_path / 'latin.md'}, line 1",
        str(tmp_path / "latin.md"),
    ]


def assert_one_sentence(fault: UserFault) -> None:
    message = str(fault)
    assert message.endswith(".")
    assert "\n" not in message
    assert len(message) < 600


HTML = "<!DOCTYPE html><html><head><title>The\n title</title><style>x</style></head><body><p>One.</p><p>Two.</p></body>"


def test_loaders_are_asked_for_by_name_where_they_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module, content in (
        ("a.pdf", "pypdf", b"%PDF-1.4\0"),
        ("a.html", "bs4", HTML.encode()),
        ("a.docx", "docx2txt", b"PK\x03\x04\0word/document.xml"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        path = write(tmp_path / name, content)
        with pytest.raises(UserFault, match=re.escape(f"needs an extra: {extra_command('loaders')}.")):
            read_corpus(path)


def test_html(tmp_path: Path) -> None:
    pytest.importorskip("bs4")
    corpus = read_corpus(write(tmp_path / "a.html", HTML))
    assert corpus.documents == (Document("The title", "The title", "The\ntitle One. Two."),)
    with pytest.raises(UserFault, match=r"it cannot be read as HTML \(UnicodeDecodeError"):
        read_corpus(write(tmp_path / "latin.html", HTML.encode() + b"\xe9"))


MARKDOWN = """# Lune

A river.

## Course ##
It rises at Wath.
```
# no heading
```
Mouth
=====
It ends at Plover Scar.
"""


def test_a_chunk_of_markdown_has_the_heading_under_which_it_begins(tmp_path: Path) -> None:
    (document,) = read_corpus(write(tmp_path / "lune.md", MARKDOWN)).documents
    assert (document.title, document.text) == ("Lune", MARKDOWN)
    assert document.headings == ((0, "Lune"), (MARKDOWN.index("##"), "Course"), (MARKDOWN.index("Mouth"), "Mouth"))
    begins = ["# Lune", "A river", "\n## Course", "Wath", "# no", "Mouth", "Scar"]
    chunks = slices(document, [(MARKDOWN.index(text), MARKDOWN.index(text) + 14) for text in begins])
    assert [chunk.get("metadata") for chunk in chunks] == [
        None,  # the heading is the title
        None,
        {"heading": "Course"},  # the chunk's first word stands below it
        {"heading": "Course"},
        {"heading": "Course"},
        {"heading": "Mouth"},
        {"heading": "Mouth"},
    ]


def test_headings_of_html(tmp_path: Path) -> None:
    pytest.importorskip("bs4")
    html = (
        "<html><head><title>Lune</title></head><body><p>A river.</p><h1>Lune</h1><p>It is long.</p>"
        "<h2>Its <i>whole</i>\n course</h2>It rises at Wath.<h3></h3><p>It ends.</p></body></html>"
    )
    (document,) = read_corpus(write(tmp_path / "a.html", html)).documents
    text = "Lune A river.\n\nLune It is long.\n\nIts whole\ncourse It rises at Wath.\n\nIt ends."
    assert document.text == text
    assert document.headings == ((15, "Lune"), (33, "Its whole course"), (text.index("It ends"), ""))
    chunks = slices(
        document, [(0, 4), (15, 20), (text.index("long"), 33), (33, 40), (50, 60), (len(text) - 5, len(text))]
    )
    assert [chunk.get("metadata", {}).get("heading") for chunk in chunks] == [
        *(None, None, None),  # no heading, or one that is the title
        *("Its whole course", "Its whole course"),
        None,  # below an empty heading
    ]


def test_word(tmp_path: Path) -> None:
    pytest.importorskip("docx2txt")
    path = tmp_path / "folder" / "report.docx"
    path.parent.mkdir()
    space = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    with zipfile.ZipFile(path, "w") as archive:
        paragraphs = "".join(f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>" for text in ("One.", "Two."))
        document = f'<w:document xmlns:w="{space}"><w:body>{paragraphs}</w:body></w:document>'
        archive.writestr("word/document.xml", document)
    assert read_corpus(path.parent).documents == (Document("report", "report", "One.\n\nTwo."),)
    with pytest.raises(UserFault, match="it cannot be read as Word"):
        read_corpus(write(tmp_path / "broken.docx", path.read_bytes()[:60] + b"word/"))


def test_a_word_file_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("docx2txt")
    path = tmp_path / "bomb.docx"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", "<a>" + " " * 2_999_990 + "</a>")
    said = r"bomb\.docx: it unpacks to more than 0\.0029 GB: to read it, set DUBITO_MAX_UNPACKED_GB to a larger number"
    limited(monkeypatch, "0.0029")
    with pytest.raises(UserFault, match=said) as refused:
        read_corpus(path)
    assert_one_sentence(refused.value)
    limited(monkeypatch, "0.003")
    with pytest.raises(UserFault, match="the file has no text"):
        read_corpus(path)


def limited(monkeypatch: pytest.MonkeyPatch, gigabytes: str) -> None:
    monkeypatch.setenv("DUBITO_MAX_UNPACKED_GB", gigabytes)
    settings.cache_clear()


@pytest.fixture(autouse=True)
def _fresh_settings() -> Iterator[None]:
    yield
    settings.cache_clear()


@pytest.mark.parametrize("name", ["c.jsonl", "c.csv", "lune.md", "a.html"])
def test_a_file_packed_by_gzip_is_read_as_the_file_itself(tmp_path: Path, name: str) -> None:
    contents = {
        "c.jsonl": lines(*RECORDS),
        "c.csv": "title,text\nAda,Ada wrote notes.\n",
        "lune.md": MARKDOWN,
        "a.html": HTML,
    }
    plain = write(tmp_path / "plain" / name, contents[name])
    packed = write(tmp_path / "packed" / f"{name}.gz", gzip.compress(contents[name].encode()))
    assert read_corpus(packed).documents == read_corpus(plain).documents
    if name in {"lune.md", "a.html"}:
        assert read_corpus(packed.parent).documents == read_corpus(plain.parent).documents


def test_gzip_that_is_damaged_or_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = gzip.compress(lines({"text": "a" * 3_000_000}).encode())
    for name, content in {"half": packed[:-20], "none": b"\x1f\x8b no", "wrong sum": packed[:-8] + bytes(8)}.items():
        with pytest.raises(UserFault, match=r"it cannot be opened \(it is a damaged gzip file: ") as refused:
            read_corpus(write(tmp_path / f"{name}.jsonl.gz", content))
        assert_one_sentence(refused.value)
    path = write(tmp_path / "bomb.jsonl.gz", packed)
    assert len(read_corpus(path).documents) == 1
    limited(monkeypatch, "0.003")
    with pytest.raises(UserFault, match=r"it unpacks to more than 0\.003 GB: to read it, set DUBITO_MAX_UNPACKED_GB"):
        read_corpus(path)


def test_json_lines_are_read_one_at_a_time(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", lines(*({"text": f"{number} " + "a" * 10_000} for number in range(1_000))))
    tracemalloc.start()
    try:
        corpus = read_corpus(path)
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(corpus.documents) == 1_000
    assert most < 1.1 * held, "beside the documents there is one line"


def test_pdf(tmp_path: Path) -> None:
    pytest.importorskip("pypdf")
    path = write(tmp_path / "paper.pdf", pdf("Notes on engines", "", "The end"))
    (document,) = read_corpus(path).documents
    assert (document.id, document.title, document.text) == ("paper", "paper", "Notes on engines\n\nThe end")
    assert document.pages == (0, 16, 18)
    chunks = slices(document, [(0, 5), (6, 16), (18, 25)])
    assert [chunk["metadata"] for chunk in chunks] == [{"page": 1}, {"page": 1}, {"page": 3}]
    (below_the_end,) = slices(document, [(16, 25)])
    assert below_the_end["metadata"] == {"page": 3}, "white space in front belongs to no page"
    with pytest.raises(UserFault, match=r"the file has no text \(is it a scan\?\)"):
        read_corpus(write(tmp_path / "scan.pdf", pdf("")))
    with pytest.raises(UserFault, match="it cannot be read as PDF"):
        read_corpus(write(tmp_path / "broken.pdf", b"%PDF-1.4\n"))


def pdf(*pages: str) -> bytes:
    """A PDF with these texts, one on each page."""
    kids = b" ".join(b"%d 0 R" % (5 + 2 * i) for i in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(pages)),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Font << /F1 3 0 R >> >>",
    ]  # fmt: skip
    for text in pages:
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()
        content = len(objects) + 2
        objects += [
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R /Resources 4 0 R >>" % content,
            b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        ]
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(objects) + 1
    return out + (
        b"xref\n0 %d\n0000000000 65535 f \n%strailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF"
        % (size, table, size, len(out))
    )
