"""Plain attributes of a module that change in training: running lists, counters, best values.

A list that `training_step` appends to and `on_train_epoch_end` averages is common, and no
checkpoint of Lightning holds it: after a restart in the middle of an epoch the average would
be of the rest alone; one made in `on_train_epoch_start` would not be there at all. So plain
values (numbers, strings, tensors, lists and dicts of them) are carried, but only those that
changed since training began: what the script or `setup` computes is computed again.
"""

from __future__ import annotations

from typing import Any

import torch

LIMIT_BYTES = 64 * 2**20
"""More than that is no running value; such an attribute is not carried."""
_COMPARED = 1000
_SCALARS = (bool, int, float, str, type(None))


def fingerprints(module: Any) -> dict[str, Any]:
    """What tells later whether an attribute has changed; cheap, whatever its size."""
    return {name: _fingerprint(value) for name, value in _candidates(module)}


def changed(module: Any, since: dict[str, Any]) -> dict[str, Any]:
    """Copies, on the CPU, of the plain attributes that differ from `fingerprints` taken earlier."""
    return {
        name: _copy(value, "cpu")
        for name, value in _candidates(module)
        if (name not in since or since[name] != _fingerprint(value)) and _size(value) <= LIMIT_BYTES
    }


def put_back(module: Any, values: dict[str, Any]) -> None:
    """Set attributes to what `changed` returned, tensors on the module's device."""
    for name, value in values.items():
        setattr(module, name, _copy(value, module.device))


def _candidates(module: Any) -> list[tuple[str, Any]]:
    return [
        (name, value)
        for name, value in vars(module).items()
        if not name.startswith("_") and name != "training" and _is_plain(value)
    ]


def _is_plain(value: Any, depth: int = 0) -> bool:
    if type(value) in _SCALARS or type(value) is torch.Tensor:
        return True
    if depth > 3:
        return False
    if type(value) in (list, tuple):
        return all(_is_plain(item, depth + 1) for item in value)
    if type(value) is dict:
        return all(type(key) in _SCALARS and _is_plain(item, depth + 1) for key, item in value.items())
    return False


def _fingerprint(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return id(value), value._version, tuple(value.shape)
    if isinstance(value, dict):
        items = list(value.items())[:_COMPARED]
        return "dict", tuple((key, _fingerprint(item)) for key, item in items), len(value)
    if isinstance(value, list | tuple):
        return "list", tuple(map(_fingerprint, value[:_COMPARED])), len(value)
    return type(value).__name__, value


def _size(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return int(value.numel() * value.element_size())
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    return 64


def _copy(value: Any, device: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to(device, copy=True)
    if isinstance(value, dict):
        return {key: _copy(item, device) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copy(item, device) for item in value)
    return value
