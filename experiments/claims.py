"""The table of published claims in docs/results.md, from the results of the experiments.

    python -m experiments.claims

Rewrites the part of docs/results.md between two markers. This file has the claims and what is published, as far as no
experiment has it. Our figures and the verdicts are computed from the results in experiments/*/results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, product
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.hmc_correlation.run import DATASETS, PAPER as CORRELATIONS
from experiments.logistic_regression.run import BIAS_PRECISION
from experiments.table_defaults.run import SMALL
from experiments.verdicts import (
    FAILS,
    HOLDS,
    OPEN,
    Claim,
    Estimate,
    Figure,
    Finding,
    average,
    difference,
    estimate,
    figures,
    missing,
    number,
    over_splits,
    paired,
    percent,
    plus_minus,
    table,
)
from experiments.whvi_structures.run import STRUCTURES
from experiments.whvi_uci.run import PAPER as WHVI_UCI

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results.md"
BEGIN, END = "<!-- written by python -m experiments.claims -->\n", "<!-- end of the written part -->\n"
RULE = (
    "Two standard errors decide: a claimed difference must exceed them, and no figure of ours may be worse than the\n"
    "published one by more."
)
UCI, LOGISTIC, IMAGES, STRUCTURE, CONTROL = (
    "uci_regression", "logistic_regression", "images", "whvi_structures", "sparse_control"
)  # fmt: skip
SPLITS, SEEDS = ("dataset", "split", "method"), ("study", "seed", "method")
ACTIVE = {  # RMSE after nine labels and its standard error; the target of Naval differs from ours
    "boston": (5.139, 0.033), "concrete": (11.592, 0.117), "energy": (3.035, 0.038), "kin8nm": (0.236, 0.002),
    "power": (5.421, 0.028), "wine": (0.841, 0.007), "yacht": (6.245, 0.068),
}  # fmt: skip
VOGN_ERROR = {"LeNet-5": 0.35, "AlexNet": -1.09, "ResNet-18": 1.73}  # VOGN − Adam, in points
VOGN_LENET5 = {"error": (0.3268, -1), "log_likelihood": (-0.938, 1), "calibration_error": (0.046, -1)}


def read(path: str, query: str = "") -> pd.DataFrame:
    """Read a CSV file of an experiment, with errors in percent too; the column of methods is called `method`."""
    rows = pd.read_csv(HERE / path, dtype={"hidden": str}, keep_default_na=False, na_values=[""])
    if "method" not in rows:
        rows = rows.rename(columns=dict.fromkeys(("arm", "posterior", "condition", "model"), "method"))
    rows = rows.assign(percent=100 * rows["error"]) if "error" in rows else rows
    return rows.query(query) if query else rows


def lower_rmse(rows: pd.DataFrame, one: str, other: str, score: str = "rmse", what: str = "RMSE") -> Finding:
    """Judge whether the first method has the lower RMSE on random splits."""
    return difference(what, paired(rows, SPLITS, (one, other), score, log=True, splits=True), -1, " %")


def uci(hidden: str = "50") -> pd.DataFrame:
    """Read the runs of small sets at full length."""
    rows = read(f"{UCI}/results/runs.csv", f"hidden == '{hidden}' and prior == 'paper' and splits == 20")
    return rows[rows.dataset.isin(SMALL)]


def uci_figures(method: str, source: str, hidden: str = "50") -> list[Figure]:
    """Pair all figures of a method in a paper with ours."""
    papers = read(f"{UCI}/papers.csv", f"hidden == '{hidden}' and method == '{method}'")
    papers = papers[papers.source.str.startswith(source) & papers.dataset.isin(SMALL)]
    scores, cells = uci(hidden).query("method == @method").groupby("dataset"), []
    for paper in papers.to_dict("records"):
        title, sign = ("RMSE", -1) if paper["metric"] == "rmse" else ("log-likelihood", 1)
        name = f"{paper['dataset'].capitalize()} {title}{'' if hidden == '50' else ' (two layers)'}"
        ours = estimate(scores[paper["metric"]].get_group(paper["dataset"]))
        cells.append(Figure(name, ours, Estimate(paper["value"], paper["se"]), sign))
    return cells


def uci_gain(one: str, other: str) -> list[Finding]:
    """Compare RMSE and log-likelihood of two methods."""
    likelihood = paired(uci(), SPLITS, (one, other), "log_likelihood", splits=True)
    return [lower_rmse(uci(), one, other), difference("log-likelihood", likelihood, 1)]


def images(studies: Sequence[str], one: str, other: str, score: str = "percent") -> Finding:
    """Compare two methods in short runs; VGG16 is `plain` or `augmented`."""
    rows = read(f"{IMAGES}/results/runs.csv", "length == 'short' and not method.str.contains('once')")
    augmented = rows.method.str.endswith(", augmented").map({True: "augmented", False: "plain"})
    rows = rows.assign(
        study=rows.study.mask(rows.study == "vgg16", augmented), method=rows.method.str.removesuffix(", augmented")
    )
    groups = paired(rows[rows.study.isin(studies)], SEEDS, (one, other), score)
    what = {"percent": "error", "log_likelihood": "log-likelihood"}.get(score, "calibration error")
    return difference(what, groups, 1 if score == "log_likelihood" else -1, " points" if score == "percent" else "")


def noisy_kfac() -> Iterator[Claim]:
    preprint = [*uci_figures("noisy-kfac", "Zhang"), *uci_figures("noisy-kfac", "Zhang", "50-50")]
    yield Claim("RMSE and log-likelihood of noisy K-FAC on five UCI sets; in the preprint, one and two hidden layers",
                "EK-FAC's Table 1; the preprint's Table 1 and Appendix D",
                [figures(uci_figures("noisy-kfac", "Bae")), figures(preprint)], UCI)  # fmt: skip
    yield Claim("better predictions than BBB", "RMSE −11.5 %, log-likelihood +0.096",
                uci_gain("noisy-kfac", "bbb"), UCI)  # fmt: skip
    yield Claim("better predictions than probabilistic back-propagation", "RMSE −32.8 %, log-likelihood +0.065",
                uci_gain("noisy-kfac", "pbp"), UCI)  # fmt: skip
    rows, best = read("hmc_correlation/results/results.csv"), "block-tridiagonal"
    ours = rows.groupby(["method", "dataset"]).correlation
    cells = [
        Figure(f"{data.capitalize()} {name}", estimate(ours.get_group((name, data))), Estimate(*value), 1)
        for name in ("noisy-kfac", best)
        for data, value in zip(DATASETS, CORRELATIONS[name], strict=True)
    ]
    gains = [
        difference(f"{a} − {b}", paired(rows, ("dataset", "trial", "method"), (a, b), "correlation"), 1)
        for a, b in (("noisy-kfac", "bbb"), (best, "noisy-kfac"))
    ]
    yield Claim("predictive variances correlate with those of HMC, more than BBB's, most if block-tridiagonal",
                "Table 3; means 0.781, 0.640 and 0.795", [figures(cells), *gains], "hmc_correlation")  # fmt: skip


def noisy_kfac_acts() -> Iterator[Claim]:
    rows = read("active_learning/results/trials.csv", "method == 'noisy-kfac' and rule == 'max-variance'")
    gain = paired(rows, ("dataset", "trial", "arm"), ("max-variance", "random"), "last", log=True)
    yield Claim("labelling the largest variance beats random labels", "RMSE −7.6 % after nine labels",
                [difference("RMSE", gain, -1, " %")], "active_learning")  # fmt: skip
    last = rows[rows.arm == "max-variance"].groupby("dataset")["last"]
    cells = [Figure(n.capitalize(), estimate(last.get_group(n)), Estimate(*v), -1) for n, v in ACTIVE.items()]
    yield Claim("RMSE after nine such labels, seven sets", "Table 2", [figures(cells)], "active_learning")
    keys, pair = ("task", "seed", "method"), ("noisy-kfac", "bbb")
    returns = paired(read(f"{CONTROL}/results/runs.csv"), keys, pair, "mean_return", log=True)
    yield Claim("VIME explores better with noisy K-FAC than with BBB", "higher returns on three tasks",
                [difference("return", returns, 1, " %")], CONTROL)  # fmt: skip


def noisy_ekfac() -> Iterator[Claim]:
    vgg16 = "plain", "augmented"
    cited = [figures(uci_figures("noisy-ekfac", "Bae"))]
    yield Claim("RMSE and log-likelihood on five UCI sets", "Table 1", cited, UCI)
    yield Claim("better predictions than noisy K-FAC", "RMSE −1.9 %, log-likelihood +0.028",
                uci_gain("noisy-ekfac", "noisy-kfac"), UCI)  # fmt: skip
    yield Claim("a lower error than noisy K-FAC, VGG16 †", "−1.55 points, augmented −0.51",
                [images(vgg16, "noisy EK-FAC", "noisy K-FAC")], IMAGES)  # fmt: skip
    yield Claim("weight noise lowers the error of K-FAC, VGG16 †", "−3.13 points, augmented −0.46",
                [images(vgg16, "noisy K-FAC", "K-FAC")], IMAGES)  # fmt: skip
    yield missing("Year and four other large sets; CIFAR-10 at full length, batch normalisation", "Tables 1, 2",
                  "no run of Year, only short runs of the others", UCI)  # fmt: skip


def slang() -> Iterator[Claim]:
    cells, tables = [], []
    papers = read(f"{LOGISTIC}/paper.csv").set_index(["dataset", "method"]).to_dict("index")
    for data in ("australian", "breast-cancer"):
        rows = read(f"{LOGISTIC}/results/{data}.csv").assign(dataset=data)
        tables.append(rows)
        left_out = {"elbo": -0.5 * math.log(BIAS_PRECISION) / rows.n_train.iloc[0]}  # of the paper's bound
        for rank, score in product((1, 2, 5, 10), ("elbo", "nll", "kl")):
            paper = papers[data, f"slang-{rank}"]
            published = Estimate(paper[score] + left_out.get(score, 0.0), paper[f"{score}_se"])
            ours = estimate(rows[rows.method == f"slang-{rank}"][score])
            cells.append(Figure(f"{data.capitalize()} {score}, rank {rank}", ours, published, -1))
    yield Claim("bound, NLL and KL divergence of four ranks, logistic regression on two sets", "Table 1",
                [figures(cells)], LOGISTIC)  # fmt: skip
    closer = [
        difference(f"KL, {a} against {b}:", paired(pd.concat(tables), SPLITS, (a, b), "kl", log=True), -1, " %")
        for a, b in (("slang-1", "mf-exact"), ("slang-10", "slang-1"))
    ]
    yield Claim("rank 1 is closer to the optimum than mean field, and rank 10 closer still", "KL −86 %, −81 %",
                closer, LOGISTIC)  # fmt: skip
    yield Claim("RMSE and log-likelihood on five UCI sets", "Table 2", [figures(uci_figures("slang", "Mishkin"))], UCI)
    yield Claim("a lower RMSE than BBB on them", "RMSE −11.5 %", [lower_rmse(uci(), "slang", "bbb")], UCI)
    for text, other, errors in (("with rank 1", "SLANG, L=1", "1.73, 2.00 %"), ("BBB", "BBB", "1.73, 1.82 %")):
        found = [images(["mnist"], "SLANG, L=32", other)]
        yield Claim(f"a lower error with rank 32 than {text}, MNIST †", errors, found, IMAGES)
    yield missing("fewer epochs than BBB; a1a and USPS; MNIST at full length", "Tables 1, 3",
                  "no run of these sets, and only ten epochs of MNIST", LOGISTIC)  # fmt: skip


def vogn() -> Iterator[Claim]:
    large = "alexnet", "resnet18"
    yield Claim("a better log-likelihood and calibration than Adam, AlexNet and ResNet-18 †",
                "log-likelihood +1.90, +0.07; calibration error −0.238, −0.042",
                [images(large, "VOGN", "Adam", score) for score in ("log_likelihood", "calibration_error")],
                IMAGES)  # fmt: skip
    rows = read(f"{IMAGES}/results/runs.csv", "study in ['lenet5', 'alexnet', 'resnet18'] and length == 'short'")
    rows, pair = rows.replace({"study": dict(zip(("lenet5", *large), VOGN_ERROR, strict=True))}), ("VOGN", "Adam")
    errors = paired(rows, SEEDS, pair, "percent")
    cells = [Figure(net, errors[net], Estimate(value), -1) for net, value in VOGN_ERROR.items()]
    yield Claim("an error close to Adam's, three networks †", "+0.35, −1.09, +1.73 points", [figures(cells)], IMAGES)
    yield Claim("a higher log-likelihood than MC dropout, AlexNet and ResNet-18 †", "+0.15, +0.03",
                [images(large, "VOGN", "MC dropout", "log_likelihood")], IMAGES)  # fmt: skip
    full = read(f"{IMAGES}/results/runs.csv", "study == 'lenet5' and method == 'VOGN' and length == 'full'")
    cells = [
        Figure(k.replace("g_", "g-").replace("_", " "), estimate(full[k]), Estimate(v), s)
        for k, (v, s) in VOGN_LENET5.items()
    ]
    yield Claim("error, log-likelihood and calibration error of LeNet-5 after 210 epochs (one seed)",
                "0.327, −0.938, 0.046", [figures(cells)], IMAGES)  # fmt: skip
    costs = paired(rows, SEEDS, pair, "epoch_seconds", log=True)
    ours = ", ".join(number(math.exp(costs[net].mean)) for net in VOGN_ERROR)
    yield Claim("an epoch takes 2.6 to 4.4 times Adam's †", "2.63, 3.20, 4.44",
                [Finding(f"{ours}, but with fewer weight samples", OPEN)], IMAGES)  # fmt: skip
    yield missing("ImageNet; best or tied in 10 of 15 cases", "the poster's table",
                  "no run of ImageNet, AUROC in short runs of one network only", IMAGES)  # fmt: skip


def whvi() -> Iterator[Claim]:
    sets = "boston", "concrete", "power", "yacht"
    for text, score, at in (("RMSE", "sample_rmse", 0), ("negative log-likelihood", "gibbs", 2)):
        cells = []
        for name in sets:
            folder = "" if name == "boston" else "50500/"  # the paper's number of updates
            scores = read(f"whvi_uci/results/{folder}{name}.csv", "method == 'whvi'")[score]
            mean, deviation = WHVI_UCI[name][at : at + 2]
            published = Estimate(mean, deviation / math.sqrt(len(scores)))
            cells.append(Figure(name.capitalize(), estimate(scores), published, -1))
        yield Claim(f"{text} of single samples on four UCI sets", "Table 3", [figures(cells)], "whvi_uci")
    rows = pd.concat(read(f"whvi_uci/results/{name}.csv").assign(dataset=name) for name in sets)
    found = [lower_rmse(rows, "whvi", v, "sample_rmse", f"RMSE against {v}:") for v in ("mc-dropout", "noisy-kfac")]
    yield Claim("a lower RMSE of these than MC dropout and noisy K-FAC", "Table 3", found, "whvi_uci")
    toy = pd.read_csv(HERE / "whvi_toy/results/table.md", sep=r"\s*\|\s*", engine="python", skiprows=[1])
    counts = toy.set_index("posterior")["with the noise"]
    cells = [Figure(n, Estimate(counts[n]), Estimate(v), -1) for n, v in (("WHVI", 1541), ("WHVI, 10 flows", 4141))]
    times = read("benchmarks/results/hadamard.csv", "what == 'net' and D == 4096").set_index("method").ms
    ratios = {name: times[name] / times["whvi"] for name in ("bbb", "mc-dropout")}
    ours = ", ".join(f"{number(ratio)} times as fast as {name}" for name, ratio in ratios.items())
    speed = Finding(f"with 4096 units {ours}", HOLDS if min(ratios.values()) > 1 else FAILS)
    yield Claim("few parameters, and faster than mean field and MC dropout in wide networks", "1541, with flows 4141",
                [figures(cells), speed], "whvi_toy benchmarks/results/hadamard.md")  # fmt: skip


def whvi_structures() -> Iterator[Claim]:
    rows, sizes = read(f"{STRUCTURE}/results/structures.csv"), read(f"{STRUCTURE}/results/sizes.csv")
    best, tensors = "S1HGHS2", "tensor-factorised"
    others = [name for name in STRUCTURES if name not in (best, tensors)]
    apart = {name: paired(rows, SPLITS, (best, name), "rmse", log=True, splits=True) for name in others}
    closest = max(others, key=lambda name: average(apart[name].values()).mean)
    found = [lower_rmse(rows, best, name, what=f"RMSE against {name}:") for name in (closest, tensors)]
    yield Claim("S1HGHS2 is the best of seven structures, and better than tensors with as many parameters",
                "Table 2, figures", found, STRUCTURE)  # fmt: skip
    wide = np.log(sizes.pivot(index=["method", "depth", "split"], columns="width", values="rmse"))
    growth = (wide[256] - wide[32]).rename("growth").reset_index()
    grown = {
        name: percent(average(over_splits(part) for _, part in own.groupby("depth").growth))
        for name, own in growth.groupby("method")
    }
    slower = difference("", paired(growth, ("depth", "split", "method"), (best, "bbb"), "growth", splits=True), -1)
    text = f"RMSE from 32 to 256 units: bbb {plus_minus(grown['bbb'], ' %')}, whvi {plus_minus(grown[best], ' %')}"
    yield Claim("wide layers harm mean field, but not WHVI", "figures", [slower._replace(text=text)], STRUCTURE)
    gp = read("gp_random_features/results/results.csv", "covariance == 'diagonal'")
    logs = np.log(gp.set_index(["function", "replica", "method"]).rmse).groupby(level=[0, 1, 2]).mean().reset_index()
    trained, optimal = (
        difference(f"RMSE against {name}:", paired(logs, tuple(logs.columns[:3]), ("WHVI", method), "rmse"), -1, " %")
        for name, method in (("trained mean field", "mean field, Adam"), ("its optimum", "mean field"))
    )
    yield Claim("a lower RMSE than mean field with as many parameters, Gaussian processes", "figures",
                [trained._replace(text=f"{trained.text}, {optimal.text}")], "gp_random_features")  # fmt: skip
    nets = ("AlexNet with a tenth of the parameters", ["whvi"]), ("VGG16", ["whvi-vgg16"])
    for net, study in nets:
        yield Claim(f"a lower error than Adam, {net} †", "Table 4", [images(study, "WHVI", "Adam")], IMAGES)
    flows = [images(["whvi"], "WHVI, three flows", "WHVI", score) for score in ("percent", "log_likelihood")]
    yield Claim("three flows are better than none, AlexNet †", "Table 4", flows, IMAGES)
    yield missing("Energy, Naval, Kin8nm, Protein; six classification sets; DRIVE; full training on CIFAR-10",
                  "tables and figures", "no run of these", "whvi_uci")  # fmt: skip


def vime() -> Iterator[Claim]:
    rows, keys = read(f"{CONTROL}/results/runs.csv"), ("task", "seed", "method")
    gains = paired(rows, keys, ("bbb", "none"), "mean_return")
    tests = read(f"{CONTROL}/results/comparisons.csv", "method == 'bbb' and beside == 'none'").set_index("task")
    more = read(f"{CONTROL}/results/further_runs.csv", "method == 'none' and variant != variant")
    alone = pd.concat([rows.query("method == 'none' and task == 'mountain-car'"), more]).mean_return
    for task, name in (("mountain-car", "mountain car"), ("cart-pole", "cart-pole swing-up")):
        found = difference("return", {task: gains[task]}, 1)
        p = f"p = {tests.p[task]:.2g}, {tests.p_holm[task]:.2g} corrected"
        found = found._replace(text=f"{found.text} ({p})")
        yield Claim(f"a higher return with the bonus, sparse {name}", "solved with the bonus only", [found], CONTROL)
        if task == "mountain-car":
            found = difference("", {task: estimate(alone)}, -1)
            text = f"{(alone > 0).sum()} of {len(alone)} seeds are rewarded"
            yield Claim(f"no reward without a bonus, {name}", "none", [found._replace(text=text)], CONTROL)
    yield missing("HalfCheetah and SwimmerGather", "solved with the bonus only", "no run of either", CONTROL)


PAPERS = {
    "NNG": (noisy_kfac, noisy_kfac_acts), "EK-FAC": (noisy_ekfac,), "SLANG": (slang,), "VOGN": (vogn,),
    "WHVI": (whvi, whvi_structures), "VIME": (vime,),
}  # fmt: skip


def section() -> str:
    """Make the part of the page: the table, below its counts, and the rule."""
    made = table({paper: chain.from_iterable(part() for part in parts) for paper, parts in PAPERS.items()})
    return f"{made}\n{RULE}\n"


def rewritten(page: str) -> str:
    """Replace the part between the markers."""
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    return f"{before}{BEGIN}\n{section()}\n{END}{after}"


def main() -> None:
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
