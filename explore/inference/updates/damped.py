"""Natural-gradient posteriors whose training noise is damped more than their density, layer by layer in one eigenbasis.

Damping beyond gamma keeps weight samples where the network is good, but its density forgets the prior in directions
that no data determine. So updates draw from N(M, Sigma_damped), and q = N(M, Sigma) has no such damping. As Sigma is
the larger one, predictions can also be "mixed": networks sampled with Sigma_damped, plus linear functions of the rest,

    f(x; w) + J(x) d,    w ~ N(M, Sigma_damped),  d ~ N(0, Sigma - Sigma_damped),  J = df/dw at M.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from explore.core.rng import Rng
from explore.inference.gaussian import Density, Functions, LinearisedNet, PredictiveForm, centred, drawn
from explore.inference.structures.base import Blocks, Diagonal
from explore.inference.updates.natural import NaturalGradient, NaturalState
from explore.nets.protocols import Noise

AS_PAPER: dict[str, object] = {"damped_density": True, "predictive": "sampled"}
"""Settings of presets with a paper's name, and of those for large networks, whose Jacobians cost more than samples.

All damping is part of the density, and predictions sample it.
"""


@dataclass(frozen=True, kw_only=True)
class DampedNaturalGradient(NaturalGradient):
    """Natural-gradient inference with additional damping in its training noise and mean steps."""

    predictive: PredictiveForm = "auto"  # "auto": mixed for other targets
    mixes = True
    damped_density: bool = False  # whether the density has all damping of the training noise, as in the papers

    @abstractmethod
    def spectra(self, state: NaturalState) -> Iterator[tuple[Diagonal, Diagonal]]:
        """Yield F + gamma of each layer, and the same with all damping, in one eigenbasis."""

    def gaussian(self, state: NaturalState) -> Density:
        if self.damped_density:
            return self.training_density(state)
        factor = Blocks(tuple(exact for exact, _ in self.spectra(state)))
        return state.mean, factor, self.kl_weight / float(state.common.n_data)

    def functions(self, state: NaturalState, n: int, rng: Rng) -> tuple[Any, tuple[Any, ...], Noise]:
        if self.linearises or self.predictive == "sampled" or self.damped_density:
            return super().functions(state, n, rng)
        exact, damped = zip(*self.spectra(state), strict=True)
        scale = self.kl_weight / float(state.common.n_data)
        # Where both are equal the precision of the rest is infinite, and its samples are 0.
        apart = ((1 / f.precision - 1 / d.precision).clamp_min(0) for f, d in zip(exact, damped, strict=True))
        rest = Blocks(tuple(f._replace(precision=1 / v) for f, v in zip(exact, apart, strict=True)))
        weights = drawn((state.mean, Blocks(damped), scale), n, rng)
        changes = drawn(centred((state.mean, rest, scale)), n, rng)
        functions = Functions.around(state.mean, self.layers(state, (), 1), changes, weights)
        return LinearisedNet(self.net), (functions,), self.likelihood.sample_noise(state.common.noise, n, rng)
