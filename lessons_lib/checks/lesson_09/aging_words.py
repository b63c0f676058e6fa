"""What is wrong with a rank of 09.4: rules that a learner may have written instead, with a message for each."""

from itertools import product
from random import Random

from lessons_lib.checks.lesson_09.made_up import a_sequence

P, H = 25, 40  # patience and head start that tell the rules apart; with small ones they look alike
UNITS = "Arrival time, patience and head start are all in seconds: use them as they are."

FRACTIONS = "Fractions of a second are lost. Many requests arrive within one second; keep the arrival time as it is."
# Two pairs that give the same order; `_by_ranks` tells them apart.
NO_HEAD_START = (
    "Your rank ignores `is_interactive`. An interactive request ranks as if it had arrived `head_start` seconds "
    "earlier."
)
HEAD_START_FOR_ALL = (
    "All sequences get the head start here, so it doesn't affect the order. Only those with "
    "`sequence.is_interactive` get it."
)
SIGN = "The sign of the head start is wrong: the smallest rank goes first, so a head start makes the rank smaller."
HEAD_START_FOR_OFFLINE = (
    "The head start goes to the sequences that aren't interactive. It's for those with `sequence.is_interactive`."
)

POWER = (
    "You raise the patience to the power of the tier. Each tier below the best adds `patience` seconds: tier × "
    "patience."
)

# Arrival and tier: a rank, and what is wrong with it, whatever interactive requests get.
BASES = (
    (lambda s: s.arrival_time + s.tier * P, ""),
    (lambda s: s.arrival_time, "Your rank ignores the tier. Each tier below the best adds `patience` seconds."),
    (lambda s: s.tier * P, (
        "Your rank ignores the arrival time, and with it the time spent waiting. Arrival time, tier and head "
        "start belong in one sum."
    )),
    (lambda s: s.arrival_time - s.tier * P, (
        "The sign of the tier is wrong: tier 0 is the best, and the smallest rank goes first. A worse tier makes "
        "the rank larger."
    )),
    (lambda s: s.tier * P - s.arrival_time, (
        "A later arrival has the smaller rank here, so the newest goes first. An early arrival should have a "
        "small rank."
    )),
    (lambda s: -s.arrival_time - s.tier * P, (
        "The signs of arrival and tier are flipped: the smallest rank goes first."
    )),
    (lambda s: s.arrival_time * P + s.tier, (
        "A longer patience makes a tier worth less here. Do you divide by it, or multiply the arrival time by it? "
        "It's the number of seconds that each tier is worth: patience × tier."
    )),
    (lambda s: s.arrival_time * (P + s.tier), (
        "You multiply arrival time and tier, so what a tier is worth depends on the time of day. Add them: "
        "arrival + tier × patience."
    )),
    (lambda s: s.arrival_time + s.tier, (
        "A tier is worth one second here, whatever the patience is. It should be worth `self.patience` seconds."
    )),
    (lambda s: s.arrival_time + s.tier * H, (
        "A tier is worth `head_start` seconds here. `self.patience` is for tiers, `self.head_start` for "
        "interactive requests."
    )),
    (lambda s: s.arrival_time + bool(s.tier) * P, (
        "Tier 2 ranks like tier 1. Each further tier adds `patience` seconds."
    )),
    (lambda s: s.arrival_time + s.tier**2 * P, (
        "Tier 2 is worth four times the patience here. Each tier below the best adds `patience` seconds once: "
        "patience × tier."
    )),
    (lambda s: s.arrival_time + (P**s.tier if s.tier else 0), POWER),
    (lambda s: s.arrival_time + P**s.tier, POWER),
    (lambda s: s.arrival_time + s.tier * P * H, (
        "You multiply the patience by the head start. They are separate numbers of seconds: a tier is worth "
        "`patience` seconds."
    )),
    (lambda s: int(s.arrival_time) + s.tier * P, FRACTIONS),
    (lambda s: s.arrival_time * 1000 + s.tier * P, (
        "You multiply the arrival time by 1000, so patience and head start in seconds hardly count next to it. "
        f"{UNITS}"
    )),
)  # fmt: skip
# What is added to the rank of an interactive request.
INTERACTIVE = (
    (lambda s: -H, ""),
    (lambda s: 0, NO_HEAD_START),
    (lambda s: H, SIGN),
    (lambda s: -2 * H, (
        "Being interactive is worth twice the head start here. Subtract it once from interactive requests, and leave "
        "the others where they are."
    )),
    (lambda s: -1, (
        "Being interactive is worth one second here, whatever the head start is: subtract `self.head_start` "
        "seconds."
    )),
    (lambda s: -P, (
        "Being interactive is worth `patience` seconds here, like a tier. It has a setting of its own: "
        "`self.head_start`."
    )),
    (lambda s: -H * P, (
        f"You multiply the head start by the patience, so it is worth more or less than it says. {UNITS}"
    )),
)  # fmt: skip
# The same, but depending on the tier; combined with a wrong use of the tier, these would need other messages.
INTERACTIVE_BY_TIER = (
    (lambda s: -H * s.tier, (
        "You multiply the head start by the tier, so interactive tier-0 requests have none. It's the same for "
        "all tiers: subtract it once."
    )),
    (lambda s: -H * (s.tier == 0), (
        "Only tier 0 gets a head start in your rank. Every interactive request gets it, whatever its tier."
    )),
    (lambda s: -H * (s.tier > 0), (
        "Interactive tier-0 requests get no head start in your rank. Every interactive request gets it, "
        "whatever its tier."
    )),
    (lambda s: -H - s.tier * P, (
        "Your rank ignores the tier of interactive requests. The head start comes on top of it: arrival + tier × "
        "patience − head start."
    )),
    (lambda s: -s.tier * P, (
        "Your rank ignores the tier of interactive requests, and never uses the head start. Both belong in one "
        "sum."
    )),
)  # fmt: skip


def _with_head_start(base, bonus):
    return lambda s: base(s) + (bonus(s) if s.is_interactive else 0)


_right = _with_head_start(BASES[0][0], INTERACTIVE[0][0])
ARRIVAL_ONLY = (
    "Your rank uses only the arrival time: that is first come, first served. The tier and the head start belong "
    "in the same sum."
)
STRICT = (
    "That is strict priority: a lower tier waits until no better one is left, however long that takes. Here "
    "waiting counts too: arrival, tier and head start belong in one sum."
)
STRICT_TIERS = (
    "Your head start works only within a tier. Between tiers, that is strict priority: a lower tier waits until "
    "no better one is left. Arrival, tier and head start belong in one sum."
)
INTERACTIVE_FIRST = (
    "All interactive requests go before all others, however long the others wait. Being interactive is worth "
    "`head_start` seconds, no more: put everything in one sum."
)
WHOLES = (
    (lambda s: -_right(s), "The whole order is reversed: the smallest rank goes first."),
    (lambda s: s.arrival_time, ARRIVAL_ONLY),
    (lambda s: (s.tier, s.arrival_time), STRICT),
    (lambda s: (s.tier, not s.is_interactive, s.arrival_time), STRICT),
    (lambda s: (s.tier, s.arrival_time - H * s.is_interactive), STRICT_TIERS),
    (lambda s: (not s.is_interactive, s.tier, s.arrival_time), INTERACTIVE_FIRST),
    (lambda s: (not s.is_interactive, s.arrival_time + s.tier * P), INTERACTIVE_FIRST),
    (lambda s: s.tier, (
        "Your rank uses only the tier. A request that has waited long enough must go first at some point: put "
        "arrival time and tier in one sum."
    )),
    (lambda s: -s.is_interactive, (
        "Your rank uses only `is_interactive`. Arrival time, tier and head start belong in one sum."
    )),
    (lambda s: max(_right(s), 0), (
        "Your ranks never go below 0, so all sequences whose rank should be negative are tied. A rank may be "
        "negative: only the order matters."
    )),
    (lambda s: max(s.arrival_time - H * s.is_interactive, 0) + s.tier * P, (
        "Interactive requests that arrive in the first seconds are all tied, because your arrival − head start "
        "never goes below 0. A rank may be negative."
    )),
    (lambda s: s.arrival_time + (max(s.tier * P - H * s.is_interactive, 0) if s.tier else -H * s.is_interactive), (
        "In the tiers below the best, your head start can at most cancel the tier. Subtract all of it, even if the "
        "rank becomes smaller than the arrival time."
    )),
    (lambda s: s.arrival_time + max(s.tier * P - H * s.is_interactive, 0), (
        "Your head start can at most cancel the tier, so an interactive tier-0 request gains nothing. "
        "Subtract all of it, even if the rank becomes smaller than the arrival time."
    )),
)  # fmt: skip
GENERAL = (
    "A sequence ranks as if it had arrived `patience` seconds later for each tier below the best, and "
    "`head_start` seconds earlier if it is interactive."
)


def why(attempt) -> str:
    """Why a rank orders wrongly: another rule that gives the same order, or a setting that has no effect on it."""
    try:
        order = _order(attempt(P, H).rank)
        ignores_patience = order == _order(attempt(P + 35, H).rank)
        ignores_head_start = order == _order(attempt(P, H + 35).rank)
    except Exception:  # noqa: BLE001 - the mistake was found already; this only looks for a better message
        return GENERAL
    if _changes(attempt):
        return "The same sequence gets another rank each time. A rank depends on the sequence and the settings only."
    if order == _order(_right) and (zero := _wrong_at_zero(attempt)):
        return (
            f"Your rank is right unless the {zero} is 0. Such a setting needs no special case: 0 seconds add nothing."
        )
    for rule, idea in _rules():
        if order == _order(rule):
            return _by_ranks(attempt, idea)
    if _rounds(attempt):
        return FRACTIONS
    if ignores_patience:
        return (
            "Your ranks are the same whatever the patience is. A tier is worth `self.patience` seconds, which "
            "differs from policy to policy."
        )
    if ignores_head_start:
        return (
            "Your ranks are the same whatever the head start is. Being interactive is worth `self.head_start` "
            "seconds, which differs from policy to policy."
        )
    return GENERAL


def _rules():
    """(rule, what is wrong with it). Of two mistakes in one sum, report the one about the tier."""
    yield from WHOLES
    for bonus, wrong in (*INTERACTIVE[1:], *INTERACTIVE_BY_TIER):
        yield _with_head_start(BASES[0][0], bonus), wrong
    for (base, wrong), (bonus, _) in product(BASES[1:], INTERACTIVE):
        yield _with_head_start(base, bonus), wrong


def _order(rank) -> list[str]:
    """The order of sequences microseconds to hours apart, so that no rule looks like one with other weights."""
    rng = Random(4)
    sequences = [
        a_sequence(
            str(n), 13, arrival=10 ** rng.uniform(-6, 4), tier=rng.choice((0, 1, 2, 3)), interactive=rng.random() < 0.5
        )
        for n in range(240)
    ]
    return [sequence.id for sequence in sorted(sequences, key=rank)]


def _by_ranks(attempt, idea: str) -> str:
    """Tell apart mistakes that give the same order, by the ranks.

    A head start for all looks like none, and one for offline requests looks like a wrong sign.
    """
    other = {NO_HEAD_START: HEAD_START_FOR_ALL, SIGN: HEAD_START_FOR_OFFLINE}.get(idea)
    return other if other and _moved(attempt) else idea


def _changes(attempt) -> bool:
    policy, sequence = attempt(P, H), a_sequence("A", 13, arrival=50.0, tier=1)
    return policy.rank(sequence) != policy.rank(sequence)


def _wrong_at_zero(attempt) -> str:
    """The setting that, when it is 0, makes a rank wrong that is right otherwise."""
    for name, patience, head_start in (("patience", 0, H), ("head start", P, 0)):
        rank = attempt(patience, head_start).rank
        if _order(rank) != _order(lambda s: s.arrival_time + s.tier * patience - s.is_interactive * head_start):
            return name
    return ""


def _rounds(attempt) -> bool:
    """Whether two sequences that arrive within the same second have the same rank, and two that are far apart don't."""
    policy = attempt(P, H)
    ranks = [policy.rank(a_sequence("A", 13, arrival=arrival, tier=1)) for arrival in (100.0001, 100.0004, 200.0)]
    return ranks[0] == ranks[1] != ranks[2]


def _moved(attempt) -> bool:
    """Whether a longer head start changes the rank of a sequence that isn't interactive."""
    ranks = [attempt(P, head_start).rank(a_sequence("A", 13, arrival=50.0, tier=1)) for head_start in (H, H + 35)]
    return ranks[0] != ranks[1]
