"""What is wrong with a rank of 09.4: the other rules by which a learner may have ordered, and the words for each."""

from itertools import product
from random import Random

from lessons_lib.checks.lesson_09.made_up import a_sequence

P, H = 25, 40  # patience and head start with which rules are told apart; with small ones they look alike
UNITS = "All three are seconds: add them as they are."

FRACTIONS = "Fractions of a second are lost. Many come within a second; keep the arrival time as it is."
# Two pairs: the order of both is the same, and `_by_numbers` tells them apart.
NOBODY = "Who reads along does not count in your rank. An interactive request ranks as if it had come `head_start` seconds earlier."
EVERYBODY = (
    "Everybody gets the head start here, so it changes no order. Only those with `sequence.is_interactive` have one."
)
SIGN = "The sign of the head start is wrong: the smallest rank goes first, so a head start makes a rank smaller."
OTHERS = "The head start goes to those with whom nobody reads along. It is for those with `sequence.is_interactive`."

# Arrival and tier: a rank, and what is wrong with it, whatever the readers get.
BASES = (
    (lambda s: s.arrival_time + s.tier * P, ""),
    (lambda s: s.arrival_time, "The tier does not count in your rank. Each tier below the best is worth `patience` seconds."),
    (lambda s: s.tier * P, "When a sequence came does not count in your rank, and so its waiting does not. Arrival time, tier and head start belong into one sum."),
    (lambda s: s.arrival_time - s.tier * P, "The sign is wrong: tier 0 is the best, and the smallest rank goes first. Being below the best tier makes a rank larger."),
    (lambda s: s.tier * P - s.arrival_time, "Who came later has the smaller rank here, so the newest goes first. An early arrival is a small rank."),
    (lambda s: -s.arrival_time - s.tier * P, "Arrival and tier are the other way round: the smallest rank goes first."),
    (lambda s: s.arrival_time * P + s.tier, "The patience is multiplied with the arrival time. It is worth a number of seconds for each tier: patience × tier."),
    (lambda s: s.arrival_time * (P + s.tier), "Arrival time and tier are multiplied, so what a tier is worth depends on the time of day. Add: arrival + tier × patience."),
    (lambda s: s.arrival_time + s.tier, "A tier is worth one second here, whatever the patience is. It is worth `self.patience` seconds."),
    (lambda s: s.arrival_time + s.tier * H, "A tier is worth `head_start` seconds here. `self.patience` is for tiers, `self.head_start` for readers."),
    (lambda s: s.arrival_time + bool(s.tier) * P, "Tier 2 counts as tier 1 does. Each tier further down is worth `patience` seconds more."),
    (lambda s: s.arrival_time + s.tier * P * H, "The patience is multiplied with the head start. Each is a number of seconds of its own: a tier is worth `patience` of them."),
    (lambda s: int(s.arrival_time) + s.tier * P, FRACTIONS),
    (lambda s: s.arrival_time * 1000 + s.tier * P, f"The arrival time is multiplied by 1000 here, so seconds of patience and head start hardly count beside it. {UNITS}"),
)  # fmt: skip
# What is added to the rank of an interactive request.
READERS = (
    (lambda s: -H, ""),
    (lambda s: 0, NOBODY),
    (lambda s: H, SIGN),
    (lambda s: -1, "A reader is worth one second here, whatever the head start is: subtract `self.head_start` seconds."),
    (lambda s: -P, "A reader is worth `patience` seconds here, as a tier is. There is a number for it: `self.head_start`."),
    (lambda s: -H * P, f"The head start is multiplied with the patience, so it is worth more or less than it says. {UNITS}"),
)  # fmt: skip
# The same, but by the tier: beside a wrong use of the tier these would need other words.
READERS_BY_TIER = (
    (lambda s: -H * s.tier, "The head start is multiplied with the tier, so a reader of tier 0 has none. It is the same for all tiers: subtract it once, after tier × patience."),
    (lambda s: -H * (s.tier == 0), "Only tier 0 has a head start in your rank. Every interactive request has it, whatever its tier."),
    (lambda s: -H * (s.tier > 0), "A reader of tier 0 has no head start in your rank. Every interactive request has it, whatever its tier."),
    (lambda s: -H - s.tier * P, "For an interactive request the tier does not count any more. The head start comes on top of it: arrival + tier × patience − head start."),
    (lambda s: -s.tier * P, "For an interactive request the tier does not count any more, and the head start does for nobody. Both belong into one sum."),
)  # fmt: skip


def _with_reader(base, reader):
    return lambda s: base(s) + (reader(s) if s.is_interactive else 0)


_right = _with_reader(BASES[0][0], READERS[0][0])
ARRIVAL_ONLY = "Only the arrival counts in your rank: that is first come, first served. The tier and the head start belong into the same sum."
STRICT = "That is strict priority: whoever is of a lower tier waits until no better one is left, however long. Here waiting counts too: seconds, tiers and readers in one sum."
STRICT_TIERS = "Your head start counts within a tier only. Between the tiers that is strict priority: who is of a lower one waits until no better one is left. Arrival, tier and head start belong into one sum."
READERS_FIRST = "All interactive requests go before all others, however long these wait. A reader is worth `head_start` seconds, no more: seconds and readers in one sum."
WHOLES = (
    (lambda s: -_right(s), "Everything is the other way round: the smallest rank goes first."),
    (lambda s: s.arrival_time, ARRIVAL_ONLY),
    (lambda s: (s.tier, s.arrival_time), STRICT),
    (lambda s: (s.tier, not s.is_interactive, s.arrival_time), STRICT),
    (lambda s: (s.tier, s.arrival_time - H * s.is_interactive), STRICT_TIERS),
    (lambda s: (not s.is_interactive, s.tier, s.arrival_time), READERS_FIRST),
    (lambda s: (not s.is_interactive, s.arrival_time + s.tier * P), READERS_FIRST),
    (lambda s: s.tier, "Only the tier counts in your rank. Who has waited long must pass at some time: arrival time and tier in one sum."),
    (lambda s: -s.is_interactive, "Only the reader counts in your rank. Arrival time, tier and head start belong into one sum."),
    (lambda s: max(_right(s), 0), "Your ranks do not fall below 0, so all who would are alike. A rank may be negative: it is a place in an order."),
    (lambda s: max(s.arrival_time - H * s.is_interactive, 0) + s.tier * P, "Readers of the first seconds are all alike in your code, because arrival − head start does not fall below 0. A rank may be negative."),
    (lambda s: s.arrival_time + max(s.tier * P - H * s.is_interactive, 0), "Here a head start makes up for the tier at most, so a reader of tier 0 gains nothing. Subtract all of it, even if a rank becomes smaller than the arrival."),
)  # fmt: skip
GENERAL = "A sequence ranks as if it had come `patience` seconds later for each tier that it is below the best, and `head_start` seconds earlier if it is interactive."


def why(attempt) -> str:
    """The reason why a rank orders wrongly: which other rule orders everybody as it does, or which number makes no difference to it."""
    try:
        order = _order(attempt(P, H).rank)
        ignores_patience = order == _order(attempt(P + 35, H).rank)
        ignores_head_start = order == _order(attempt(P, H + 35).rank)
    except Exception:  # noqa: BLE001 - what is wrong was found already; this only looks for better words
        return GENERAL
    for rule, idea in _rules():
        if order == _order(rule):
            return _by_numbers(attempt, idea)
    if _rounds(attempt):
        return FRACTIONS
    if ignores_patience:
        return "Your ranks are the same whatever the patience is. A tier is worth `self.patience` seconds, and everybody may choose another number."
    if ignores_head_start:
        return "Your ranks are the same whatever the head start is. A reader is worth `self.head_start` seconds, and everybody may choose another number."
    return GENERAL


def _rules():
    """(rule, what is wrong with it); of two mistakes in one sum, the one about the tier."""
    yield from WHOLES
    for reader, wrong in (*READERS[1:], *READERS_BY_TIER):
        yield _with_reader(BASES[0][0], reader), wrong
    for (base, wrong), (reader, _) in product(BASES[1:], READERS):
        yield _with_reader(base, reader), wrong


def _order(rank) -> list[str]:
    """Of people who came microseconds apart, and of others hours apart: no rule looks like one that counts a number much more or much less."""
    rng = Random(4)
    people = [
        a_sequence(
            str(n), 13, arrival=10 ** rng.uniform(-6, 4), tier=rng.choice((0, 1, 2, 3)), interactive=rng.random() < 0.5
        )
        for n in range(240)
    ]
    return [person.id for person in sorted(people, key=rank)]


def _by_numbers(attempt, idea: str) -> str:
    """Two mistakes make the order of another one: a head start for all is like none, and one for the others is like one with the wrong sign."""
    other = {NOBODY: EVERYBODY, SIGN: OTHERS}.get(idea)
    return other if other and _moved(attempt) else idea


def _rounds(attempt) -> bool:
    """Whether of two who are alike and come within a second the later one has the same rank, and does not if it comes much later."""
    policy = attempt(P, H)
    ranks = [policy.rank(a_sequence("A", 13, arrival=arrival, tier=1)) for arrival in (100.0001, 100.0004, 200.0)]
    return ranks[0] == ranks[1] != ranks[2]


def _moved(attempt) -> bool:
    """Whether a longer head start changes the rank of a sequence that is not interactive."""
    ranks = [attempt(P, head_start).rank(a_sequence("A", 13, arrival=50.0, tier=1)) for head_start in (H, H + 35)]
    return ranks[0] != ranks[1]
