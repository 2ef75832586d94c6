"""Which modules does `Net` take as they are, and do posteriors train on them?

    experiments/modules/environment.sh FOLDER
    FOLDER/bin/python -m experiments.modules.run

`Net(module, trained=True)` must return the module's own output (`error` is the largest difference), and an update of
each of five posteriors on four examples must succeed. Writes results/modules.csv, with the numbers of weights that
have a distribution, of point estimates and of frozen parameters, and results/table.md.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from experiments.driver import commit, experiment, write
from experiments.modules.zoo import CASES, N
from experiments.tables import markdown
from explore import registry
from explore.core.errors import InputError
from explore.core.rng import Rng
from explore.core.shapes import Batch
from explore.nets.inputs import chosen_output
from explore.nets.net import Net

HERE = Path(__file__).parent
POSTERIORS = ("noisy-kfac", "vogn", "slang", "bbb", "laplace")


def own_output(module: Any, batch: Any, which: Any) -> Tensor:
    """The module's output by itself."""
    with torch.no_grad():
        if isinstance(batch, Tensor):
            out = module(batch)
        else:
            out = module(**batch) if isinstance(batch, dict) else module(*batch)
    result: Tensor = chosen_output(out, which)
    return result


def in_double(module: Any, batch: Any) -> tuple[Any, Any]:
    """The module and its inputs in double precision, so that rounding does not hide a difference."""
    each = batch.items() if isinstance(batch, dict) else enumerate(batch) if isinstance(batch, tuple) else [(0, batch)]
    values = {key: t.double() if t.is_floating_point() else t for key, t in each}
    if isinstance(batch, Tensor):
        return module.double(), values[0]
    return module.double(), values if isinstance(batch, dict) else tuple(values.values())


def tried(name: str) -> dict[str, Any]:
    """A line of the table."""
    torch.manual_seed(0)
    module, batch, options = CASES[name]()
    line: dict[str, Any] = {"module": name}
    module, batch = in_double(module.eval(), batch)
    expected, rng = own_output(module, batch, options.get("output")), Rng(0, dtype=torch.float64)
    try:
        settings: dict[str, Any] = {"outputs": expected.shape[1]} | options
        net = Net(module, trained=True, **settings)
        x = net.packed(batch).unsqueeze(0)
        layers = (*net.initial(1, rng, 1), *net.initial_norms(1, rng), *net.initial_points(1, rng))
        line["error"] = float((net.output(layers, x)[0, 0] - expected).abs().max())
    except InputError as error:
        return line | {"refused": str(error)}
    points = sum(math.prod(point.shape) for point in net.points)
    line |= {"layers": len(net.shapes), "weights": net.weights, "points": points, "frozen": net.frozen}
    targets = torch.randint(0, expected.shape[1], (1, N), generator=torch.Generator().manual_seed(0))
    for each in POSTERIORS:
        posterior = registry.posterior(each, net, "categorical")
        state = posterior.init(100, 1, rng)
        new, info = posterior.update(state, Batch(x, targets), rng.stream("fit"))
        line[each] = bool(new.common.alive.all()) and all(bool(v.isfinite().all()) for v in info.values())
    return line


def table(rows: pd.DataFrame) -> str:
    """A line per module."""
    lines = []
    for _, row in rows.iterrows():
        if isinstance(row.get("refused"), str):
            lines.append([row["module"], "refused: " + row["refused"], "", "", "", ""])
            continue
        updates = "all five" if all(row[name] for name in POSTERIORS) else "not all"
        counts = [f"{int(row[key]):,}" for key in ("weights", "points", "frozen")]
        lines.append([row["module"], f"{row['error']:.0e}", *counts, updates])
    heads = ["module", "error", "weights with a distribution", "point estimates", "frozen", "updates"]
    return markdown(heads, lines) + "\n"


@experiment(__file__)
def main(out: Path) -> None:
    """Try all modules, and write the table."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    rows = pd.DataFrame([tried(name) for name in CASES]).assign(commit=commit())
    rows.to_csv(out / "modules.csv", index=False, float_format="%.3g")
    write(out / "table.md", table(rows))


if __name__ == "__main__":
    main()
