"""`report`: one page on what became of a run, or of a rehearsal."""

from __future__ import annotations

from pathlib import Path

from launcher import registry
from launcher.errors import ConfigError
from launcher.record import runs_folder
from launcher.verbs import Arguments
from launcher.verbs.status import run_folder


def report(arguments: Arguments) -> int:
    """Raises ConfigError if there is no such run, or the HTML file cannot be written."""
    if len(arguments.names) != 1:
        raise ConfigError("report needs one name; `python -m launcher status` lists the runs")
    name = arguments.names[0]
    found = registry.read_json(runs_folder() / name / "rehearsal.json")
    told, drawn = of_run(name) if found is None else of_rehearsal(name, found)
    print(told)
    if path := arguments.values.get("--html"):
        try:
            Path(path).write_text(drawn, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"the page cannot be written: {error}") from error
        print(f"as a page: {path}")
    return 0


def of_run(name: str) -> tuple[str, str]:
    from launcher import report, report_html

    page = report.read(run_folder(name, registry.record(name)))
    return report.text(page), report_html.of_run(page)


def of_rehearsal(name: str, found: dict[str, object]) -> tuple[str, str]:
    from launcher import report_html
    from launcher.rehearsal import table

    rows = found["scenarios"]
    assert isinstance(rows, list)
    notes = found.get("notes", ())
    assert isinstance(notes, list)
    return "\n".join([table.plain(rows), *table.remarks(rows), *notes]), report_html.of_rehearsal(
        name, found
    )
