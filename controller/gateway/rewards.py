"""`POST /steersman/rewards`: a trainer tells what its samples earned, so that groups that teach
nothing are known.  The ids are those of the answers' `steersman` blocks.
"""

import msgspec
from aiohttp import web

from steersman.controller.gateway.keys import DESK
from steersman.controller.gateway.reply import error_response
from steersman.estimators.errors import InvalidInputError

PATH = "/steersman/rewards"


class Reward(msgspec.Struct, forbid_unknown_fields=True):
    """What one sample earned."""

    trajectory_id: int
    reward: float


class Rewards(msgspec.Struct, forbid_unknown_fields=True):
    """The body of the request."""

    rewards: list[Reward]


async def take(request: web.Request) -> web.Response:
    """All of them, or none: the first that cannot be is named."""
    ledger = request.app[DESK].ledger
    try:
        told = msgspec.json.decode(await request.read(), type=Rewards).rewards
        for one in told:
            ledger.check_reward(one.trajectory_id, one.reward)
    except (msgspec.DecodeError, InvalidInputError) as error:
        valid = '{"rewards": [{"trajectory_id": 3, "reward": 1.0}, ...]}'
        return error_response(400, f"{error}; valid: {valid}")
    for one in told:
        ledger.reward(one.trajectory_id, one.reward)
    return web.json_response({"taken": len(told)})


def add_routes(app: web.Application) -> None:
    """The one route."""
    app.router.add_post(PATH, take)
