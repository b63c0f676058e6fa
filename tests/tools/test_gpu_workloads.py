"""The table of workloads for a GPU: what is asked for, its limit, and a run of each kind in small on the CPU."""

import json

import pytest

from lessons_lib.models.tiny_models import tiny_model
from tools.gpu_bench import workloads
from tools.gpu_bench.workloads import WORKLOADS, Request, limit_of_memory, num_blocks_for, read_in_a_step


def test_the_requests_are_those_that_the_names_say():
    made = {each.name: each.requests() for each in WORKLOADS}
    assert len(made) == len(WORKLOADS)
    for each in WORKLOADS:
        assert max(len(one.prompt) + one.answer for one in made[each.name]) <= each.max_model_len
    nano, churn = made["Qwen2.5-0.5B: nano-vllm, greedy"], made["Qwen2.5-0.5B: churn, 1,024 × 10–200 + 10–200"]
    assert len(nano) == 256 and {len(one.prompt) for one in nano} < set(range(100, 1025))
    assert len(churn) == 1024 and {one.answer for one in churn} == set(range(10, 201))
    behind = made["Qwen2.5-0.5B: 256 behind the same 2,000 tokens, + 64"]
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


def test_a_row_is_printed_and_recorded_as_soon_as_it_is_there(tmp_path, capsys, monkeypatch):
    file = tmp_path / "results.json"
    monkeypatch.setattr(workloads, "RUNS", 1)
    workloads.main(["--small", "--only", "Llama-3.2-1B: one", "documents", "--record", str(file)])
    found = json.loads(file.read_text(encoding="utf-8"))["workloads"]
    assert [each["counts"] for each in found] == ["all", "output"]
    assert all(each["best"] >= each["median"] > 0 for each in found)
    assert all(each["mean_ttft_s"][0] > each["mean_itl_s"][0] > 0 for each in found)
    assert found[0]["limit"] is None and found[1]["limit"] > 0 and found[1]["output_tokens"] == 16
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines if "+" in line] == ["Qwen2.5-0.5B", "Llama-3.2-1B"]


def test_requests_arrive_over_time(capsys, monkeypatch):
    monkeypatch.setattr(workloads, "RUNS", 1)
    assert workloads.arrival_times(None, 3) == [0, 0, 0]
    times = workloads.arrival_times(100, 512)
    assert times == sorted(times) and 4 < times[-1] < 6
    workloads.main(["--small", "--only", "arrivals"])
    assert "100 arrivals a second" in capsys.readouterr().out


def test_an_unknown_workload_is_refused():
    with pytest.raises(SystemExit, match="No workload matches"):
        workloads.main(["--small", "--only", "nothing"])
