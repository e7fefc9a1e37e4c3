"""The table of trainers, for the README and the terminal."""

from steersman.controller.attach.trainers import TRAINERS, Ability, Trainer

BEGIN = "<!-- trainers: made by `steersman attach --list --markdown` -->"
END = "<!-- end of trainers -->"


def markdown() -> str:
    """Of all trainers, with what keeps them from working wholly as notes below."""
    notes: list[str] = []
    heads = ["trainer", "version", *Ability, "how"]
    rows = [heads, ["---"] * len(heads)]
    for trainer in TRAINERS.values():
        row = [trainer.title, trainer.tested]
        row += [_cell(trainer, ability, notes) for ability in Ability]
        rows.append([*row, trainer.how])
    table = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([BEGIN, *table, "", *notes, END])


def lines() -> list[str]:
    """For a terminal: a line a trainer, y, p or n for each ability."""
    wide = max(len(trainer.name) for trainer in TRAINERS.values())
    told = [f"{'':<{wide}}  {', '.join(Ability)}: y yes, p partly, n no"]
    for trainer in TRAINERS.values():
        letters = "".join(trainer.works[ability].works[0] for ability in Ability)
        told.append(f"{trainer.name:<{wide}}  {letters}  {trainer.tested}; {trainer.link}")
    return told


def _cell(trainer: Trainer, ability: Ability, notes: list[str]) -> str:
    verdict = trainer.works[ability]
    if not (verdict.why and trainer.example):
        return verdict.works
    note = next((n for n in notes if n.partition(". ")[2] == f"{verdict.why}."), None)
    if note is None:
        note = f"{len(notes) + 1}. {verdict.why}."
        notes.append(note)
    return f"{verdict.works} ({note.partition('.')[0]})"
