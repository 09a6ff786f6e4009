"""Retrieval metrics, computed by `ir-measures`, which uses trec_eval."""

from collections.abc import Iterable, Sequence

from ..errors import UserFault, needs_extra

CUTOFFS = (1, 5, 10)


def retrieval_scores(
    retrieved: Iterable[str], gold: Iterable[str], cutoffs: Sequence[int] = CUTOFFS
) -> dict[str, float]:
    """Recall, precision and nDCG of the first k retrieved documents, and the reciprocal rank of the first gold one.

    retrieved: document ids, best first; a repeated id, as from several chunks of a document, counts at its first place.
    gold: ids of the documents that support the answer, all equally relevant.
    Returns "recall@k", "precision@k" and "ndcg@k" for each cut-off k, and "mrr" over all documents, in [0, 1].
    Precision divides by k even if fewer documents were retrieved. Without gold documents the result is {}.
    Raises `UserFault` for a cut-off below 1, and if ir-measures is not installed.
    """
    if not all(k > 0 for k in cutoffs):
        raise UserFault(f"The cut-offs are {', '.join(map(str, cutoffs))}: each must be at least 1.")
    relevant = dict.fromkeys(gold, 1)
    if not relevant:
        return {}
    with needs_extra("Recall, nDCG and MRR need a package", "eval"):
        from ir_measures import RR, Measure, P, R, iter_calc, nDCG  # noqa: PLC0415 - an extra
    names: dict[Measure, str] = {RR: "mrr"}
    for k in cutoffs:
        names |= {R @ k: f"recall@{k}", P @ k: f"precision@{k}", nDCG @ k: f"ndcg@{k}"}
    ranked = list(dict.fromkeys(retrieved))
    # numbers stand for the ids: ir-measures ends the process at an id that is not valid Unicode
    place = {document: str(i) for i, document in enumerate(dict.fromkeys([*ranked, *relevant]))}
    judged = {place[document]: 1 for document in relevant}
    run = {place[document]: float(len(ranked) - i) for i, document in enumerate(ranked)}
    values = {metric.measure: float(metric.value) for metric in iter_calc(list(names), {"q": judged}, {"q": run})}
    return {name: values[measure] for measure, name in names.items()}
