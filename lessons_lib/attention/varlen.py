"""Lesson 04: attention over a packed row by the lengths of its sequences, without a mask over the whole row."""

import torch


def varlen_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, query_lens: list[int], seq_lens: list[int]
) -> torch.Tensor:
    """Causal attention of sequences of different lengths; no score across sequences is computed.

    FlashAttention's `flash_attn_varlen_func` takes the same as [tokens, heads, head_dim], cumulative lengths
    (`cu_seqlens_q`, `cu_seqlens_k`) and the largest of each.

    Args:
        q: [heads, sum of query_lens, head_dim], sequence by sequence.
        k, v: [heads, sum of seq_lens, head_dim], sequence by sequence.
        query_lens: number of queries of each sequence, those of its last tokens; may be 0.
        seq_lens: number of tokens of each sequence, at least its queries.

    Returns:
        tensor [heads, sum of query_lens, head_dim], in the dtype of q.
    """
    outputs = [torch.empty_like(q[:, :0])]  # for a row without sequences
    parts = (torch.split(x, lengths, dim=1) for x, lengths in ((q, query_lens), (k, seq_lens), (v, seq_lens)))
    for query_len, seq_len, own_q, own_k, own_v in zip(query_lens, seq_lens, *parts):
        position = torch.arange(seq_len - query_len, seq_len, device=q.device)[:, None]
        is_later = torch.arange(seq_len, device=q.device) > position
        scores = own_q @ own_k.mT / q.shape[-1] ** 0.5
        outputs.append(scores.masked_fill(is_later, float("-inf")).softmax(dim=-1) @ own_v)
    return torch.cat(outputs, dim=1)
