from toy_plugins.farthest import farthest
from toy_plugins.laplace import Laplace
from toy_plugins.pair import ToyPair

from explore.testing import check_acquisition, check_likelihood, check_posterior

test_pair = check_posterior(ToyPair)
test_laplace = check_likelihood(Laplace)
test_farthest = check_acquisition(farthest)
