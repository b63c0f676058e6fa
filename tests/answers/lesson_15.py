"""Answers to the exercises of lesson 15: what learners get wrong, and other ways to be right."""

import random
from contextlib import closing

from answers import Wrong
from lessons_lib.serving.failover import Chunk, ReplicaLost, relay, request_to_go_on, stream_once
from lessons_lib.serving.router import choose_replica

# 15.1 choose_replica


def matched(block_hashes, replica):
    count = 0
    while count < len(block_hashes) and block_hashes[count] in replica.sent_blocks:
        count += 1
    return count


def sorts_the_replicas(block_hashes, replicas, imbalance_limit):
    replicas.sort(key=lambda replica: (replica.load, replica.num_sent))
    best = max(range(len(replicas)), key=lambda index: matched(block_hashes, replicas[index]))
    return best if replicas[best].load <= replicas[0].load + imbalance_limit else 0


def least_loaded(replicas):
    return min(range(len(replicas)), key=lambda i: (replicas[i].load, replicas[i].num_sent))


def routed(
    num_matched=matched,
    limit=lambda replicas, limit: replicas[least_loaded(replicas)].load + limit,
    tie=None,
    fallback=least_loaded,
):
    tie = tie or (lambda replica, i: (-replica.load, -replica.num_sent, -i))

    def choose(block_hashes, replicas, imbalance_limit):
        best = max(range(len(replicas)), key=lambda i: (num_matched(block_hashes, replicas[i]), *tie(replicas[i], i)))
        return best if replicas[best].load <= limit(replicas, imbalance_limit) else fallback(replicas)

    return choose


ignores_prefixes = lambda hashes, replicas, limit: least_loaded(replicas)
ignores_the_limit = routed(limit=lambda replicas, limit: 10**9)
counts_behind_gaps = routed(num_matched=lambda hashes, replica: sum(one in replica.sent_blocks for one in hashes))
counts_all_blocks = routed(num_matched=lambda hashes, replica: len(replica.sent_blocks))
only_knows_or_not = routed(num_matched=lambda hashes, replica: bool(matched(hashes, replica)))
strict_limit = routed(limit=lambda replicas, limit: replicas[least_loaded(replicas)].load + limit - 1)
absolute_limit = routed(limit=lambda replicas, limit: limit)
limit_to_the_mean = routed(limit=lambda replicas, limit: sum(one.load for one in replicas) / len(replicas) + limit)
first_of_equals = routed(tie=lambda replica, i: (-i,))
ignores_num_sent = routed(tie=lambda replica, i: (-replica.load, -i))
num_sent_before_load = routed(tie=lambda replica, i: (-replica.num_sent, -replica.load, -i))
last_of_equals = routed(tie=lambda replica, i: (-replica.load, -replica.num_sent, i))
busiest_of_equals = routed(tie=lambda replica, i: (replica.load, -i))


def least_loaded_of_the_others(block_hashes, replicas, imbalance_limit):
    best = ignores_the_limit(block_hashes, replicas, imbalance_limit)
    least = min((i for i in range(len(replicas)) if i != best), key=lambda i: (replicas[i].load, replicas[i].num_sent))
    return best if replicas[best].load <= replicas[least].load + imbalance_limit else least


def best_within_the_limit(block_hashes, replicas, imbalance_limit):
    low = replicas[least_loaded(replicas)].load
    allowed = [i for i in range(len(replicas)) if replicas[i].load <= low + imbalance_limit]
    return max(
        allowed, key=lambda i: (matched(block_hashes, replicas[i]), -replicas[i].load, -replicas[i].num_sent, -i)
    )


def returns_the_replica(block_hashes, replicas, imbalance_limit):
    return replicas[choose_replica(block_hashes, replicas, imbalance_limit)]


def returns_none_for_unknown(block_hashes, replicas, imbalance_limit):
    if not any(matched(block_hashes, one) for one in replicas):
        return None
    return choose_replica(block_hashes, replicas, imbalance_limit)


def minus_one_for_unknown(block_hashes, replicas, imbalance_limit):
    if not any(matched(block_hashes, one) for one in replicas):
        return -1
    return choose_replica(block_hashes, replicas, imbalance_limit)


def begins_it_too(block_hashes, replicas, imbalance_limit):
    chosen = choose_replica(block_hashes, replicas, imbalance_limit)
    replicas[chosen].begin(block_hashes)
    return chosen


def pops_hashes(block_hashes, replicas, imbalance_limit):
    chosen = choose_replica(block_hashes, replicas, imbalance_limit)
    block_hashes.clear()
    return chosen


def in_a_loop(block_hashes, replicas, imbalance_limit):
    best, low = None, None
    for index, replica in enumerate(replicas):
        key = (-matched(block_hashes, replica), replica.load, replica.num_sent)
        if best is None or key < best[0]:
            best = (key, index)
        if low is None or key[1:] < low[0]:
            low = (key[1:], index)
    return low[1] if replicas[best[1]].load - low[0][0] > imbalance_limit else best[1]


def from_the_longest_prefix_down(block_hashes, replicas, imbalance_limit):
    low = least_loaded(replicas)
    for length in range(len(block_hashes), -1, -1):
        know = [i for i, one in enumerate(replicas) if all(block in one.sent_blocks for block in block_hashes[:length])]
        if know:
            best = min(know, key=lambda i: (replicas[i].load, replicas[i].num_sent))
            return best if replicas[best].load <= replicas[low].load + imbalance_limit else low


def least_loaded_by_load_only(block_hashes, replicas, imbalance_limit):
    best = choose_replica(block_hashes, replicas, 1000)
    least = min(range(len(replicas)), key=lambda index: replicas[index].load)
    return least if replicas[best].load > replicas[least].load + imbalance_limit else best


def too_busy(fall_back):
    """Another replica than the least loaded one, if the best is too busy."""

    def choose(block_hashes, replicas, imbalance_limit):
        best = choose_replica(block_hashes, replicas, 10**9)
        if replicas[best].load <= min(replica.load for replica in replicas) + imbalance_limit:
            return best
        matched = [sum(block in replica.sent_blocks for block in block_hashes) for replica in replicas]
        return fall_back(replicas, matched)

    return choose


def least_loaded_then_longest(replicas, matched):
    return min(range(len(replicas)), key=lambda i: (replicas[i].load, -matched[i], replicas[i].num_sent))


def least_loaded_of_the_unmatched(replicas, matched):
    unmatched = [i for i in range(len(replicas)) if not matched[i]] or range(len(replicas))
    return min(unmatched, key=lambda i: (replicas[i].load, replicas[i].num_sent))


# 15.2 request_to_go_on


def as_a_longer_prompt(request, token_ids):
    return {**request, "prompt": request["prompt"] + token_ids}


def longer_prompt_and_fewer_tokens(request, token_ids):
    return {
        **request,
        "prompt": request["prompt"] + token_ids,
        "max_tokens": request["max_tokens"] - len(token_ids),
        "output_token_ids": [],
    }


def subtracts_twice(request, token_ids):
    made = request_to_go_on(request, token_ids)
    return made and {**made, "max_tokens": request["max_tokens"] - len(token_ids)}


def the_same_again(request, token_ids):
    return dict(request)


def forgets_earlier_tokens(request, token_ids):
    made = request_to_go_on(request, token_ids)
    return made and {**made, "output_token_ids": list(token_ids)}


def earlier_tokens_last(request, token_ids):
    made = request_to_go_on(request, token_ids)
    return made and {**made, "output_token_ids": [*token_ids, *request.get("output_token_ids", ())]}


def prompt_in_the_output(request, token_ids):
    made = request_to_go_on(request, token_ids)
    return made and {**made, "output_token_ids": [*request["prompt"], *made["output_token_ids"]]}


def another_seed(request, token_ids):
    made = request_to_go_on(request, token_ids)
    return made and ({**made, "seed": made["seed"] + len(token_ids)} if "seed" in made else made)


def only_three_fields(request, token_ids):
    made = request_to_go_on(request, token_ids)
    return made and {name: made[name] for name in ("prompt", "max_tokens", "output_token_ids")}


def drops_the_stop_strings(request, token_ids):
    made = request_to_go_on(request, token_ids)
    return made and {name: made[name] for name in made if name != "stop"}


def changes_the_request(request, token_ids):
    made = request_to_go_on(request, token_ids)
    request["output_token_ids"] = [*request.get("output_token_ids", ()), *token_ids]
    return made


def extends_the_callers_list(request, token_ids):
    made = request_to_go_on(request, token_ids)
    if made and not request.get("output_token_ids"):
        made["output_token_ids"] = token_ids
    return made


def drops_a_repeated_beginning(request, token_ids):
    old = request.get("output_token_ids") or []
    return request_to_go_on(request, token_ids[len(old) :] if old and token_ids[: len(old)] == old else token_ids)


def extends_the_requests_list(request, token_ids):
    tokens = request.get("output_token_ids") or []
    tokens += token_ids
    return None if len(tokens) >= request["max_tokens"] else {**request, "output_token_ids": tokens}


def never_complete(request, token_ids):
    return {**request, "output_token_ids": [*request.get("output_token_ids", ()), *token_ids]}


def counts_only_the_new_tokens(request, token_ids):
    return (
        None
        if len(token_ids) >= request["max_tokens"]
        else never_complete(request, token_ids)
        if request_to_go_on({**request, "max_tokens": 99}, token_ids)
        else None
    )


def counts_the_prompt(request, token_ids):
    made = request_to_go_on(request, token_ids)
    return None if made and len(request["prompt"]) + len(made["output_token_ids"]) >= request["max_tokens"] else made


def one_token_too_early(request, token_ids):
    made = request_to_go_on(request, token_ids)
    return None if made and len(made["output_token_ids"]) + 1 >= request["max_tokens"] else made


def last_new_token_only(request, token_ids):
    if not token_ids:
        return never_complete(request, token_ids)
    return request_to_go_on(request, token_ids)


def fails_without_tokens(request, token_ids):
    if not token_ids:
        return None
    return request_to_go_on(request, token_ids)


def adds_a_field(request, token_ids):
    made = request_to_go_on(request, token_ids)
    return made and {**made, "attempt": 2}


def with_update(request, token_ids):
    made = dict(request)
    made["output_token_ids"] = list(request.get("output_token_ids") or []) + list(token_ids)
    done = made["output_token_ids"]
    if done and (len(done) >= made["max_tokens"]):
        return None
    return made


def with_a_tuple(request, token_ids):
    made = request_to_go_on(request, token_ids)
    return made and {**made, "output_token_ids": tuple(made["output_token_ids"])}


def without_an_empty_field(request, token_ids):
    made = request_to_go_on(request, token_ids)
    if made and not made["output_token_ids"]:
        del made["output_token_ids"]
    return made


def keeps_the_list_if_nothing_came(request, token_ids):
    again = request_to_go_on(request, token_ids)
    if again is not None and not token_ids and request.get("output_token_ids"):
        again["output_token_ids"] = request["output_token_ids"]
    return again


def drops_what_is_false(request, token_ids):
    again = request_to_go_on(request, token_ids)
    return again and {field: value for field, value in again.items() if value}


# 15.3 relay: variants of one loop


def step_1_only(request, replicas, choose, max_moves=2):
    replica = replicas[choose(replicas)]
    replica.load += 1
    stream = replica.stream(request)
    try:
        yield from stream
    finally:
        stream.close()
        replica.load -= 1


def seed_of_a_fraction(request):
    return request if request.get("seed") is not None else {**request, "seed": random.random()}


def relaying(
    seed=lambda request: request if request.get("seed") is not None else {**request, "seed": random.getrandbits(31)},
    buffered=False,
    take_out=True,
    go_on=request_to_go_on,
    keeps_tokens=True,
    after_cut="move",
    refused=None,
    opening_inside=True,
    lowers="finally",
    raises_load=True,
    closes=True,
    limit=lambda max_moves: max_moves,
    reason=lambda request, tokens: "length",
    when_complete="reason",
    when_lost="error",
    error_chunk_ends=True,
    ignores_choice=False,
    asks_again=True,
    refusals=Exception,
    only_at_the_call=False,
    passed_on=lambda chunk: chunk,
    noted=lambda chunk: chunk.token_ids,
    counts_others=True,
    puts_load_back=False,
    copies=False,
    own_list=True,
    asks_if_complete=False,
):
    def attempt(request, replicas, choose, max_moves=2):
        request = seed(request)
        asked, tokens, left, moves = request, [], list(replicas) if own_list else replicas, limit(max_moves)
        if not asks_if_complete and request_to_go_on(request, []) is None:
            yield Chunk([], "length")
            return
        while left and moves >= 0:
            index = 0 if ignores_choice or (asked is not request and not asks_again) else choose(left)
            replica = left.pop(index) if take_out else left[index]
            load_before = replica.load
            replica.load = replica.load + raises_load if counts_others else 1
            is_done, at_the_call = False, True
            stream = None if opening_inside else replica.stream(asked)
            try:
                stream = stream or replica.stream(asked)
                at_the_call = False
                pieces = list(stream) if buffered else stream
                for chunk in pieces:
                    tokens += noted(chunk)
                    yield Chunk(list(chunk.token_ids), chunk.finish_reason, chunk.error) if copies else passed_on(chunk)
                    if chunk.finish_reason and (error_chunk_ends or chunk.finish_reason != "error"):
                        is_done = True
                        return
                else:
                    if after_cut == "end":
                        is_done = True
                        return
            except GeneratorExit:
                is_done = True
                raise
            except ReplicaLost:
                if lowers == "on success":
                    continue
            except refusals as error:
                if refused == "raise" or (only_at_the_call and not at_the_call):
                    raise
                if refused == "move between" and tokens and not at_the_call:
                    pass
                elif refused != "move" and (refused != "move later" or asked is request):
                    yield Chunk(
                        [],
                        "error",
                        "it failed" if refused == "vague" else repr(error) if refused == "repr" else str(error),
                    )
                    return
            finally:
                if raises_load and (
                    lowers == "finally" or (lowers == "on success" and is_done) or (lowers == "on loss" and not is_done)
                ):
                    replica.load = replica.load - 1 if counts_others else 0
                if puts_load_back:
                    replica.load = load_before
                if stream is not None and closes and (closes != "on success" or is_done):
                    stream.close()
            moves -= 1
            asked = go_on(request, tokens)
            if not keeps_tokens:
                tokens = []
            if asked is None and when_complete == "reason":
                yield Chunk([], reason(request, tokens))
                return
            if asked is None and when_complete == "silence":
                return
            if asked is None and when_complete == "error":
                break
        if when_lost == "error":
            yield Chunk([], "error", f"lost after {len(tokens)}")
        elif when_lost == "raise":
            raise ReplicaLost("all")
        elif when_lost == "no message":
            yield Chunk([], "error")
        elif when_lost == "length":
            yield Chunk([], "length")

    return attempt


def a_drawn_seed(request):
    return request if request.get("seed") is not None else {**request, "seed": random.getrandbits(31), "drawn": True}


def draws_again(request, tokens):
    again = request_to_go_on(request, tokens)
    return again and (a_drawn_seed({**again, "seed": None}) if again.get("drawn") else again)


def seed_in_place(request):
    if request.get("seed") is None:
        request["seed"] = random.getrandbits(31)
    return request


def without_tokens(chunk):
    return Chunk([], chunk.finish_reason, chunk.error) if chunk.finish_reason else chunk


def reason_of_its_own(request, replicas, choose, max_moves=2):
    for chunk in relay(request, replicas, choose, max_moves):
        yield Chunk(chunk.token_ids, "error" if chunk.finish_reason == "error" else None, chunk.error)
        if chunk.finish_reason == "error":
            return
    yield Chunk([], "length")


def one_token_at_a_time(request, replicas, choose, max_moves=2):
    for chunk in relay(request, replicas, choose, max_moves):
        yield from (Chunk([token]) for token in chunk.token_ids[:-1])
        yield Chunk(chunk.token_ids[-1:], chunk.finish_reason, chunk.error)


def returns_a_list(request, replicas, choose, max_moves=2):
    return list(relay(request, replicas, choose, max_moves))


def returns_nothing(request, replicas, choose, max_moves=2):
    for _ in relay(request, replicas, choose, max_moves):
        pass


def yields_tokens(request, replicas, choose, max_moves=2):
    for chunk in relay(request, replicas, choose, max_moves):
        yield from chunk.token_ids


def repeats_the_reason(request, replicas, choose, max_moves=2):
    for chunk in relay(request, replicas, choose, max_moves):
        yield chunk
        if chunk.finish_reason:
            yield Chunk([], chunk.finish_reason)


def catches_everything(request, replicas, choose, max_moves=2):
    inner = relay(request, replicas, choose, max_moves)
    try:
        for chunk in inner:
            yield chunk
    except:  # noqa: E722
        yield Chunk([], "error", "oops")


def forgets_the_reader(request, replicas, choose, max_moves=2):
    request = request if request.get("seed") is not None else {**request, "seed": random.getrandbits(31)}
    inner = relay(request, replicas, choose, max_moves)
    kept.append(inner)  # nothing closes it when the reader leaves
    for chunk in iter(inner):
        yield chunk


kept = []


def chooses_from_all(request, replicas, choose, max_moves=2):
    """`remaining.pop(choose(replicas))`."""
    yield from relay(request, replicas, lambda remaining: choose(replicas), max_moves)


def leaves_out_the_last_lost_only(request, replicas, choose, max_moves=2):
    asked = []

    def choose_again(remaining):
        index = choose([one for one in replicas if one not in asked[-1:]])
        asked.append(remaining[index])
        return index

    yield from relay(request, replicas, choose_again, max_moves)


def asks_the_next_in_except(request, replicas, choose, max_moves=2):
    """Asks outside of the `try`, too."""
    request = request if request.get("seed") is not None else {**request, "seed": random.getrandbits(31)}
    if request_to_go_on(request, []) is None:
        yield Chunk([], "length")
        return
    if not replicas or max_moves < 0:
        yield Chunk([], "error", "no replica is left")
        return
    left, tokens = list(replicas), []
    replica = left.pop(choose(replicas))
    replica.load += 1
    stream = replica.stream(request)
    try:
        for chunk in stream:
            tokens += chunk.token_ids
            yield chunk
            if chunk.finish_reason:
                return
        raise ReplicaLost("cut")
    except ReplicaLost:
        if asked := request_to_go_on(request, tokens):
            yield from asks_the_next_in_except(asked, left, choose, max_moves - 1)
        else:
            yield Chunk([], "length")
    except Exception as error:
        yield Chunk([], "error", str(error))
    finally:
        stream.close()
        replica.load -= 1


def with_closing(request, replicas, choose, max_moves=2):
    if request.get("seed") is None:
        request = dict(request, seed=random.randrange(2**31))
    lost, tokens = set(), []
    if request_to_go_on(request, tokens) is None:
        yield Chunk([], "length")
        return
    while len(lost) <= max_moves and len(lost) < len(replicas):
        candidates = [one for one in replicas if id(one) not in lost]
        replica = candidates[choose(candidates)]
        replica.load += 1
        try:
            with closing(replica.stream(request_to_go_on(request, tokens))) as stream:
                for chunk in stream:
                    tokens.extend(chunk.token_ids)
                    yield chunk
                    if chunk.finish_reason is not None:
                        return
        except ReplicaLost:
            pass
        except Exception as error:
            yield Chunk((), "error", f"{type(error).__name__}: {error}")
            return
        finally:
            replica.load -= 1
        lost.add(id(replica))
        if request_to_go_on(request, tokens) is None:
            yield Chunk([], "length")
            return
    yield Chunk([], "error", "no replica is left")


def passed_on(replica, request):
    yield from replica.stream(request)


def through_a_generator(request, replicas, choose, max_moves=2):
    """What it closes is a generator of its own: a stream that has raised is closed by that."""
    left, tokens = [*replicas], []
    first = {**request, "seed": random.getrandbits(31)} if request.get("seed") is None else request
    to_send = request_to_go_on(first, [])
    while to_send is not None:
        if not left or len(replicas) - len(left) > max_moves:
            yield Chunk([], "error", "too many were lost")
            return
        replica = left[choose([*left])]
        replica.load += 1
        try:
            with closing(passed_on(replica, to_send)) as chunks:
                for chunk in chunks:
                    tokens += chunk.token_ids
                    yield chunk
                    if chunk.finish_reason is not None:
                        return
        except ReplicaLost:
            pass
        except Exception as error:
            yield Chunk([], "error", str(error))
            return
        finally:
            replica.load -= 1
        left = [each for each in left if each is not replica]
        to_send = request_to_go_on(first, tokens)
    yield Chunk([], "length")


def in_recursion(request, replicas, choose, max_moves=2):
    if request.get("seed") is None:
        request = {**request, "seed": random.randint(0, 10**6)}
    if request_to_go_on(request, []) is None:
        yield Chunk([], "length")
        return
    if not replicas or max_moves < 0:
        yield Chunk([], "error", "lost")
        return
    index, tokens = choose(replicas), []
    replica, stream = replicas[index], None
    replica.load += 1
    try:
        stream = replica.stream(request)
        for chunk in stream:
            tokens += chunk.token_ids
            yield chunk
            if chunk.finish_reason:
                return
    except ReplicaLost:
        pass
    except Exception as error:
        yield Chunk([], "error", str(error))
        return
    finally:
        replica.load -= 1
        if stream:
            stream.close()
    rest = request_to_go_on(request, tokens)
    if rest is None:
        yield Chunk([], "length")
    else:
        yield from in_recursion(rest, replicas[:index] + replicas[index + 1 :], choose, max_moves - 1)


def complete_only_with_moves(request, replicas, choose, max_moves=2):
    """The limit is looked at before it is asked whether a token is missing."""
    inner = relay(request, replicas, choose, max_moves)
    try:
        for chunk in inner:
            no_moves = max_moves == 0 and len(replicas) > 1 and chunk.finish_reason and replicas[0].lost_after
            yield Chunk([], "error", "no moves are left") if no_moves else chunk
    finally:
        inner.close()


def forgets_what_had_begun(request, replicas, choose, max_moves=2):
    fresh = {name: request[name] for name in request if name != "output_token_ids"}
    yield from relay(fresh, replicas, choose, max_moves)


def goes_on_from_the_last_request(request, replicas, choose, max_moves=2):
    """The earlier tokens are given to `request_to_go_on` although the request has them."""
    earlier = list(request.get("output_token_ids", ()))
    go_on = lambda request, tokens: request_to_go_on(request, [*earlier, *tokens])
    yield from relaying(go_on=go_on)(request, replicas, choose, max_moves)


def counts_the_gap(block_hashes, replica):
    count = 0
    for count, block in enumerate(block_hashes, 1):  # noqa: B007 - it is returned
        if block not in replica.sent_blocks:
            break
    return count


def no_number_without_a_gap(block_hashes, replica):
    for count, block in enumerate(block_hashes):
        if block not in replica.sent_blocks:
            return count


def first_gap(block_hashes, replica):
    return next(i for i, block in enumerate(block_hashes) if block not in replica.sent_blocks)


def counts_up_to_a_gap(block_hashes, replicas, imbalance_limit):
    counts = [no_number_without_a_gap(block_hashes, replica) for replica in replicas]
    best = max(range(len(replicas)), key=lambda i: (counts[i], -replicas[i].load, -replicas[i].num_sent, -i))
    low = least_loaded(replicas)
    return best if counts[best] >= 0 and replicas[best].load <= replicas[low].load + imbalance_limit else low


def hides_its_own_exception(request, replicas, choose, max_moves=2):
    """The arguments are in the wrong order, and `except Exception` makes a chunk of what that raises."""
    try:
        yield from stream_once(request, replicas[choose(replicas)])
    except Exception as error:
        yield Chunk([], "error", str(error))


def never_asks_the_last(request, replicas, choose, max_moves=2):
    """Takes a replica out before it tests whether one is left."""
    yield from relay(request, replicas[:-1], choose, max_moves)


def the_request_itself_if_nothing_came(request, token_ids):
    if not token_ids and not request.get("output_token_ids"):
        return request
    return request_to_go_on(request, token_ids)


def chooses_from_none(at_first):
    """Asks `choose` before it knows whether a replica is left: for the first one, or after each loss."""

    def attempt(request, replicas, choose, max_moves=2):
        if not replicas:
            if at_first:
                choose([])
            yield Chunk([], "error", "there are no replicas")
            return

        def choose_each(candidates):
            left[:] = candidates
            index = choose(candidates)
            del left[index]
            return index

        left = []
        for chunk in relay(request, replicas, choose_each, max_moves):
            if chunk.finish_reason == "error" and not left and not at_first:
                choose(left)
            yield chunk

    return attempt


def doubles_earlier_tokens(request, token_ids):
    """Counts the tokens from before this request twice."""
    earlier = len(request.get("output_token_ids", ()))
    again = request_to_go_on(request, token_ids)
    return None if 2 * earlier + len(token_ids) >= request["max_tokens"] else again


def no_output_tokens_as_none(request, token_ids):
    earlier = request.get("output_token_ids", [])
    return request_to_go_on({**request, "output_token_ids": earlier + []}, token_ids)


def appends_the_list(request, token_ids):
    new = [*(request.get("output_token_ids") or ())]
    new.append(token_ids)
    return {**request, "output_token_ids": new} if len(new) < request["max_tokens"] else None


def false_if_complete(request, token_ids):
    return request_to_go_on(request, token_ids) or False


WRONG = {
    "15.1": [
        Wrong(
            "one more than it has, up to the whole prompt: the same choices as without the last block",
            routed(num_matched=counts_the_gap),
            "look at the first and the last block? Or does it count the block at which it stops",
        ),
        Wrong(
            "the least loaded by num_sent",
            routed(fallback=lambda replicas: min(range(len(replicas)), key=lambda i: replicas[i].num_sent)),
            "`num_sent` only decides between equal loads",
        ),
        Wrong(
            "the last of the least loaded",
            routed(
                fallback=lambda replicas: min(
                    range(len(replicas)), key=lambda i: (replicas[i].load, replicas[i].num_sent, -i)
                )
            ),
            "the two others are equal in everything",
        ),
        Wrong("the least loaded without num_sent", least_loaded_by_load_only, "decides here, too"),
        Wrong("prefixes are ignored", ignores_prefixes, "its cache holds the blocks"),
        Wrong("the limit is ignored", ignores_the_limit, "a wait behind 30 others"),
        Wrong("counts behind gaps", counts_behind_gaps, "stop at the first block that is missing"),
        Wrong("counts all blocks", counts_all_blocks, "Count only the blocks of *this* prompt"),
        Wrong("None without a gap", counts_up_to_a_gap, "For replica 1, no block of the prompt is missing"),
        Wrong("no default", routed(num_matched=first_gap), "For replica 1, no block of the prompt is missing. Does"),
        Wrong("knows it or not", only_knows_or_not, "The longer beginning saves more"),
        Wrong("a strict limit", strict_limit, "not *more than* 3"),
        Wrong("an absolute limit", absolute_limit, "about the *difference*"),
        Wrong("the mean plus the limit", limit_to_the_mean, "not with the mean"),
        Wrong("a single replica", least_loaded_of_the_others, "Does your code leave the best one out when it looks"),
        Wrong("the best within the limit", best_within_the_limit, "even if another one was sent a shorter beginning"),
        Wrong("the first of equals", first_of_equals, "only the load counts"),
        Wrong("ignores num_sent", ignores_num_sent, "send everything to the first replica"),
        Wrong("too busy: the match breaks ties", too_busy(least_loaded_then_longest), "makes no difference any more"),
        Wrong("too busy: none that matches", too_busy(least_loaded_of_the_unmatched), "a shorter beginning"),
        Wrong("num_sent before load", num_sent_before_load, "The load comes first"),
        Wrong("the last of equals", last_of_equals, "the first of them"),
        Wrong("the busiest of equals", busiest_of_equals, "yours chose replica"),
        Wrong("the replica itself", returns_the_replica, "the replica itself"),
        Wrong("None if unknown", returns_none_for_unknown, "yours returned None"),
        Wrong("-1 if unknown", minus_one_for_unknown, "There is always a replica to choose"),
        Wrong("sorts the list", sorts_the_replicas, "your code changed the list `replicas`"),
        Wrong("begins it too", begins_it_too, "your code changed a replica"),
        Wrong("changes the list", pops_hashes, "changed its argument `block_hashes`"),
    ],
    "15.2": [
        Wrong("counts earlier tokens twice", doubles_earlier_tokens, "fewer than `max_tokens` tokens"),
        Wrong("a list in the list", appends_the_list, "as one element"),
        Wrong("False if complete", false_if_complete, "or None if no token is missing"),
        Wrong("a longer prompt", as_a_longer_prompt, "the seed starts again"),
        Wrong("a longer prompt, fewer tokens", longer_prompt_and_fewer_tokens, "`max_tokens` stays as it is"),
        Wrong("max_tokens lowered too", subtracts_twice, "limits the whole completion"),
        Wrong("the request itself", the_request_itself_if_nothing_came, "returned the request itself"),
        Wrong("the same request again", the_same_again, "gets the beginning twice"),
        Wrong("earlier tokens lost", forgets_earlier_tokens, "moved once before"),
        Wrong("earlier tokens last", earlier_tokens_last, "the old ones first"),
        Wrong("the prompt in the output", prompt_in_the_output, "not the prompt"),
        Wrong("another seed", another_seed, "So the seed stays"),
        Wrong("only three fields", only_three_fields, "draws other tokens"),
        Wrong("without stop strings", drops_the_stop_strings, "also if one of them began before the cut"),
        Wrong("changes the request", changes_the_request, "changed its argument `request`"),
        Wrong("the caller's list", extends_the_callers_list, "the same list object"),
        Wrong("never complete", never_complete, "no replica has anything left to generate"),
        Wrong("counts new tokens only", counts_only_the_new_tokens, "Three tokens before this request"),
        Wrong("max_tokens counts the prompt", counts_the_prompt, "does your code count those, too?"),
        Wrong("complete too early", one_token_too_early, "it has fewer than `max_tokens` tokens"),
        Wrong("the last new token only", last_new_token_only, "none since: that is all of them"),
        Wrong("nothing without tokens", fails_without_tokens, "failed before its first token"),
        Wrong("output_token_ids is None", no_output_tokens_as_none, '"output_token_ids" is None'),
        Wrong("the first request's list", keeps_the_list_if_nothing_came, "the same list object as that of the first"),
        Wrong("fields that are 0 are dropped", drops_what_is_false, "'temperature' is missing"),
        Wrong("one more field", adds_a_field, "a field 'attempt'"),
        Wrong("drops a repeated beginning", drops_a_repeated_beginning, "should be [7, 7, 8]; yours is [7, 8]"),
        Wrong("extends the request's list", extends_the_requests_list, "a copy of the dict shares it"),
    ],
    "15.3": [
        Wrong("a list", returns_a_list, "returned a list"),
        Wrong("step 1 only", step_1_only, "(Streams without a loss are right already."),
        Wrong("nothing returned", returns_nothing, "returned None"),
        Wrong("tokens instead of chunks", yields_tokens, "expected Chunks"),
        Wrong("buffered", relaying(buffered=True), "and your code has read 6 from the replica"),
        Wrong("the choice is ignored", relaying(ignores_choice=True), "`choose` was not called"),
        Wrong("a lost replica is asked again", relaying(take_out=False), "was asked again after it was lost"),
        Wrong(
            "chooses from all replicas",
            chooses_from_all,
            "still contains replica A, which was lost: it should be [B]; yours is [A, B]",
        ),
        Wrong(
            "leaves out only the last one lost",
            leaves_out_the_last_lost_only,
            "still contains replica A, which was lost: it should be [C]; yours is [A, C]",
        ),
        Wrong("the caller's list is changed", relaying(own_list=False), "needs the list for other requests"),
        Wrong("begins again", relaying(go_on=lambda request, tokens: request), "Some tokens came twice"),
        Wrong(
            "tokens of the last replica only",
            relaying(keeps_tokens=False, reason=lambda request, tokens: "length"),
            "A is lost after 2 chunks, B after 1 more",
        ),
        Wrong("a cut connection is the end", relaying(after_cut="end"), "One that ends without it was cut"),
        Wrong("asking is outside of the try", relaying(opening_inside=False), "It belongs inside the `try`"),
        Wrong("the load isn't raised", relaying(raises_load=False), "its load should be 1"),
        Wrong(
            "the load drops only after success",
            relaying(lowers="on success"),
            "the load of <replica A> should be 0; it is 1",
        ),
        Wrong("the load drops only after a loss", relaying(lowers="on loss"), "it is never chosen again"),
        Wrong("streams aren't closed", relaying(closes=False), "was not closed"),
        Wrong("one move too many", relaying(limit=lambda moves: moves + 1), "one request takes down every replica"),
        Wrong(
            "one move too few",
            relaying(limit=lambda moves: moves - 1, opening_inside=False),
            "asked *after* the first one",
        ),
        Wrong("chooses from none", chooses_from_none(at_first=False), "yours passed it an empty list"),
        Wrong("chooses from no replicas", chooses_from_none(at_first=True), "the list `replicas` is empty"),
        Wrong("no limit", relaying(limit=lambda moves: 99), "should be 1; yours is 5"),
        Wrong("silence when complete", relaying(when_complete="silence"), "Only the reason is missing"),
        Wrong("an error when complete", relaying(when_complete="error"), "should be 'length'; yours is 'error'"),
        Wrong("a replica is asked for None", relaying(when_complete="ask"), "which is not a request"),
        Wrong("complete, but no moves left", complete_only_with_moves, "max_moves = 0; {'prompt'"),
        Wrong("earlier tokens dropped", forgets_what_had_begun, "with the output tokens [11, 12]; yours asked with"),
        Wrong("earlier tokens twice", goes_on_from_the_last_request, "with the output tokens [11, 12, 13]"),
        Wrong("silence when all are lost", relaying(when_lost="silence"), "should have a finish_reason; yours have []"),
        Wrong("raises when all are lost", relaying(when_lost="raise"), "The reader gets that as a chunk"),
        Wrong("no message", relaying(when_lost="no message"), "say what happened in `error`"),
        Wrong(
            "'length' when all are lost",
            relaying(when_lost="length"),
            "The reader must learn that the answer is not complete",
        ),
        Wrong(
            "a refused request moves on", relaying(refused="move", opening_inside=False), "Every other replica would"
        ),
        Wrong("a refused request raises", relaying(refused="raise"), "your code raised ValueError"),
        Wrong("why it was refused is lost", relaying(refused="vague"), "should say why"),
        Wrong("an engine's error moves on", relaying(error_chunk_ends=False), "yours have ['error', 'length']"),
        Wrong("a reason of its own", reason_of_its_own, "should be 'stop'; yours is 'length'"),
        Wrong("the last chunk is split", one_token_at_a_time, "with all its tokens"),
        Wrong("the reason twice", repeats_the_reason, "yours have ['length', 'length']"),
        Wrong("no seed", relaying(seed=lambda request: request), "the same seed, an int; yours were [None, None]"),
        Wrong(
            "seed 0 counts as none",
            relaying(seed=lambda request: {**request, "seed": request.get("seed") or 99}),
            "0 is a seed too",
        ),
        Wrong(
            "always a new seed",
            relaying(seed=lambda request: {**request, "seed": 99}),
            "should be asked with the seed 12",
        ),
        Wrong("the request is changed", relaying(seed=seed_in_place), "changed its argument `request`"),
        Wrong(
            "always the same seed",
            relaying(seed=lambda request: request if request.get("seed") is not None else {**request, "seed": 5}),
            "yours is 5 every time",
        ),
        Wrong("the reason without its tokens", relaying(passed_on=without_tokens), "can have tokens too"),
        Wrong("one token of each chunk", relaying(noted=lambda chunk: chunk.token_ids[:1]), "can have several tokens"),
        Wrong("the policy chooses only once", relaying(asks_again=False), "ask it again for each move"),
        Wrong("only ValueError is refused", relaying(refusals=ValueError), "your code raised TypeError"),
        Wrong(
            "refused only at the call", relaying(only_at_the_call=True), "ValueError('max_tokens is -1') at its first"
        ),
        Wrong("refused after a move", relaying(refused="move later"), "replica C was asked too"),
        Wrong("other streams aren't counted", relaying(counts_others=False), "its load should be 4; it is 1"),
        Wrong(
            "asked for a complete request",
            relaying(asks_if_complete=True, opening_inside=False),
            "be asked; A was.\nSmallest case",
        ),
        Wrong(
            "each replica has another seed",
            relaying(seed=a_drawn_seed, go_on=draws_again, opening_inside=False),
            "Without a seed, each replica draws one of its own",
        ),
        Wrong("a random float as a seed", relaying(seed=seed_of_a_fraction), "but a seed is an int"),
        Wrong("the load is put back", relaying(puts_load_back=True), "don't put back what it was before"),
        Wrong("the next is asked in `except`", asks_the_next_in_except, "that asks the next one itself runs before"),
        Wrong("catches GeneratorExit", catches_everything, "raises GeneratorExit at the `yield`"),
        Wrong("moves on from an error between", relaying(refused="move between"), "B was asked, though A wasn't lost"),
        Wrong("the exception as Python writes it", relaying(refused="repr"), "Its message is `str(error)`"),
        Wrong("the reader leaves unnoticed", forgets_the_reader, "reader takes two chunks and leaves"),
        Wrong("its own exception is a chunk", hides_its_own_exception, "and the error \"'dict' object has no"),
        Wrong("the last one is never asked", never_asks_the_last, "No replica has failed here. If the message isn't"),
    ],
}

RIGHT = {
    "15.1": [in_a_loop, from_the_longest_prefix_down, routed()],
    "15.2": [with_update, with_a_tuple, without_an_empty_field],
    "15.3": [with_closing, in_recursion, relaying(copies=True), through_a_generator, relaying(closes="on success")],
}
for one in (RIGHT["15.1"][2], RIGHT["15.3"][2]):
    one.__name__ = "in parts"
RIGHT["15.3"][4].__name__ = "a stream that has raised is closed"
