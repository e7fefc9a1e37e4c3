"""The event core, compiled.  `reference_replica` is the same in plain Python: read that first.

Replicas do not touch each other between two calls, so each runs by itself from one of its events
to the next; `next_s` holds when each is due (a flat array: scanning 1,000 of them costs less than
reporting one event).  A replica has a virtual time v: the tokens served to
each running sequence.  Between events the batch is constant and the KV cache grows by a constant
number of tokens per unit of v, so tau is linear in v on either side of the knee, the seconds for dv
are a quadratic, and dv for given seconds is its root.  Three things can be due:

- FINISH: the smallest finish in the replica's heap.  All that share it leave, then the queue is
  asked, so that nobody's end waits for a newcomer's prefill.
- FULL: the running contexts reach the capacity.  The last admitted goes to the queue's head, until
  they fit; a sequence that runs alone is never preempted, whatever it holds.
- ARRIVAL: someone on its way, or waiting for a tool, joins the queue.

Looking does not count as an event: figures of a moment are computed on a copy, so that a run is the
same bytes however often it is looked at.

All of it stands in one file because numba keys its cache by the file of the function that is
called: a change of a callee elsewhere would go unnoticed.
"""

import math

import numba

from steersman.mechanisms.simulated._state import NONE
from steersman.mechanisms.simulated.spec import EventKind

IDLE, WAITING, RUNNING, AWAY, DONE = range(5)
"""Status of a trajectory."""
QUEUED, COMING = 0, 1
"""Columns of `State.queues`."""
_NOTHING, _FINISH, _FULL, _ARRIVAL = range(4)
_LOST, _FINISHED, _TURN_ENDED, _PREEMPTED = (int(kind) for kind in EventKind)

_compiled = numba.njit(cache=True, nogil=True, forceinline=True)


@_compiled
def decode_seconds(rep, tokens):  # type: ignore[no-untyped-def]
    """Seconds to write `tokens` of each running sequence, from the state on."""
    batch, base = rep.running, rep.base_s
    below = min(tokens, max((rep.knee_tokens - rep.kv) / batch, 0.0))
    seconds = below * (base + rep.token_s * (rep.kv + 0.5 * batch * below))
    if tokens > below:
        above, kv = tokens - below, max(rep.kv, rep.knee_tokens)
        middle = 0.5 * batch * above
        knee = rep.knee_token_s * (kv - rep.knee_tokens + middle)
        seconds += above * (base + rep.token_s * (kv + middle) + knee)
    return seconds / rep.tokens_per_iteration


@_compiled
def decoded_tokens(rep, seconds):  # type: ignore[no-untyped-def]
    """Tokens written of each running sequence in `seconds`: the inverse."""
    batch, base = rep.running, rep.base_s
    amount = seconds * rep.tokens_per_iteration
    below = max((rep.knee_tokens - rep.kv) / batch, 0.0)
    kv, slope, start, done = rep.kv, rep.token_s, base + rep.token_s * rep.kv, 0.0
    if below < math.inf:
        to_knee = below * (base + rep.token_s * (rep.kv + 0.5 * batch * below))
        if amount > to_knee:
            kv = max(rep.kv, rep.knee_tokens)
            slope = rep.token_s + rep.knee_token_s
            start = base + rep.token_s * kv + rep.knee_token_s * (kv - rep.knee_tokens)
            amount, done = amount - to_knee, below
    # the root of slope * batch * x^2 / 2 + start * x = amount, without cancellation
    return done + 2.0 * amount / (start + math.sqrt(start * start + 2.0 * slope * batch * amount))


@_compiled
def _serve(rep, elapsed_s, paid_s, tokens):  # type: ignore[no-untyped-def]
    """Account `elapsed_s` with a batch: `paid_s` of prefill, the rest for `tokens` of each."""
    whole = paid_s == rep.debt_s
    prefilled = rep.owed_tokens if whole else rep.owed_tokens * (paid_s / rep.debt_s)
    rep.prefill_tokens += prefilled
    rep.owed_tokens -= prefilled
    rep.debt_s -= paid_s
    rep.busy_s += elapsed_s
    iterations = tokens / rep.tokens_per_iteration
    rep.iterations += iterations
    rep.sequences_run += rep.running * iterations
    rep.kv += rep.running * tokens
    rep.written += rep.running * tokens
    rep.v += tokens


@_compiled
def sync(replicas, heap, r, at_s):  # type: ignore[no-untyped-def]
    """Bring the replica to `at_s`, before or at its next event."""
    rep = replicas[r]
    elapsed = at_s - rep.now_s
    if elapsed > 0.0 and rep.running > 0 and rep.paused == 0:
        paid, tokens = min(rep.debt_s, elapsed), 0.0
        if elapsed > paid:
            # not beyond the next finish, not even by rounding
            left = heap[r, 0].v - rep.v
            tokens = min(decoded_tokens(rep, elapsed - paid), left)
        _serve(rep, elapsed, paid, tokens)
    rep.now_s = at_s


@_compiled
def _before(a, b):  # type: ignore[no-untyped-def]
    return a.v < b.v or (a.v == b.v and a.row < b.row)


@_compiled
def _swap(heap, r, i, j):  # type: ignore[no-untyped-def]
    a, b = heap[r, i], heap[r, j]
    v, row, admission = a.v, a.row, a.admission
    a.v, a.row, a.admission = b.v, b.row, b.admission
    b.v, b.row, b.admission = v, row, admission


@_compiled
def _sift(heap, r, size, i):  # type: ignore[no-untyped-def]
    """Restore the heap's order around position `i`."""
    while i > 0 and _before(heap[r, i], heap[r, (i - 1) // 2]):
        _swap(heap, r, i, (i - 1) // 2)
        i = (i - 1) // 2
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and _before(heap[r, child + 1], heap[r, child]):
            child += 1
        if not _before(heap[r, child], heap[r, i]):
            break
        _swap(heap, r, i, child)
        i = child


@_compiled
def _enqueue(s, r, which, after, row):  # type: ignore[no-untyped-def]
    """Put `row` behind `after`, or at the head."""
    queue, t = s.queues[r, which], s.trajectories
    before = t[after].next if after != NONE else queue.head
    t[row].previous, t[row].next = after, before
    if after != NONE:
        t[after].next = row
    else:
        queue.head = row
    if before != NONE:
        t[before].previous = row
    else:
        queue.tail = row
    queue.count += 1
    t[row].status = WAITING if which == QUEUED else AWAY


@_compiled
def _dequeue(s, r, which, row):  # type: ignore[no-untyped-def]
    queue, t = s.queues[r, which], s.trajectories
    before, after = t[row].previous, t[row].next
    if before != NONE:
        t[before].next = after
    else:
        queue.head = after
    if after != NONE:
        t[after].previous = before
    else:
        queue.tail = before
    queue.count -= 1


@_compiled
def _expect(s, r, row):  # type: ignore[no-untyped-def]
    """Put `row` among those that are away; most come later than those there."""
    t, after = s.trajectories, s.queues[r, COMING].tail
    ready = t[row].ready_s
    while after != NONE and (
        t[after].ready_s > ready or (t[after].ready_s == ready and after > row)
    ):
        after = t[after].previous
    _enqueue(s, r, COMING, after, row)


@_compiled
def _fresh(rep, stamp):  # type: ignore[no-untyped-def]
    """Whether the prefix cache still holds what was last used at `stamp`."""
    return stamp > rep.forgotten and rep.written - stamp < rep.prefix_cache


@_compiled
def _batch_s(s, r, batch):  # type: ignore[no-untyped-def]
    """Seconds of an iteration of `batch` >= 1 sequences, their contexts not counted."""
    rep = s.replicas[r]
    if rep.tabled == 1:
        return rep.fixed_s + rep.cost_factor * s.batch_s[r, batch - 1]
    return rep.fixed_s + rep.sequence_s * rep.cost_factor * batch


@_compiled
def _prefill_step_s(s, r):  # type: ignore[no-untyped-def]
    """What an iteration takes longer because it prefills: with a table (experts that are read once
    for all) less, the more the batch takes anyway."""
    rep = s.replicas[r]
    if rep.prefill_step_s == 0.0 or rep.tabled == 0:
        return rep.prefill_step_s
    batch_part = _batch_s(s, r, max(rep.running, 1)) - _batch_s(s, r, 1)
    return max(rep.prefill_step_s - batch_part, 0.0)


@_compiled
def _admit(s, r):  # type: ignore[no-untyped-def]
    """Take from the queue, in order, what fits; its prefill becomes the replica's debt."""
    rep, step_s = s.replicas[r], _prefill_step_s(s, r)
    while rep.alive == 1 and rep.paused == 0 and rep.running < rep.max_num_seqs:
        row = s.queues[r, QUEUED].head
        if row == NONE:
            break
        t = s.trajectories[row]
        context = t.given_tokens + t.generated
        if rep.running > 0 and rep.kv + context > rep.admit_below:
            break
        _dequeue(s, r, QUEUED, row)
        prefix, tokens, stall = s.prefixes[t.prefix], context, 0.0
        if t.kept_on == r and _fresh(rep, t.kept_stamp):
            tokens = s.turns[t.turn - 1].extra
        elif prefix.users > 0 or _fresh(rep, prefix.stamp):
            tokens = context - t.prompt_tokens
        else:
            stall = t.encode_s / rep.speed
        if tokens > 0.0:
            stall += step_s
            stall += rep.request_s
            step_s = 0.0  # whoever joins now shares it
        t.kept_on = NONE
        rep.written += tokens
        prefix.stamp = rep.written
        prefix.users += 1
        rep.owed_tokens += tokens
        rep.debt_s += tokens * rep.prefill_token_s + stall
        if rep.debt_s == 0.0:  # prefill costs nothing here
            rep.prefill_tokens += rep.owed_tokens
            rep.owed_tokens = 0.0
        rep.kv += context
        t.status, t.entered_v = RUNNING, rep.v
        last = rep.running
        new = s.heap[r, last]
        new.v, new.row, new.admission = rep.v + (t.goal - t.generated), row, rep.admissions
        rep.admissions += 1
        rep.running += 1
        _sift(s.heap, r, last + 1, last)


@_compiled
def _leave(s, r, position, generated):  # type: ignore[no-untyped-def]
    """Take the running sequence at a position of the heap out of the batch; returns its row."""
    rep, heap = s.replicas[r], s.heap
    row = heap[r, position].row
    t = s.trajectories[row]
    t.generated = generated
    rep.kv -= t.given_tokens + generated
    rep.running -= 1
    last = rep.running
    if position != last:
        _swap(heap, r, position, last)
        _sift(heap, r, last, position)
    if last == 0:  # nobody is left to wait for a prefill
        rep.kv, rep.debt_s, rep.owed_tokens = 0.0, 0.0, 0.0
    prefix = s.prefixes[t.prefix]
    prefix.users -= 1
    prefix.stamp = rep.written
    return row


@_compiled
def written_now(s, rep, row):  # type: ignore[no-untyped-def]
    """Tokens generated by a running trajectory at its replica's time."""
    t = s.trajectories[row]
    return min(t.generated + (rep.v - t.entered_v), t.goal)


@_compiled
def _log(log, count, time_s, kind, row, r):  # type: ignore[no-untyped-def]
    event = log[count]
    event.time_s, event.kind, event.row, event.replica = time_s, kind, row, r
    return count + 1


@_compiled
def _preempt(s, r, log, count):  # type: ignore[no-untyped-def]
    """The last admitted gives its KV cache away and goes to the queue's head."""
    rep, heap, youngest = s.replicas[r], s.heap, 0
    for i in range(1, rep.running):
        if heap[r, i].admission > heap[r, youngest].admission:
            youngest = i
    generated = written_now(s, rep, heap[r, youngest].row)
    row = _leave(s, r, youngest, generated)
    s.prefixes[s.trajectories[row].prefix].stamp = -math.inf  # its blocks are what the others take
    rep.preemptions += 1
    _enqueue(s, r, QUEUED, NONE, row)
    return _log(log, count, rep.now_s, _PREEMPTED, row, r)


@_compiled
def _end_turn(s, r, log, count):  # type: ignore[no-untyped-def]
    """The first of the heap has written its turn."""
    rep = s.replicas[r]
    row = _leave(s, r, 0, s.trajectories[s.heap[r, 0].row].goal)
    t = s.trajectories[row]
    if t.turn == t.last_turn:
        t.status, t.replica = DONE, NONE
        return _log(log, count, rep.now_s, _FINISHED, row, r)
    t.ready_s = rep.now_s + s.turns[t.turn].wait_s
    t.given_tokens += s.turns[t.turn].extra
    t.turn += 1
    t.goal += s.turns[t.turn].tokens
    if rep.keeps_kv == 1:
        t.kept_on, t.kept_stamp = r, rep.written
    _expect(s, r, row)
    return _log(log, count, rep.now_s, _TURN_ENDED, row, r)


@_compiled
def refresh(s, r):  # type: ignore[no-untyped-def]
    """After anything changed at the replica's time: admit, and say when the next event is due."""
    _admit(s, r)
    rep, due, kind = s.replicas[r], math.inf, _NOTHING
    if rep.alive == 1 and rep.paused == 0 and rep.running > 0:
        rep.base_s = _batch_s(s, r, rep.running)
        tokens, kind = s.heap[r, 0].v - rep.v, _FINISH
        if rep.running > 1:
            room = max(rep.capacity - rep.kv, 0.0) / rep.running
            if room < tokens:
                tokens, kind = room, _FULL
        due = rep.now_s + rep.debt_s + decode_seconds(rep, tokens)
    first = s.queues[r, COMING].head
    if first != NONE:
        ready = max(s.trajectories[first].ready_s, rep.now_s)
        if ready < due:
            due, kind = ready, _ARRIVAL
    s.next_s[r], rep.next_kind = due, kind


@_compiled
def _step(s, r, log, count):  # type: ignore[no-untyped-def]
    """The replica's next event; returns the number of events in the log."""
    rep, t, heap, due = s.replicas[r], s.trajectories, s.heap, s.next_s[r]
    if rep.next_kind == _ARRIVAL:
        sync(s.replicas, heap, r, due)
        row = s.queues[r, COMING].head
        while row != NONE and t[row].ready_s <= due:
            _dequeue(s, r, COMING, row)
            _enqueue(s, r, QUEUED, s.queues[r, QUEUED].tail, row)
            row = s.queues[r, COMING].head
    elif rep.next_kind == _FINISH:
        end = heap[r, 0].v
        _serve(rep, due - rep.now_s, rep.debt_s, end - rep.v)
        rep.v, rep.now_s = end, due
        while rep.running > 0 and heap[r, 0].v <= end:
            count = _end_turn(s, r, log, count)
    else:
        room = max(rep.capacity - rep.kv, 0.0) / rep.running
        _serve(rep, due - rep.now_s, rep.debt_s, room)
        rep.kv, rep.now_s = max(rep.kv, rep.capacity), due
        while rep.running > 1 and rep.kv >= rep.capacity:
            count = _preempt(s, r, log, count)
    refresh(s, r)
    return count


@_compiled
def advance(s, count, until_s, log, kinds):  # type: ignore[no-untyped-def]
    """All events of the first `count` replicas until `until_s`; with `kinds` (a bit mask), to the
    end of the first moment with an event of these.

    Returns the events in the log, whether it is full before the end, and that moment or `until_s`.
    """
    logged, spare, r = 0, len(log) - s.heap.shape[1], 0
    while True:
        if kinds:  # in order of time
            r = _first(s.next_s, count)
        else:  # replica by replica: what it touches stays in the cache
            while r < count and not _is_due(s.next_s[r], until_s):
                r += 1
        if r == count or not _is_due(s.next_s[r], until_s):
            return logged, False, until_s
        if logged > spare:
            return logged, True, until_s
        before, logged = logged, _step(s, r, log, logged)
        for i in range(before, logged):
            if kinds >> log[i].kind & 1:
                until_s = min(until_s, log[i].time_s)


@_compiled
def _is_due(due_s, until_s):  # type: ignore[no-untyped-def]
    return due_s <= until_s and due_s < math.inf


@_compiled
def _first(next_s, count):  # type: ignore[no-untyped-def]
    """The replica whose event is first; `count` where there is no replica."""
    first = 0
    for r in range(1, count):
        if next_s[r] < next_s[first]:
            first = r
    return first


@_compiled
def submit(  # type: ignore[no-untyped-def]
    s, trajectories, replicas, prefixes, rows, targets, at_s, now_s
):
    """Append to the targets' queues; all or, if one cannot be submitted, none.

    Returns the position of the first that cannot, or the number of rows, and the `prefixes` in use.
    """
    for k in range(len(rows)):
        row, r = rows[k], targets[k]
        good = 0 <= row < trajectories and 0 <= r < replicas and s.replicas[r].alive == 1
        if not good or s.trajectories[row].status != IDLE:
            for undone in range(k):
                s.trajectories[rows[undone]].status = IDLE
            return k, prefixes
        s.trajectories[row].status = WAITING
    for k in range(len(rows)):
        row, r = rows[k], targets[k]
        sync(s.replicas, s.heap, r, now_s)
        t = s.trajectories[row]
        t.replica, t.ready_s = r, max(t.ready_s, at_s)
        t.prefix = _prefix(s, t.group, r, prefixes)
        prefixes = max(prefixes, t.prefix + 1)
        if t.ready_s > now_s:
            _expect(s, r, row)
        else:
            _enqueue(s, r, QUEUED, s.queues[r, QUEUED].tail, row)
    for k in range(len(rows)):
        refresh(s, targets[k])
    return len(rows), prefixes


@_compiled
def _prefix(s, group, r, unused):  # type: ignore[no-untyped-def]
    """Row of the group's prompt on the replica; `unused`, now its, where it has not been."""
    p = s.group_prefix[group]
    while p != NONE:
        if s.prefixes[p].replica == r:
            return p
        p = s.prefixes[p].next
    new = s.prefixes[unused]
    new.stamp, new.users, new.replica, new.next = -math.inf, 0, r, s.group_prefix[group]
    s.group_prefix[group] = unused
    return unused


@_compiled
def _withdraw(s, row, now_s):  # type: ignore[no-untyped-def]
    """Take the trajectory from wherever it is; the replica must be refreshed."""
    t = s.trajectories[row]
    r = t.replica
    sync(s.replicas, s.heap, r, now_s)
    if t.status == RUNNING:
        rep = s.replicas[r]
        for i in range(rep.running):
            if s.heap[r, i].row == row:
                _leave(s, r, i, written_now(s, rep, row))
                break
    else:
        _dequeue(s, r, QUEUED if t.status == WAITING else COMING, row)
    t.status, t.replica = IDLE, NONE


@_compiled
def abort(s, rows, now_s, left):  # type: ignore[no-untyped-def]
    """Withdraw what is on a replica, all of it before anybody is admitted in its place.

    `left` (len(rows),) is filled with the replicas.
    """
    for k in range(len(rows)):
        left[k] = s.trajectories[rows[k]].replica
        if left[k] != NONE:
            _withdraw(s, rows[k], now_s)
    for k in range(len(rows)):
        if left[k] != NONE:
            refresh(s, left[k])


@_compiled
def kill(s, r, now_s, log):  # type: ignore[no-untyped-def]
    """The replica dies with everything on it; `log` has room.  Returns the number of events."""
    rep, count = s.replicas[r], 0
    sync(s.replicas, s.heap, r, now_s)
    rep.alive = 0
    while rep.running > 0:
        row = s.heap[r, rep.running - 1].row
        _withdraw(s, row, now_s)
        count = _log(log, count, now_s, _LOST, row, r)
    for which in (QUEUED, COMING):
        while s.queues[r, which].head != NONE:
            row = s.queues[r, which].head
            _withdraw(s, row, now_s)
            count = _log(log, count, now_s, _LOST, row, r)
    refresh(s, r)
    return count


@_compiled
def new_weights(s, r, now_s, log):  # type: ignore[no-untyped-def]
    """Every KV cache entry is void: all running ones go back to the queue's head, oldest first."""
    rep, count = s.replicas[r], 0
    sync(s.replicas, s.heap, r, now_s)
    while rep.running > 0:
        count = _preempt(s, r, log, count)
    rep.forgotten = rep.written
    refresh(s, r)
    return count


@_compiled
def generated(s, replicas, rows, out):  # type: ignore[no-untyped-def]
    """Tokens generated by each of `rows`; `replicas` are the records at the wanted time."""
    for k in range(len(rows)):
        t = s.trajectories[rows[k]]
        if t.status == RUNNING:
            out[k] = written_now(s, replicas[t.replica], rows[k])
        else:
            out[k] = t.generated


@_compiled
def sync_all(replicas, heap, count, at_s):  # type: ignore[no-untyped-def]
    """Bring the records of all replicas to `at_s`."""
    for r in range(count):
        sync(replicas, heap, r, at_s)
