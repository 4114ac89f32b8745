"""Modules without wrappers and parametrisations: weights as they are in the end."""

from __future__ import annotations

import copy

from torch import Tensor, nn
from torch.nn.utils import parametrize, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.prune import BasePruningMethod, is_pruned, remove
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

_HOOKS = (SpectralNorm, WeightNorm, BasePruningMethod)


def unwrapped_module(module: nn.Module) -> nn.Module:
    """The module inside `nn.DataParallel`, `DistributedDataParallel` or what `torch.compile` returns."""
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
    """A module without wrappers, and its computed weights as ordinary parameters (in a copy)."""
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
            elif isinstance(hook, BasePruningMethod) and is_pruned(m):
                remove(m, hook._tensor_name)
    return module.train(training)


def copied(module: nn.Module) -> nn.Module:
    """A copy; weights that a hook computed belong to a graph of gradients, which cannot be copied with them."""
    computed = [t for m in module.modules() for t in m.__dict__.values() if isinstance(t, Tensor) and not t.is_leaf]
    return copy.deepcopy(module, {id(t): t.detach().clone() for t in computed})


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
