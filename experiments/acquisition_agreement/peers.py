"""Scores of batchbald-redux and baal; runs in the environment that `environment.sh` makes, without `explore`."""

import sys
from pathlib import Path

import numpy as np
import torch
from baal.active import heuristics
from batchbald_redux import batchbald

DRAWS = 40_000  # sets of labels of batchbald-redux, exact up to so many; of baal's Monte Carlo that of the paper


def scores(p: np.ndarray, k: int, ours: np.ndarray) -> dict[str, np.ndarray]:
    """Of the points with the class probabilities p [N, K, C] by K nets, and of batches of k.

    Args:
        p: probabilities.
        k: points of a batch.
        ours: [k] the batch that explore chose, of whose beginnings baal estimates the information.
    """
    logs = torch.as_tensor(p).log()
    single = batchbald.get_bald_batch(logs, len(p), dtype=torch.double)
    bald = np.empty(len(p))
    bald[single.indices] = single.scores
    batch = batchbald.get_batchbald_batch(logs, k, DRAWS, dtype=torch.double)
    turned = p.transpose(0, 2, 1)  # [N, C, K]
    return {
        "redux/bald": bald,
        "redux/entropy": batchbald.compute_entropy(logs).numpy(),
        "redux/batch": np.array(batch.indices),
        "redux/batch_information": np.array(batch.scores),
        "baal/bald": heuristics.BALD().compute_score(turned),
        "baal/entropy": heuristics.Entropy().compute_score(turned),
        "baal/margin": heuristics.Margin().compute_score(turned),
        "baal/information": np.array([information(turned, ours[:i], ours[i]) for i in range(1, k)]),
    }


def information(turned: np.ndarray, history: np.ndarray, point: int) -> float:
    """Baal's estimate of the information of a history and one more point, by Monte Carlo."""
    torch.manual_seed(0)
    rule = heuristics.BatchBALD(len(history) + 1)
    drawn = rule._sample_from_history(turned[history], DRAWS // turned.shape[2])
    joint = next(rule._joint_entropy(turned[[point]], drawn))
    return float(joint[0] - rule._conditional_entropy(turned[[*history, point]]).sum())


if __name__ == "__main__":
    for path in Path(sys.argv[1]).glob("given-*.npz"):
        given = np.load(path)
        found = scores(given["p"], int(given["k"]), given["batch"])
        np.savez(path.with_name(path.name.replace("given", "answer")), **found)  # type: ignore[arg-type]
