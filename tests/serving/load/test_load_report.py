"""The report against vLLM's definitions, restated with numpy, and as a table."""

import json
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from load_cases import logs

from lessons_lib.serving.load.goodput import Target, goodput
from lessons_lib.serving.load.records import LoadLog, LoadRecord
from lessons_lib.serving.load.report import as_text, report

TARGET = Target(ttft=1.0, tpot=0.5)


def as_vllm_computes(log, target):
    """`calculate_metrics` of vllm/benchmarks/serve.py (0.33), for what it calls successful outputs."""
    done = [record for record in log.records if record.succeeded]
    ttfts = [record.token_times[0] - record.send_time for record in done]
    latencies = [record.token_times[-1] - record.send_time for record in done]
    tpots, all_tpots = [], []
    for record, ttft, latency in zip(done, ttfts, latencies):
        tpot = (latency - ttft) / (record.output_tokens - 1) if record.output_tokens > 1 else 0.0
        all_tpots.append(tpot)
        if record.output_tokens > 1:
            tpots.append(tpot)
    itls = [gap for record in done for gap in np.diff(record.token_times)]
    good = sum(ttft <= target.ttft and tpot <= target.tpot for ttft, tpot in zip(ttfts, all_tpots))
    total_input, total_output = (sum(getattr(r, name) for r in done) for name in ("prompt_tokens", "output_tokens"))
    result = {
        "completed": len(done),
        "failed": len(log.records) - len(done),
        "duration": log.duration,
        "total_input_tokens": total_input,
        "total_output_tokens": total_output,
        "request_throughput": len(done) / log.duration,
        "request_goodput": good / log.duration,
        "output_throughput": total_output / log.duration,
        "total_token_throughput": (total_input + total_output) / log.duration,
    }
    if done:
        start = min(record.send_time for record in done)
        buckets = int(np.ceil(max(record.token_times[-1] for record in done) - start)) + 1
        tokens, running = np.zeros(buckets), np.zeros(buckets)
        for record in done:
            for time in record.token_times:
                tokens[int(time - start)] += 1
            running[int(record.send_time - start) : int(record.token_times[-1] - start) + 1] += 1
        result |= {"max_output_tokens_per_s": tokens.max(), "max_concurrent_requests": running.max()}
    for name, values in (("ttft", ttfts), ("tpot", tpots), ("itl", itls), ("e2el", latencies)):
        if values:
            result[f"mean_{name}_ms"] = np.mean(values) * 1000
            result[f"median_{name}_ms"] = np.median(values) * 1000
            result[f"std_{name}_ms"] = np.std(values) * 1000
            for share in (50, 90, 99):
                result[f"p{share}_{name}_ms"] = np.percentile(values, share) * 1000
        else:
            result |= {f"{what}_{name}_ms": None for what in ("mean", "median", "std", "p50", "p90", "p99")}
    return result


@settings(max_examples=200, deadline=None)
@given(logs())
def test_the_numbers_are_vllms(log):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        numbers = report(log, TARGET)
    for name, value in as_vllm_computes(log, TARGET).items():
        assert numbers[name] == (value if value is None else pytest.approx(value, abs=1e-9)), name
    assert sum(numbers["failures"].values()) == numbers["failed"]
    one_by_one = sum(goodput(LoadLog([record], log.window, log.duration), TARGET) for record in log.records)
    assert numbers["goodput"] == pytest.approx(one_by_one)  # a sum of floats has another last digit
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    assert as_text(numbers)


def example():
    def record(send_time, times, **fields):
        return LoadRecord("", 1.0, send_time, 10, 4, times, len(times), send_time + 3, **fields)

    return LoadLog(
        [
            record(1.0, [1.5, 1.75, 2.0, 2.25], status=200, finish_reason="length"),
            record(1.25, [3.25], status=200, finish_reason="stop"),
            record(2.0, [], status=429, error="full"),
            record(2.0, [], status=429, error="full"),
            record(2.0, [2.5], status=200, error="cut"),
            record(2.0, [], error="ConnectionRefusedError"),
            LoadRecord("", 2.0, 2.0, 10, 4, [2.5], 1, None, 200),
        ],
        window=3.5,
        duration=5.0,
        rate=2.0,
    )


TABLE = """\
============ Serving Benchmark Result ============
Successful requests:                     2
Failed requests:                         5
  429:                                   2
  cut:                                   1
  no answer:                             1
  unfinished:                            1
Request rate configured (RPS):           2.00
Request rate offered (RPS):              2.00
Benchmark duration (s):                  5.00
Total input tokens:                      20
Total generated tokens:                  5
Request throughput (req/s):              0.40
Request goodput (req/s):                 0.20
Request goodput of the window (req/s):   0.29
Output token throughput (tok/s):         1.00
Peak output token throughput (tok/s):    2.00
Peak concurrent requests:                2.00
Total token throughput (tok/s):          5.00
Largest delay in the client (ms):        1000.00
---------------Time to First Token----------------
Mean TTFT (ms):                          1250.00
Median TTFT (ms):                        1250.00
P90 TTFT (ms):                           1850.00
P99 TTFT (ms):                           1985.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          250.00
Median TPOT (ms):                        250.00
P90 TPOT (ms):                           250.00
P99 TPOT (ms):                           250.00
---------------Inter-token Latency----------------
Mean ITL (ms):                           250.00
Median ITL (ms):                         250.00
P90 ITL (ms):                            250.00
P99 ITL (ms):                            250.00
----------------End-to-end Latency----------------
Mean E2EL (ms):                          1625.00
Median E2EL (ms):                        1625.00
P90 E2EL (ms):                           1925.00
P99 E2EL (ms):                           1992.50
=================================================="""


def test_the_table():
    assert as_text(report(example(), TARGET)) == TABLE


def test_the_table_without_targets_has_no_goodput_and_of_nothing_no_latencies():
    text = as_text(report(LoadLog(example().records[2:], window=3.5, duration=5.0), None))
    assert "goodput" not in text and "configured" not in text
    assert "Median TTFT (ms):                        -\n" in text
