"""Networks with attention, gates and recurrence that people use, written by hand and small."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Self-attention by hand, with one joint projection; causal if it has a mask."""

    def __init__(self, size: int, heads: int, context: int = 0) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(size, 3 * size), nn.Linear(size, size)
        if context:
            self.register_buffer("mask", torch.tril(torch.ones(context, context)).view(1, 1, context, context))
        self.causal = context > 0

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.qkv(x).split(C, dim=2)
        k = k.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        q = q.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        if self.causal:
            att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    """A transformer block that normalises first."""

    def __init__(self, size: int, attention: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.ln1, self.ln2, self.attention = nn.LayerNorm(size), nn.LayerNorm(size), attention
        self.mlp = nn.Sequential(nn.Linear(size, 4 * size), activation, nn.Linear(4 * size, size))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    """Tokens in, logits out; the table of tokens is also the last layer."""

    def __init__(
        self, vocabulary: int = 11, context: int = 9, size: int = 8, heads: int = 2, tied: bool = True
    ) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, size), nn.Embedding(context, size)
        self.blocks = nn.ModuleList(Block(size, Attention(size, heads, context), nn.GELU()) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, vocabulary, bias=False)
        if tied:
            self.head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        _, t = tokens.size()
        x = self.wte(tokens) + self.wpe(torch.arange(0, t, dtype=torch.long, device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class PatchAttention(nn.Module):
    """As in ViTs: queries, keys and values by a view, attention by torch."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(B, N, C))


class ViT(nn.Module):
    def __init__(self, size: int = 8, heads: int = 2, patches: int = 9) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, size, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, size))
        self.positions = nn.Parameter(torch.randn(1, patches + 1, size))
        self.blocks = nn.Sequential(*(Block(size, PatchAttention(size, heads), nn.GELU()) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


class Encoder(nn.Module):
    """Vectors of a sequence through torch's own encoder, then the mean."""

    def __init__(self, *, norm_first: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first, activation="relu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.encoder(self.embed(x)).mean(dim=1))


class SelfAttention(nn.Module):
    """torch's multi-head attention on a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Linear(3, 8), nn.Linear(8, 2)
        self.attention = nn.MultiheadAttention(8, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        y, _ = self.attention(x, x, x, need_weights=False)
        return self.out(x + y)


class Gated(nn.Module):
    """A gated linear unit (one matrix, two halves) after RMSNorm, as in recent language models."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.out = nn.Linear(4, 6), nn.RMSNorm(6, eps=1e-6), nn.Linear(6, 2)
        self.up, self.down = nn.Linear(6, 20), nn.Linear(10, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        a, b = self.up(self.norm(x)).chunk(2, dim=-1)
        return self.out(x + self.down(F.silu(a) * b))


class Recurrent(nn.Module):
    """One layer used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.step, self.out = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for _ in range(3):
            x = torch.tanh(self.step(x))
        return self.out(x)
