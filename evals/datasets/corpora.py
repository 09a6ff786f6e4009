"""The corpora that the papers use: fetched from the HuggingFace hub, checked, and written as JSON lines."""

import hashlib
import io
import logging
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ...errors import UserFault, closest, needs_extra
from ...file_lock import exclusive_lock
from ...retrieval.corpus import shown
from ...settings import settings
from ...traces.files import writing
from .loading import load_dataset
from .pooling import pooled, write_corpus

Report = Callable[[str, int, int], None]
"""Gets the work, the bytes that are done and how many there are."""

COPIED = 2**20
"""Bytes that are unpacked at a time."""


@dataclass(frozen=True, slots=True)
class ReadyCorpus:
    """A corpus that a file of a dataset on the hub holds.

    size: bytes of that file; pools: the kind of dataset whose questions' paragraphs are the corpus, and how
    `load_dataset` names the file; None for a zip file with the corpus itself.
    """

    content: str
    repository: str
    file: str
    size: int
    licence: str
    papers: str
    pools: str | None = None


CORPORA: Mapping[str, ReadyCorpus] = {
    "wikipedia-2018": ReadyCorpus(
        "English Wikipedia of December 2018 in 21,015,324 passages of 100 words",
        "RUC-NLPIR/FlashRAG_datasets",
        "retrieval-corpus/wiki18_100w.zip",
        5_130_719_280,
        "CC BY-SA",
        "SeaKR, SePer",
    ),
    "2wiki": ReadyCorpus(
        "the paragraphs of the 12,576 dev questions of 2WikiMultihopQA",
        "framolfese/2WikiMultihopQA",
        "data/validation-00000-of-00001.parquet",
        29_505_064,
        "Apache-2.0; texts CC BY-SA",
        "DENSE-RAG, SUNAR, SeaKR, SePer",
        "2wiki:hub:{folder}#validation",
    ),
    "musique": ReadyCorpus(
        "the paragraphs of the 2,417 answerable dev questions of MuSiQue",
        "dgslibisey/MuSiQue",
        "musique_ans_v1.0_dev.jsonl",
        30_439_728,
        "CC BY 4.0; texts CC BY-SA",
        "SUNAR, SePer",
        "musique:{file}",
    ),
    "hotpotqa": ReadyCorpus(
        "the paragraphs of the 7,405 dev questions of HotpotQA (distractor)",
        "hotpotqa/hotpot_qa",
        "distractor/validation-00000-of-00001.parquet",
        27_452_575,
        "CC BY-SA 4.0",
        "SeaKR, SePer",
        "hotpotqa:hub:{folder}#validation",
    ),
}


def corpus_named(name: str) -> ReadyCorpus:
    """The corpus of this name; `UserFault` if there is none."""
    if name not in CORPORA:
        raise UserFault(f"There is no ready corpus '{name}'{closest(name, CORPORA)}: there are {', '.join(CORPORA)}.")
    return CORPORA[name]


def fetch_corpus(name: str, out: Path, report: Report) -> dict[str, Any]:
    """Fetch a corpus, write it to `out`, which is replaced, and return the figures.

    A download that was cut off goes on where it was; it is in the cache folder until the corpus is written. `UserFault`
    if the hub cannot be reached, if the file is not the one that the hub describes, and if `out` cannot be written.
    """
    corpus = corpus_named(name)
    with _fetched(corpus, name, report) as (file, described):
        documents = _unpack(file, out, described.sha256, report) if corpus.pools is None else _pool(corpus, file, out)
    return {
        "corpus": name,
        "file": str(out),
        "documents": documents,
        "bytes": out.stat().st_size,
        "source": described.url,
        "revision": described.revision,
        "sha256": described.sha256,
        "licence": corpus.licence,
    }


class _Described(NamedTuple):
    """A file as the hub describes it."""

    url: str
    revision: str | None
    sha256: str
    size: int


@contextmanager
def _fetched(corpus: ReadyCorpus, name: str, report: Report) -> Iterator[tuple[Path, _Described]]:
    """The corpus's file on this machine, complete and checked; it is removed when the work with it has succeeded."""
    with needs_extra("Ready corpora come from the HuggingFace hub, which needs an extra", "datasets"):
        from huggingface_hub import utils  # noqa: PLC0415 - of an extra
    utils.disable_progress_bars()  # type: ignore[attr-defined]
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its retries fill the screen
    described = _describe(corpus)
    folder = settings().cache / "downloads" / described.sha256
    path = folder / Path(corpus.file).name
    with writing(folder, "download"):
        folder.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(folder / "lock", f"Another `dubito corpus {name}` is under way: wait for its end."):
        _download(described, path, report)
        if (found := _sha256(path, report)) != described.sha256:
            path.unlink()
            raise UserFault(
                f"{described.url} arrived with the SHA-256 {found} in place of {described.sha256}, so it was deleted: "
                "fetch it again, from another mirror (HF_ENDPOINT) if this repeats."
            )
        yield path, described
    shutil.rmtree(folder, ignore_errors=True)


def _describe(corpus: ReadyCorpus) -> _Described:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url  # noqa: PLC0415

    url = hf_hub_url(corpus.repository, corpus.file, repo_type="dataset")
    with _reaching(url):
        known = get_hf_file_metadata(url, timeout=10)
    if not re.fullmatch("[0-9a-f]{64}", known.etag or "") or known.size is None:
        raise UserFault(
            f"{url} cannot be checked, as the server does not tell its SHA-256: set HF_ENDPOINT to another."
        )
    return _Described(url, known.commit_hash, str(known.etag), known.size)


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    """Around requests to the hub."""
    try:
        yield
    except Exception as fault:
        if isinstance(fault, OSError) and fault.errno and not isinstance(fault, ConnectionError | TimeoutError):
            raise  # of this machine's disk
        reason = " ".join(str(fault).partition("\n")[0].split()).rstrip(".:") or type(fault).__name__
        raise UserFault(
            f"{url} cannot be fetched ({reason}): check the network, or name a mirror of the hub with HF_ENDPOINT; the "
            "same command goes on where it was."
        ) from fault


def _download(described: _Described, path: Path, report: Report) -> None:
    from huggingface_hub.file_download import http_get  # noqa: PLC0415
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # noqa: PLC0415

    # `hf_hub_download` begins anew in another process
    with writing(path, "download"):
        there = path.stat().st_size if path.exists() else 0
        if there > described.size:
            path.unlink()
            there = 0
        _check_room(path.parent, described.size - there)
        with _Reported(path, "ab", "fetching", described.size, report) as file, _reaching(described.url):
            http_get(described.url, file, resume_size=there, headers=build_hf_headers(), expected_size=described.size)


def _check_room(folder: Path, needed: int) -> None:
    if (free := shutil.disk_usage(folder).free) < needed:
        raise UserFault(
            f"'{shown(folder)}' has room for {free / 1e9:,.1f} GB and {needed / 1e9:,.1f} GB are needed: make room, or "
            "give another --out or DUBITO_CACHE_DIR."
        )


class _Reported(io.BufferedWriter):
    """A file that reports how many bytes it has."""

    def __init__(self, path: Path, mode: str, work: str, total: int, report: Report) -> None:
        super().__init__(io.FileIO(path, mode))
        self._report = lambda: report(work, self.tell(), total)

    def write(self, part: Any, /) -> int:  # noqa: ANN401 - bytes and their views
        written: int = super().write(part)
        self._report()  # type: ignore[no-untyped-call]
        return written


def _sha256(path: Path, report: Report) -> str:
    report("checking", 0, 0)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unpack(archive: Path, out: Path, sha256: str, report: Report) -> int:
    """Write the JSON lines of a zip file; the number of lines."""
    partial = out.with_name(f".{out.name}.{sha256[:16]}.partial")  # the name that a killed process used too
    try:
        with zipfile.ZipFile(archive) as packed:
            (member,) = [one for one in packed.infolist() if one.filename.endswith(".jsonl")]
            with writing(out, "corpus"):
                _check_room(out.parent, member.file_size)
                with (
                    packed.open(member) as lines,
                    _Reported(partial, "wb", "unpacking", member.file_size, report) as file,
                ):
                    number = _copy(lines, file)
                partial.replace(out)
    except (ValueError, zipfile.BadZipFile) as fault:
        if isinstance(fault, UserFault):
            raise
        raise UserFault(
            f"'{shown(archive)}' is not a zip file with one file of JSON lines: the hub's file was changed, so "
            "take the corpus from another source."
        ) from fault
    finally:
        partial.unlink(missing_ok=True)
    return number


def _copy(lines: Any, file: BinaryIO) -> int:  # noqa: ANN401
    number = 0
    while part := lines.read(COPIED):
        number += part.count(b"\n")
        file.write(part)
    return number


def _pool(corpus: ReadyCorpus, file: Path, out: Path) -> int:
    if file.suffix == ".parquet":
        with needs_extra("The tables of the hub need an extra", "datasets"):
            import datasets  # noqa: PLC0415 - of an extra
        datasets.disable_progress_bars()
    documents = pooled(load_dataset((corpus.pools or "").format(file=file, folder=file.parent)).questions)
    write_corpus(documents, out)
    return len(documents)
