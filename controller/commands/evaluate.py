"""`steersman evaluate`: cost to reach quality, C(q), and the diagnostics that say where it is from.

Every action reads quality logs (JSON lines or CSV) or traces, and tells a table, one sentence, and,
with `-o`, a page.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steersman.controller.checklist import add_tell_argument

if TYPE_CHECKING:
    from steersman.controller.evaluate.answer import Answer
    from steersman.controller.evaluate.study import Study

AXES = ("tokens", "replica_s", "wall_s")
WIDTH = 150
"""Columns of the tables where there is no terminal that has a width."""
EFFECT, MARGIN = 0.9, 0.01


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, text: str) -> argparse.ArgumentParser:
        made = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        made.add_argument(
            "files",
            nargs="+",
            metavar="[ARM=]FILE",
            help="a quality log (.jsonl or .csv) or a trace; ARM= names the arm of a trace",
        )
        made.add_argument("-o", "--out", type=Path, metavar="HTML", help="write a page")
        made.add_argument("--json", action="store_true", help="print one JSON object")
        add_tell_argument(made)
        return made

    curves = action("curves", "what reaching a quality costs, by arm, and against the baseline")
    _baseline(curves)
    curves.add_argument(
        "--target", action="append", type=float, metavar="Q", help="quality; repeatable (three)"
    )
    curves.add_argument("--axis", action="append", choices=AXES, help="repeatable (all known)")
    curves.add_argument(
        "--effect",
        type=float,
        default=EFFECT,
        metavar="RATIO",
        help=f"ratio of costs that seeds are counted for ({EFFECT})",
    )
    matched = action("matched", "how good each arm is when all have spent the same")
    _baseline(matched)
    matched.add_argument(
        "--at", action="append", type=float, metavar="COST", help="repeatable; with one --axis"
    )
    matched.add_argument("--axis", action="append", choices=AXES, help="repeatable (all known)")
    control = action("control", "a selection against a random choice of the same amount of work")
    control.add_argument("--selection", required=True, metavar="ARM", help="that judges prompts")
    control.add_argument(
        "--control", required=True, metavar="ARM", help="that draws as many at random"
    )
    control.add_argument("--baseline", metavar="ARM", help="that selects nothing")
    _target(control)
    ablation = action("ablation", "what each lever adds, arms adding one at a time")
    ablation.add_argument(
        "--arm", action="append", metavar="ARM", help="in the order of adding (the files' order)"
    )
    _target(ablation)
    action("acceptance", "what drafts earn in each third of the training, from traces")
    staleness = action("staleness", "quality and cost by the bound on the weight-version lag")
    staleness.add_argument(
        "--lag", action="append", default=[], metavar="ARM=N", help="its bound (what the runs tell)"
    )
    staleness.add_argument(
        "--margin",
        type=float,
        default=MARGIN,
        help=f"loss of quality that does not matter ({MARGIN})",
    )
    _target(staleness, axis="replica_s")
    compose = action("compose", "the product of two levers' gains against their joint one")
    for name, text in (
        ("baseline", "neither lever"),
        ("a", "the first lever alone"),
        ("b", "the second lever alone"),
        ("both", "both levers"),
    ):
        compose.add_argument(f"--{name}", required=True, metavar="ARM", help=text)
    _target(compose)
    checklist = action("checklist", "the minimum reporting checklist, as far as the files tell it")
    _baseline(checklist)


def _baseline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--baseline", metavar="ARM", help="the arm to compare with (the first)")


def _target(parser: argparse.ArgumentParser, axis: str = "tokens") -> None:
    parser.add_argument(
        "--target", type=float, metavar="Q", help="quality (the highest that all arms can tell of)"
    )
    parser.add_argument("--axis", choices=AXES, default=axis, help=f"which cost ({axis})")


def run(args: argparse.Namespace) -> int:
    """Answer one question."""
    from steersman.controller.checklist import Checklist, told_items
    from steersman.controller.evaluate.reading import read, split_name

    told = told_items(args.tell)
    if args.action == "acceptance":
        from steersman.controller.evaluate.acceptance import acceptance, checklist_of_traces

        traces = [split_name(given) for given in args.files]
        _tell(args, acceptance(traces), checklist_of_traces(traces).told(told), None)
        return 0
    from steersman.controller.evaluate.told import checklist_of

    study = read(args.files)
    if args.action == "checklist":
        baseline = args.baseline or study.arms[0]
        study.arm(baseline)
        made = checklist_of(study, baseline, told)
        _tell(args, _listed(made), made, study)
        return 0
    answer, baseline = _ANSWERS[args.action](args, study)
    checklist: Checklist = checklist_of(study, baseline, told)
    _tell(args, answer, checklist, study)
    return 0


def _curves(args: argparse.Namespace, study: "Study") -> "tuple[Answer, str]":
    from steersman.controller.evaluate.curves import curves

    answer = curves(study, args.baseline, args.target or (), args.axis or (), args.effect)
    return answer, args.baseline or study.arms[0]


def _matched(args: argparse.Namespace, study: "Study") -> "tuple[Answer, str]":
    from steersman.controller.evaluate.matched import matched
    from steersman.estimators.errors import InvalidInputError

    if args.at and len(args.axis or ()) != 1:
        raise InvalidInputError(f"--at needs one --axis, of {', '.join(AXES)}")
    answer = matched(study, args.baseline, args.at or (), args.axis or ())
    return answer, args.baseline or study.arms[0]


def _control(args: argparse.Namespace, study: "Study") -> "tuple[Answer, str]":
    from steersman.controller.evaluate.control import control

    names = (args.selection, args.control, args.baseline)
    return control(study, *names, target=args.target, axis=args.axis), args.control


def _ablation(args: argparse.Namespace, study: "Study") -> "tuple[Answer, str]":
    from steersman.controller.evaluate.ablation import ablation

    arms = args.arm or study.arms
    return ablation(study, arms, args.target, args.axis), arms[0]


def _staleness(args: argparse.Namespace, study: "Study") -> "tuple[Answer, str]":
    from steersman.controller.evaluate.staleness import lag_bounds, staleness
    from steersman.estimators.errors import InvalidInputError

    lags = {}
    for text in args.lag:
        arm, _, number = text.rpartition("=")
        if not arm or not number.isdecimal():
            raise InvalidInputError(f"--lag {text!r}; valid: ARM=N, N = 0, 1, ...")
        lags[arm] = int(number)
    answer = staleness(study, lags, args.margin, args.target, args.axis)
    return answer, next(iter(lag_bounds(study, lags)))


def _compose(args: argparse.Namespace, study: "Study") -> "tuple[Answer, str]":
    from steersman.controller.evaluate.compose import compose

    names = (args.baseline, args.a, args.b, args.both)
    return compose(study, *names, target=args.target, axis=args.axis), args.baseline


_ANSWERS: dict[str, Callable[[argparse.Namespace, Any], "tuple[Answer, str]"]] = {
    "curves": _curves,
    "matched": _matched,
    "control": _control,
    "ablation": _ablation,
    "staleness": _staleness,
    "compose": _compose,
}


def _listed(checklist: Any) -> "Answer":
    from steersman.controller.checklist import ITEMS
    from steersman.controller.evaluate.answer import Answer, Table

    rows = [[item, getattr(checklist, item)] for item in ITEMS]
    missing = checklist.missing
    said = (
        f"{len(missing)} of {len(ITEMS)} items are not known: {', '.join(missing)}."
        if missing
        else f"All {len(ITEMS)} items are told."
    )
    title = "Reporting checklist"
    return Answer(title, [Table(title, ("item", "answer"), rows)], said)


def _tell(args: argparse.Namespace, answer: "Answer", checklist: Any, study: Any) -> None:
    if args.out is not None:
        from steersman.controller.evaluate.page import write_page

        write_page(args.out, answer, checklist, study)
    if args.json:
        print(json.dumps({**answer.as_dict(), "checklist": checklist.as_dict()}, indent=2))
        return
    from rich.table import Table

    from steersman.controller.tournament.console import output

    console = output(WIDTH)
    for one in answer.tables:
        shown = Table(*one.head, title=one.title, title_justify="left")
        former = None
        for row in one.rows:
            if former is not None and row[0] != former and len(one.rows) > 3:
                shown.add_section()
            former = row[0]
            shown.add_row(*(_escaped(cell) for cell in row))
        console.print(shown)
    for note in answer.notes:
        console.print(note, markup=False, highlight=False)
    console.print(answer.verdict, style="bold", markup=False, highlight=False)
    if args.out is not None:
        print(args.out)


def _escaped(cell: str) -> str:
    from rich.markup import escape

    return escape(cell)
