"""`coherer brokers`: the brokers of a cluster, their state, rates and disks."""

from __future__ import annotations

from typing import Annotated

import typer

from coherer._administration.brokers import brokers as all_brokers
from coherer.admin import Broker
from coherer.cli.options import Json
from coherer.cli.output import FAILED, print_json, print_table, time_text
from coherer.cli.target import AdminTarget, on_cluster

app = typer.Typer(help="Show the brokers of a cluster.", add_completion=False)


@app.command()
@on_cluster
def brokers(
    target: AdminTarget,
    name: Annotated[
        str | None,
        typer.Argument(help="Only this broker, with all reported values.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the brokers: address, role, version, rates and disk. `?` stands for an unknown value.

    Exit codes: 0 all brokers answer; 1 a broker does not answer or does not exist; 2 the command
    line is wrong.
    """
    found = target.run_on_cluster(all_brokers)
    chosen = [one for one in found if name in {None, one.name}]
    if name is not None and not chosen:
        hint = "`coherer brokers`, without a name, lists all brokers."
        typer.echo(f"error: The broker {name} does not exist. {hint}", err=True)
    if as_json:
        print_json(chosen)
    elif name is not None:
        for one in chosen:
            _describe(one)
    else:
        print_table(
            ("broker", "id", "role", "address", "status", "version", "in/s", "out/s", "disk"),
            [
                (
                    one.name,
                    one.id,
                    one.role,
                    one.address,
                    one.status,
                    one.version,
                    _rate(one.in_per_s),
                    _rate(one.out_per_s),
                    None if one.disk_used is None else f"{one.disk_used:.0%}",
                )
                for one in chosen
            ],
            empty="There are no brokers.",
        )
    if not chosen or any(one.status not in {"running", None} for one in chosen):
        raise typer.Exit(FAILED)


def _rate(per_s: float | None) -> str | None:
    return None if per_s is None else f"{per_s:,.1f}"


def _describe(broker: Broker) -> None:
    rows: list[tuple[str, object]] = [
        ("broker", broker.name),
        ("id", broker.id),
        ("role", broker.role),
        ("cluster", broker.cluster),
        ("address", broker.address),
        ("status", broker.status),
        ("version", broker.version),
        ("accepts messages", broker.writable),
        ("can be read", broker.readable),
        ("messages in/s", _rate(broker.in_per_s)),
        ("messages out/s", _rate(broker.out_per_s)),
        ("disk used", None if broker.disk_used is None else f"{broker.disk_used:.1%}"),
        ("disk, bytes", broker.disk_bytes),
        ("disk free, bytes", broker.disk_free_bytes),
        ("started", time_text(broker.started_ms)),
        *sorted(broker.reported.items()),
    ]
    print_table(("field", "value"), rows, empty="")
