"""The live view of a gateway in a terminal (Textual): engines, trajectories, and why.

A thread asks for the state; the screen shows the last one that came, and says so when none comes
any more.
"""

import time
from collections.abc import Callable
from typing import ClassVar

from rich.console import Group
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import DataTable, Footer, Static
from textual.widgets.data_table import ColumnKey

from steersman.controller.gateway.state import GatewayState, TrajectoryState
from steersman.controller.watching import text
from steersman.estimators.errors import SteersmanError

STRIP = ColumnKey("strip")
MARGIN = 4
"""Columns beside the strip: around it, and for the scroll bar."""


class TopScreen(App[None]):
    """Shows what `ask` gives, every `every_s` seconds."""

    TITLE = "steersman top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: auto; padding: 0 1; }
    #figures { height: auto; padding: 0 1; margin-bottom: 1; }
    #trouble { height: auto; padding: 0 1; background: $error; color: $text; display: none; }
    #left { width: 2fr; }
    #replicas { height: auto; max-height: 40%; margin-bottom: 1; }
    #trajectories { height: 1fr; }
    #right { width: 1fr; min-width: 40; padding: 0 1; border-left: solid $panel; }
    #one { height: auto; max-height: 6; padding: 0 1; border-top: solid $panel; }
    DataTable, VerticalScroll { scrollbar-size: 1 1; scrollbar-color: $panel-lighten-2;
      scrollbar-background: $background; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "Quit"),
        ("p", "pause", "Pause the view"),
        ("r", "refresh", "Look now"),
    ]

    def __init__(self, ask: Callable[[], GatewayState], every_s: float = 1.0) -> None:
        super().__init__()
        self._ask, self._every_s = ask, every_s
        self.state: GatewayState | None = None
        """The last one that came."""
        self.frozen = False
        """Whether the view is paused."""
        self._came_s = 0.0
        self._looking = False
        self.head, self.figures = Static(id="head"), Static(id="figures")
        self.trouble, self.why, self.one = Static(id="trouble"), Static(), Static(id="one")
        self.replicas = DataTable[Text](id="replicas", cursor_type="none", show_cursor=False)
        self.trajectories = DataTable[Text](id="trajectories", cursor_type="row")

    def compose(self) -> ComposeResult:
        """The parts of the screen."""
        yield self.head
        yield self.figures
        yield self.trouble
        with Horizontal():
            with Vertical(id="left"):
                yield self.replicas
                yield self.trajectories
                yield self.one
            with VerticalScroll(id="right"):
                yield self.why
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look."""
        self.replicas.add_columns(*text.REPLICA_HEAD)
        self.trajectories.add_columns(*text.TRAJECTORY_HEAD)
        self.trajectories.add_column("", key=STRIP.value)
        self.trajectories.focus()
        self.action_refresh()
        self.set_interval(self._every_s, self.action_refresh)

    def action_pause(self) -> None:
        """Stop or go on showing what is new."""
        self.frozen = not self.frozen
        if not self.frozen:
            self.action_refresh()
        elif self.state is not None:
            self._show_head(self.state)

    def action_refresh(self) -> None:
        """Ask once, unless the view is paused."""
        if not (self.frozen or self._looking):  # a slow gateway is not asked twice at once
            self._looking = True
            self._look()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Tell more of the trajectory under the cursor."""
        if self.trajectories.is_attached:
            self._show_one()

    @work(thread=True)
    def _look(self) -> None:
        try:
            state = self._ask()
        except SteersmanError as error:
            self.call_from_thread(self._complain, str(error))
        else:
            self.call_from_thread(self._show, state)

    def _is_open(self) -> bool:
        """Whether there is still something to show it on: an answer may come while it closes."""
        self._looking = False
        return self.trajectories.is_attached

    def _complain(self, why: str) -> None:
        if not self._is_open():
            return
        age = f"; shown is its state of {time.monotonic() - self._came_s:.0f} s ago"
        self.trouble.update(Text(why + (age if self.state else "")))
        self.trouble.display = True

    def _show(self, state: GatewayState) -> None:
        if not self._is_open() or self.frozen:
            return
        self.state, self._came_s = state, time.monotonic()
        self.trouble.display = False
        self._show_head(state)
        self._show_replicas(state)
        self._show_trajectories(state)
        self.why.update(Group(*text.why_lines(state)))
        self._show_one()

    def _show_head(self, state: GatewayState) -> None:
        head = text.headline(state)
        if self.frozen:
            head.append("   view paused", style="bold reverse")
        self.head.update(head)
        self.figures.update(text.figures(state))

    def _show_replicas(self, state: GatewayState) -> None:
        of = text.colours(state.replicas)
        self.replicas.clear()
        for replica in state.replicas:
            self.replicas.add_row(*text.replica_row(replica, of[replica.name]), key=replica.name)

    def _show_trajectories(self, state: GatewayState) -> None:
        table, of = self.trajectories, text.colours(state.replicas)
        chosen, top = self._chosen(), table.scroll_offset.y
        lines = [
            text.trajectory_row(t, of.get(t.target or t.replica, text.MUTED))
            for t in state.trajectories
        ]
        room = table.size.width - text.width_of(text.TRAJECTORY_HEAD, lines) - MARGIN
        axis = text.axis_of(state, room)
        table.columns[STRIP].label = text.strip_head(axis)
        table.clear()
        for t, cells in zip(state.trajectories, lines, strict=True):
            colour = of.get(t.target or t.replica, text.MUTED)
            strip = text.strip(t, state.now_s, axis, colour)
            table.add_row(*cells, strip, key=str(t.trajectory_id))
        if chosen in table.rows:  # the cursor stays on its trajectory, wherever that goes
            table.move_cursor(row=table.get_row_index(chosen), scroll=False)
        table.scroll_to(y=top, animate=False)

    def _chosen(self) -> str:
        """Key of the row under the cursor; empty: there is none."""
        table = self.trajectories
        if not table.is_valid_row_index(table.cursor_row):
            return ""
        key, _ = table.coordinate_to_cell_key(table.cursor_coordinate)
        return str(key.value)

    def _show_one(self) -> None:
        one = self._trajectory(self._chosen())
        now_s = 0.0 if self.state is None else self.state.now_s
        lines = [] if one is None else list(text.trajectory_lines(one, now_s))
        self.one.update(Group(*lines))

    def _trajectory(self, key: str) -> TrajectoryState | None:
        known = () if self.state is None else self.state.trajectories
        return next((t for t in known if str(t.trajectory_id) == key), None)
