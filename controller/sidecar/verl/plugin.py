"""verl's plugin (entry point group `verl.plugins`): imported with verl, in each of its processes.

Nothing is changed in verl; a version that is too old is told at once, not at the first step.
verl swallows what a plugin raises, so this one warns.
"""

import logging

from steersman.controller.sidecar.verl.version import check_version
from steersman.estimators.errors import InvalidInputError

try:
    check_version()
except InvalidInputError as error:
    logging.getLogger(__name__).warning("steersman: %s", error)
