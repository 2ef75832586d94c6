"""Published claims: the page is what the script writes, and the rule of the verdicts."""

import math
import re

import numpy as np
import pandas as pd
import pytest

from experiments import claims, verdicts
from experiments.verdicts import FAILS, HOLDS, MISSING, OPEN, Claim, Estimate, Figure, Finding

PAGE = claims.PAGE.read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE[PAGE.index(claims.BEGIN) : PAGE.index(claims.END)].splitlines()
    if line.startswith("| ") and not line.startswith("| claim |")
]


def test_the_page_is_what_the_script_writes():
    assert claims.rewritten(PAGE) == PAGE


def test_only_the_part_between_the_markers_is_rewritten(monkeypatch):
    monkeypatch.setattr(claims, "section", lambda: "new\n")
    page = f"before\n{claims.BEGIN}old\n{claims.END}after\n"
    assert claims.rewritten(page) == f"before\n{claims.BEGIN}\nnew\n\n{claims.END}after\n"


def test_rows():
    assert 30 <= len(ROWS) <= 40 and all(len(row) == 5 for row in ROWS)
    assert {row[3] for row in ROWS} == {HOLDS, FAILS, OPEN, MISSING}
    assert len({row[0] for row in ROWS}) == len(ROWS) and {row[0].split(":")[0] for row in ROWS} == set(claims.PAPERS)
    for row in ROWS:
        assert all(row) and bool(re.search(r"\d", row[2])) != (row[3] == MISSING), row
    found = [sum(row[3] in kind for row in ROWS) for kind in ([HOLDS], [FAILS], [OPEN, MISSING], [MISSING])]
    counts = map(int, re.findall(r"\d+", next(line for line in PAGE.splitlines() if line.startswith("**Of "))))
    assert list(counts) == [len(ROWS), *found]


def test_links_exist():
    for row in ROWS:
        links = re.findall(r"\]\((.+?)\)", row[4])
        assert links and all((claims.PAGE.parent / link).is_file() for link in links), row


def mean_change(table, one, other):
    """In percent, of the geometric mean."""
    return 100 * math.expm1(np.log(table[one] / table[other]).mean())


def test_published_differences_are_those_of_the_published_figures():
    text = {row[0]: row[1] for row in ROWS}
    rows = pd.read_csv(claims.HERE / "uci_regression/papers.csv", dtype={"hidden": str})
    rows = rows[rows.source.str.startswith("Bae") & rows.dataset.isin(claims.SMALL)]
    table = rows.pivot(index=["metric", "dataset"], columns="arm", values="value")
    for claim, *pair in (
        ("NNG: better predictions than BBB", "noisy-kfac", "bbb"),
        ("EK-FAC: better predictions than noisy K-FAC", "noisy-ekfac", "noisy-kfac"),
    ):
        change = mean_change(table.loc["rmse"], *pair)
        gain = (table[pair[0]] - table[pair[1]]).loc["log_likelihood"].mean()
        assert text[claim] == f"RMSE −{-change:.1f} %, log-likelihood {gain:+.3f}"
    table = pd.read_csv(claims.HERE / "logistic_regression/paper.csv").pivot(
        index="dataset", columns="method", values="kl"
    )
    changes = [-mean_change(table, *pair) for pair in (("slang-1", "mf-exact"), ("slang-10", "slang-1"))]
    claim = next(claim for claim in text if claim.startswith("SLANG: rank 1 is closer"))
    assert text[claim] == f"KL −{changes[0]:.0f} %, −{changes[1]:.0f} %"
    means = [np.mean(claims.CORRELATIONS[name], 0)[0] for name in ("noisy-kfac", "bbb", "block-tridiagonal")]
    claim = next(claim for claim in text if claim.startswith("NNG: predictive variances"))
    assert text[claim] == "Table 3; means {:.3f}, {:.3f} and {:.3f}".format(*means)


@pytest.mark.parametrize(
    ("groups", "sign", "verdict", "text"),
    [
        ([(3.0, 1.0)], 1, HOLDS, "gain +3.0 ± 1.0"),
        ([(-3.0, 1.0)], 1, FAILS, "gain −3.0 ± 1.0"),
        ([(-3.0, 1.0)], -1, HOLDS, "gain −3.0 ± 1.0"),
        ([(1.9, 1.0)], 1, OPEN, "gain +1.9 ± 1.0"),
        ([(3.0, 1.0), (1.0, 1.0)], 1, HOLDS, "gain +2.00 ± 0.71 (1 of 2 significant)"),
        ([(9.0, 1.0), (-3.0, 1.0)], 1, OPEN, "gain +3.00 ± 0.71 (1 of 2 significant, 1 opposite)"),
        ([(-9.0, 1.0), (3.0, 1.0)], 1, FAILS, "gain −3.00 ± 0.71 (1 of 2 significant, 1 opposite)"),
    ],
)
def test_a_difference_must_exceed_two_standard_errors(groups, sign, verdict, text):
    named = {str(k): Estimate(*group) for k, group in enumerate(groups)}
    assert verdicts.difference("gain", named, sign) == (text, verdict)


def test_a_quotient_is_shown_in_percent():
    found = verdicts.difference("RMSE", {"a": Estimate(math.log(0.9), 0.01)}, -1, " %")
    assert found == ("RMSE −10.00 ± 0.90 %", HOLDS)


@pytest.mark.parametrize(
    ("ours", "sign", "verdict", "text"),
    [
        ((1.5, 0.03), 1, HOLDS, "1 of 1 reached"),
        ((0.9, 0.03), 1, HOLDS, "1 of 1 reached"),  # the combined error is 0.05
        ((0.89, 0.03), 1, FAILS, "0 of 1 reached; missed: a 0.890 (1.00)"),
        ((1.11, 0.03), -1, FAILS, "0 of 1 reached; missed: a 1.11 (1.00)"),
        ((1.11, 0.0), 1, HOLDS, "1 of 1 reached"),
        ((0.9, 0.3), 1, OPEN, "0 of 1 reached; uncertain: a 0.900 ± 0.300 (1.00)"),
        ((1.1, 0.3), 1, HOLDS, "1 of 1 reached"),
    ],
)
def test_a_figure_must_not_be_worse_by_two_standard_errors(ours, sign, verdict, text):
    assert verdicts.figures([Figure("a", Estimate(*ours), Estimate(1.0, 0.04), sign)]) == (text, verdict)


def test_many_missed_figures_are_counted():
    cells = [Figure(name, Estimate(0.0), Estimate(1.0), 1) for name in "abcde"]
    text = "0 of 5 reached; missed: a 0.00 (1.00), b 0.00 (1.00), c 0.00 (1.00), 2 more"
    assert verdicts.figures(cells) == (text, FAILS)


def test_differences_are_paired_by_unit():
    rows = pd.DataFrame({
        "set": ["s", "s", "s", "s", "t", "t", "t"], "seed": [1, 2, 2, 1, 1, 1, 2], "method": list("aabbaba"),
        "score": [4.0, 8.0, 2.0, 2.0, 9.0, 3.0, 7.0],
    })  # fmt: skip
    keys = ("set", "seed", "method")
    assert verdicts.paired(rows, keys, ("a", "b"), "score") == {"s": (4.0, 2.0), "t": (6.0, 0.0)}
    logs = verdicts.paired(rows, keys, ("a", "b"), "score", log=True)
    assert logs["s"] == pytest.approx((1.5 * math.log(2), 0.5 * math.log(2)))
    splits = verdicts.paired(rows[rows.set == "s"], keys, ("b", "a"), "score", splits=True)
    assert splits["s"] == pytest.approx((-4.0, math.sqrt(8 * (1 / 2 + 1 / 9))))


def test_the_worst_verdict_of_a_claim_counts():
    found = [[HOLDS], [HOLDS, OPEN], [OPEN, FAILS, HOLDS]]
    made = [Claim(f"c{k}", "p", [Finding("f", v) for v in own], "images a/b.md") for k, own in enumerate(found)]
    text = verdicts.table({"A": made, "B": [verdicts.missing("m", "p", "reason", "images")]})
    assert "**Of 4 published claims, 1 come out, 1 do not, and on 2 we cannot tell, 1 of them" in text
    links = "[images](../experiments/images/README.md)"
    assert f"| A: c1 | p | f; f | cannot tell | {links}, [b](../experiments/a/b.md) |" in text
    assert "| A: c2 | p | f; f; f | does not |" in text
    assert f"| B: m | p | reason | cannot tell: not measured | {links} |" in text


def test_numbers():
    values = [0.0460, 2.3, 61.0, 4141.0, -0.938, 123.4]
    assert [verdicts.number(value) for value in values] == ["0.0460", "2.30", "61.0", "4141", "−0.938", "123"]
    assert verdicts.plus_minus(Estimate(28.3, 25.2), " points") == "+28 ± 25 points"
