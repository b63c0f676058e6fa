"""Answers are kept when they pass, and an engine of them computes the reference engine's tokens, or doesn't use them."""

import functools
import linecache
import textwrap

import pytest
from answers import lesson_03, lesson_06, lesson_10, lesson_12
from own_workloads import other_answers, reference_answers, run, variants

from lessons_lib.attention import hf_backend
from lessons_lib.attention.paged_attention import plan_torch
from lessons_lib.checks import check
from lessons_lib.checks import my_engine as module
from lessons_lib.checks.engine_trial import Letters, _serve
from lessons_lib.checks.kept import NoSource, keep, kept_answer, kept_file, standalone_source
from lessons_lib.checks.linking import link, load, used_by
from lessons_lib.checks.my_engine import (
    LINKS,
    YOURS,
    by_lesson,
    my_engine,
    my_parts,
    part_exercises,
    problem_with,
    states_of,
)
from lessons_lib.checks.registry import get_exercise
from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.measuring.fused_llama import fused_runner
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.scheduling.policies import PriorityWithAging
from lessons_lib.scheduling.scheduler import conservative

BLOCKS_FOR = "lessons_lib.kv_cache.block_pool:blocks_for"
POOL = "lessons_lib.kv_cache.block_pool:BlockPool"
RELEASABLE = "lessons_lib.engine.detokenizer:releasable"
PARTS = list(part_exercises())
SETS = {"reference": functools.cache(reference_answers), "other": functools.cache(other_answers)}


def short_name(target):
    return target.partition(":")[2]


def defined_in_cells(*sources):
    """The globals of a notebook that has run these cells."""
    names = {"__name__": "__main__"}
    for index, source in enumerate(map(textwrap.dedent, sources)):
        filename = f"/tmp/ipykernel_1/{index}.py"
        linecache.cache[filename] = len(source), None, source.splitlines(keepends=True), filename
        exec(compile(source, filename, "exec"), names)
    return names


# Kept answers


def test_a_right_answer_is_kept_where_the_environment_says(tmp_path, monkeypatch):
    exercise = get_exercise("03.6")
    check("03.6", lesson_03.by_divmod)
    assert kept_file(exercise) == tmp_path / "work" / "03.6_blocks_for.py"
    assert "divmod" in kept_answer(exercise)
    monkeypatch.setenv("LESSONS_WORK", str(tmp_path / "elsewhere"))
    assert kept_answer(exercise) is None
    check("03.6", lesson_03.by_negative_floor)
    assert "-(-num_tokens // block_size)" in (tmp_path / "elsewhere" / "03.6_blocks_for.py").read_text()


def test_a_wrong_answer_and_the_reference_are_not_kept():
    check("03.6", lesson_03.by_divmod)
    check("03.6", lesson_03.rounds_down)
    check("03.6", blocks_for)
    assert "divmod" in kept_answer(get_exercise("03.6"))


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LESSONS_WORK", str(tmp_path / "file"))
    assert check("03.6", lesson_03.by_divmod) is lesson_03.by_divmod
    assert kept_answer(get_exercise("03.6")) is None


def test_an_answer_is_kept_with_what_it_uses_from_other_cells():
    names = defined_in_cells(
        "import math\nfrom functools import partial as part\nSIZE = 3",
        "def helper(count):\n    return math.ceil(count / SIZE) if count else 0",
        "# a comment\n\nclass Pool:\n    def needed(self, count):\n        return part(helper, count)() + len(other())\n\n\n"
        "def other():\n    return Pool.__name__",
    )
    source = standalone_source(names["Pool"], "BlockPool")
    made = {}
    exec(source, made)
    assert made["BlockPool"]().needed(4) == 2 + len("Pool")
    assert "import math\n" in source and "from functools import partial as part\n" in source


@pytest.mark.parametrize("answer", [lambda count, size: 0, functools.partial(blocks_for), type("Pool", (), {}), 3])
def test_an_answer_without_a_definition_is_not_kept(answer):
    with pytest.raises((NoSource, AttributeError)):
        standalone_source(answer, "blocks_for")
    keep(get_exercise("03.6"), answer)
    assert kept_answer(get_exercise("03.6")) is None


# Linking


def test_links_stand_behind_what_they_use():
    position = {id(load(each.target)): index for index, each in enumerate(LINKS)}
    for index, each in enumerate(LINKS):
        used = [position.get(id(value), -1) for value in used_by(each.stand_in or each.target)]
        assert all(other <= index for other in used), each


def test_without_answers_it_is_the_reference_engine():
    assert link(LINKS, {}).get(LLMEngine) is LLMEngine


def raising(target):
    """The source of an answer that raises as soon as it is used."""
    name = short_name(target)
    if isinstance(load(target), type):
        where = f"from {target.partition(':')[0]} import {name} as Original"
        return f"{where}\n\nclass {name}(Original):\n    def __init__(self, *args, **kwargs):\n        1 / 0\n\n    __class_getitem__ = classmethod(lambda cls, item: cls)\n"
    return f"def {name}(*args, **kwargs):\n    1 / 0\n"


@pytest.mark.parametrize("target", PARTS, ids=short_name)
def test_the_trial_uses_each_part(target):
    assert problem_with({target: raising(target)}) == "raises ZeroDivisionError: division by zero"


AGING = dict(num_swap_blocks=8, policy=PriorityWithAging(2.0, 1.0))


@pytest.mark.parametrize(
    "settings",
    [
        AGING | dict(overlap=True),
        dict(backend=plan_torch),
        dict(backend="torch", admission=conservative, share_prefixes=False),
        dict(make_runner=fused_runner),
        dict(make_runner=fused_runner, num_swap_blocks=8),
    ],
)
def test_parts_that_an_engine_never_calls_are_known(settings):
    sizes = dict(block_size=4, num_blocks=16, max_num_seqs=4, max_num_batched_tokens=10, max_model_len=45, probe=False)
    config, unused = EngineConfig(**sizes | settings), set()
    for target in PARTS:
        try:
            _serve(link(LINKS, {target: raising(target)}), config)
            unused.add(short_name(target))
        except ZeroDivisionError:
            pass
    assert unused == set(module.not_called(config))


def test_nothing_outside_the_engine_changes():
    before = {each.target: load(each.target) for each in LINKS}
    model = tiny_model("qwen2", seed=3)
    own = module.engine_of(link(LINKS, SETS["other"]()), model, Letters(), EngineConfig(num_blocks=16), lambda: 0.0)
    reference = LLMEngine(model, Letters(), EngineConfig(num_blocks=16))
    answers = []
    for engine in (own, reference):
        engine.add_request([5, 6, 7], SamplingParams(max_tokens=5))
    while own.has_unfinished() or reference.has_unfinished():  # a step of one, a step of the other
        answers += [output.token_ids for engine in (own, reference) for output in engine.step()]
    assert answers[0] == answers[1]
    assert type(own) is not type(reference) and {each.target: load(each.target) for each in LINKS} == before
    assert model.config._attn_implementation != hf_backend.PAGED


# The same tokens


@pytest.mark.parametrize("set_name", SETS)
def test_all_answers_fit_together(set_name):
    assert set(states_of(SETS[set_name]()).values()) == {YOURS}


@pytest.mark.parametrize("set_name", SETS)
def test_random_workloads(set_name):
    """A few here, some of the answers alone; the test below serves 200 with each variant."""
    everything, nothing, *alone = variants(SETS[set_name]())
    for seed, (name, answers) in enumerate([*[everything] * 2, nothing, *alone[list(SETS).index(set_name) :: 6]]):
        assert run(answers, range(seed, seed + 1)) == [], name


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("set_name", SETS)
def test_many_random_workloads(set_name):
    for name, answers in variants(SETS[set_name]()):
        assert run(answers, range(200)) == [], name


# Answers that must not be used


def state_of(target, source):
    return states_of({target: source})[target]


def test_a_wrong_answer_is_not_used():
    wrong = standalone_source(lesson_10.takes_the_first_in_rank, "last_in_rank")
    target = "lessons_lib.scheduling.preemption:last_in_rank"
    assert "no longer passes its check: 10.1 `last_in_rank`" in state_of(target, wrong)


@pytest.mark.parametrize(
    "source, says",
    [
        ("def blocks_for(", "raises SyntaxError"),
        ("blocks_for = missing", "raises NameError: name 'missing'"),
        ("other = 3", "no longer passes its check"),
        ("while True:\n    pass", "takes more than"),
        ("raise SystemExit", "raises SystemExit"),
    ],
)
def test_an_answer_that_does_not_load_is_not_used(source, says, monkeypatch):
    monkeypatch.setattr(module, "TRIAL_SECONDS", 0.5)
    if source.startswith("other"):
        source += "\ndef blocks_for(a, b):\n    return other"
    assert says in state_of(BLOCKS_FOR, source)


def test_a_right_answer_that_does_not_fit_is_not_used():
    others = {target: source for target, source in SETS["other"]().items() if target in (BLOCKS_FOR, RELEASABLE)}
    answers = {**others, POOL: standalone_source(lesson_03.PoolWithAList, "BlockPool")}
    states = {target: state for target, state in states_of(answers).items() if target in answers}
    assert states.pop(POOL).startswith("reference: your answer passes its check, but an engine with it raises")
    assert set(states.values()) == {YOURS}


def test_other_tokens_are_noticed():
    source = "from lessons_lib.engine.plain_sampling import token_probabilities as right\n\n"
    source += "def token_probabilities(logits, *settings):\n    probabilities, tokens = right(logits, *settings)\n"
    source += "    return probabilities, tokens.flip(-1)\n"
    assert problem_with({"lessons_lib.engine.plain_sampling:token_probabilities": source}) == "computes other tokens"


# The learner's view


def test_my_engine_says_which_parts_are_yours():
    for id, answer in (("03.6", lesson_03.by_divmod), ("12.4", lesson_12.walking_through)):
        check(id, answer)
    exercise = get_exercise("03.5")
    kept_file(exercise).write_text("class BlockPool:\n    pass\n")
    engine = my_engine(tiny_model("qwen2", seed=3), Letters(), EngineConfig(num_blocks=16))
    rows = {row[0]: row[2] for row in engine.parts.rows}
    assert rows["03.6"] == rows["12.4"] == YOURS
    assert rows["03.5"].startswith("reference: your answer no longer passes its check: 03.5 `BlockPool`")
    assert rows["03.1"] == "not part of the engine" and rows["09.1"] == "reference: not solved yet"
    assert f"2 of {len(PARTS)} parts are yours" in str(engine.parts) and "00.1" not in rows
    assert str(my_parts()) == str(engine.parts)
    check("06.2", lesson_06.add_as_a_merge)
    engine = my_engine(tiny_model("qwen2", seed=3), Letters(), EngineConfig(num_blocks=16, backend=plan_torch))
    assert ["06", "add_block", "yours; not called with this `backend`"] in by_lesson(engine.parts).rows
    assert "parts are yours; this engine never calls 1 of them" in str(engine.parts)
    assert "never calls" not in str(my_parts())
    folded = by_lesson(engine.parts).rows
    assert ["12", "releasable", YOURS] in folded and ["03", "blocks_for", YOURS] in folded
    assert sum(len(names.split(", ")) for _, names, _ in folded) == len(PARTS)
