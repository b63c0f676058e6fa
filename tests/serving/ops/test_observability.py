"""Health, metrics, the cockpit's numbers and the log."""

import json
import logging
import os
from types import SimpleNamespace

import pytest
from live_server import wait_until
from prometheus_client.parser import text_string_to_metric_families

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.metrics import EngineGauges, EngineMetrics, EngineStep
from lessons_lib.serving.admission import AdmissionControl, Overloaded
from lessons_lib.serving.http.observability import BackgroundLog, ServerMetrics, cockpit, health


def front(**changes):
    core = SimpleNamespace(observers=[], watches=[], num_ended={"stop": 1, "length": 2, "abort": 1})
    config = EngineConfig(max_num_seqs=8, max_num_batched_tokens=64)
    pool = SimpleNamespace(num_blocks=100)
    metrics = EngineMetrics(SimpleNamespace(core=core, config=config, scheduler=SimpleNamespace(pool=pool)))
    metrics.add_step(EngineStep(0.0, {"forward": 0.5}, 20, 15, 5, 3, 1, 40, 4, 2, 7))
    metrics.prompt_tokens = 22
    metrics.latency.add_all([0.3, 3.0, 4.0])
    metrics.ttft.add_all([0.004, 0.03, 1000.0])
    metrics.itl.add_all([0.006] * 4)
    admission = AdmissionControl(max_requests=3, max_prompt_tokens=100)
    admission.admit(10)
    gauges = EngineGauges(running=3, waiting=1, swapped=2, used_blocks=40, named_blocks=4, num_blocks=100)
    own = dict(gauges=gauges, metrics=metrics.snapshot, error=None, is_draining=False, admission=admission)
    return SimpleNamespace(**own | changes)


def values(text):
    """(name, labels without the model) -> value, as Prometheus itself reads them."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name not in ("engine", "model_name")}
            found[(sample.name, *labels.values())] = sample.value
    return found


@pytest.mark.parametrize(
    "changes, status, word",
    [
        ({}, 200, "ok"),
        ({"is_draining": True}, 503, "draining"),
        ({"error": "EngineDead: killed"}, 503, "dead"),
        ({"error": "EngineDead: killed", "is_draining": True}, 503, "dead"),
    ],
)
def test_health(changes, status, word):
    found, body = health(front(**changes))
    assert (found, body["status"]) == (status, word)
    numbers = json.loads(json.dumps(cockpit(front(**changes))))
    names = ("status", "running", "used_blocks", "max_num_seqs", "new_tokens", "requests", "max_requests")
    assert [numbers[name] for name in names] == [word, 3, 40, 8, 5, 1, 3]


def test_metrics_have_vllms_names_and_the_engines_values():
    text = ServerMetrics(front(), 'a "model"\n').text()
    assert all('model_name="a \\"model\\"\\n"' in line for line in text.decode().splitlines() if line[:5] == "vllm:")
    found = values(text)
    assert found["vllm:num_requests_running",] == 3
    assert found["vllm:num_requests_waiting",] == 1
    blocks = [found[f"lessons_{name}_blocks",] for name in ("used", "named", "num")]
    assert (found["lessons_requests_swapped",], blocks) == (2, [40, 4, 100])
    assert found["vllm:kv_cache_usage_perc",] == 0.4
    assert found["vllm:prompt_tokens_total",] == 22
    assert found["vllm:generation_tokens_total",] == 5
    assert found["vllm:num_preemptions_total",] == 2
    assert found["vllm:prefix_cache_hits_total",] == 7
    assert found["vllm:prefix_cache_queries_total",] == 22
    assert found["vllm:request_success_total", "length"] == 2
    assert found["vllm:request_success_total", "stop"] == found["vllm:request_success_total", "abort"] == 1
    assert found["lessons_requests_in_flight",] == 1


def test_metrics_before_the_engine_has_said_anything():
    silent = front(gauges=EngineGauges(0, 0, 0, 0, 0, 0), metrics=dict)
    found = values(ServerMetrics(silent, "m").text())
    assert found["vllm:kv_cache_usage_perc",] == found["vllm:generation_tokens_total",] == 0
    json.dumps(cockpit(silent))


def test_refusals_answers_and_lost_lines_are_counted():
    one = front()
    for _ in range(2):
        one.admission.admit(1)
    with pytest.raises(Overloaded):
        one.admission.admit(1)
    metrics = ServerMetrics(one, "m", SimpleNamespace(num_dropped=5))
    metrics.answers["/v1/completions", 200] += 2
    metrics.answers["other", 404] += 1
    found = values(metrics.text())
    assert found["lessons_requests_refused_total",] == 1
    assert found["lessons_log_lines_dropped_total",] == 5
    assert found["lessons_http_responses_total", "/v1/completions", "200"] == 2
    assert found["lessons_is_healthy",] == 1
    assert values(ServerMetrics(front(error="x"), "m").text())["lessons_is_healthy",] == 0


def line(text):
    return logging.LogRecord("lessons_lib.test", logging.INFO, __file__, 1, text, (), None)


def test_log_lines_are_written_in_order(tmp_path):
    path = tmp_path / "log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    log = BackgroundLog(descriptor)
    for index in range(100):
        log.emit(line(f"line {index} ä \ud800"))
    log.emit(logging.LogRecord("x", logging.INFO, __file__, 1, "%d", ("no number",), None))
    log.close()
    os.close(descriptor)
    assert path.read_text().splitlines() == [f"line {index} ä \\ud800" for index in range(100)]
    assert log.num_dropped == 1, "the line that can't be formatted"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a disk that is always full")
def test_a_full_disk_loses_lines_and_nothing_else():
    descriptor = os.open("/dev/full", os.O_WRONLY)
    log = BackgroundLog(descriptor)
    for _ in range(10):
        log.emit(line("text"))
    wait_until(lambda: log.num_dropped == 10)
    log.close()
    os.close(descriptor)


def test_a_pipe_that_nobody_reads_holds_nothing_up():
    reading, writing = os.pipe()
    log = BackgroundLog(writing, capacity=50)
    for _ in range(2000):  # far more than a pipe and the queue hold
        log.emit(line("x" * 1000))
    assert log.num_dropped > 1000
    os.close(reading)  # the writing thread gets an error, and ends
    log.close()
    os.close(writing)
