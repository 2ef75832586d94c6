"""Nothing that is computed changes unless that is wanted: `python -m tests.goldens test` writes it anew."""

import json
from pathlib import Path

import numpy as np

from tests import goldens


def test_states_choices_and_bonuses_are_what_they_were():
    expected, values = json.loads(Path(goldens.__file__).with_suffix(".json").read_text()), goldens.tested()
    assert values.keys() == expected.keys()
    different = []
    for name, value in values.items():
        for new, old in zip(value, expected[name], strict=True):
            # Bonuses are computed in single precision, whose last digits depend on the processor.
            close = {"rtol": 1e-4, "atol": 1e-6} if name.startswith("bonus") else {"rtol": 1e-8, "atol": 1e-10}
            if not np.allclose(new, old, equal_nan=True, **close):
                different.append(name)
    assert not set(different)
