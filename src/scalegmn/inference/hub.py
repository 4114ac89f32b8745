"""Trained models on the Hugging Face hub, through huggingface_hub's own mixin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import ScaleGMNError
from .places import CONFIG, WEIGHTS
from .trained import Trained, load

try:
    from huggingface_hub import ModelHubMixin, hf_hub_download
except ImportError:
    raise ScaleGMNError("hub: huggingface_hub is not installed; pip install 'scalegmn[hub]'") from None


class HubModel(ModelHubMixin, library_name="scalegmn", tags=["metanetwork", "weight-space"]):
    """A trained model as huggingface_hub sees it.

    Arguments:
        trained: The model.
    """

    def __init__(self, trained: Trained) -> None:
        self.trained = trained

    def _save_pretrained(self, save_directory: Path) -> None:
        self.trained.save(save_directory)

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **options: Any) -> HubModel:
        if Path(model_id).is_dir():
            return cls(load(model_id))
        names = ("revision", "cache_dir", "force_download", "local_files_only", "token")
        known = {name: options[name] for name in names}
        files = [hf_hub_download(model_id, file, **known) for file in (CONFIG, WEIGHTS)]
        return cls(load(Path(files[0]).parent))
