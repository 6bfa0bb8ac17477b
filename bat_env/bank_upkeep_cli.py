"""``bat-env bank gc | export | import | scan``: keep a Stage Bank small, moving and clean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bat_env.plain import counted, sized

BankPath = Annotated[
    Path | None, typer.Option("--path", help="Folder of the bank; default $BAT_BANK.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the group of the bank."""
    app.command("gc")(bank_gc)
    app.command("export")(bank_export)
    app.command("import")(bank_import)
    app.command("scan")(bank_scan)


def bank_gc(path: BankPath = None, as_json: AsJson = False) -> None:
    """Delete contents that no row names any more. Waits for whoever is writing to end."""
    from bat_env.bank import Bank

    with Bank.open(path) as bank:
        report = bank.collect()
    if as_json:
        print(json.dumps(report.to_json()))
        return
    print(
        f"{counted(report.removed, 'content')} deleted, {sized(report.freed_bytes)} freed, "
        f"{report.kept} kept"
    )


def bank_export(
    file: Annotated[Path, typer.Argument(help="Archive to write, for example bank.tar.zst.")],
    path: BankPath = None,
    as_json: AsJson = False,
) -> None:
    """Write the whole bank as one file; equal banks give equal bytes."""
    from bat_env.bank import Bank

    with Bank.open(path) as bank:
        report = bank.export(file)
    if as_json:
        print(json.dumps({**report.to_json(), "bytes": file.stat().st_size}))
        return
    print(
        f"{file}: {counted(report.states, 'state')}, "
        f"{counted(report.demonstrations, 'demonstration')}, {sized(file.stat().st_size)}"
    )


def bank_import(
    file: Annotated[Path, typer.Argument(help="Archive made by `bat-env bank export`.")],
    path: BankPath = None,
    max_gb: Annotated[
        float, typer.Option(min=0.001, help="Most GiB of contents that it may bring, unpacked.")
    ] = 16.0,
    as_json: AsJson = False,
) -> None:
    """Merge an exported bank into this one, which is made if it is not there."""
    from bat_env.bank import Bank

    with Bank.open(path, create=True) as bank:
        report = bank.merge(file, max_bytes=int(max_gb * 2**30))
    if as_json:
        print(json.dumps(report.to_json()))
        return
    rows = report.states + report.demonstrations
    print(f"{report.added} rows added, {rows - report.added} were there already")


def bank_scan(
    path: BankPath = None,
    suite: Annotated[
        list[str] | None, typer.Option(help="Held-out suite; repeatable; default all.")
    ] = None,
    files: Annotated[
        Path | None,
        typer.Option(help="Scan the files below this folder instead, whatever they are."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look for held-out material, truth, machine paths, credentials and completions."""
    from bat_env.bank import Bank
    from bat_env.bank.fingerprints import of_suites
    from bat_env.bank.leakage import scan, scan_files
    from bat_env.errors import LeakageError
    from bat_env.tasks import suite_names

    suites = suite or list(suite_names())
    document: dict[str, Any] = {"schema_version": 1}
    if files is not None:
        if not files.is_dir():
            raise LeakageError(f"Expected a folder to scan, but there is none at {files}.")
        found = sorted(path for path in files.rglob("*") if path.is_file())
        findings = scan_files(found, of_suites(suites))
        said = f"{len(found)} files"
        document["files"] = len(found)
    else:
        with Bank.open(path) as bank:
            report = scan(bank, suites)
        findings = list(report.findings)
        said = f"{report.states} states, {report.demonstrations} demonstrations"
        document |= {
            "states": report.states,
            "demonstrations": report.demonstrations,
            "unreadable": report.unreadable,
            "fingerprint": report.fingerprint,
        }
    document["findings"] = [
        {"row": finding.row, "place": finding.place, "what": finding.what} for finding in findings
    ]
    if as_json:
        print(json.dumps(document))
    else:
        print(f"{said} scanned: {len(findings)} leaks")
        for finding in findings:
            print(f"  {finding}")
    if findings:
        raise typer.Exit(1)
