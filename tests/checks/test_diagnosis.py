"""Mistakes as changes of a reference, and how an answer's is found."""

import pytest
import torch

from lessons_lib.checks.diagnosis import Known, Task, Watch, calls, mistakes
from lessons_lib.checks.diagnosis.mistakes import StalePatch, patched
from lessons_lib.checks.diagnosis.own_passes import TooManyPasses, own_passes
from lessons_lib.checks.diagnosis.probes import Compared, counting, grows, work
from lessons_lib.checks.exercise import Mistake
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.models.tiny_models import tiny_model


def clamp(numbers: list[int], high: int) -> list[int]:
    """Numbers of at most `high`; min(number, high)."""
    if high < 0:
        raise ValueError(high)
    kept = []
    for number in numbers:
        kept.append(min(number, high))
    return kept


MISTAKES = """
The smaller one of the two, here at most
{high}.
~ min(number, high) => max(number, high)
Refuse a negative limit.
~ if high < 0 => if False
or - if high < 0
+ high = abs(high)
+ ...
The order stays.
= return sorted(kept)
Large ones aren't dropped.
- kept.append
+ if number <= high:
+     kept.append(number)
"""


def task(**more):
    cases = lambda: [([3, 1, 2], 2), ([], 2), ([1], -1), ([5, 4], 9), ([7, 0], 3)]
    return Task(
        reference=f"{__name__}:clamp", cases=cases, **calls("clamp"), known=mistakes(MISTAKES),
        refusals=("ValueError",), facts=lambda case: {"high": case[1]}, **more,
    )  # fmt: skip


def judged(attempt, task=task()):
    with pytest.raises(Mistake) as found:
        task(attempt)
    return found.value


def test_a_mistake_is_a_sentence_and_changes():
    known = mistakes(MISTAKES)
    assert [each.why for each in known][:3] == [
        "The smaller one of the two, here at most {high}.", "Refuse a negative limit.", "Refuse a negative limit.",
    ]  # fmt: skip
    results = [each.attempt(clamp)([3, 1, 2], 2) for each in known]
    assert results == [[3, 2, 2], [2, 1, 2], [2, 1, 2], [1, 2, 2], [1, 2]]
    assert known[2].attempt(clamp)([3], -2) == [2]


@pytest.mark.parametrize("patch", ["~ minimum(number => x", "- keep = []\n+ pass", "= other = 3"])
def test_a_patch_whose_text_is_gone_is_refused(patch):
    with pytest.raises(StalePatch):
        patched(clamp, patch, {})


def test_lines_between_two_and_names():
    attempt = patched(clamp, "- kept = [] ... kept.append\n+ kept = double(numbers)", {"double": lambda x: 2 * x})
    assert attempt([1], 1) == [1, 1]


def test_the_docstring_is_left_alone():
    assert "Numbers" not in str(patched(clamp, "~ min(number, high) => 0", {}).__doc__)


def test_the_mistake_is_named_in_the_smallest_case():
    found = judged(lambda numbers, high: [max(each, high) for each in numbers])
    assert (found.what, found.case) == ("the result should be [2, 1, 2]; yours is [3, 2, 2].", "`clamp([3, 1, 2], 2)`.")
    assert found.idea == "The smaller one of the two, here at most 2."


def test_of_two_mistakes_one_is_named():
    found = judged(lambda numbers, high: [max(each, high) for each in numbers] if numbers else [9])
    assert found.idea.startswith("The smaller one")
    found = judged(lambda numbers, high: sorted(min(each, abs(high)) for each in numbers))
    assert found.idea in ("The order stays.", "Refuse a negative limit.")


def test_the_search_ends_with_the_mistake_that_explains_all():
    tried = []
    own = task(probes=())
    own.known.append(Known("Never tried.", answer=lambda *case: tried.append(case)))
    assert judged(lambda numbers, high: sorted(clamp(numbers, high)), own).idea == "The order stays."
    assert not tried


KEPT = []


def keeps(numbers, high):
    if high < 0:
        raise ValueError
    KEPT.append(1)
    return [min(each, high) for each in numbers] if len(KEPT) < 6 else []


def changes_its_argument(numbers, high):
    if high < 0:
        raise ValueError
    numbers[:] = [min(each, high) for each in numbers]
    return numbers


def gives_a_tensor(numbers, high):
    if high < 0:
        raise ValueError
    return torch.tensor(numbers).clamp(max=high)


def asserts(numbers, high):
    assert high >= 0
    return [min(each, high) for each in numbers]


@pytest.mark.parametrize(
    "attempt, words",
    [
        (keeps, "Your code keeps something between calls"),
        (changes_its_argument, "Make a copy first: `list(numbers)`"),
        (gives_a_tensor, "`.tolist()` converts it"),
        (asserts, "it only has to raise ValueError instead"),
        (lambda numbers, high: clamp(numbers, high) and None, "Is a `return` missing?"),
    ],
)
def test_what_is_the_same_in_every_exercise(attempt, words):
    assert words in judged(attempt).idea


def test_an_exception_that_no_mistake_raises_is_the_learners_own():
    with pytest.raises(KeyError):
        task()(lambda numbers, high: {}[high])
    with pytest.raises(NotImplementedError):
        task()(patched(clamp, "= kept = (_ for _ in ()).throw(NotImplementedError)", {}))


def test_what_is_wrong_comes_before_what_is_not_written():
    def half(numbers, high):
        if high < 0:
            raise NotImplementedError
        return sorted(clamp(numbers, high))

    assert judged(half).idea == "The order stays."


def test_probes_come_last():
    def slow(attempt):
        raise Mistake("slow")

    assert judged(clamp, task(probes=(slow,))).what == "slow"
    assert judged(lambda numbers, high: numbers[:], task(probes=(slow,))).what != "slow"


def test_an_answer_in_full_is_a_mistake_too():
    backwards = Known("Backwards.", answer=lambda numbers, high: clamp(numbers, high)[::-1])
    own = task()
    own.known.append(backwards)
    assert judged(lambda numbers, high: list(reversed(clamp(numbers, high))), own).idea == "Backwards."


def test_a_result_may_have_to_be_new():
    watch = Watch()
    row = torch.ones(3)
    watch("a view", lambda tensor: tensor[:2], row, is_new=True)
    watch("a copy", lambda tensor: tensor[:2].clone(), row, is_new=True)
    shared = "the arguments that the result shares memory with"
    assert [step.seen[shared] for step in watch.steps] == [["tensor"], []]


def test_work_is_counted():
    blocks = {size: [Compared(each) for each in range(size)] for size in (10, 1000)}
    find, copied = ([work(lambda size=size: call(blocks[size])) for size in blocks] for call in (max_of, list))
    assert "comparisons" in grows(*find, by=1000)
    assert grows(*copied, by=1000) == ["memory"]
    looped = [work(lambda size=size: [each + 1 for each in range(size)] and None) for size in blocks]
    assert "instructions" in grows(*looped, by=1000)


def max_of(blocks):
    return -1 in blocks


def test_calls_are_counted():
    pool = counting(BlockPool, "free")(2, 16)
    pool.free(pool.allocate(1))
    pool.free([])
    assert pool.calls["free"] == 2
    assert isinstance(pool, BlockPool)


def test_of_a_long_list_the_first_difference_is_told():
    long = Task(
        reference=f"{__name__}:clamp", cases=lambda: [(list(range(60)), 99)], **calls("clamp"), known=[]
    )  # fmt: skip
    what = judged(lambda numbers, high: [*numbers[:41], 7, *numbers[42:]], long).what
    assert what == "the result at [41] should be 41; yours is 7."


def test_what_cannot_be_looked_at_is_told():
    class Lazy:
        pass

    def run(attempt, case, watch):
        made = watch("`Lazy()`", attempt, returns=lambda made: None)
        watch("`Lazy()`", lambda: None, look=lambda: {"made.size": made.size if case else 0})

    lazy = Task(f"{__name__}:clamp", lambda: [True], run, str)
    lazy.__dict__["right"] = type("Eager", (), {"size": 3})
    assert "`made.size` can't be read: AttributeError" in judged(Lazy, lazy).what


def test_generate_is_refused_as_an_answer_and_put_back():
    model = tiny_model()
    with own_passes(model, most=2) as passes:
        model(torch.tensor([[5, 6]]))
        model.forward(torch.tensor([[7]]))
        with pytest.raises(Mistake, match="calls `model.generate`"):
            model.generate(torch.tensor([[5]]))
        with pytest.raises(TooManyPasses):
            model(torch.tensor([[8]]))
    assert [each.token_ids for each in passes] == [[[5, 6]], [[7]]]
    assert model.generate(torch.tensor([[5]]), max_new_tokens=1, pad_token_id=0).shape == (1, 2)
