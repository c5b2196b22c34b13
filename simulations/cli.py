"""The command ``fedgraph``: its verbs, each imported when it is asked for.

A verb is a function whose parameters are what can be typed; its docstring is the help.
It returns an exit code: 0 (done), 1 (something failed, or was found), 2 (it could not
do, or look at, what was asked); after Ctrl-C or SIGTERM the code is 130.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, TypeAlias

import click
import typer
from typer.core import TyperCommand, TyperGroup
from typing_extensions import override

from fedgraph_flwr.core.command import UNABLE, command
from fedgraph_flwr.core.errors import FedGraphError

# By name: a verb's function, words of the list of verbs, and lines to type.
Verbs: TypeAlias = Mapping[str, tuple[str, ...]]
VERBS: Verbs = {
    "run": (
        "simulations.run:run",
        "Run a method or a preset, once per seed.",
        "fedgraph run fedavg dataset=MUTAG num-server-rounds=10\n"
        "fedgraph run fedavg dataset=smiles-csv data-dir=/abs/folder --inline\n"
        "fedgraph run fedavg-proteins --seeds 10,42,79 --inline --jobs 2",
    ),
    "presets": ("simulations.presets:show", "List presets: named settings."),
    "watch": ("simulations.watch:watch", "Follow a run in the terminal."),
    "report": ("simulations.report:report", "Make one HTML page of runs."),
    "compare": ("simulations.compare:compare_runs", "Compare runs, paired by seed."),
    "benchmark": (
        "simulations.benchmark.run_suite:benchmark",
        "A method beside rivals and controls, with a verdict.",
    ),
    "study": ("simulations.study:study", "Tables and figures of a paper's runs."),
    "figures": ("simulations.report:figures", "Draw the figures of runs again."),
    "track": ("simulations.report:track", "Write finished runs to a tracker."),
    "contract": (
        "simulations.contract:contract",
        "Try a method on small graphs, and say what holds of it.",
    ),
    "heterogeneity": (
        "simulations.heterogeneity:heterogeneity",
        "How much graphs of data sets, clients and clusters differ.",
    ),
    "leaks": ("simulations.leaks:leaks", "Measure what a run tells of a client."),
    "example-data": (
        "simulations.example_data:example_data",
        "Write example files of own data.",
    ),
    "stop": ("simulations.flower:stop", "Stop this project's background SuperLink."),
}
SITE: Verbs = {
    "import": (
        "fedgraph_flwr.site.importing:import_files",
        "Make own tables of the files that you have.",
        "fedgraph site import --nodes accounts.csv --edges transfers.csv --id account"
        " --label fraud --source from_account --target to_account --out tables\n"
        "fedgraph site import fc.npz --table subjects.csv --id subject --label label"
        " --site site --density 0.2 --out tables",
    ),
    "schema": ("fedgraph_flwr.site.schema:schema", "Make a schema.toml of own data."),
    "check": ("fedgraph_flwr.site.check:check", "Check this site before a run."),
    "baseline": (
        "fedgraph_flwr.site.baseline:baseline",
        "Train alone, and read whether joining paid.",
    ),
    "predict": ("fedgraph_flwr.site.predict:predict", "Predict with a trained model."),
    "explain": (
        "fedgraph_flwr.site.explain:explain_items",
        "Say what nodes and edges add to a prediction.",
        "fedgraph site explain MODEL new.csv --items 2,5 --out why.csv --pictures why",
    ),
    "audit": ("fedgraph_flwr.site.audit:audit", "Check that an audit log is whole."),
    "fingerprint": (
        "simulations.fingerprint:fingerprint",
        "Fingerprints of the keys by which letters are sealed.",
    ),
}


class _Shown(TyperCommand):
    """A verb whose help ends with what to type."""

    @override
    def get_help(self, ctx: click.Context) -> str:
        return super().get_help(ctx).replace("\\[", "[")  # escaped for rich

    @override
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = (self.epilog or "").splitlines()
        if lines:
            with formatter.section("Examples"):
                for line in lines:
                    formatter.write(f"  {line}\n")


class _Verb(click.Command):
    """Stands for a verb until somebody asks for it."""

    def __init__(self, name: str, place: str, words: str, examples: str = "") -> None:
        super().__init__(name, help=words)
        self._place, self._examples = place, examples

    @override
    def make_context(self, *given: Any, **named: Any) -> click.Context:
        module, _, function = self._place.partition(":")
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        made = alone.command(self.name, cls=_Shown, epilog=self._examples)
        made(getattr(import_module(module), function))
        return typer.main.get_command(alone).make_context(*given, **named)


class _Verbs(TyperGroup):
    """Verbs in the order in which they are listed above."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def _group(words: str, verbs: Verbs, *, has_completion: bool = False) -> _Verbs:
    made = typer.Typer(
        cls=_Verbs,
        add_completion=has_completion,
        no_args_is_help=True,
        rich_markup_mode=None,
        suggest_commands=False,  # click does
        help=words,
    )
    made.callback()(lambda: None)
    group = typer.main.get_command(made)
    assert isinstance(group, _Verbs)
    group.commands = {name: _Verb(name, *about) for name, about in verbs.items()}
    return group


def application() -> click.Group:
    """Make the command with all its verbs; no verb's module is imported."""
    group = _group(
        "Federated learning on graphs with Flower.", VERBS, has_completion=True
    )
    words = "For the operator of a site. Nothing leaves the site."
    group.commands["site"] = _group(words, SITE)
    return group


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit code."""
    made = application()
    if "_FEDGRAPH_COMPLETE" in os.environ:
        made.main(prog_name="fedgraph")
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with made.make_context("fedgraph", given) as context:
            return int(made.invoke(context) or 0)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        error.show()
        return UNABLE
    except FedGraphError as error:
        if given[:1] == ["site"] and "--json" in given:
            facts = {"exit_code": UNABLE, "error": str(error)}
            print(json.dumps(facts))  # noqa: T201
        raise


if __name__ == "__main__":
    sys.exit(main())
