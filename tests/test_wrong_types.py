"""What a user without a type checker gives in the wrong place, or a wrong word, is answered by a sentence.

In a process of its own, whatever this one checks.
"""

import subprocess
import sys
from functools import cache

import pytest

SCRIPT = """
import json
import gymnasium as gym
import numpy as np
import torch
import explore
from explore import ActiveLearner, Gaussian, Net, mlp
from explore.inference.members import Mixture, mixture
from explore.vime import VIME, IntrinsicReward
from gymnasium.spaces import Box

x, net = np.zeros((9, 3)), Net(mlp(3, [4], 1))

def build(name="bbb", net=net, likelihood=Gaussian(), *preset, **settings):
    return explore.posterior(name, net, likelihood, *preset, **settings)

def reward(**settings):
    return IntrinsicReward(Box(-1, 1, (2,)), Box(-1, 1, (1,)), **settings)

found = {}
for text in json.loads(%r):
    try:
        found[text] = ["nothing", str(eval(text))]
    except Exception as error:
        found[text] = [type(error).__name__, str(error)]
print(json.dumps(found))
"""
CASES = {
    "build(lrr=1)": "unknown setting 'lrr'; allowed: augmentation, batch_norm, ",
    "build(lr='a')": "lr is 'a'; it must be a number",
    "build(lr=True)": "lr is True; it must be a number",
    "build(lr=None)": "lr is None; it must be a number",
    "build(lr=[0.1])": "lr is [0.1]; it must be a number",
    "build(members=2.5)": "members is 2.5; it must be a whole number",
    "build(members=True)": "members is True; it must be a whole number",
    "mixture(build(), members='5')": "members is '5'; it must be a whole number",
    "Mixture(posterior=net, members=2)": "posterior is a Net; a mixture needs a posterior",
    "build(epochs=1.5)": "epochs is 1.5; it must be a whole number",
    "build(epochs='9')": "epochs is '9'; it must be a whole number",
    "build(batch_norm=3)": "unknown batch_norm '3'; allowed: adam, frozen",
    "build('noisy-kfac', weight_noise=1)": "weight_noise is 1; it must be true | false",
    "build(preset='big')": "unknown preset 'big'; allowed: ",
    "build(preset=3)": "unknown preset",
    "build(3)": "the name of a posterior must be a string; got 3",
    "build(net=mlp(3, [4], 1))": "net is a Sequential; it must be a Net",
    "build(net='mlp')": "net is a str; it must be a Net",
    "build(net=Net)": "net is a type; it must be a Net",
    "build(likelihood='normal')": "unknown likelihood 'normal'; allowed: bernoulli, categorical, gaussian",
    "build(likelihood=Gaussian)": "it must be an instance such as Gaussian",
    "build(likelihood=None)": "likelihood is None",
    "Gaussian(noise_std='a')": "likelihood.noise_std is 'a'; it must be a number or none",
    "Net('mlp')": "Net expects a torch.nn.Module; got a str",
    "Net(net)": "Net expects a torch.nn.Module; got a Net",
    "ActiveLearner('bbb', x)": "posterior is a str. Create one with explore.posterior",
    "ActiveLearner(net, x)": "posterior is a Net. Create one with",
    "ActiveLearner(build, x)": "posterior is a function. Create one with",
    "ActiveLearner(build(), x, 'max-variance')": "acquisitions is 'max-variance'; it must be a list",
    "ActiveLearner(build(), x, lambda view, k: None)": "it must be a list of rules",
    "ActiveLearner(build(), x, [])": "acquisitions is []; it must be a list of rules",
    "ActiveLearner(build(), x, [3])": "an acquisition is 3; it must be a name, or a function of",
    "ActiveLearner(build(), x, ['variance'])": "unknown acquisition 'variance'",
    "ActiveLearner(build(), x, trials=1.5)": "trials is 1.5; it must be a whole number of at least 1",
    "ActiveLearner(build(), x, trials=0)": "trials is 0",
    "ActiveLearner(build(), x, samples='many')": "samples is 'many'",
    "ActiveLearner(build(), x, seed=-1)": "the seed is -1; it must be a whole number from 0 to",
    "ActiveLearner(build(), x, seed=1.5)": "the seed is 1.5",
    "ActiveLearner(build(), x, seed='7')": "the seed is '7'",
    "ActiveLearner(build(), 'x')": "inputs must be a numeric array with rows of equal length",
    "ActiveLearner(build(), [[1, 2], [3]])": "inputs must be a numeric array with rows of equal length",
    "ActiveLearner(build(), None)": "inputs must be a numeric array with rows of equal length",
    "ActiveLearner(build(), x, allowed='all')": "allowed must be a boolean array of shape ",
    "VIME(gym.make('CartPole-v1'), posterior=net)": "posterior is a Net; it must be a name or a posterior",
    "VIME(gym.make('CartPole-v1'), eta='a')": "eta is 'a'; it must be a number",
    "VIME(gym.make('CartPole-v1'), hidden=32)": "hidden is 32; it must be a tuple of whole numbers",
}
WORDS = {
    "reward(bonus='surprise')": "unknown bonus 'surprise'; allowed: count, disagreement, e3b, expected-gain, icm, kl, "
    "novelty, rnd, variance",
    "reward(normalise='max')": "unknown normalise 'max'; allowed: first, latest, median, none, rms",
    "reward(n_eff='all')": "n_eff is 'all'; it must be a number or replay or none",
    "reward(posterior='last-layer', updates=9)": "updates has no effect: this posterior learns each transition once; "
    "leave updates out",
    "reward(target='last')": "unknown target 'last'; allowed: difference, next",
    "reward(capacity=9)": "capacity is 9; it must be at least minimum, 500",
    "reward(hidden=(4, 0))": "hidden is (4, 0); every layer must have 1 to 100000 units",
    "reward(posterior='map', bonus='variance')": "map is a point estimate; choose a posterior with weight uncertainty",
    "reward(posterior='hmc', bonus='variance')": "hmc needs all data at once, not mini-batches; "
    "choose another posterior",
}


@cache
def answers() -> dict[str, list[str]]:
    import json

    script = SCRIPT % json.dumps([*CASES, *WORDS])
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("text", CASES)
def test_wrong_types_are_answered_by_a_sentence(text):
    kind, message = answers()[text]
    assert kind == "InputError" and CASES[text] in message, (kind, message)
    assert "\n" not in message


@pytest.mark.parametrize("text", WORDS)
def test_wrong_words_are_answered_by_this_sentence(text):
    assert answers()[text] == ["InputError", WORDS[text]]
