"""The device that is a thread: what it returns, and what its picture says."""

from lessons_lib.recording.thread_device import ThreadDevice
from lessons_lib.scheduling.scheduler import SchedulerOutput


def test_a_step_returns_a_token_for_each_sequence():
    device = ThreadDevice(cpu_ms=0, device_ms=0)
    scheduler_output = SchedulerOutput({"A": 1, "B": 5})
    logits = device.forward(scheduler_output)
    assert len(logits) == 2
    assert device.keep_tokens(scheduler_output, logits.argmax(dim=-1)).wait() == [7, 7]
    assert [len(spans) for spans in device.spans.values()] == [1, 1]


def test_the_picture_has_a_digit_for_every_5_ms(capsys):
    device = ThreadDevice(cpu_ms=0, device_ms=0)
    device.spans = {"CPU": [(1.0, 1.02), (1.02, 1.04)], "device": [(1.02, 1.05), (1.06, 1.07)]}
    device.draw()
    assert capsys.readouterr().out.splitlines() == ["   CPU 11112222", "device ····111111··22"]
