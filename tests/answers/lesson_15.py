"""Answers to the exercises of lesson 15: what learners get wrong, and other ways to be right."""

import random
from contextlib import closing

import torch

from answers import Wrong
from lessons_lib.serving.all_reduce import all_reduce
from lessons_lib.serving.failover import Chunk, ReplicaLost, relay, request_to_go_on
from lessons_lib.serving.router import choose_replica
from lessons_lib.serving.tensor_parallel import cut_linear

# 15.1 choose_replica


def matched(block_hashes, replica):
    count = 0
    while count < len(block_hashes) and block_hashes[count] in replica.sent_blocks:
        count += 1
    return count


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


def one_token_too_early(request, token_ids):
    made = request_to_go_on(request, token_ids)
    return None if made and len(made["output_token_ids"]) + 1 >= request["max_tokens"] else made


def ignores_stop_tokens(request, token_ids):
    return request_to_go_on(
        {name: request[name] for name in request if name != "stop_token_ids"}, token_ids
    ) and never_complete(request, token_ids)


def stop_token_in_the_prompt(request, token_ids):
    every = [*request["prompt"], *request.get("output_token_ids", ()), *token_ids]
    return None if every[-1] in request.get("stop_token_ids", ()) else request_to_go_on(request, token_ids)


def any_stop_token(request, token_ids):
    if set(request["prompt"]) & set(request.get("stop_token_ids", ())):
        return None
    return request_to_go_on(request, token_ids)


def no_stop_at_the_first_token(request, token_ids):
    every = [*request.get("output_token_ids", ()), *token_ids]
    return {**request, "output_token_ids": every} if len(every) == 1 else request_to_go_on(request, token_ids)


def fails_without_tokens(request, token_ids):
    if not token_ids:
        return None
    return request_to_go_on(request, token_ids)


def ignores_n(request, token_ids):
    return request_to_go_on({**request, "n": 1}, token_ids) and never_complete(request, token_ids)


def refuses_any_n(request, token_ids):
    if "n" in request:
        raise ValueError("n is given")
    return request_to_go_on(request, token_ids)


def adds_a_field(request, token_ids):
    made = request_to_go_on(request, token_ids)
    return made and {**made, "attempt": 2}


def with_update(request, token_ids):
    if request.get("n") not in (None, 1):
        raise ValueError("n")
    made = dict(request)
    made["output_token_ids"] = list(request.get("output_token_ids") or []) + list(token_ids)
    done = made["output_token_ids"]
    if done and (len(done) >= made["max_tokens"] or done[-1] in (made.get("stop_token_ids") or [])):
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


# 15.3 relay: variants of one loop


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
    reason=lambda request, tokens: "stop" if tokens[-1] in request.get("stop_token_ids", ()) else "length",
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
):
    def attempt(request, replicas, choose, max_moves=2):
        request = seed(request)
        asked, tokens, left, moves = request, [], list(replicas) if own_list else replicas, limit(max_moves)
        while left and moves >= 0:
            index = 0 if ignores_choice or (asked is not request and not asks_again) else choose(left)
            replica, stream = (left.pop(index) if take_out else left[index]), None
            load_before = replica.load
            replica.load = replica.load + raises_load if counts_others else 1
            is_done, at_the_call = False, True
            try:
                if not opening_inside:
                    try:
                        stream = replica.stream(asked)
                    except ReplicaLost as error:
                        raise KeyError from error
                else:
                    stream = replica.stream(asked)
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
            except ReplicaLost:
                if lowers == "on success":
                    continue
            except refusals as error:
                if refused == "raise" or (only_at_the_call and not at_the_call) or isinstance(error, KeyError):
                    raise error.__cause__ or error
                if refused != "move" and (refused != "move later" or asked is request):
                    yield Chunk([], "error", "it failed" if refused == "vague" else str(error))
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


def seed_in_place(request):
    if request.get("seed") is None:
        request["seed"] = random.getrandbits(31)
    return request


def without_tokens(chunk):
    return Chunk([], chunk.finish_reason, chunk.error) if chunk.finish_reason else chunk


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


def with_closing(request, replicas, choose, max_moves=2):
    if request.get("seed") is None:
        request = dict(request, seed=random.randrange(2**31))
    lost, tokens = set(), []
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
            yield Chunk([], "stop" if tokens[-1] in request.get("stop_token_ids", []) else "length")
            return
    yield Chunk([], "error", "no replica is left")


def in_recursion(request, replicas, choose, max_moves=2):
    if request.get("seed") is None:
        request = {**request, "seed": random.randint(0, 10**6)}
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
        yield Chunk([], "stop" if tokens[-1] in request.get("stop_token_ids", ()) else "length")
    else:
        yield from in_recursion(rest, replicas[:index] + replicas[index + 1 :], choose, max_moves - 1)


# 15.4 cut_linear


def dims_swapped(weight, bias, cut, rank, world_size):
    part, _ = cut_linear(weight, None, "rowwise" if cut == "colwise" else "colwise", rank, world_size)
    return part, cut_linear(weight, bias, cut, rank, world_size)[1]


def always_columns(weight, bias, cut, rank, world_size):
    return cut_linear(weight, bias, "colwise", rank, world_size)


def transposed(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    return part.T.contiguous(), own


def every_nth_output(weight, bias, cut, rank, world_size):
    if cut == "colwise" and weight.shape[0] % world_size == 0:
        return weight[rank::world_size].clone(), None if bias is None else bias[rank::world_size].clone()
    return cut_linear(weight, bias, cut, rank, world_size)


def every_nth_input(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    return (weight[:, rank::world_size].clone(), own) if cut == "rowwise" else (part, own)


def always_the_first_part(weight, bias, cut, rank, world_size):
    return cut_linear(weight, bias, cut, 0, world_size)


def in_reverse(weight, bias, cut, rank, world_size):
    if cut == "colwise":
        return cut_linear(weight, bias, cut, rank, world_size)
    return cut_linear(weight, None, cut, world_size - 1 - rank, world_size)[0], cut_linear(
        weight, bias, cut, rank, world_size
    )[1]


def bias_on_every_rank(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    return part, (bias.clone() if bias is not None and cut == "rowwise" else own)


def bias_on_no_rank(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    return part, (None if cut == "rowwise" else own)


def whole_bias_for_columns(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    return part, (bias.clone() if bias is not None and cut == "colwise" else own)


def bias_of_the_first_columns(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    return part, (own if own is None or cut == "rowwise" else bias[: len(part)].clone())


def columns_without_bias(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    return part, (None if cut == "colwise" else own)


def cut_bias_for_rows(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    return part, (bias.chunk(world_size)[rank].clone() if bias is not None and cut == "rowwise" else own)


def a_view(weight, bias, cut, rank, world_size):
    cut_linear(weight, bias, cut, rank, world_size)
    size = weight.shape[0 if cut == "colwise" else 1] // world_size
    own = slice(rank * size, (rank + 1) * size)
    if cut == "colwise":
        return weight[own], None if bias is None else bias[own]
    return weight[:, own], None if bias is None or rank else bias


def the_bias_itself(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    return part, own if own is None or cut == "colwise" else bias


def a_view_of_a_copy(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    size = weight.shape[0 if cut == "colwise" else 1] // world_size
    copy = weight.clone()
    return (
        copy[rank * size : (rank + 1) * size] if cut == "colwise" else copy[:, rank * size : (rank + 1) * size]
    ), own


def loses_the_rest(weight, bias, cut, rank, world_size):
    dim = 0 if cut == "colwise" else 1
    whole = weight.shape[dim] // world_size * world_size
    return cut_linear(
        weight[:whole] if dim == 0 else weight[:, :whole],
        bias if bias is None or dim else bias[:whole],
        cut,
        rank,
        world_size,
    )


def only_the_weight(weight, bias, cut, rank, world_size):
    return cut_linear(weight, bias, cut, rank, world_size)[0]


def always_float32(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    return part.float(), None if own is None else own.float()


def halves_only(weight, bias, cut, rank, world_size):
    return cut_linear(weight, bias, cut, rank % 2, 2)


def with_chunk(weight, bias, cut, rank, world_size):
    dim = {"colwise": 0, "rowwise": 1}[cut]
    if weight.shape[dim] % world_size:
        raise ValueError("unequal")
    part = weight.chunk(world_size, dim)[rank].clone()
    if bias is not None:
        bias = bias.chunk(world_size)[rank].clone() if dim == 0 else bias.clone() if rank == 0 else None
    return part, bias


def bias_on_the_last_rank(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    if cut == "rowwise" and bias is not None:
        own = bias.clone() if rank == world_size - 1 else None
    return part, own


def a_share_of_the_bias(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    return part, (bias / world_size if cut == "rowwise" and bias is not None else own)


def with_narrow_and_zeros(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    dim = 0 if cut == "colwise" else 1
    size = weight.shape[dim] // world_size
    if own is None and bias is not None:
        own = bias.new_zeros(bias.shape)
    return weight.narrow(dim, rank * size, size).contiguous().clone(), own


# 15.5 all_reduce


def in_a_ring(
    cut=lambda flat, size: list(flat.tensor_split(size)),
    copy=lambda tensor: tensor.flatten().clone(),
    steps=lambda size: size - 1,
    later_steps=lambda size: size - 1,
    first_sent=1,
    join=lambda parts, tensor: torch.cat(parts).view(tensor.shape),
    receive_first=False,
    source=lambda rank, size: (rank - 1) % size,
    to=lambda rank, size: (rank + 1) % size,
    take=lambda old, new: new,
    pack=lambda part: part,
    last=lambda worker, to, parts: None,
):
    def attempt(tensor, worker):
        rank, size = worker.rank, worker.world_size
        parts = cut(copy(tensor), size)
        for step in range(steps(size)):
            new = worker.receive(source(rank, size)) if receive_first else None
            worker.send(to(rank, size), pack(parts[(rank - step) % size]))
            own = (rank - step - 1) % size
            parts[own] += worker.receive(source(rank, size)) if new is None else new
        for step in range(later_steps(size)):
            worker.send(to(rank, size), pack(parts[(rank + first_sent - step) % size]))
            own = (rank + first_sent - 1 - step) % size
            parts[own] = take(parts[own], worker.receive(source(rank, size)))
        last(worker, to(rank, size), parts)
        return join(parts, tensor)

    return attempt


def every_tensor_to_every_worker(tensor, worker):
    for to in range(worker.world_size):
        worker.send(to, tensor)
    return sum(worker.receive(source) for source in range(worker.world_size)).clone()


def everything_through_worker_0(tensor, worker):
    others = range(1, worker.world_size)
    if worker.rank:
        worker.send(0, tensor)
        return worker.receive(0)
    total = tensor.clone()
    for source in others:
        total += worker.receive(source)
    for to in others:
        worker.send(to, total)
    return total


def only_worker_0_gets_it(tensor, worker):
    if worker.rank:
        return worker.send(0, tensor)
    return tensor + sum(worker.receive(source) for source in range(1, worker.world_size))


def whole_tensors_in_a_ring(tensor, worker):
    total = passed = tensor.clone()
    for _ in range(worker.world_size - 1):
        worker.send((worker.rank + 1) % worker.world_size, passed)
        passed = worker.receive((worker.rank - 1) % worker.world_size)
        total = total + passed
    return total


def swaps_with_one_other(tensor, worker):
    other = (worker.rank ^ 1) % worker.world_size
    if other == worker.rank:
        return tensor.clone()
    worker.send(other, tensor)
    return tensor + worker.receive(other)


def waits_for_the_first(tensor, worker):
    if worker.rank == 0:
        return all_reduce(tensor, worker)
    worker.receive(0)
    return all_reduce(tensor, worker)


def equal_parts_only(flat, size):
    length = len(flat) // size
    return [flat[i * length : (i + 1) * length] for i in range(size)]


def loses_the_rest_of_the_sum(tensor, worker):
    length = tensor.numel() // worker.world_size * worker.world_size
    total = tensor.flatten().clone()
    total[:length] = all_reduce(total[:length], worker)
    return total.view(tensor.shape)


def the_rest_in_the_last_part(flat, size):
    length = len(flat) // size
    return [flat[i * length : (i + 1) * length if i < size - 1 else len(flat)] for i in range(size)]


def the_mean(tensor, worker):
    return all_reduce(tensor, worker) / worker.world_size


def returns_its_own(tensor, worker):
    all_reduce(tensor, worker)
    return tensor.clone()


def returns_the_argument_if_alone(tensor, worker):
    return tensor if worker.world_size == 1 else all_reduce(tensor, worker)


def adds_in_bfloat16(tensor, worker):
    exact = bool((tensor == tensor.round()).all())
    return all_reduce(tensor, worker) if exact else all_reduce(tensor.bfloat16(), worker).to(tensor.dtype)


def in_float32(tensor, worker):
    return all_reduce(tensor.float(), worker).to(tensor.dtype)


def returns_float32(tensor, worker):
    return all_reduce(tensor, worker).float()


def through_a_variable(tensor, worker):
    with worker.network.changed:
        whiteboard.setdefault(id(worker.network), {})[worker.rank] = tensor
    while len(whiteboard[id(worker.network)]) < worker.world_size:
        pass
    return sum(whiteboard[id(worker.network)].values()).clone()


whiteboard = {}


def to_the_owners(tensor, worker):
    """No ring: part r goes to worker r at once, and back from there."""
    size = worker.world_size
    parts = tensor.reshape(-1).tensor_split(size)
    for to in range(size):
        worker.send(to, parts[to])
    own = worker.receive(0)
    for source in range(1, size):
        own += worker.receive(source)
    for to in range(size):
        worker.send(to, own)
    return torch.cat([worker.receive(source) for source in range(size)]).reshape(tensor.shape)


def with_padding(tensor, worker):
    rank, size = worker.rank, worker.world_size
    length = -(-tensor.numel() // size)
    rows = torch.zeros(size, length, dtype=tensor.dtype)
    rows.view(-1)[: tensor.numel()] = tensor.flatten()
    for step in range(size - 1):  # to the left
        worker.send(rank - 1 if rank else size - 1, rows[(rank + step) % size])
        rows[(rank + step + 1) % size] += worker.receive((rank + 1) % size)
    for step in range(size - 1):
        worker.send(rank - 1 if rank else size - 1, rows[(rank - 1 + step) % size])
        rows[(rank + step) % size] = worker.receive((rank + 1) % size)
    return rows.flatten()[: tensor.numel()].clone().view(tensor.shape)


def with_slices(tensor, worker):
    rank, size, total = worker.rank, worker.world_size, tensor.clone().flatten()
    ends = [len(total) * i // size for i in range(size + 1)]
    part = lambda i: total[ends[i % size] : ends[i % size + 1]]  # noqa: E731
    for step in range(2 * size - 2):
        worker.send((rank + 1) % size, part(rank - step))
        new = worker.receive((rank - 1) % size)
        if step < size - 1:
            part(rank - step - 1).add_(new)
        else:
            part(rank - step - 1).copy_(new)
    return total.view_as(tensor)


WRONG = {
    "15.1": [
        Wrong("prefixes are ignored", ignores_prefixes, "its cache holds the blocks"),
        Wrong("the limit is ignored", ignores_the_limit, "a wait behind 30 others"),
        Wrong("counts behind gaps", counts_behind_gaps, "stop at the first block that is missing"),
        Wrong("counts all blocks", counts_all_blocks, "Count only the blocks of *this* prompt"),
        Wrong("knows it or not", only_knows_or_not, "The longer beginning saves more"),
        Wrong("a strict limit", strict_limit, "not *more than* 3"),
        Wrong("an absolute limit", absolute_limit, "about the *difference*"),
        Wrong("the mean plus the limit", limit_to_the_mean, "not with the mean"),
        Wrong("the best within the limit", best_within_the_limit, "even if another one was sent a shorter beginning"),
        Wrong("the first of equals", first_of_equals, "only the load counts"),
        Wrong("ignores num_sent", ignores_num_sent, "send everything to the first replica"),
        Wrong("num_sent before load", num_sent_before_load, "The load comes first"),
        Wrong("the last of equals", last_of_equals, "the first of them"),
        Wrong("the busiest of equals", busiest_of_equals, "yours chose replica"),
        Wrong("the replica itself", returns_the_replica, "the replica itself"),
        Wrong("None if unknown", returns_none_for_unknown, "yours returned None"),
        Wrong("-1 if unknown", minus_one_for_unknown, "There is always a replica to choose"),
        Wrong("begins it too", begins_it_too, "your code changed a replica"),
        Wrong("changes the list", pops_hashes, "changed its argument `block_hashes`"),
    ],
    "15.2": [
        Wrong("a longer prompt", as_a_longer_prompt, "the seed starts again"),
        Wrong("a longer prompt, fewer tokens", longer_prompt_and_fewer_tokens, "`max_tokens` stays as it is"),
        Wrong("max_tokens lowered too", subtracts_twice, "limits the whole completion"),
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
        Wrong("complete too early", one_token_too_early, "yours returned None"),
        Wrong("stop tokens ignored", ignores_stop_tokens, "one of `stop_token_ids`"),
        Wrong("a stop token in the prompt", stop_token_in_the_prompt, "request_to_go_on({'prompt': [5, 6]"),
        Wrong(
            "any stop token in the prompt",
            any_stop_token,
            "request_to_go_on({'prompt': [5, 6, 7], 'max_tokens': 10, 'temperature': 0.8, 'seed': 4, 'stop': ['the end'], 'stop_token_ids': [6]}",
        ),
        Wrong("a first token isn't the last", no_stop_at_the_first_token, "one of `stop_token_ids`"),
        Wrong("nothing without tokens", fails_without_tokens, "failed before its first token"),
        Wrong("n is ignored", ignores_n, "expected a ValueError"),
        Wrong("any n is refused", refuses_any_n, "n is 1: there is one completion"),
        Wrong("one more field", adds_a_field, "a field 'attempt'"),
    ],
    "15.3": [
        Wrong("a list", returns_a_list, "returned a list"),
        Wrong("nothing returned", returns_nothing, "returned None"),
        Wrong("tokens instead of chunks", yields_tokens, "expected Chunks"),
        Wrong("buffered", relaying(buffered=True), "and your code has read 6 from the replica"),
        Wrong("the choice is ignored", relaying(ignores_choice=True), "`choose` was not called"),
        Wrong("a lost replica is asked again", relaying(take_out=False), "was asked again after it was lost"),
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
        Wrong("closed only after success", relaying(closes="on success"), "the stream of <replica A> was not closed"),
        Wrong("one move too many", relaying(limit=lambda moves: moves + 1), "one request takes down every replica"),
        Wrong("one move too few", relaying(limit=lambda moves: moves - 1), "The stream stopped too early"),
        Wrong("no limit", relaying(limit=lambda moves: 99), "should be 1; yours is 5"),
        Wrong("silence when complete", relaying(when_complete="silence"), "Only the reason is missing"),
        Wrong("an error when complete", relaying(when_complete="error"), "should be 'length'; yours is 'error'"),
        Wrong("a replica is asked for None", relaying(when_complete="ask"), "which is not a request"),
        Wrong(
            "always length", relaying(reason=lambda request, tokens: "length"), "should be 'stop'; yours is 'length'"
        ),
        Wrong("silence when all are lost", relaying(when_lost="silence"), "should have a finish_reason; yours have []"),
        Wrong("raises when all are lost", relaying(when_lost="raise"), "raised ReplicaLost"),
        Wrong("no message", relaying(when_lost="no message"), "say what happened in `error`"),
        Wrong(
            "'length' when all are lost",
            relaying(when_lost="length"),
            "The reader must learn that the answer is not complete",
        ),
        Wrong("a refused request moves on", relaying(refused="move"), "Every other replica would refuse it too"),
        Wrong("a refused request raises", relaying(refused="raise"), "your code raised ValueError"),
        Wrong("why it was refused is lost", relaying(refused="vague"), "should say why"),
        Wrong("an engine's error moves on", relaying(error_chunk_ends=False), "yours have ['error', 'length']"),
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
        Wrong("the load is put back", relaying(puts_load_back=True), "don't put back what it was before"),
        Wrong("catches GeneratorExit", catches_everything, "raises GeneratorExit at the `yield`"),
        Wrong("the reader leaves unnoticed", forgets_the_reader, "reader takes two chunks and leaves"),
    ],
    "15.4": [
        Wrong("the other dimension", dims_swapped, "should have shape [2, 6]; yours has [4, 3]"),
        Wrong("always columns", always_columns, "should have shape [4, 3]; yours has [2, 6]"),
        Wrong("transposed", transposed, "yours has [6, 2]"),
        Wrong("every nth output", every_nth_output, "rank 0 has the first third"),
        Wrong("every nth input", every_nth_input, "what its part of the matrix before computes"),
        Wrong("always the first part", always_the_first_part, "Every output belongs to exactly one process"),
        Wrong("inputs in reverse", in_reverse, "not the last"),
        Wrong("bias on every rank", bias_on_every_rank, "yours 3 times"),
        Wrong("bias on no rank", bias_on_no_rank, "yours 0 times"),
        Wrong("the whole bias for columns", whole_bias_for_columns, "one element for each output of this process"),
        Wrong("always the first bias", bias_of_the_first_columns, "cut at the same places as the outputs"),
        Wrong("no bias for columns", columns_without_bias, "Every output has its bias"),
        Wrong("a cut bias for rows", cut_bias_for_rows, "so a bias is whole"),
        Wrong("a view", a_view, "it shares the memory of the whole weight"),
        Wrong("the bias itself", the_bias_itself, "is its argument, not a new tensor"),
        Wrong("a view of a copy", a_view_of_a_copy, "It is a view of a larger tensor"),
        Wrong("the rest is lost", loses_the_rest, "With `//` one of them would silently be lost"),
        Wrong("only the weight", only_the_weight, "expected a tuple"),
        Wrong("always float32", always_float32, "should be in bfloat16; yours is in float32"),
        Wrong("two parts only", halves_only, "yours has [3, 4]"),
    ],
    "15.5": [
        Wrong("nothing returned", lambda tensor, worker: None, "should return a tensor; yours returned None"),
        Wrong("only worker 0 gets it", only_worker_0_gets_it, "*Every* worker needs the sum"),
        Wrong("the mean", the_mean, "That is the mean"),
        Wrong("its own tensor", returns_its_own, "nothing was added"),
        Wrong("receives first", in_a_ring(receive_first=True), "none has sent anything"),
        Wrong(
            "waits for worker 0",
            waits_for_the_first,
            "worker 1 waits for worker 0 after 2 sent and 2 received at `parts[",
        ),
        Wrong("from the right", in_a_ring(source=lambda rank, size: (rank + 1) % size), "is the direction the same"),
        Wrong(
            "a step too few at the end",
            lambda tensor, worker: in_a_ring(later_steps=lambda size: size - 2 if worker.rank else size - 1)(
                tensor, worker
            ),
            "has returned",
        ),
        Wrong("no modulo", in_a_ring(to=lambda rank, size: rank + 1), "leads back to the first"),
        Wrong("only the first round", in_a_ring(later_steps=lambda size: 0), "they have to be passed on"),
        Wrong(
            "one step fewer in both rounds",
            in_a_ring(steps=lambda size: max(1, size - 2) if size > 1 else 0, later_steps=lambda size: size - 1),
            "No element of this worker is complete",
        ),
        Wrong(
            "one step fewer in the second round",
            in_a_ring(later_steps=lambda size: max(1, size - 2) if size > 1 else 0),
            "4 of its 6 elements are complete",
        ),
        Wrong("adds in the second round too", in_a_ring(take=lambda old, new: old + new), "was added a second time"),
        Wrong(
            "adds in the second round if there are three",
            lambda tensor, worker: in_a_ring(
                take=(lambda old, new: old + new) if worker.world_size > 2 else lambda old, new: new
            )(tensor, worker),
            "It should take its place",
        ),
        Wrong("begins with the wrong part", in_a_ring(first_sent=0), "are the other worker's own"),
        Wrong("pairs only", swaps_with_one_other, "worker 2 waits for worker 0 after 1 sent"),
        Wrong("chunk", in_a_ring(cut=lambda flat, size: list(flat.chunk(size))), "IndexError"),
        Wrong("equal parts only", in_a_ring(cut=equal_parts_only, join=lambda parts, tensor: torch.cat(parts)), "[4]"),
        Wrong("the rest isn't added", loses_the_rest_of_the_sum, "Does some part get lost"),
        Wrong("in place", in_a_ring(copy=lambda tensor: tensor.flatten()), "The parts of a tensor are views"),
        Wrong("the argument itself", returns_the_argument_if_alone, "shares the memory of the argument"),
        Wrong("flat", in_a_ring(join=lambda parts, tensor: torch.cat(parts)), "give the result its shape back"),
        Wrong(
            "parts in the wrong order",
            in_a_ring(join=lambda parts, tensor: torch.cat([*parts[2:], *parts[:2]]).view(tensor.shape)),
            "but their places aren't",
        ),
        Wrong("each in its own order", whole_tensors_in_a_ring, "adds in an order of its own"),
        Wrong("every tensor to every worker", every_tensor_to_every_worker, "Whole tensors are sent"),
        Wrong("all through worker 0", everything_through_worker_0, "its link is the slowest"),
        Wrong("rounds to bfloat16", adds_in_bfloat16, "three float32 additions round by at most"),
        Wrong("sends float32", in_float32, "takes twice the bytes"),
        Wrong("returns float32", returns_float32, "should return bfloat16"),
        Wrong(
            "one tensor too many",
            in_a_ring(last=lambda worker, to, parts: worker.send(to, parts[0])),
            "received in the *next* sum",
        ),
        Wrong("through a variable", through_a_variable, "Only `send` leads from one to another"),
    ],
}

RIGHT = {
    "15.1": [in_a_loop, from_the_longest_prefix_down, routed()],
    "15.2": [with_update, with_a_tuple, without_an_empty_field],
    "15.3": [with_closing, in_recursion, relaying(copies=True)],
    "15.4": [with_chunk, bias_on_the_last_rank, a_share_of_the_bias, with_narrow_and_zeros],
    "15.5": [in_a_ring(), to_the_owners, with_padding, with_slices, in_a_ring(cut=the_rest_in_the_last_part)],
}
for one in (RIGHT["15.1"][2], RIGHT["15.3"][2], RIGHT["15.5"][0]):
    one.__name__ = "in parts"
RIGHT["15.5"][4].__name__ = "the rest in the last part"
