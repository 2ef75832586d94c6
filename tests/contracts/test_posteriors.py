"""What every posterior owes, see `explore.testing`. A new file in `explore/posteriors` is tested here by existing."""

from explore import registry
from explore.testing import check_posterior

test_posterior = check_posterior(*registry.names("posteriors"))
test_mixtures = check_posterior("noisy-kfac", "whvi", "mc-dropout", members=3)
