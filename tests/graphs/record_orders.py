"""Record the orders in which two published programs score documents, in random worlds.

    python tests/graphs/record_orders.py GAR SUNAR > tests/graphs/recorded_orders.json

GAR: pyterrier_adaptive/gar.py of github.com/terrierteam/pyterrier_adaptive (MIT), graph-based adaptive re-ranking.
SUNAR: evaluation/wikimultihop/llms/run_sunar.py of github.com/VenkteshV/SUNAR, the authors' script.

Both run unchanged. What they import, models and data loaders, is replaced by the world's scores, answers and labels.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

WORLDS = range(12)
SAMPLES = 10
NAMES = ("Ada", "Ida", "Oda", "Uda", "Una")


@dataclass(frozen=True)
class World:
    """A question's world.

    found: the first stage's documents, best first; raw: the re-ranker's scores; near: each document's neighbours,
    nearest first; answers: those sampled from each batch; contradicting: ordered pairs of answers; budget, batch: of
    GAR (the authors' script has 100 and 16).

    The papers leave ties open. No two raw scores are equal, because the programs break such ties by the documents' ids.
    Neighbours of one document wait with equal scores. Both programs let no more of them wait than the budget has left,
    which changes the order in which they enter the frontier. So a world has few documents, or one neighbour of each.
    """

    found: list[str]
    raw: dict[str, float]
    near: dict[str, list[str]]
    answers: list[list[str]]
    contradicting: set[tuple[str, str]]
    budget: int
    batch: int


def world_of(seed: int) -> World:
    """A random world: 100 documents with 10 neighbours each, or 160 with one each."""
    luck = random.Random(seed)
    count, neighbours = (100, 10) if seed % 2 else (160, 1)
    ids = [str(number) for number in range(count)]
    several = [luck.sample(NAMES, luck.randint(1, len(NAMES))) for _ in range(60)]
    return World(
        found=luck.sample(ids, luck.randint(20, 100)),
        raw={name: luck.random() for name in ids},
        near={name: luck.sample([other for other in ids if other != name], neighbours) for name in ids},
        answers=[[luck.choice(some) for _ in range(SAMPLES)] for some in several],
        contradicting={(a, b) for a in NAMES for b in NAMES if a != b and luck.random() < 0.3},
        budget=100 if seed % 2 else luck.choice([30, 64, 100]),
        batch=luck.choice([1, 5, 16]),
    )


def gar_order(gar: Any, world: World) -> list[str]:
    """The documents in the order in which GAR scores them."""
    scored: list[str] = []

    def scorer(batch: Any) -> Any:
        scored.extend(batch.docno)
        return batch.assign(score=[world.raw[name] for name in batch.docno])

    ranks = range(len(world.found))
    first_stage = {"qid": "1", "query": "q", "docno": world.found, "score": [-float(rank) for rank in ranks]}
    graph = SimpleNamespace(neighbours=lambda name: world.near[name])
    ranker = gar.GAR(scorer, graph, num_results=world.budget, batch_size=world.batch, backfill=False)
    ranker.transform(gar.pd.DataFrame(first_stage))
    return scored


def sunar_look_up(script: Any, world: World) -> dict[str, Any]:
    """The batches as the authors' script shows them to the model, and the ten documents that it returns."""
    scored: list[str] = []
    batches: list[list[str]] = []

    def predict(pairs: Sequence[Sequence[str]]) -> list[float]:
        scored.append(pairs[0][1])
        return [world.raw[pairs[0][1]]]

    def complete(prompt: str, system: str) -> Any:
        batches.append(prompt.partition("the evidence, Evidence: ")[2].partition(" \n select")[0].split("\n"))
        answers = world.answers[len(batches) - 1]
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=text)) for text in answers])

    def label(batch: list[str]) -> dict[str, int]:
        first, second = (text.rpartition(" ")[2] for text in batch[0].split(" [SEP] "))
        return {"logits": 0 if (first, second) in world.contradicting else 1}

    script.cross_enc = SimpleNamespace(predict=predict)
    script.model = label
    script.tokenizer = SimpleNamespace(encode=lambda text, **_: text)
    script.torch = SimpleNamespace(tensor=lambda value, **_: value, argmax=lambda value, dim: [value])
    llm = SimpleNamespace(get_chat_completion_without_stop_multiple=complete)
    script.LLMEngineOrchestrator = lambda: SimpleNamespace(get_llm_engine=lambda **_: llm)
    corpus = {int(name): SimpleNamespace(text=lambda name=name: name) for name in world.raw}
    found = {"q": {name: -float(rank) for rank, name in enumerate(world.found)}}
    near = {name: {other: -float(rank) for rank, other in enumerate(others)} for name, others in world.near.items()}
    best, _ = script.get_answer(found, "q", corpus, "Who?", near)
    assert scored == [name for batch in batches for name in batch]
    return {"batches": batches, "best": best}


@contextlib.contextmanager
def loaded(path: str, **replaced: Any) -> Iterator[ModuleType]:
    """The module in a file, whose imports of these names are replaced."""
    spec = spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    with patch.dict(sys.modules, replaced), contextlib.redirect_stdout(sys.stderr):
        spec.loader.exec_module(module)
        yield module


def main(gar_path: str, sunar_path: str) -> None:
    import_module("pandas")  # both use it, and it can be loaded once only

    dexter = (
        "dexter",
        "dexter.llms",
        "dexter.llms.llm_engine_orchestrator",
        "dexter.config",
        "dexter.config.constants",
    )
    loaders = ("dexter.data", "dexter.data.loaders", "dexter.data.loaders.RetrieverDataset")
    others = {name: MagicMock() for name in (*dexter, *loaders, "sentence_transformers", "transformers", "torch")}
    terrier = SimpleNamespace(Transformer=object)
    with loaded(gar_path, pyterrier=terrier, ir_datasets=MagicMock(), pyterrier_adaptive=MagicMock()) as gar:
        orders: list[dict[str, Any]] = [{"gar": gar_order(gar, world_of(seed))} for seed in WORLDS]
    with loaded(sunar_path, **others) as script:
        for seed in WORLDS:
            orders[seed]["sunar"] = sunar_look_up(script, world_of(seed))
    print("[\n" + ",\n".join(json.dumps(order) for order in orders) + "\n]")


if __name__ == "__main__":
    main(*sys.argv[1:])
