"""``schema``: the configuration as a JSON Schema for editors, or as a page for people."""

from __future__ import annotations

import json
from pathlib import Path

import click

from watchdog import registry
from watchdog.cli.check import refusing
from watchdog.cli.root import common, examples
from watchdog.config.reference import page
from watchdog.config.schema import document
from watchdog.rules import default_rules


@click.command(
    short_help="The configuration as a JSON Schema.",
    epilog=examples(
        "schema > watchdog.schema.json", "schema --markdown", "schema | jq '.properties.policy'"
    ),
)
@click.option("--markdown", is_flag=True, help="As a page for people.")
@common
def schema(
    markdown: bool,  # noqa: FBT001 - click calls by name
    config: Path | None,  # noqa: ARG001 - every command takes it
    state_dir: Path | None,  # noqa: ARG001 - as above
    as_json: bool,  # noqa: ARG001, FBT001 - as above; it is JSON in any case
) -> None:
    """Print every key of the configuration with type, limits, default and reason.

    Editors that know Taplo (Even Better TOML) complete and check a watchdog.toml
    whose first line is: #:schema ./watchdog.schema.json
    """
    with refusing():
        names = [rule.name for rule in default_rules()]
        found = document(registry.probes(), names, registry.actions())
    text = page(found) if markdown else json.dumps(found, indent=2, ensure_ascii=False) + "\n"
    click.echo(text, nl=False)
