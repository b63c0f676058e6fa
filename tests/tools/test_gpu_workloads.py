"""The table of workloads for a GPU: what is asked for, its limit, and a run of each kind in small on the CPU."""

import json

import pytest

from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.tiny_models import tiny_model
from tools.gpu_bench import workloads
from tools.gpu_bench.models import SHAPES
from tools.gpu_bench.workloads import (
    ABLATIONS,
    LOADS,
    WORKLOADS,
    Request,
    limit_of_memory,
    num_blocks_for,
    read_in_a_step,
)


def test_the_requests_are_those_that_the_names_say():
    assert len({each.name for each in WORKLOADS}) == len(WORKLOADS) == len(SHAPES) * len(LOADS) + len(ABLATIONS)
    made = {each.name: each.requests() for each in {each.make: each for each in LOADS}.values()}
    for each in LOADS:
        if each.name in made:
            assert max(len(one.prompt) + one.answer for one in made[each.name]) <= each.max_model_len
    nano, churn = made["nano-vllm, 5 log-probabilities"], made["churn, 1,024 × 10–200 + 10–200"]
    assert len(nano) == 256 and {len(one.prompt) for one in nano} < set(range(100, 1025))
    assert len(churn) == 1024 and {one.answer for one in churn} == set(range(10, 201))
    behind = made["256 behind the same 2,000 tokens, + 64"]
    assert len(behind) == 256 and len({tuple(one.prompt[:2000]) for one in behind}) == 1
    assert len({tuple(one.prompt) for one in behind}) == 256 and {one.answer for one in behind} == {64}


def test_the_limit_counts_what_each_step_reads():
    requests = [Request([1] * 5, 3), Request([2] * 9, 1)]
    read = 0
    for step in range(3):  # both decode together
        read += 1000 + sum(7 * (len(each.prompt) + step) for each in requests if step < each.answer)
    assert limit_of_memory(requests, weights=1000, per_token=7, bytes_per_s=10) == pytest.approx(4 * 10 / read)


def test_tied_weights_are_read_and_an_embedding_is_not():
    model = tiny_model("llama")
    weights = sum(each.numel() for each in model.parameters())
    tied = model.config.tie_word_embeddings
    assert read_in_a_step(model)[0] == 4 * (weights - (0 if tied else model.get_input_embeddings().weight.numel()))
    assert read_in_a_step(model)[1] == 4 * 2 * 2 * 2 * 8  # keys and values, layers, heads, head size


def test_nothing_is_preempted():
    requests = [Request([1] * 30, 3)] * 300
    assert num_blocks_for(requests) >= 256 * 3


def test_a_row_is_printed_and_recorded_as_soon_as_it_is_there(tmp_path, capsys):
    file = tmp_path / "results.json"
    for only in ("one request", "documents"):  # the second command keeps the row of the first
        workloads.main(["--small", "--rounds", "2", "--shapes", "Llama-3.2", "--only", only, "--record", str(file)])
    found = json.loads(file.read_text(encoding="utf-8"))["workloads"]
    assert [each["counts"] for each in found] == ["all", "output"]
    assert all(each["best"] >= each["median"] > 0 and len(each["seconds"]) == 2 for each in found)
    assert all(each["mean_ttft_s"][0] > each["mean_itl_s"][0] > 0 and each["vllm"] is None for each in found)
    assert found[0]["limit"] is None and found[1]["limit"] > 0 and found[1]["output_tokens"] == 16
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" 64")[0].split(" one")[0] for line in lines if "+" in line] == ["Llama-3.2-1B:"] * 2


def test_requests_arrive_over_time():
    first, *_, last = arriving = workload("Qwen3-8B: 100 arrivals a second").arrivals([Request([1], 2)] * 512)
    times = [moment for moment, *_ in arriving]
    assert times == sorted(times) and first[0] > 0 and 4 < last[0] < 6
    assert {moment for moment, *_ in workload("Qwen3-8B: churn").arrivals([Request([1], 2)] * 3)} == {0}


def workload(beginning):
    return next(each for each in WORKLOADS if each.name.startswith(beginning))


def test_each_request_gets_its_rules():
    requests = [Request([1], 9)] * 20
    half, penalty, ends, mixed = (
        [options for *_, options in workload(f"Qwen3-8B: nano-vllm, {name}").arrivals(requests)]
        for name in ("half", "repetition", "min_tokens", "each request")
    )
    assert [each["temperature"] for each in half] == [0, 1] * 10
    assert half == [{k: v for k, v in each.items() if k != "repetition_penalty"} for each in penalty]
    assert all(each["min_tokens"] == each["max_tokens"] == 9 for each in ends)
    assert len({tuple(each) for each in mixed}) == 5
    for options in (*half, *penalty, *ends, *mixed):
        assert options["ignore_eos"] and SamplingParams(**options)
    assert [each["seed"] for each in mixed] == [*range(20)]


STAND_IN = """
import json
from pathlib import Path
from types import SimpleNamespace as Some

__version__, sampling_params = "0.0", Some(RequestOutputKind=Some(DELTA="delta"))
SamplingParams = dict


class LLM:
    def __init__(self, model, **options):
        files = sorted(file.name for file in Path(model).iterdir())
        self.calls, self.running, self.llm_engine = [options, files], {}, self

    def reset_prefix_cache(self):
        self.calls.append("reset")

    def add_request(self, name, prompt, params):
        self.calls.append([prompt, params])
        self.running[name] = params["max_tokens"]

    def has_unfinished_requests(self):
        Path(__file__).with_name("calls.json").write_text(json.dumps(self.calls))
        return bool(self.running)

    def step(self):
        outputs = [Some(request_id=name, outputs=[Some(token_ids=[5])]) for name in self.running]
        self.running = {name: left - 1 for name, left in self.running.items() if left > 1}
        return outputs
"""


def test_vllm_serves_the_same_requests_in_turns(tmp_path, monkeypatch, capsys):
    (tmp_path / "vllm.py").write_text(STAND_IN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)  # the other process gets it, too
    load = workload("Qwen3-8B: eight requests, 100–1,000 + 512, repetition")
    file = tmp_path / "results.json"
    workloads.main(["--small", "--rounds", "2", "--only", load.name, "--record", str(file)])
    options, files, *calls = json.loads((tmp_path / "calls.json").read_text())
    [row] = json.loads(file.read_text(encoding="utf-8"))["workloads"]
    assert options.pop("gpu_memory_utilization") == 1
    assert options == dict(
        skip_tokenizer_init=True, enable_prefix_caching=True, max_num_seqs=256, max_num_batched_tokens=16384,
        block_size=16, max_model_len=10240, num_gpu_blocks_override=num_blocks_for(load.requests(32)),
    )  # fmt: skip
    assert {"config.json", "model.safetensors"} <= {*files}
    runs = "".join("-" if call == "reset" else "r" for call in calls)
    assert runs == ("-" + 8 * "r") * 3  # one that compiles, and two rounds
    for (prompt, params), (_, ids, wanted) in zip(calls[-8:], load.arrivals(load.requests(32))):
        assert prompt == {"type": "token", "prompt_token_ids": ids}
        assert params == wanted | dict(seed=None, detokenize=False, output_kind="delta")
    assert row["vllm"]["version"] == "0.0" and len(row["vllm"]["seconds"]) == 2
    assert all(
        first > 0 and between > 0 for first, between in zip(row["vllm"]["mean_ttft_s"], row["vllm"]["mean_itl_s"])
    )
    assert f"/ {row['vllm']['best']:8,.0f} = {row['best'] / row['vllm']['best']:.2f}" in capsys.readouterr().out


def test_an_unknown_workload_is_refused():
    with pytest.raises(SystemExit, match="No workload matches"):
        workloads.main(["--small", "--only", "nothing"])
