"""A report from a raw log, as `LoadLog.save` writes it."""

from typing import Any

import numpy as np


def load_report(log: dict[str, Any], ttft_ms: float, tpot_ms: float) -> dict[str, Any]:
    """The numbers of a run.

    Args:
        log: what the load generator saved: "records", one for each request that was offered, "window" and "duration".
        ttft_ms, tpot_ms: the target: the longest time to first token, and the longest mean time per further token.

    Returns:
        dict, ready for JSON: requests, completed, failed; median_ttft_ms, p99_ttft_ms, mean_itl_ms, p99_itl_ms, of
        completed requests, None if there is no value; output_throughput, output tokens per second of the duration;
        goodput, good requests per second of the window.
    """
    done = [
        record
        for record in log["records"]
        if record["status"] == 200 and record["error"] is None and record["finish_reason"] and record["token_times"]
    ]
    ttft = [1000 * (record["token_times"][0] - record["send_time"]) for record in done]
    itl = [
        1000 * (after - before)
        for record in done
        for before, after in zip(record["token_times"], record["token_times"][1:])
    ]
    num_good = 0
    for record, first in zip(done, ttft):
        rest = 1000 * (record["token_times"][-1] - record["token_times"][0])
        num_good += first <= ttft_ms and rest <= tpot_ms * (record["output_tokens"] - 1)
    return {
        "requests": len(log["records"]),
        "completed": len(done),
        "failed": len(log["records"]) - len(done),
        "median_ttft_ms": float(np.percentile(ttft, 50)) if ttft else None,
        "p99_ttft_ms": float(np.percentile(ttft, 99)) if ttft else None,
        "mean_itl_ms": float(np.mean(itl)) if itl else None,
        "p99_itl_ms": float(np.percentile(itl, 99)) if itl else None,
        "output_throughput": sum(record["output_tokens"] for record in done) / log["duration"],
        "goodput": num_good / log["window"],
    }
