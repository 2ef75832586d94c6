"""Presets that posteriors by natural gradient share."""

TABLE: dict[str, object] = {
    "epochs": 120, "batch_size": 64, "min_batches": 16, "samples": 2, "lr": 1.0, "lr_schedule": "linear",
    "lr_decay": 0.0, "lr_decay_at": 0.7, "beta": 0.1, "statistics_interval": 5, "factor_interval": 5,
    "adaptive_damping": False, "trust_region": 0.25, "warm_start": 0.5, "prior_variance": 2.0,
}  # fmt: skip
"""The preset `default` of posteriors with Kronecker factors, for a table of one's own, from some hundred rows on.

First at the mean, then at samples, in steps that stay within a fraction of the posterior's own deviation. Chosen for
noisy K-FAC on validation parts of splits that no table reports: experiments/table_defaults. A prior twice as wide as
the papers' predicts as well, and is less sure where there are no data. With most of the training at the mean it is a
little ahead on tables of little noise, and far behind on small ones of much.
"""

HUNDREDS = TABLE | {"prior_variance": 0.3}
"""The same for some 60 to 250 rows, preset `hundreds`: under a wide prior so few are given up as noise."""

CLASSES = TABLE | {"lr_decay_at": 0.8, "warm_start": 0.7, "prior_variance": 1.0}
"""The same for classes, preset `classes`: ahead in the mean over eleven validation sets, and less sure of errors."""

IMAGE: dict[str, object] = {
    "epochs": 150, "batch_size": 128, "samples": 1, "lr": 0.3, "lr_schedule": "linear", "lr_decay": 0.0,
    "lr_decay_at": 0.0, "beta": 0.2, "statistics_interval": 5, "adaptive_damping": False,
    "extrinsic_damping": 0.03, "kl_clip": 0.01, "prior_variance": 0.0025, "kl_weight": 0.1, "weight_sharing": "expand",
}  # fmt: skip
"""The preset `image` of posteriors with Kronecker factors, for image networks, from one epoch on.

Averages forget their start, the identity, within some hundred steps: next to gradients as small as those of the later
layers' outputs it stands in the Fisher matrix's place for thousands of steps with the paper's rate (`paper-image`).
Steps and noise are smaller than there. Chosen on validation parts of MNIST (LeNet-5) and of 5,000 images of CIFAR-10
(LeNet-5, VGG16s of quarter and half width). The noise that is best depends on the net: under a prior twice as wide the
VGG16s are a little better, and the LeNet-5 is far too sure, which with twice the KL weight, too, is better calibrated.
So narrow a prior keeps the noise small where the likelihood says nothing.
"""
