"""SkyRL asks for Python 3.12; on 3.11 pydantic wants `TypedDict` of another module."""

import typing
import warnings

import typing_extensions

typing.TypedDict = typing_extensions.TypedDict

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import skyrl.train.entrypoints.main_base  # noqa: F401
