"""What all records share."""

import msgspec


def _kind(name: str) -> str:
    """`TrajectoryQueued` -> `trajectory_queued`."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


class Base(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    gc=False,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag=_kind,
):
    """One thing that happened."""

    t_s: float
    """When, in monotonic seconds since the run started."""
