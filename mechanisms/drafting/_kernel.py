"""The draft store per token, compiled: index, forget, look up.

Every position that has a next token hangs in up to three chains, newest first, as in the match
finders of LZ77 compressors (Deutsch, RFC 1951 §4): positions whose last `NGRAM[level]` tokens,
hashed with the prompt's key or without, fall into one bucket.  A lookup

1. collects candidates, places where the row's last tokens occurred before: in the row itself
   (newest first, in a bounded window), then down the chains of its prompt (long contexts, then
   short ones), and of any prompt if those gave few.  Each is compared with the row backwards;
2. lets them vote.  A vote weighs what is known of its class at its distance in weight versions,
   times `GROWTH` for each matching token, as longer contexts are worth more.  The heaviest token is
   drafted.  Its share of the votes (and of `DOUBT`), times accepted over promised tokens of such
   drafts so far, is the chance that it is accepted;
3. goes on with the candidates that agree, for the token after it: the walk down a suffix tree whose
   nodes were never built.  It ends where the chance that all so far are accepted falls below
   `least_chance`, or nobody is left.

A reader holds no lock.  What it reads may be half changed: every position, block and document is
checked against the arrays' sizes, every loop is bounded, and the verifier rejects the rest.

All of it stands in one file because numba keys its cache by the file of the function that is
called: a change of a callee elsewhere would go unnoticed.  So does a change of a constant that is
imported: touch this file after one.
"""

import numba
import numpy as np
from numpy.typing import NDArray

from steersman.mechanisms.drafting._memory import (
    AGES,
    ANY,
    APPENDED,
    BLOCK,
    BLOCK_BITS,
    CLASSES,
    DOCUMENTS,
    EVICTED,
    LEVELS,
    LONG,
    NEWER,
    NONE,
    OLDER,
    SHORT,
    TOKENS,
    VERSION,
)
from steersman.mechanisms.drafting.source import PROMPT_BITS, DraftClass

NGRAM = (6, 2, 2)
"""Tokens hashed in LONG, SHORT and ANY.  With 1 in SHORT chance matches outvote the rest (accepted
per verify 2.12 for 2.27), with 3 in ANY sources are found too rarely (2.27 for 2.41); 4 to 8 in
LONG are alike.  These and the figures below are of the replay that `store` describes."""
LONGEST_MATCH = 16
"""Tokens compared at most.  Assumed: a source that agrees with so many outvotes the rest anyway."""
CANDIDATES = 16
"""Voters at most; of twice as many, and twice the STEPS, no more is accepted (2.26 for 2.27)."""
SELF_CANDIDATES = 8
"""Of them, from the row itself."""
FEW = 4
"""Candidates of the own prompt and text below which other prompts are asked."""
STEPS = 32
"""Chain links followed at most per chain: half of them may be of another context in the bucket."""
SELF_WINDOW = 8192
"""Last tokens of a row that are searched."""
STRIP = 64
"""Tokens scanned at once for the last token; most strips of a long text hold none."""
GROWTH = 1.5
"""Weight of one more matching token; 1.2 to 2 are alike."""
_WORTH = GROWTH ** np.arange(LONGEST_MATCH + 1.0)
AGE_BOUNDS = np.array([0, 1, 2, 4, 8, 16, 32])
"""Weight updates since a document was written, by age bucket: at most; the last has no bound."""
DOUBT = 1.0
"""Votes that nobody cast: a single source with two matching tokens has a share of .7, with ten
matching tokens of .98."""
PRIOR_TRIES = 32.0
"""Weight of what is assumed of acceptance before it is measured."""
PRIOR_RATIO = np.array([0.0, 0.8, 0.9, 0.9, 0.6])
"""By class: tokens accepted as a share of what the votes promise.  Assumed."""
LEAST_RATIO = 0.2
"""A class that is never accepted is still tried where its sources agree: or it stayed unknown."""
PRIOR_KEEP = 0.97 ** np.array([0.0, 1.0, 2.0, 3.5, 6.5, 12.5, 24.5, 48.5])
"""By age bucket: what so many weight updates leave of a draft's acceptance until it is measured."""
_SELF, _SIBLING, _HISTORY, _OTHER = (
    int(c) for c in (DraftClass.SELF, DraftClass.SIBLING, DraftClass.HISTORY, DraftClass.OTHER)
)
VOTER = np.dtype([("next", "i8"), ("weight", "f8"), ("document", "i4"), ("kind", "i4")])
"""Position of its next token (of the row, if it is the row's own), its weight, its source."""
BALLOT = np.dtype([("votes", "f8"), ("token", "i4")], align=True)
UNKNOWN = 255 << 32
"""The ticket of a draft of which nothing is known, see `_ticket`."""
_PROMPT = (1 << PROMPT_BITS) - 1
_MULTIPLIER, _MIDDLE = 0x2545_F491_4F6C_DD1D, 0xFFFF_FFFF


# Nothing is allocated here, so nothing need be counted: without numba's reference counts, atomic,
# several per array and call, a lookup takes a seventh of the time.  Python's lock is kept: a thread
# that took it meanwhile would hold it for up to 5 ms, a thousand lookups.
_compiled = numba.njit(cache=True, _nrt=False)
_inlined = numba.njit(cache=True, _nrt=False, forceinline=True)


@_inlined
def _bucket(text, end, level, key, mask):  # type: ignore[no-untyped-def]
    """Chain of the context that ends with `text[end]`."""
    mixed = np.int64(key) >> PROMPT_BITS if level == ANY else np.int64(key)
    for i in range(NGRAM[level]):
        mixed = (mixed ^ np.int64(text[end - i])) * np.int64(_MULTIPLIER)
        mixed ^= (mixed >> 32) & np.int64(_MIDDLE)
    return mixed & mask


@_inlined
def _after(arrays, position):  # type: ignore[no-untyped-def]
    """The next position of the document, or NONE."""
    block, offset = position >> BLOCK_BITS, position & (BLOCK - 1)
    if offset + 1 < min(arrays.blocks[block].filled, BLOCK):
        return position + 1
    block = arrays.blocks[block].after
    if offset + 1 < BLOCK or block < 0 or block >= len(arrays.blocks):
        return NONE
    return block << BLOCK_BITS


@_inlined
def _before(arrays, position):  # type: ignore[no-untyped-def]
    """The previous position of the document, or NONE."""
    block, offset = position >> BLOCK_BITS, position & (BLOCK - 1)
    if offset > 0:
        return position - 1
    block = arrays.blocks[block].before
    if block < 0 or block >= len(arrays.blocks):
        return NONE
    return (block << BLOCK_BITS) + BLOCK - 1


def scratch() -> tuple[NDArray[np.float64], NDArray[np.void], NDArray[np.void]]:
    """What `propose` works in: ratios by class and age, voters, ballots."""
    return np.empty((CLASSES, AGES)), np.empty(CANDIDATES, VOTER), np.empty(CANDIDATES, BALLOT)


@_compiled
def insert(arrays, free_blocks, slot, text):  # type: ignore[no-untyped-def]
    """Store `text` as the document `slot`, whose record is written, in the last of `free_blocks`;
    the caller has seen to it that there are enough."""
    document, mask = arrays.documents[slot], arrays.heads.shape[1] - 1
    block, left = np.int32(NONE), len(free_blocks)
    for i in range(len(text)):
        if i % BLOCK == 0:
            left -= 1
            new = free_blocks[left]
            record = arrays.blocks[new]
            record.document, record.before, record.after = slot, block, NONE
            record.filled = min(len(text) - i, BLOCK)
            if block == NONE:
                document.first = new
            else:
                arrays.blocks[block].after = new
            block = new
        position = (block << BLOCK_BITS) + i % BLOCK
        arrays.tokens[position] = text[i]
    position = document.first << BLOCK_BITS
    for i in range(len(text) - 1):
        for level in range(LEVELS):
            if i + 1 >= document.context and i + 1 >= NGRAM[level]:
                bucket = _bucket(text, i, level, document.prompt_key, mask)
                older = arrays.heads[level, bucket]
                arrays.links[position, level, OLDER] = older
                arrays.links[position, level, NEWER] = NONE
                if older != NONE:
                    arrays.links[older, level, NEWER] = position
                arrays.heads[level, bucket] = position
        position = _after(arrays, position)
    arrays.header[DOCUMENTS] += 1
    arrays.header[TOKENS] += len(text)
    arrays.header[APPENDED] += len(text)


@_compiled
def remove(arrays, slot, text, freed):  # type: ignore[no-untyped-def]
    """Forget the document `slot`; its blocks go to `freed`, their number is returned.

    `text` is scratch of at least the document's length.
    """
    document, mask = arrays.documents[slot], arrays.heads.shape[1] - 1
    size, block, count = document.tokens, document.first, 0
    for i in range(size):
        if i % BLOCK == 0:
            if i > 0:
                block = arrays.blocks[block].after
            freed[count] = block
            count += 1
        text[i] = arrays.tokens[(block << BLOCK_BITS) + i % BLOCK]
    for i in range(size - 1):
        position = (np.int64(freed[i >> BLOCK_BITS]) << BLOCK_BITS) + i % BLOCK
        for level in range(LEVELS):
            if i + 1 >= document.context and i + 1 >= NGRAM[level]:
                older = arrays.links[position, level, OLDER]
                newer = arrays.links[position, level, NEWER]
                if older != NONE:
                    arrays.links[older, level, NEWER] = newer
                if newer != NONE:
                    arrays.links[newer, level, OLDER] = older
                else:
                    bucket = _bucket(text, i, level, document.prompt_key, mask)
                    arrays.heads[level, bucket] = older
    for i in range(count):
        record = arrays.blocks[freed[i]]
        record.document, record.before, record.after, record.filled = NONE, NONE, NONE, 0
    document.serial, document.tokens = 0, 0
    arrays.header[DOCUMENTS] -= 1
    arrays.header[TOKENS] -= size
    arrays.header[EVICTED] += size
    return count


@_compiled
def fill_ratios(feedback, table):  # type: ignore[no-untyped-def]
    """(CLASSES, AGES) accepted tokens as a share of the promised ones: counts shrunk towards the
    class's, those towards what is assumed."""
    for c in range(CLASSES):
        promised, accepted = PRIOR_TRIES, PRIOR_TRIES * PRIOR_RATIO[c]
        for a in range(AGES):
            promised += feedback[c, a, 0] * PRIOR_KEEP[a]
            accepted += feedback[c, a, 1]
        fresh = accepted / promised
        for a in range(AGES):
            assumed = PRIOR_TRIES * fresh * PRIOR_KEEP[a]
            ratio = (assumed + feedback[c, a, 1]) / (PRIOR_TRIES + feedback[c, a, 0])
            table[c, a] = min(max(ratio, LEAST_RATIO), 1.0)


@_inlined
def _match_in_row(text, at, end):  # type: ignore[no-untyped-def]
    """How many tokens up to `text[at]` equal those up to `text[end]`."""
    count = 0
    while count < LONGEST_MATCH and count <= at and text[at - count] == text[end - count]:
        count += 1
    return count


@_inlined
def _match_in_store(arrays, position, text, end):  # type: ignore[no-untyped-def]
    """How many tokens up to `position` equal those up to `text[end]`."""
    count = 0
    while (
        count < LONGEST_MATCH
        and count <= end
        and position != NONE
        and arrays.tokens[position] == text[end - count]
    ):
        count += 1
        position = _before(arrays, position)
    return count


@_inlined
def _age_of(arrays, slot):  # type: ignore[no-untyped-def]
    """Age bucket of the document; 0 of the row itself."""
    bucket = 0
    if 0 <= slot < len(arrays.documents):
        age = arrays.header[VERSION] - arrays.documents[slot].version
        while bucket < AGES - 1 and age > AGE_BOUNDS[bucket]:
            bucket += 1
    return bucket


@_inlined
def _vote(voter, next_, kind, document, weight):  # type: ignore[no-untyped-def]
    voter.next, voter.kind, voter.document, voter.weight = next_, kind, document, weight


@_inlined
def _collect_own(text, end, voters, ratios):  # type: ignore[no-untyped-def]
    """Voters from the row itself, newest first; returns their number."""
    count, high = 0, end
    while high > max(end - SELF_WINDOW, 0) and count < SELF_CANDIDATES:
        low, hits = max(high - STRIP, 0), 0
        for i in range(low, high):
            hits += text[i] == text[end]
        if hits > 0:
            for i in range(high - 1, low - 1, -1):
                if text[i] == text[end] and count < SELF_CANDIDATES:
                    length = _match_in_row(text, i, end)
                    if length >= NGRAM[SHORT]:
                        weight = ratios[_SELF, 0] * _WORTH[length]
                        _vote(voters[count], i + 1, _SELF, NONE, weight)
                        count += 1
        high = low
    return count


@_inlined
def _collect_stored(arrays, level, text, end, key, group, voters, count, ratios):  # type: ignore[no-untyped-def]
    """Voters from one chain, newest first; returns how many voters there are now."""
    if end + 1 < NGRAM[level]:
        return count
    bucket = _bucket(text, end, level, key, arrays.heads.shape[1] - 1)
    position, steps = arrays.heads[level, bucket], 0
    while 0 <= position < len(arrays.tokens) and steps < STEPS and count < len(voters):
        steps += 1
        slot, after = arrays.blocks[position >> BLOCK_BITS].document, _after(arrays, position)
        if 0 <= slot < len(arrays.documents) and after != NONE:
            document = arrays.documents[slot]
            own = key & _PROMPT != 0 and document.prompt_key == key
            asked = document.prompt_key >> PROMPT_BITS == key >> PROMPT_BITS and own != (
                level == ANY
            )
            length = _match_in_store(arrays, position, text, end) if asked else 0
            # the long chain has had the long matches
            if length >= NGRAM[level] and not (level == SHORT and length >= NGRAM[LONG]):
                kind = _OTHER
                if own:
                    kind = _SIBLING if group >= 0 and document.group_id == group else _HISTORY
                weight = ratios[kind, _age_of(arrays, slot)] * _WORTH[length]
                _vote(voters[count], after, kind, slot, weight)
                count += 1
        position = arrays.links[position, level, OLDER]
    return count


@_inlined
def _next_token(arrays, text, end, draft, voter):  # type: ignore[no-untyped-def]
    """What the voter says; behind the row's end stands its draft, so that loops go on."""
    if voter.kind != _SELF:
        return arrays.tokens[voter.next]
    return text[voter.next] if voter.next <= end else draft[voter.next - end - 1]


@_inlined
def _elect(arrays, text, end, draft, voters, count, ballots):  # type: ignore[no-untyped-def]
    """The token with the most votes, and its share of all and `DOUBT`; `ballots` is scratch."""
    distinct, total, best = 0, 0.0, 0
    for i in range(count):
        voter = voters[i]
        token, place = _next_token(arrays, text, end, draft, voter), 0
        while place < distinct and ballots[place].token != token:
            place += 1
        if place == distinct:
            ballots[place].token, ballots[place].votes = token, 0.0
            distinct += 1
        ballots[place].votes += voter.weight
        total += voter.weight
        if ballots[place].votes > ballots[best].votes:
            best = place
    return ballots[best].token, ballots[best].votes / (total + DOUBT)


@_inlined
def _follow(arrays, text, end, draft, voters, count, token):  # type: ignore[no-untyped-def]
    """Keep the voters whose next token it is, one token further; returns how many can go on, and
    class and document of the heaviest of all that agreed."""
    left, heaviest, kind, document = 0, -1.0, 0, NONE
    for i in range(count):
        voter = voters[i]
        if _next_token(arrays, text, end, draft, voter) != token:
            continue
        if voter.weight > heaviest:
            heaviest, kind, document = voter.weight, voter.kind, voter.document
        after = voter.next + 1 if voter.kind == _SELF else _after(arrays, voter.next)
        if after != NONE:
            _vote(voters[left], after, voter.kind, voter.document, voter.weight)
            left += 1
    return left, kind, document


@_inlined
def _ticket(slot, share):  # type: ignore[no-untyped-def]
    """What `learn` must know: the source, and the mean share of votes in 255ths."""
    return (np.int64(share * 255.0) << 32) | (slot + 1)


@_compiled
def propose(  # type: ignore[no-untyped-def]
    arrays,
    ratios,
    voters,
    ballots,
    rows,
    lengths,
    keys,
    groups,
    wanted,
    vocabulary,
    least_chance,
    tokens,
    counts,
    classes,
    tickets,
):
    """Fill in the last four, the fields of `Drafts`; they say that nothing is drafted.

    `ratios`, `voters` and `ballots` are `scratch()`.

    Garbage in the store may give a chance that is not a number: `not (x >= y)` ends that draft too.
    """
    fill_ratios(arrays.feedback, ratios)
    for row in range(len(rows)):
        text, key, group = rows[row], keys[row], groups[row]
        end = min(lengths[row], len(text)) - 1
        most = min(wanted[row], tokens.shape[1])
        if end < 0 or most <= 0:
            continue
        count = _collect_own(text, end, voters, ratios)
        for level in range(LEVELS):
            if level != ANY or count < FEW:
                count = _collect_stored(arrays, level, text, end, key, group, voters, count, ratios)
        draft, drafted, chance, shares = tokens[row], 0, 1.0, 1.0
        while drafted < most and count > 0:
            token, share = _elect(arrays, text, end, draft, voters, count, ballots)
            count, kind, slot = _follow(arrays, text, end, draft, voters, count, token)
            chance *= share * ratios[kind, _age_of(arrays, slot)]
            if not (chance >= least_chance) or not 0 <= token < vocabulary:
                break
            draft[drafted] = token
            drafted += 1
            shares *= share
            classes[row], tickets[row] = kind, _ticket(slot, shares ** (1.0 / drafted))
        counts[row] = drafted


@_compiled
def learn(arrays, classes, drafted, accepted, tickets, keep):  # type: ignore[no-untyped-def]
    """Add what the verifier said; `keep` of what was known is left per tried token."""
    for row in range(len(classes)):
        kind = classes[row]
        if kind < _SELF or kind > _OTHER or drafted[row] <= 0:
            continue
        slot, share = (tickets[row] & _MIDDLE) - 1, (tickets[row] >> 32) / 255.0
        taken = max(min(accepted[row], drafted[row]), 0)
        tries, age = min(taken + 1, drafted[row]), _age_of(arrays, slot)
        if 0 <= slot < len(arrays.documents):
            arrays.documents[slot].accepted += taken
        for a in range(AGES):
            for i in range(2):
                arrays.feedback[kind, a, i] *= keep**tries
        arrays.feedback[kind, age, 0] += tries * min(max(share, 0.0), 1.0)
        arrays.feedback[kind, age, 1] += taken
