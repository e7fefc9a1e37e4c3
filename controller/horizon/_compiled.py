"""What a look at many simulated fleets costs most, compiled.

Nothing here calls a compiled function of another file, so that numba's cache, which goes by this
file, is right.
"""

import math

import numba

MUCH = 5.0
"""Deviations: of a normal that exceeds more than this, the mean is hardly above it."""
LITTLE = 1e-3
"""Share of the variance: evidence that tells less is left out."""


@numba.njit(cache=True, nogil=True)
def refill(  # type: ignore[no-untyped-def]
    order, coming, context, memory, slots, room, promised, world, position, replica
):
    """Send what may be sent now, in each world's order; its head waits for room, the others for it.

    Of w worlds, q that wait and r replicas: `order` (w, q) is who goes first, `coming` (w,) how
    many are sent.  `context` (w, n) is promised to one of them, of `memory` (w, r) at most; what
    alone is more than all of it gets a replica for itself (less than a token promised is what
    rounding has left of none).  The one with the largest free share of its `slots` (r,) is taken.

    `coming`, `room` (w, r) and `promised` (w, r) are brought up to date; `world`, `position` and
    `replica` are filled with who was sent.  Returns how many.
    """
    sent = 0
    for w in range(len(coming)):
        while coming[w] < order.shape[1]:
            i = order[w, coming[w]]
            best, most = -1, 0.0
            for r in range(len(slots)):
                share = room[w, r] / slots[r]
                fits = promised[w, r] + context[w, i] <= memory[w, r] or promised[w, r] < 1.0
                if fits and share > most:
                    best, most = r, share
            if best < 0:
                break
            room[w, best] -= 1
            promised[w, best] += context[w, i]
            coming[w] += 1
            world[sent], position[sent], replica[sent] = w, i, best
            sent += 1
    return sent


@numba.njit(cache=True, nogil=True)
def learn(  # type: ignore[no-untyped-def]
    log_median, low, high, likeness, group, written, begun, ended, mean, precision
):
    """What each world's groups have in common, given what their members wrote: a normal each.

    Of w worlds, n trajectories and g groups; `written` (w, n) tokens since the observation.  The
    other arguments are of `learning.Prior` (n,), flags (w, n), and the answers (w, g).
    """
    for w in range(len(written)):
        mean[w], precision[w] = 0.0, 1.0
        for i in range(len(group)):
            tokens = written[w, i]
            if not begun[w, i] or tokens < 1.0:
                continue
            off = math.log(tokens) - log_median[i]
            slope = low[i] if off < 0 else high[i]
            if slope <= 0.0:
                continue
            z, noise = off / slope, 1.0 - likeness[i]
            if not ended[w, i]:
                if z < -MUCH:
                    continue
                beyond = min(z, MUCH)
                density = math.exp(-0.5 * beyond * beyond) / math.sqrt(2.0 * math.pi)
                excess = density / (0.5 * math.erfc(beyond / math.sqrt(2.0)))
                known = excess * (excess - beyond)
                if known < LITTLE:
                    continue
                # an observation that would leave the same mean and variance of this one's z
                z, noise = excess / known, noise + (1.0 - known) / known
            g = group[i]
            precision[w, g] += likeness[i] / noise
            mean[w, g] += math.sqrt(likeness[i]) / noise * z
        for g in range(mean.shape[1]):
            mean[w, g] /= precision[w, g]


@numba.njit(cache=True, nogil=True)
def expect(  # type: ignore[no-untyped-def]
    log_median, high, likeness, group, expected, most, written, begun, ended, mean, precision, out
):
    """`out` (w, n): tokens that each is now expected to write from the observation on.

    `expected` and `most` (n,) are what it was at first, and the cap's; the others as in `learn`.
    """
    half = 1.0 / math.sqrt(2.0)
    for w in range(len(written)):
        for i in range(len(group)):
            tokens, slope, factor = written[w, i], high[i], 1.0
            if ended[w, i]:
                out[w, i] = tokens
                continue
            if not begun[w, i]:
                rho, g = likeness[i], group[i]
                variance = rho / precision[w, g] + 1.0 - rho
                middle = math.sqrt(rho) * mean[w, g]
                factor = math.exp(slope * middle + slope * slope * (variance - 1.0) / 2)
            elif slope > 0.0 and tokens >= 1.0:
                z = min((math.log(tokens) - log_median[i]) / slope, MUCH)
                factor = math.erfc((z - slope) * half) / math.erfc(z * half)
            out[w, i] = max(min(expected[i] * factor, most[i]), tokens)
