"""Image networks from the papers or from users: torch modules for `Net`.

Images are [B, in_channels, size, size], outputs [B, classes]. Networks add by `x + y`, not `x += y`, because `Net`
keeps the inputs of layers.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn

from explore import registry
from explore.core.errors import InputError, check_settings, listed, one_of, raised, shown
from explore.core.rng import forked
from explore.nets import fates
from explore.nets.likelihoods import Categorical, check_logits
from explore.nets.net import Net, mlp
from explore.runs.recorded import Values

KEPT = 8  # outputs that identify a network
CLOSE = 1e-3, 1e-4  # relative and absolute tolerance for rounding differences between processors


def lenet5(in_channels: int = 3, classes: int = 10, size: int = 32) -> nn.Module:
    """Build LeNet-5 (LeCun et al., 1998) with ReLUs and max-pooling, as in VOGN's paper; 28 pixels are padded to 32."""
    if size not in (28, 32):
        raise InputError(f"LeNet-5 takes images of 28 or 32 pixels a side, not {size}; use --size 32 or --net mlp")
    return nn.Sequential(
        nn.Conv2d(in_channels, 6, 5, padding=(32 - size) // 2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), *mlp(400, [120, 84], classes).children(),
    )  # fmt: skip


def alexnet(in_channels: int = 3, classes: int = 10, size: int = 32) -> nn.Module:
    """Build AlexNet (Krizhevsky et al., 2012) reduced for CIFAR-10, as in VOGN's paper: with a single dense layer."""
    side = ((size - 1) // 4 + 1) // 8  # a stride of 4, and three poolings
    if side < 1:
        raise InputError(f"AlexNet takes images of at least 29 pixels a side, not {size}")
    first = nn.Conv2d(in_channels, 64, 11, stride=4, padding=5)
    return _alexnet(first, nn.Conv2d(64, 192, 5, padding=2), side, [], classes)


def alexnet_dense(in_channels: int = 3, classes: int = 10, size: int = 32) -> nn.Module:
    """Build AlexNet reduced for CIFAR-10, with its three dense layers, as in WHVI's paper: 23,272,266 weights."""
    side = (size + 1) // 2 // 8  # a stride of 2, and three poolings
    if side < 1:
        raise InputError(f"AlexNet with dense layers takes images of at least 15 pixels a side, not {size}")
    first = nn.Conv2d(in_channels, 64, 3, stride=2, padding=1)
    return _alexnet(first, nn.Conv2d(64, 192, 3, padding=1), side, [4096, 4096], classes)


def _alexnet(first: nn.Conv2d, second: nn.Conv2d, side: int, hidden: list[int], classes: int) -> nn.Module:
    """Build AlexNet from its first two convolutions, the final feature map's `side` in pixels, and its dense layers."""
    return nn.Sequential(
        first, nn.ReLU(), nn.MaxPool2d(2),
        second, nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), *mlp(256 * side**2, hidden, classes).children(),
    )  # fmt: skip


def vgg16(
    in_channels: int = 3,
    classes: int = 10,
    size: int = 32,
    batch_norm: bool = False,
    widths: tuple[int, ...] = (32, 64, 128, 256, 256),
) -> nn.Module:
    """Build VGG16 (Simonyan and Zisserman, 2015) as in the noisy K-FAC papers: half as wide, with one dense layer."""
    if size < 32:
        raise InputError(f"VGG16 takes images of at least 32 pixels a side, not {size}")
    layers: list[nn.Module] = []
    channels = in_channels
    for width, depth in zip(widths, (2, 2, 3, 3, 3), strict=True):
        for _ in range(depth):
            layers.append(nn.Conv2d(channels, width, 3, padding=1))
            layers += [nn.BatchNorm2d(width), nn.ReLU()] if batch_norm else [nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * (size // 32) ** 2, classes))


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    """Return a convolution without bias, padded to keep the size, and its BatchNorm layer."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return convolution, nn.BatchNorm2d(outputs)


class _Block(nn.Module):
    """A residual block: two convolutions, or a bottleneck of three."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool):
        super().__init__()
        outputs = 4 * width if bottleneck else width
        if bottleneck:
            first, middle = _convolution(inputs, width, 1), _convolution(width, width, 3, stride)
            layers = [*first, nn.ReLU(), *middle, nn.ReLU(), *_convolution(width, outputs, 1)]
        else:
            layers = [*_convolution(inputs, width, 3, stride), nn.ReLU(), *_convolution(width, width, 3)]
        self.residual, self.shortcut = nn.Sequential(*layers), nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(*_convolution(inputs, outputs, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return (self.shortcut(x) + self.residual(x)).relu()


def resnet18(in_channels: int = 3, classes: int = 10, stem: str = "cifar", width: int = 64) -> nn.Module:
    """Build ResNet-18 (He et al., 2016) for images of any size.

    The stem "cifar" is a 3 x 3 convolution; "imagenet", as in VOGN's paper, is a 7 x 7 convolution and max-pooling,
    which reduce the resolution by a factor of 4.
    """
    return _resnet(in_channels, classes, stem, width, (2, 2, 2, 2), bottleneck=False)


def resnet50(in_channels: int = 3, classes: int = 10, stem: str = "cifar", width: int = 64) -> nn.Module:
    """Build ResNet-50 (He et al., 2016), with strides in the 3 x 3 convolutions; see `resnet18` for the arguments."""
    return _resnet(in_channels, classes, stem, width, (3, 4, 6, 3), bottleneck=True)


def _resnet(
    in_channels: int, classes: int, stem: str, width: int, depths: tuple[int, ...], bottleneck: bool
) -> nn.Module:
    if stem not in ("cifar", "imagenet"):
        raise one_of("stem", stem, ("cifar", "imagenet"))
    first = _convolution(in_channels, width, 3) if stem == "cifar" else _convolution(in_channels, width, 7, 2)
    pool = [nn.MaxPool2d(3, 2, padding=1)] if stem == "imagenet" else []
    blocks: list[nn.Module] = []
    channels = width
    for stage, depth in enumerate(depths):
        for i in range(depth):
            blocks.append(_Block(channels, width << stage, 2 if stage and not i else 1, bottleneck))
            channels = (4 * width if bottleneck else width) << stage
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    return nn.Sequential(*first, nn.ReLU(), *pool, *blocks, *end)


def dense(in_channels: int, classes: int, size: int, hidden: tuple[int, ...] = (400, 400)) -> nn.Module:
    """Build a ReLU MLP on the pixels; by default with two hidden layers of 400 units, as in SLANG's paper for MNIST."""
    return nn.Sequential(nn.Flatten(), mlp(in_channels * size**2, hidden, classes))


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "mlp": dense, "lenet5": lenet5, "alexnet": alexnet, "alexnet-dense": alexnet_dense, "vgg16": vgg16,
    "resnet18": resnet18, "resnet50": resnet50,
}  # fmt: skip
FIXED = ("in_channels", "classes", "size")  # determined by the data set
STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def network(name: str) -> Callable[..., nn.Module]:
    """Return the function that builds a network, given the network's name or "module:function"."""
    if ":" in name:
        function: Callable[..., nn.Module] = registry.load(name, "network")
        try:
            inspect.signature(function)
        except ValueError as error:  # for functions that are not written in Python
            raise InputError(f"{name} cannot be called; it must be a function of {listed(FIXED)}") from error
        return function
    if name not in NETWORKS:
        raise one_of("network", name, NETWORKS)
    return NETWORKS[name]


def settings_of(build: Callable[..., nn.Module]) -> dict[str, Any]:
    """Return name -> type (annotated, or of the default) of all arguments that can be set by strings."""
    try:
        hints = get_type_hints(build)
    except (NameError, TypeError):  # types imported only for type checking, or not a function
        hints = {}
    types = {name: hints.get(name, _type(default)) for name, default in arguments(build).items()}
    return {name: hint for name, hint in types.items() if registry.is_setting(hint)}


def arguments(build: Callable[..., nn.Module]) -> dict[str, Any]:
    """Return name -> default of the arguments not in `FIXED` (`inspect.Parameter.empty`: no default)."""
    parameters = inspect.signature(build).parameters.values()
    return {p.name: p.default for p in parameters if p.kind not in STARRED and p.name not in FIXED}


def _type(default: Any) -> Any:
    kinds = {type(value) for value in default} if isinstance(default, tuple) else set()
    return tuple[kinds.pop(), ...] if len(kinds) == 1 else type(default)  # type: ignore[misc]


def build(name: str, shape: tuple[int, int, int], classes: int, settings: Mapping[str, Any]) -> nn.Module:
    """Build the network `name` for images of `shape` (channels, height, width), with these settings."""
    channels, height, width = shape
    make = network(name)
    parameters = inspect.signature(make).parameters
    if height != width and "size" in parameters:
        raise InputError(f"images are {height} x {width} pixels, but {name} needs square ones; use --net resnet18")
    fixed = zip(FIXED, (channels, classes, height), strict=True)
    values = {key: value for key, value in fixed if key in parameters} | dict(settings)
    bare = {key for key, p in parameters.items() if p.default is p.empty and p.kind not in STARRED}
    if missing := [key for key in parameters if key in bare and key not in values]:
        raise InputError(f"{name} is called with in_channels, classes and size; give {listed(missing)} a default")
    try:
        module = make(**values)
    except InputError:
        raise
    except Exception as error:
        arguments = listed(f"{key}={shown(value)}" for key, value in values.items())
        raise InputError(f"{name} cannot be called with {arguments}: {raised(error)}") from error
    if not isinstance(module, nn.Module):
        raise InputError(f"{name} returned a {type(module).__name__}; it must return a torch.nn.Module")
    return module


def settings(name: str, texts: Mapping[str, str]) -> Values:
    """Parse the settings of a network; `texts` maps KEY to VALUE for each option `-p net.KEY=VALUE`."""
    make = network(name)
    if not texts:
        return {}
    allowed = settings_of(make)
    for key in texts:
        if key not in allowed and key in arguments(make):
            options = "int, float, bool, str, or a tuple or choice of these"
            raise InputError(f"{key} of {name} cannot be set; annotate it as {options}")
    return registry.parse(allowed, texts)


def outputs(name: str, shape: tuple[int, int, int], wanted: int, settings: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the outputs for fixed weights and images, to identify a user's network; () for built-in networks."""
    check_settings(name, settings_of(network(name)), settings)
    if ":" not in name:
        return ()
    networks = [build(name, shape, wanted, settings) for _ in range(2)]
    first, again = (_outputs(name, module, shape) for module in networks)
    if first.shape != (2, wanted):
        raise InputError(f"{name} returns {list(first.shape)} for two images; expected logits of shape [2, {wanted}]")
    check_logits(Categorical(), first[None, None])
    if not torch.allclose(first, again, *CLOSE):
        advice = "draw random constants from a torch.Generator with a fixed seed"
        raise InputError(f"{name} is not deterministic: built twice, its outputs differ for equal weights; {advice}")
    Net(networks[0]).check(torch.randn(1, 2, *shape, generator=torch.Generator().manual_seed(0)))
    return tuple(first.flatten()[:KEPT].tolist())


def check_known(name: str, now: Sequence[float], recorded: Sequence[float] | None) -> None:
    """Raise InputError if a network's `outputs` differ from the `recorded` ones of a run."""
    if recorded is None:
        return
    if len(now) != len(recorded) or not torch.allclose(torch.tensor(now), torch.tensor(recorded), *CLOSE):
        raise InputError(f"{name} builds another network than when the run started; restore the function to continue")


def _outputs(name: str, module: nn.Module, shape: tuple[int, int, int]) -> Tensor:
    fates.check(module)  # reject unsupported layers before running them
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=rng) / (p[:1].numel() if p.dim() else 1) ** 0.5)
        images = torch.randn(2, *shape, generator=rng)
        try:
            with forked(0, images.device):  # for dropout
                module.train()(images)  # changes running statistics, and so reveals their momentum
            result = module.eval()(images)
        except Exception as error:
            shown = ", ".join(map(str, shape))
            raise InputError(f"{name} fails on images of shape [N, {shown}]: {raised(error)}") from error
    if not isinstance(result, Tensor):
        raise InputError(f"{name} returns a {type(result).__name__}; it must return one tensor of logits")
    return result
