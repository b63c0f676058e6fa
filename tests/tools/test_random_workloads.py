"""The random workloads in small; `python -m tools.random_workloads` plays thousands."""

import pytest

from lessons_lib.engine.core import EngineCore
from tools import random_workloads


def test_every_answer_is_the_one_that_the_prompt_gets_alone():
    happened, failed = random_workloads.run(30, seed=0)
    assert not failed
    few = dict.fromkeys(["preemptions", "aborted", "overlapped", "swaps"], 2)
    few |= {"cached tokens": 100, "answers compared": 80, "forks": 9, "with rules": 20, "with log-probabilities": 5}
    few["guided"] = 9 * random_workloads.can_guide
    assert {what: happened[what] for what, least in few.items() if happened[what] < least} == {}


# Conservative admission with waiting forks, or with sequences whose last token was in flight, admitted what had no
# blocks.
@pytest.mark.parametrize("seed", [326, 539, 1396, 1750, 1930, 2421, 2459])
def test_workloads_that_failed_once(seed):
    Workload = type("Plain", (random_workloads.Workload,), dict(with_rules=0))
    assert random_workloads.run(1, seed, kind=Workload)[1] == []


def test_a_wrong_answer_is_found_and_its_seed_printed(monkeypatch, capsys):
    forward = EngineCore.forward
    monkeypatch.setattr(EngineCore, "forward", lambda core, output: -forward(core, output))
    with pytest.raises(SystemExit, match="1|True"):
        random_workloads.main(["--count", "3", "--seed", "7"])
    assert "failed: [7" in capsys.readouterr().out
