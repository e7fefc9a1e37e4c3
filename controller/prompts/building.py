"""A prompt chooser as the configuration names its parts."""

from steersman.controller.config import KINDS, Config
from steersman.controller.plugins import build
from steersman.controller.prompts.chooser import PromptChooser
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.success import DynamicLogistic


def chooser_of(config: Config, group_size: int, max_new_tokens: int) -> PromptChooser:
    """The prompt policy and an estimator of success of its own, as configured.

    Of its own: the controller's learns sample by sample and only from what a session ran.
    """
    success = build(KINDS["success"], config.success.name, config.success.options)
    if not isinstance(success, DynamicLogistic):
        raise InvalidInputError(
            f"the success estimator {config.success.name!r} cannot tell of prompts that are not "
            "running; valid for choosing prompts: success"
        )
    return PromptChooser(
        build(KINDS["prompts"], config.prompts.name, config.prompts.options),
        group_size=group_size,
        max_new_tokens=max_new_tokens,
        normaliser=config.normaliser,
        seed=config.seed,
        estimator=success,
    )
