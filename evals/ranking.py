"""How well documents were retrieved and ordered, by `ir-measures` and so by trec_eval."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import UserFault

CUTOFFS = (1, 5, 10)


def retrieval_scores(
    retrieved: Iterable[str], gold: Iterable[str], cutoffs: Sequence[int] = CUTOFFS
) -> dict[str, float]:
    """Recall, precision and nDCG of the first k retrieved documents, and the reciprocal rank of the first gold one.

    retrieved: document ids, the best first; of one that comes several times, as with several of its chunks, the first
    counts. gold: the ids of the documents that answer the question, all equally relevant.
    Returns "recall@k", "precision@k", "ndcg@k" for each cut-off k, and "mrr", over all that was retrieved; in [0, 1].
    Precision divides by k even where fewer were retrieved. Without gold documents there is nothing to tell: {}.
    Raises `UserFault` for a cut-off that is not positive, and where ir-measures is not installed.
    """
    if not all(k > 0 for k in cutoffs):
        raise UserFault(f"The cut-offs are {', '.join(map(str, cutoffs))}: each has to be at least 1.")
    relevant = dict.fromkeys(gold, 1)
    if not relevant:
        return {}
    try:
        from ir_measures import RR, Measure, P, R, iter_calc, nDCG  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UserFault('Recall, nDCG and MRR need a package: pip install "dubito[eval]".') from error
    names: dict[Measure, str] = {RR: "mrr"}
    for k in cutoffs:
        names |= {R @ k: f"recall@{k}", P @ k: f"precision@{k}", nDCG @ k: f"ndcg@{k}"}
    ranked = list(dict.fromkeys(retrieved))
    # numbers in their place: an id that is no valid Unicode would end the process
    place = {document: str(i) for i, document in enumerate(dict.fromkeys([*ranked, *relevant]))}
    judged = {place[document]: 1 for document in relevant}
    run = {place[document]: float(len(ranked) - i) for i, document in enumerate(ranked)}
    found = {one.measure: float(one.value) for one in iter_calc(list(names), {"q": judged}, {"q": run})}
    return {name: found[measure] for measure, name in names.items()}
