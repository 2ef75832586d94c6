"""What every posterior owes, see `explore.testing`. A new file in `explore/posteriors` is tested here by existing."""

from explore import registry
from explore.testing.values import POSTERIORS
from tests.contracts.declared import subjects

test_posterior = POSTERIORS.test(subjects(*registry.names("posteriors")))
test_mixtures = POSTERIORS.test(subjects("noisy-kfac", "whvi", "mc-dropout", members=3))
