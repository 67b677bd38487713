"""`report`: one page on what became of a run, or of a rehearsal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from launcher import registry
from launcher.errors import ConfigError
from launcher.record import runs_folder
from launcher.verbs import Arguments
from launcher.verbs.status import run_folder


def report(arguments: Arguments) -> int:
    """Raises ConfigError if there is no such run, or the HTML file cannot be written."""
    if len(arguments.names) not in (1, 2):
        raise ConfigError("report needs one name; `python -m launcher status` lists the runs")
    name, *trial = arguments.names
    found = registry.read_json(runs_folder() / name / "rehearsal.json")
    told, drawn = of_run(name, trial) if found is None else of_rehearsal(name, found)
    print(told)
    if path := arguments.values.get("--html"):
        try:
            Path(path).write_text(drawn, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"the page cannot be written: {error}") from error
        print(f"as a page: {path}")
    return 0


def of_run(name: str, trial: Sequence[str]) -> tuple[str, str]:
    """Of a run, of a sweep, or of one trial of it."""
    from launcher.reports import html as report_html
    from launcher.reports import page as report
    from launcher.sweep import folder as folders
    from launcher.sweep import page as sweep_page

    folder = run_folder(name, registry.record(name))
    if trial:
        folder = folders.trial_folder(folder, trial[0])
    elif sweep := folders.read(folder):
        return sweep_page.text(folder, sweep), sweep_page.html(folder, sweep)
    page = report.read(folder)
    return report.text(page), report_html.of_run(page)


def of_rehearsal(name: str, found: dict[str, object]) -> tuple[str, str]:
    from launcher.rehearsal import table
    from launcher.reports import html as report_html

    rows = found["scenarios"]
    assert isinstance(rows, list)
    notes = found.get("notes", ())
    assert isinstance(notes, list)
    return "\n".join([table.plain(rows), *table.remarks(rows), *notes]), report_html.of_rehearsal(
        name, found
    )
