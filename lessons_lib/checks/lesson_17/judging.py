"""The checks of the engine of lesson 17: the items of its levels, up to the first that doesn't hold."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from lessons_lib.checks.exercise import Mistake, current_case
from lessons_lib.conformance.driver import Broken, BrokenRule, MakeEngine, NotOffered, Run, Served
from lessons_lib.conformance.items import Item
from lessons_lib.conformance.levels import levels_up_to
from lessons_lib.conformance.oracle import a_prompt

# Items of later levels that an engine of one request at a time has to hold as well.
_EDGES = ("batches.idle", "manners.too_long_a_prompt")


def check_first_level(make_engine: MakeEngine) -> None:
    """Try the items of `answers`, requests that wait, an id again, no request, and a prompt without room; see
    `check_up_to`.
    """
    check_up_to("answers", make_engine)
    _check_waiting(make_engine)
    _check_id_again(make_engine)
    for item in (item for level in levels_up_to("small") for item in level.items if item.name in _EDGES):
        try:
            _not_offered(item, make_engine)
        except (Mistake, NotImplementedError):
            raise
        except Exception as error:
            raise Mistake(
                f"your engine raised {type(error).__name__}: {error}.",
                case=current_case.text,
                idea="Callers may step an engine that has nothing to do, and offer it a prompt that doesn't fit. "
                "`step` returns [] then, and `add_request` raises ValueError.",
            ) from error


def check_cached_engine(make_engine: MakeEngine) -> None:
    """Requests one after the other: each token is computed once, and no cache outlives its request. Then as above.

    Raises:
        Mistake: a step computes more than it has to, or an answer is wrong.
        NotImplementedError: the engine isn't written yet.
    """
    try:
        run = Run(_checked(make_engine))
    except NotOffered as error:
        raise NotImplementedError(str(error)) from error
    with closing(run):
        first = "Which token does the newest pass continue? And does it get the cache of all tokens before?"
        _serve_and_count(run, "a", 5, "the first request of an engine", first)
        own = "A cache belongs to one request. "
        _serve_and_count(run, "b", 6, "the second request of an engine", f"{own}With which one does this one begin?")
        again = f"{own}What becomes of it when the request ends? Its id may come again."
        _serve_and_count(run, "a", 7, "a request with the id of one that has ended", again)
        if _can_abort(run):
            after = f"{own}What becomes of it when the request is aborted?"
            _serve_and_count(run, "d", 8, "the request after one that was aborted while it ran", after)
            # Only now the same id again: a notice of the abort may come in the step after it.
            after = f"{after} Its id may come again."
            _serve_and_count(run, "c", 9, "a request with the id of one that was aborted while it ran", after)
            other = f"{own}Whose is dropped where another request is added, or aborted before it has begun?"
            told = "a request that runs while another is added and aborted"
            _serve_and_count(run, "e", 10, told, other, _abort_another)
    check_first_level(make_engine)


def _tokens(count: int) -> str:
    return f"{count} token{'s' if count != 1 else ''}"


def _abort_another(run: Run) -> None:
    """Add a request behind the one that runs, and abort it before it begins."""
    run.add(a_prompt(6, 2), 4, name="another", ignore_eos=True)
    run.abort("another")


def _serve_and_count(
    run: Run, name: str, num_prompt: int, what: str, idea: str, after_first_step: Callable[[Run], None] | None = None
) -> None:
    """Serve a request that wants four tokens; a step may compute the tokens that no step before has computed."""
    case = f"{what}: a prompt of {num_prompt} tokens, and an answer of 4"
    current_case.text = case
    prompt, passes = a_prompt(num_prompt, ord(name)), run.watch.passes
    passes.clear()
    first_step = run.steps
    computed_before, served = 0, None
    try:
        run.add(prompt, 4, name=name, ignore_eos=True)
        served = run.requests[name]
        _refuse_early_passes(passes, case)

        def check_passes() -> None:
            nonlocal computed_before
            if after_first_step and run.steps == first_step + 1:
                after_first_step(run)
            needed = num_prompt + max(0, len(served.tokens) - 1)
            if sum(passes) > needed:
                raise Mistake(
                    f"step {run.steps - first_step} of a request computed {_tokens(sum(passes) - computed_before)}; "
                    f"{needed - computed_before} would do.",
                    case=case,
                    idea="Give the model the tokens that its cache doesn't hold yet, and no others: first the prompt, "
                    "then the newest token alone. The last token of an answer is never computed.",
                )
            if len(passes) > len(served.tokens):
                raise Mistake(
                    f"pass {len(passes)} of a request computed {_tokens(passes[-1])}, and no token came of it.",
                    case=case,
                    idea="The whole prompt fits into one pass, and its last position gives the first token of the "
                    "answer. So an answer of 4 takes 4 passes.",
                )
            computed_before = sum(passes)

        run.run_out(check_passes)
        run.check_answers()
    except Broken as error:
        idea = _why_not_begun(run, served) or idea
        raise Mistake(f"{what} doesn't get its answer. {error}", case=case, idea=idea) from error


def _why_not_begun(run: Run, served: Served | None) -> str:
    """The idea behind a request, not the first one, that was refused or lost: it has not come to its cache.

    Args:
        served: None for one that was refused.
    """
    if not served and run.requests:
        return (
            "Why does it refuse? Every request before this one has ended, by itself or by an abort, and its id may "
            "come again."
        )
    if served and len(run.requests) > 1 and not served.tokens and not served.finish_reason:
        return (
            "It got no token, so the cache isn't the reason. What does your engine still keep of the requests before, "
            "such as the id of one that was aborted?"
        )
    return ""


def _refuse_early_passes(passes: list[int], case: str) -> None:
    """Refuse an engine that has computed something before the first step."""
    if passes:
        raise Mistake(
            f"`add_request` runs the model: {sum(passes)} tokens are computed before the first step.",
            case=case,
            idea="The contract says of it: nothing is computed here. It notes the request, and `step` computes.",
        )


def _can_abort(run: Run) -> bool:
    """Abort a request after its second step; False if the engine can't yet."""
    run.add(a_prompt(5, 1), 4, name="c", ignore_eos=True)
    run.step()
    run.step()
    try:
        run.abort("c")
    except (AttributeError, NotImplementedError):
        run.run_out()
        return False
    return True


def check_small_size(make_engine: MakeEngine) -> None:
    """Try the items of the small size; see `check_up_to`."""
    check_up_to("small", make_engine)


def check_up_to(last: str, make_engine: MakeEngine) -> None:
    """Try the items of the levels up to one, or up to the last of a size.

    Raises:
        Mistake: an item is broken, or too few of a level can be shown to hold.
        NotImplementedError: no item of the first level can be tried.
    """
    for level in levels_up_to(last):
        missing = [reason for item in level.items if (reason := _not_offered(item, make_engine))]
        if level.name == "answers" and len(missing) == len(level.items):
            raise NotImplementedError(missing[0])
        if 2 * len(missing) > len(level.items):
            raise Mistake(
                f"{len(missing)} of the {len(level.items)} items of level `{level.name}` can't be shown to hold.",
                case=missing[0],
                idea="Write what is missing; `judge_package()` lists it.",
            )


def _check_waiting(make_engine: MakeEngine) -> None:
    """The contract of requests that wait, and of passes; the cells after the exercise rely on both."""
    case = "three requests are added before the first step; each wants 3 tokens"
    current_case.text = case
    try:
        with closing(Run(_checked(make_engine))) as run:
            passes = run.watch.passes
            for index in range(3):
                run.add(a_prompt(5, index), 3, ignore_eos=True)
            _refuse_early_passes(passes, case)

            def check_passes() -> None:
                if len(passes) > 1:
                    raise Mistake(
                        f"a step made {len(passes)} passes of the model.",
                        case=case,
                        idea="The contract allows one at most, so that requests can be added and aborted between "
                        "tokens.",
                    )
                passes.clear()

            run.run_out(check_passes)
            run.check_answers()
    except Broken as error:
        raise Mistake(
            f"requests that wait don't keep the contract. {error}",
            case=case,
            idea="Each of them stays in the engine until it has ended. Where does yours keep those that wait?",
        ) from error


def _check_id_again(make_engine: MakeEngine) -> None:
    case = "a request ends; then another one has its id"
    current_case.text = case
    try:
        with closing(Run(_checked(make_engine))) as run:
            for num_prompt in (4, 5):
                run.add(a_prompt(num_prompt), 3, name="again", ignore_eos=True)
                run.run_out()
                run.check_answers()
    except Broken as error:
        raise Mistake(
            f"an id can't be used again. {error}",
            case=case,
            idea="The contract says of `add_request`: an id is in use until its request has ended; then a new request "
            "may have it. What does your engine keep of a request that has ended?",
        ) from error


def _not_offered(item: Item, make_engine: MakeEngine) -> str:
    """Try an item; "" if it holds, else what the engine doesn't offer."""
    current_case.text = f"{item.name}: {item.sentence}"
    try:
        item.try_on(_checked(make_engine))
    except Broken as error:
        idea = "" if isinstance(error, BrokenRule) else _where(item)
        raise Mistake(f"`{item.name}` is broken. {item.sentence}.", case=str(error), idea=idea) from error
    except NotOffered as error:
        return f"{item.name}: {error}"
    return ""


def _where(item: Item) -> str:
    """What to read about an item."""
    if item.is_in_contract:
        return f"The contract says it: read `{item.lesson}` in `lessons_lib/conformance/contract.py`."
    return f"Lesson {item.lesson} is about this."


def _checked(make_engine: MakeEngine) -> MakeEngine:
    """`make_engine`, which must return an engine."""

    def made(*arguments: object) -> object:
        try:
            engine = make_engine(*arguments)
        except SyntaxError as error:  # of a file that `make_engine` imports
            raise Mistake(
                f"line {error.lineno} of {Path(error.filename or '').name} can't be read: {error.msg}.",
                case=(error.text or "").strip(),
                idea="Mend it in the file. Your cell can stay as it is.",
            ) from error
        if not hasattr(engine, "add_request"):
            raise Mistake(
                f"`make_engine` returned {type(engine).__name__}, which has no `add_request`.",
                idea="Return your engine: `return engine_of('my_serving')(model, limits, tokenizer)`.",
            )
        return engine

    return made
