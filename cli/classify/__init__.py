"""Command-line options of `explore classify`."""

import click

from explore.cli import options
from explore.cli.options import NAMES, POSITIVE, SEED, SHARE


@click.command("classify", short_help="Train a posterior on images and evaluate it on test images.")
@click.option("--dataset", type=NAMES, help="From `explore list images`.  [default: mnist]")
@click.option(
    "--images", type=click.Path(exists=True, resolve_path=True),
    help="Your images instead: a folder train/CLASS/... and test/CLASS/..., or an .npz of x, y, test_x, test_y. With "
    "--validate, test images may be missing.",
)  # fmt: skip
@click.option("--size", type=click.IntRange(1, 4096), help="Scale images of a folder to this many pixels a side.")
@click.option("--grey", is_flag=True, help="Read the images of a folder as grey-scale.")
@click.option(
    "--stream/--no-stream", default=None,
    help="Read the images of a folder during training, or keep them in memory.  [default: stream if they need more "
    "than a quarter of the memory]",
)  # fmt: skip
@click.option(
    "--net", metavar="NAME",
    help="mlp, lenet5, alexnet, alexnet-dense, vgg16, resnet18, resnet50 or MODULE:FUNCTION of (in_channels, classes, "
    "size).  [default: lenet5; for digits mlp]",
)  # fmt: skip
@click.option("--amp", is_flag=True, help="Mixed precision: matrix products and convolutions in bfloat16.")
@click.option("--posterior", default="noisy-kfac", type=NAMES, help="From `explore list posteriors`.")
@options.model_of("the posterior, or net.KEY=VALUE", "image, if any")
@click.option("--epochs", type=POSITIVE, help="Passes over the training images.  [default: the preset's]")
@click.option("--warmup", type=click.IntRange(0, 10**6), default=0, help="Epochs of learning-rate warm-up.")
@click.option(
    "--augment", type=click.Choice(["none", "crop", "crop-flip", "resized-crop"]),
    help="Augmentation of training images: random crops of padded images (crop), mirrored half of the time "
    "(crop-flip), or random parts scaled to full size and mirrored (resized-crop).  [default: crop-flip for CIFAR and "
    "folders, else none]",
)  # fmt: skip
@click.option("--train", type=POSITIVE, metavar="N", help="Take N training images at random.  [default: all]")
@click.option("--test", type=POSITIVE, metavar="N", help="Test on N of the test images at random.  [default: all]")
@click.option(
    "--validate", type=SHARE, metavar="SHARE",
    help="Test on this share of the training images, e.g. 0.1, not on the test images.",
)  # fmt: skip
@click.option(
    "--ood", metavar="NAME|PATH",
    help="Out-of-distribution images to detect by uncertainty; none: no such test.  [default: Fashion-MNIST for "
    "MNIST and vice versa]",
)  # fmt: skip
@click.option("--seed", type=SEED, default=0, help="Random seed.")
@click.option("--samples", type=options.SAMPLES, default=10, help="Weight samples for predictions.")
@click.option(
    "--measure", type=POSITIVE, metavar="N", default=20,
    help="Test and save a checkpoint N times, evenly spaced over epochs; at most once per epoch.",
)  # fmt: skip
@options.session
def command(**values: object) -> None:
    """Train a posterior over the weights of an image network, and evaluate the predicted class probabilities.

    Report test error, log-likelihood, Brier score, calibration error (15 bins), and the detection of
    out-of-distribution images. The run folder keeps the model, for `explore predict`, and all test probabilities.

    \b
    explore classify --dataset mnist --net lenet5 --posterior vogn --epochs 10
    explore classify --dataset cifar10 --net resnet18 --posterior noisy-kfac -p samples=1 --device cuda
    explore classify --images photos --size 64 --net resnet18 -p net.width=32
    explore classify --resume runs/classify-mnist-lenet5-vogn
    """  # noqa: D301
    options.run(values)
