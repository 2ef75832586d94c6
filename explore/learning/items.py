"""Pools that are not arrays: a Dataset, read item by item, and features that a frozen network computes once."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, default_collate

from explore.core.errors import InputError, raised

AT_ONCE = 256  # items read at a time
LABELS = ("labels", "label")  # names of targets in a dict


class Items:
    """The inputs of a Dataset with a length, read when they are needed; indexed like a tensor [P, ...].

    Items are inputs, or pairs of an input and a label, which is ignored; an input is a tensor or a dict of tensors,
    whose `labels` are ignored, too.
    """

    device = torch.device("cpu")

    def __init__(self, data: Dataset[Any], packed: Callable[[Any], Tensor]):
        self._data, self._packed = data, packed
        try:
            count = len(data)  # type: ignore[arg-type]
        except TypeError:
            raise InputError(f"a {type(data).__name__} has no length; pass a Dataset with items by index") from None
        one = self._read([0]) if count else torch.empty(0)
        self.shape, self.dtype = torch.Size([count, *one.shape[1:]]), one.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def dim(self) -> int:
        return len(self.shape)

    def __getitem__(self, points: slice | Tensor) -> Tensor:
        """Return the inputs of `points`, [*n, ...]."""
        if isinstance(points, slice):
            return self._read(range(len(self))[points])
        return self._read(points.flatten().tolist()).unflatten(0, points.shape)

    def split(self, _: int) -> Iterator[Tensor]:
        """Yield all inputs in parts, of a size that bounds the memory."""
        return (self[i : i + AT_ONCE] for i in range(0, len(self), AT_ONCE))

    def _read(self, indices: Sequence[int]) -> Tensor:
        if not indices:
            return torch.empty(0, *self.shape[1:], dtype=self.dtype)
        return self._packed(_inputs([self._data[i] for i in indices]))


def features(
    module: nn.Module, data: Any, *, batch_size: int = AT_ONCE, device: str | torch.device = "cpu"
) -> Float[Tensor, "P D"]:
    """Return what a module computes from each input, as rows: a pool for a network that goes on from there.

    Args:
        module: a frozen backbone, which is run once, in evaluation mode.
        data: [P, ...] inputs, a dict of tensors (keywords of the module), or a Dataset as for `ActiveLearner`.
        batch_size: inputs at a time.
        device: device to compute on.
    """
    training, rows = module.training, []
    module.eval().to(device)
    with torch.no_grad():
        for batch in _batches(data, batch_size):
            named = isinstance(batch, Mapping)
            out = module(**{k: t.to(device) for k, t in batch.items()}) if named else module(batch.to(device))
            rows.append(out.flatten(1).cpu())
    module.train(training)
    return torch.cat(rows)


def _batches(data: Any, size: int) -> Iterable[Any]:
    if isinstance(data, Dataset):
        return DataLoader(data, size, collate_fn=_inputs)
    if not isinstance(data, Mapping):
        return torch.as_tensor(data).split(size)
    parts = [[(key, part) for part in torch.as_tensor(value).split(size)] for key, value in unlabelled(data).items()]
    return map(dict, zip(*parts, strict=True))


def _inputs(items: Sequence[Any]) -> Any:
    """Return the inputs of items as one batch."""
    if parts := [len(item) for item in items if isinstance(item, tuple | list) and len(item) > 2]:
        raise InputError(f"an item has {parts[0]} parts; it must be an input or a pair of input and label. Use dicts")
    try:
        batch = default_collate([item[0] if isinstance(item, tuple | list) else item for item in items])
    except (RuntimeError, TypeError) as error:
        raise InputError(f"items must be tensors of one shape ({raised(error)}); pad them") from error
    return unlabelled(batch) if isinstance(batch, Mapping) else batch


def unlabelled(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs in a dict."""
    return {name: value for name, value in batch.items() if name not in LABELS}
