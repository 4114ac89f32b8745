"""Modules without wrappers and parametrisations, with plain weights."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.prune import BasePruningMethod, is_pruned, remove
from torch.nn.utils.spectral_norm import SpectralNorm, SpectralNormLoadStateDictPreHook
from torch.nn.utils.weight_norm import WeightNorm

_HOOKS = (SpectralNorm, WeightNorm, BasePruningMethod)


def unwrapped_module(module: nn.Module) -> nn.Module:
    """The module inside `nn.DataParallel`, `DistributedDataParallel` or the result of `torch.compile`."""
    while True:
        inner = module._modules.get("_orig_mod")
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = module.module
        if inner is None or inner is module:
            return module
        module = inner


def is_parametrised(module: nn.Module) -> bool:
    """Whether some weights are computed: weight or spectral normalisation, pruning, any parametrisation."""
    return any(
        parametrize.is_parametrized(m) or any(isinstance(h, _HOOKS) for h in m._forward_pre_hooks.values())
        for m in module.modules()
    )


def materialised(module: object) -> nn.Module:
    """A copy of the module without wrappers, with computed weights as ordinary parameters."""
    if not isinstance(module, nn.Module):
        return module  # type: ignore[return-value]  # `check_module` complains
    module = unwrapped_module(module)
    if not is_parametrised(module):
        return module
    training = module.training
    module = copied(module).eval()
    for m in module.modules():
        if parametrize.is_parametrized(m):
            _replace_parametrisations(m)
        for hook in list(m._forward_pre_hooks.values()):
            if isinstance(hook, WeightNorm):
                remove_weight_norm(m, hook.name)
            elif isinstance(hook, SpectralNorm):
                remove_spectral_norm(m, hook.name)
                _forget_spectral_norm(m)
            elif isinstance(hook, BasePruningMethod) and is_pruned(m):
                remove(m, hook._tensor_name)
    return module.train(training)


def _forget_spectral_norm(module: nn.Module) -> None:
    """torch leaves a hook behind that asks state dicts for the tensors it removed."""
    hooks = module._load_state_dict_pre_hooks
    for key in [k for k, h in hooks.items() if isinstance(getattr(h, "hook", None), SpectralNormLoadStateDictPreHook)]:
        del hooks[key]


def computed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict with plain weights in place of the tensors they are computed from, as far as names tell.

    Weight norm, spectral norm (as it is in evaluation) and pruning are known by the names that torch gives them.

    >>> found = computed({"0.weight_g": torch.tensor([[10.0]]), "0.weight_v": torch.tensor([[3.0, 4.0]])})
    >>> [(name, weight.tolist()) for name, weight in found.items()]
    [('0.weight', [[6.0, 8.0]])]
    """
    found: dict[str, Tensor] = {}
    used: set[str] = set()
    for key in state:
        for parts, make in _COMPUTED:
            stem = key.removesuffix(parts[0])
            names = [stem + part for part in parts]
            if stem != key and not used & set(names) and all(name in state for name in names):
                used |= set(names)
                name = stem.replace("parametrizations.", "", 1) if parts[0].startswith(".") else f"{stem}weight"
                found[name] = make(*(state[name] for name in names))
        if key not in used:
            found[key] = state[key]
    return {k: t for k, t in found.items() if k not in used}


def _weight_norm(gain: Tensor, direction: Tensor) -> Tensor:
    summed = [d for d in range(direction.dim()) if gain.dim() == 0 or gain.shape[d] == 1]
    norm = direction.double().square().sum(summed, keepdim=True).sqrt()
    return (gain * (direction / norm)).to(direction.dtype)


def _spectral_norm(weight: Tensor, u: Tensor, v: Tensor) -> Tensor:
    # The matrix has one row per output; where the shape leaves that open, u and v are the vectors of its largest value.
    rows = [d for d in range(min(2, weight.dim())) if weight.shape[d] == len(u) and weight.numel() == len(u) * len(v)]
    values = [torch.dot(u.double(), weight.double().movedim(d, 0).flatten(1) @ v.double()) for d in rows]
    return weight if not values else (weight / max(values, key=lambda s: s.abs())).to(weight.dtype)


_COMPUTED = (
    ((".original0", ".original1"), _weight_norm),
    (("weight_g", "weight_v"), _weight_norm),
    ((".original", ".0._u", ".0._v"), _spectral_norm),
    (("weight_orig", "weight_u", "weight_v"), _spectral_norm),
    (("weight_orig", "weight_mask"), torch.mul),
)


def copied(module: nn.Module) -> nn.Module:
    """A copy; weights that a hook computed belong to a graph of gradients, which cannot be copied with them."""
    made = [t for m in module.modules() for t in m.__dict__.values() if isinstance(t, Tensor) and not t.is_leaf]
    return copy.deepcopy(module, {id(t): t.detach().clone() for t in made})


def _replace_parametrisations(module: nn.Module) -> None:
    """Computed weights as parameters. torch's own function would change the class, which copies share."""
    assert isinstance(module.parametrizations, nn.ModuleDict)
    values = {name: getattr(module, name).detach().clone() for name in module.parametrizations}
    module.__class__ = type(module).__mro__[1]
    del module.parametrizations
    # In the order of the plain module: weights before the bias.
    rest = {name: module._parameters.pop(name) for name in list(module._parameters)}
    for name, value in values.items():
        module.register_parameter(name, nn.Parameter(value))
    for name, parameter in rest.items():
        module.register_parameter(name, parameter)
