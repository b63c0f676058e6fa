"""Random variations of models and engines: `python tests/support/model_variations.py --count 20 --seed 0 [FAMILY ...]`

Each draws some fields of the tiny configuration of a family that is served in a packed batch, and an engine. Every answer
is compared with the one of `generate`. The smallest variation that fails is printed for each family.

A difference counts as rounding only if the same variation, model and engine, has none in float64: two logits, or two
experts of a router, that are so close that float32 swaps them aren't equal there. MODELS.md says which families are packed.
"""

import argparse
import copy
import re
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from served_architectures import BROKEN, PAGED, REFUSED, TABLE, WRONG, Outcome, compare, generate, one_line
from tiny_architectures import CONTEXT, FIRST_WORD, LAYERS, SIZES, tiny_fields, tiny_model

from lessons_lib.engine.cuda_graphs import rerun
from lessons_lib.engine.gpu_model_runner import gpu_model_runner
from lessons_lib.engine.llm_engine import EngineConfig
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.models.configuration import UnsupportedModel, context_length, text_config
from lessons_lib.models.support import check_supported

ROUNDING = "equal in float64"
Fields = dict[str, Any]

NAMES = {names.split()[0]: names for _, names in SIZES}
VALUES: list[tuple[tuple[Any, ...], str]] = [
    ((1, 2, 3, 4, 5, 16, 33, 150), NAMES["sliding_window"]),
    ((32, 48, 160), NAMES["max_position_embeddings"]),
    ((None, 1.0, 5.0, 50.0), "attn_logit_softcapping final_logit_softcapping logits_soft_cap clip_qkv"),
    ((2, 3, 5), "linear_conv_kernel_dim conv_kernel mamba_d_conv conv_L_cache short_conv_kernel_size conv1d_width"),
    ((4, 8, 32), "mamba_d_state state_size ssm_state_size linear_head_dim linear_key_head_dim linear_value_head_dim "
    "mamba_head_dim lru_width mamba_dt_rank time_step_rank shared_expert_intermediate_size"),
    ((1, 2, 4), "linear_num_key_heads mamba_n_groups mamba_ngroups n_groups global_attn_every_n_layers block_size "
    "sliding_window_pattern _sliding_window_pattern attn_layer_period layer_group_size no_rope_layer_interval "
    "decoder_sparse_step expert_layer_period chunk_size mamba_chunk_size cca_time0 cca_time1"),
    ((4, 8), "linear_num_value_heads linear_num_heads mamba_num_heads"),
    ((4, 8, 24, 32), "head_dim"),
    ((0, 1, 2, 3), "num_kv_shared_layers first_k_dense_replace num_dense_layers max_window_layers attn_layer_offset"),
    ((0.125, 1.0, 3.0), "attention_multiplier residual_multiplier embedding_multiplier logits_scaling swiglu_limit "
    "routed_scaling_factor attention_value_scale key_multiplier llama_4_scaling_beta"),
]  # fmt: skip
KINDS = ("layer_types", "layers_block_type", "block_types", "mlp_layer_types", "no_rope_layers")
SOME = ("mlp_only_layers", "attn_layer_indices", "hybrid_layer_ids", "full_attn_idxs")
HEADS = ("num_attention_heads", "num_key_value_heads")
EXPERTS = next(names.split() for _, names in SIZES if "num_experts" in names.split())
TOP_K = [name for size, names in SIZES for name in names.split() if size == 2 and ("expert" in name or "top" in name)]
FIXED = ("use_cache", "is_decoder", "is_encoder_decoder", "return_dict", "add_cross_attention")
BEGINS = 16  # at longer positions, they are other ones
ROPES: dict[str, Fields] = {
    "linear": dict(factor=4.0),
    "dynamic": dict(factor=4.0),
    "yarn": dict(factor=4.0, original_max_position_embeddings=BEGINS),
    "llama3": dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=BEGINS),
    "longrope": dict(factor=4.0, original_max_position_embeddings=BEGINS),
    "proportional": dict(factor=1.0, partial_rotary_factor=1.0),
}


def with_rope(fields: Fields, kind: str, part: float | None = None) -> Fields:
    """The parameters of rotary positions of another kind, of this part of a head. Some models have those of each kind
    of layer."""
    size = fields.get("qk_rope_head_dim") or fields.get("head_dim")
    size = size or fields["hidden_size"] // fields["num_attention_heads"]

    def changed(own: Fields) -> Fields:
        if any(isinstance(each, dict) for each in own.values()):
            return {layers: each and changed(each) for layers, each in own.items()}
        half = int(size * (part or fields.get("partial_rotary_factor") or own.get("partial_rotary_factor", 1))) // 2
        factors = dict(short_factor=[1.0] * half, long_factor=[2.0] * half) if kind == "longrope" else {}
        kept = {name: own[name] for name in ("rope_theta", "partial_rotary_factor") if name in own}
        kept |= dict(partial_rotary_factor=part) if part else {}
        return kept | dict(rope_type=kind) | ROPES.get(kind, {}) | factors

    return changed(fields["rope_parameters"])


def changes_of(fields: Fields) -> dict[str, SearchStrategy[Fields]]:
    """What may change in a configuration: name -> the fields that change together."""
    own: dict[str, SearchStrategy[Any]] = {}
    for values, names in VALUES:
        own |= {name: st.sampled_from(values) for name in names.split() if name in fields}
    for name, value in fields.items():
        if isinstance(value, bool) and name not in FIXED and not name.startswith("output_"):
            own[name] = st.just(not value)
        elif name in KINDS and value and len(value) == LAYERS:
            has_windows = name == "layer_types" and "sliding_window" in fields
            kinds = sorted({*value, *["sliding_attention"] * has_windows})
            own[name] = st.lists(st.sampled_from(kinds), min_size=LAYERS, max_size=LAYERS)
        elif name in SOME and isinstance(value, list):
            own[name] = st.lists(st.integers(0, LAYERS - 1), unique=True).map(sorted)
    if isinstance(fields.get("rope_parameters"), dict):
        parts = [None, 0.25, 0.5] if "partial_rotary_factor" in str(fields) else [None]
        own["rope_parameters"] = st.tuples(st.sampled_from(["default", *ROPES]), st.sampled_from(parts))
    found = {name: st.fixed_dictionaries({name: values}) for name, values in own.items()}
    if fields.keys() >= {*HEADS}:
        is_latent, has_size = "kv_lora_rank" in fields, "head_dim" in fields
        pairs = [(q, kv) for q in (1, 2, 4, 6, 8) for kv in (1, 2, 4, 8) if q % kv == 0 and (has_size or 64 % q == 0)]
        pairs = [pair for pair in pairs if pair[0] == pair[1] or not is_latent]
        found["heads"] = st.sampled_from(pairs).map(lambda pair: dict(zip(HEADS, pair)))
    if "qk_rope_head_dim" in fields:
        found.pop("head_dim", None)
        ranks = st.fixed_dictionaries(dict.fromkeys(("kv_lora_rank", "v_head_dim"), st.sampled_from([4, 8, 16])))
        ranks = st.tuples(ranks, st.sampled_from([4, 8, 16]), st.sampled_from([4, 8]))
        found["latent"] = ranks.map(lambda drawn: drawn[0] | sizes_of_latent_heads(*drawn[1:]))
    experts, top_k = [[name for name in names if fields.get(name)] for names in (EXPERTS, TOP_K)]
    if experts and top_k:
        counts = st.sampled_from([(1, 1), (3, 1), (3, 3), (8, 2)])
        found["experts"] = counts.map(lambda pair: dict.fromkeys(experts, pair[0]) | dict.fromkeys(top_k, pair[1]))
    if "enable_moe_block" in fields:
        sizes = dict(enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=32)
        found["enable_moe_block"] = st.just(sizes)
    if experts and fields.get("n_group"):
        found["n_group"] = st.sampled_from([(2, 1), (2, 2)]).map(lambda pair: dict(n_group=pair[0], topk_group=pair[1]))
    return found


def sizes_of_latent_heads(nope: int, rope: int) -> Fields:
    """Fields that must agree."""
    return dict(qk_nope_head_dim=nope, qk_rope_head_dim=rope, head_dim=rope, qk_head_dim=nope + rope)


@dataclass(frozen=True)
class Variation:
    """A model and an engine.

    Attributes:
        changes: fields of the model's configuration; `rope_parameters` are the arguments of `with_rope`.
        prompts: the tokens of each, how many of them it shares with others, and the tokens of its answer. Those that are
            too long for the context are cut.
        extra_blocks: how many blocks the pool has beyond those that one sequence needs.
        engine: fields of the EngineConfig.
    """

    family: str
    changes: Fields
    prompts: list[tuple[int, int, int]]
    n: int
    extra_blocks: int
    engine: Fields

    def model(self) -> Any:
        """The random model."""
        fields = tiny_fields(self.family)
        own, changes = fields.get("text_config") or fields, dict(self.changes)
        if rope := changes.pop("rope_parameters", None):
            changes["rope_parameters"] = with_rope(own | changes, *rope)
        return tiny_model(self.family, **(dict(text_config=own | changes) if "text_config" in fields else changes))

    def outcome(self, dtype: torch.dtype = torch.float32) -> Outcome:
        """Build, serve and compare."""
        try:
            model = self.model().to(dtype)
            check_supported(model)
            asked, most = self.requests(model), self.engine["max_model_len"]
            # RecurrentGemma's `generate` begins a prompt of one token with what the last answer left in its layers.
            expected = [generate(copy.deepcopy(model), prompt, max_tokens) for prompt, max_tokens in asked]
        except UnsupportedModel as error:
            return Outcome(self.family, REFUSED, one_line(error))
        except Exception as error:  # of transformers
            return Outcome(self.family, BROKEN, one_line(error))
        size = self.engine["block_size"]
        lengths = [len(prompt) + max_tokens for prompt, max_tokens in asked]
        context = context_length(model.config) or CONTEXT
        own = dict(num_blocks=blocks_for(max(*lengths, min(most or 0, context)), size) + self.extra_blocks)
        must_know = "overlap" in self.engine and not context_length(model.config)
        own |= dict(max_model_len=min(most or CONTEXT, context) if most or must_know else None)
        prompts = [prompt for prompt, _ in asked]
        outcome = compare(self.family, model, prompts, expected, EngineConfig(**self.engine | own), self.n)
        if outcome.verdict == WRONG and dtype == torch.float32 and self.outcome(torch.float64).verdict != WRONG:
            return Outcome(self.family, ROUNDING, outcome.reason)
        return outcome

    def requests(self, model: Any) -> list[tuple[list[int], int]]:
        """The prompts, and the number of tokens of their answers."""
        context = min(context_length(model.config) or CONTEXT, self.engine["max_model_len"] or CONTEXT)
        words = torch.Generator().manual_seed(1)
        count = text_config(model.config).vocab_size - FIRST_WORD
        shared, *all_own = FIRST_WORD + torch.randint(count, (1 + len(self.prompts), CONTEXT), generator=words)
        asked = []
        for (length, num_shared, max_tokens), own in zip(self.prompts, all_own):
            length = min(length, context - 1)
            prompt = [*shared[:num_shared].tolist(), *own.tolist()][:length]
            asked.append((prompt, min(max_tokens, context - length)))
        return asked


@st.composite
def variations(draw: Any, families: list[str]) -> Variation:
    """Variations of these families."""
    family = draw(st.sampled_from(families))
    fields = tiny_fields(family)
    possible = changes_of(fields.get("text_config") or fields)
    changes: Fields = {}
    for name in draw(st.lists(st.sampled_from(sorted(possible)), unique=True, max_size=8)) if possible else ():
        changes |= draw(possible[name])
    lengths = st.integers(1, 100) | st.sampled_from([1, 2, CONTEXT])
    prompt = st.tuples(lengths, st.sampled_from([0, 16, 50]), st.integers(1, 8))
    prompts, n = draw(st.lists(prompt, min_size=1, max_size=8)), draw(st.sampled_from([1, 1, 2, 3]))
    max_num_seqs = draw(st.integers(1, 8))
    engine = dict(
        block_size=draw(st.sampled_from([4, 1, 2, 3, 7, 16, 64, 256])),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + 2 + draw(st.integers(0, 60)),
        max_model_len=draw(st.sampled_from([None, BEGINS, 40])),
        num_swap_blocks=draw(st.sampled_from([0, 9])),
        share_prefixes=draw(st.booleans()),
        num_checkpoints=draw(st.sampled_from([None, 0, 1, 3])),
    )
    if draw(st.integers(0, 3)) == 3:
        engine |= dict(overlap=True, make_runner=gpu_model_runner(compiled=False, capture=rerun))
    return Variation(family, changes, prompts, n, draw(st.sampled_from([0, 1, 2, 3, 40])), engine)


def packed_families() -> list[str]:
    """The model types that are served in a packed batch, by MODELS.md."""
    return re.findall(rf"^\| ([\w-]+) \| \w+ \| {PAGED} \|", TABLE.read_text(encoding="utf-8"), re.M)


def check(family: str, count: int, number: int, reasons: Counter[str]) -> Counter[str]:
    """Check random variations of a family; print the smallest one that fails. Returns how often each verdict came."""
    seen: Counter[str] = Counter()
    last: list[Variation] = []

    @seed(number)
    @settings(max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck),
              phases=[Phase.generate, Phase.shrink])  # fmt: skip
    @given(variations([family]))
    def all_equal(variation: Variation) -> None:
        last[:] = [variation]
        outcome = variation.outcome()
        seen[outcome.verdict] += 1
        if outcome.verdict in (BROKEN, REFUSED, ROUNDING):
            reasons[f"{outcome.verdict}: {outcome.reason}"] += 1
        assert outcome.verdict != WRONG, outcome.reason

    try:
        all_equal()
    except Exception as error:
        seen["FAILED"] = 1
        print(f"{family}: {one_line(error)}\n  {last[0]}", flush=True)
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20, help="variations of each family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("families", nargs="*")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # tiny models gain nothing from more
    seen: Counter[str] = Counter()
    for family in options.families or packed_families():
        began, reasons = time.perf_counter(), Counter[str]()
        own = check(family, options.count, options.seed, reasons)
        seen += own
        print(f"{family} {time.perf_counter() - began:.0f} s", dict(own))
        for reason, count in reasons.items():
            print(f"  {count} {reason[:200]}", flush=True)
    print(dict(seen))
    sys.exit(bool(seen["FAILED"]))


if __name__ == "__main__":
    main()
