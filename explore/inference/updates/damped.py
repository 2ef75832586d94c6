"""Natural-gradient posteriors whose training noise is damped more than their density, layer by layer in one eigenbasis.

Damping beyond gamma keeps weight samples where the network is good, but its density forgets the prior in directions
that no data determine. So updates draw from N(M, Sigma_damped), and q = N(M, Sigma) has no such damping. As Sigma is
the larger one, predictions can also be "mixed": networks sampled with Sigma_damped, plus linear functions of the rest,

    f(x; w) + J(x) d,    w ~ N(M, Sigma_damped),  d ~ N(0, Sigma - Sigma_damped),  J = df/dw at M.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from explore.core.rng import Rng
from explore.inference.gaussian import Density, Functions, LinearisedNet, PredictiveForm, centred, drawn
from explore.inference.structures.base import Blocks, Diagonal
from explore.inference.updates.natural import NaturalGradient, NaturalState
from explore.nets.protocols import Noise

AS_PAPER: dict[str, object] = {"damped_density": True, "predictive": "sampled"}
"""Settings of presets with a paper's name, and of those for large networks, whose Jacobians cost more than samples.

All damping is part of the density, and predictions sample it.
"""


class Spectrum(NamedTuple):
    """The eigenvectors and eigenvalues of F + gamma in one layer, and the eigenvalues with all damping."""

    inputs: Float[Tensor, "R I I"]  # Q_A
    outputs: Float[Tensor, "R O O"]  # Q_S
    values: Float[Tensor, "R I O"]
    damped: Float[Tensor, "R I O"]


@dataclass(frozen=True, kw_only=True)
class DampedNaturalGradient(NaturalGradient):
    """Natural-gradient inference with additional damping in its training noise and mean steps."""

    predictive: PredictiveForm = "auto"  # "auto": mixed for other targets
    mixes = True
    damped_density: bool = False  # whether the density has all damping of the training noise, as in the papers

    @abstractmethod
    def spectra(self, state: NaturalState) -> Iterator[Spectrum]:
        """Yield the spectrum of each layer."""

    def gaussian(self, state: NaturalState) -> Density:
        if self.damped_density:
            return self.training_density(state)
        factor = Blocks(tuple(Diagonal(s.values, s.inputs, s.outputs) for s in self.spectra(state)))
        return state.mean, factor, self.kl_weight / float(state.common.n_data)

    def functions(self, state: NaturalState, n: int, rng: Rng) -> tuple[Any, tuple[Any, ...], Noise]:
        if self.linearises or self.predictive == "sampled" or self.damped_density:
            return super().functions(state, n, rng)
        spectra, scale = tuple(self.spectra(state)), self.kl_weight / float(state.common.n_data)
        damped = Blocks(tuple(Diagonal(s.damped, s.inputs, s.outputs) for s in spectra))
        # Where both are equal the precision of the rest is infinite, and its samples are 0.
        apart = ((1 / s.values - 1 / s.damped).clamp_min(0) for s in spectra)
        rest = Blocks(tuple(Diagonal(1 / v, s.inputs, s.outputs) for v, s in zip(apart, spectra, strict=True)))
        weights = drawn((state.mean, damped, scale), n, rng)
        changes = drawn(centred((state.mean, rest, scale)), n, rng)
        functions = Functions.around(state.mean, self.layers(state, (), 1), changes, weights)
        return LinearisedNet(self.net), (functions,), self.likelihood.sample_noise(state.common.noise, n, rng)
