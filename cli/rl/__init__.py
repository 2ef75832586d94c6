"""Command-line options of `explore rl`."""

from typing import get_args

import click

from explore.cli import options
from explore.cli.options import COPIES, NAMES, POSITIVE, SEED, TRIALS, Algorithm
from explore.core.errors import InputError, shown

# Options that may be combined with --watch.
WATCH = {"watch", "first", "bonus", "seed", "trust", "quiet", "as_json"}


def _weight(text: str) -> float | str:
    try:
        return text if text == "auto" else float(text)
    except ValueError:
        raise click.BadParameter(f"{shown(text)} is neither a number nor auto") from None


@click.command("rl", short_help="Train a policy with an intrinsic reward (VIME).")
@click.option("--env", metavar="ID", help="From Gymnasium or `explore list envs`, or module:ID.")
@click.option("--env-kwargs", multiple=True, metavar="KEY:VALUE", help="An argument of the environment; repeatable.")
@click.option(
    "--algo", type=click.Choice(get_args(Algorithm)), default="trpo", help="From stable-baselines3 or sb3-contrib."
)
@click.option(
    "--algo-param", "algo_parameters", multiple=True, metavar="KEY=VALUE",
    help="An argument of the algorithm, net_arch, activation or log_std_init; repeatable.",
)  # fmt: skip
@click.option(
    "--posterior", type=NAMES, metavar="NAME",
    help="Posterior of the dynamics model, from `explore list posteriors`; none: no bonus.  [default: last-layer, if "
    "the bonus has such a model]",
)  # fmt: skip
@click.option("--bonus", type=NAMES, metavar="NAME", help="From `explore list bonuses`.  [default: expected-gain]")
@click.option(
    "--compare", type=NAMES, metavar="A,B",
    help="Train with each of these bonuses (none: without), on the same seeds, and say whether they help.",
)  # fmt: skip
@click.option("--eta", type=_weight, metavar="NUMBER|auto", help="Weight of the bonus.  [default: auto]")
@click.option(
    "--normalise", type=click.Choice(["first", "latest", "median", "rms", "none"]),
    help="Divisor of the bonus: the median of the first or latest batch, the mean of the last 10 medians, or the root "
    "mean square of the last 10 batches.  [default: latest]",
)  # fmt: skip
@click.option(
    "-p", "parameters", multiple=True, metavar="KEY=VALUE",
    help="A setting of the posterior (or of a bonus without one), or vime.KEY=VALUE of the bonus; repeatable.",
)  # fmt: skip
@click.option("--timesteps", type=POSITIVE, default=500_000, help="Environment steps, all copies together.")
@click.option("--n-envs", type=COPIES, help="Copies of the environment.  [default: 10 for trpo, else 1]")
@click.option("--seed", type=SEED, default=0, help="The first random seed.")
@click.option("--seeds", type=TRIALS, default=1, help="Number of seeds.")
@click.option(
    "--batched/--no-batched",
    default=None,
    help="Train the seeds together in batches, or one after another.  [default: together with ppo, if possible]",
)
@click.option("--vec-normalize", is_flag=True, help="Standardise the policy's observations (SB3's VecNormalize).")
@click.option("--eval-freq", type=POSITIVE, metavar="N", help="Steps between evaluations of the deterministic policy.")
@click.option("--checkpoint-freq", type=POSITIVE, default=1, help="Iterations between checkpoints.")
@options.jobs
@click.option(
    "--watch", metavar="RUN", help="Write a GIF of a trained policy (of --seed and --bonus) into its run folder."
)
@click.option("--first", is_flag=True, help="With --watch: an episode at the time of the first success.")
@options.session
def command(**values: object) -> None:
    """Train a policy with a bonus for learning about its environment (VIME).

    A Bayesian neural network learns to predict the next observation; the information it gains from a transition is
    added to the reward. The run folder keeps the policy, the dynamics model, results by iteration, and TensorBoard
    curves with the same tags for all posteriors and seeds.

    \b
    explore rl --env explore/SparseMountainCar-v0 --seeds 5
    explore rl --env explore/SparseMountainCar-v0 --compare none,rnd,kl --seeds 5
    explore rl --env Pendulum-v1 --algo sac --timesteps 20000 --posterior bbb -p vime.updates=200
    explore rl --resume runs/rl-explore-SparseMountainCar-v0-trpo-last-layer
    explore rl --resume runs/rl-explore-SparseMountainCar-v0-trpo-last-layer --timesteps 1000000
    explore rl --watch runs/rl-explore-SparseMountainCar-v0-trpo-last-layer
    """  # noqa: D301
    if values["first"] and not values["watch"]:
        raise InputError("--first chooses the policy for --watch. Pass --watch RUN, or leave --first out")
    if not values["watch"]:
        options.run(values, ("timesteps", "seeds"))
        return
    options.check_empty()
    options.refuse(WATCH, "--watch uses the settings of the run")
    from explore.cli.rl import watch

    watch.run(values, chosen="seed" in options.on_command_line())
