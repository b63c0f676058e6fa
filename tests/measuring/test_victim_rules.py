"""Rules for choosing the victim, on the sixty requests of lesson 10."""

from lessons_lib.measuring.victim_rules import tried_rule
from lessons_lib.scheduling.preemption import last_in_rank


def test_only_the_last_in_rank_never_gives_way_to_one_that_is_served_later():
    name, preemptions, gave_way, steps = tried_rule("last", last_in_rank)
    assert name == "last" and preemptions > 0 and gave_way == 0 and steps > 0
    for rule in (lambda candidates, _: candidates[0], lambda candidates, _: candidates[-1]):
        assert tried_rule("other", rule)[2] > 0
