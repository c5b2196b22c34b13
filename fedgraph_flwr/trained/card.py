"""The card of a model folder, which describes the model to anyone with the folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .folder import About

_WHAT = {
    "classes": "classifies whole graphs",
    "binary": "answers yes or no to one or more questions about a graph",
    "regression": "predicts one or more numbers for a graph",
    "embedding": "gives each graph a row of numbers, its embedding",
    "nodes": "classifies the nodes of one graph",
}


def write_card(about: About) -> str:
    """Write the card, as Markdown."""
    config = about.config
    names = ", ".join(about.outputs) or "not known here"
    clients = "\n".join(
        f"| `{name}.safetensors` | {', '.join(map(str, ids))} |"
        for name, ids in about.models.items()
    )
    before = "".join(
        f"\nThe run began from `{b['model']}` of run {b['experiment']}.\n"
        for b in about.lineage[:1]
    )
    return f"""# {config["method"]} on {config["dataset"]}

The model {_WHAT[about.kind]}. Clients trained it by method `{config["method"]}` on
data `{config["dataset"]}`: run `{about.experiment}`,
{about.rounds} rounds, seed {config["seed"]}.
{before}
| file | clients |
|---|---|
{clients}

- Outputs: {names}.
- Features: {about.columns or f"`features = {config['features']}` of the run"}.
- Scores of the run: {json.dumps(about.scores)}.
- Every setting of the run is in `model.json`; SHA-256 of each file in `SHA256SUMS`.

{_how(about)}

The scores hold for data like those of the run. No graph is in this folder. Weights
can still tell something of the graphs that they were trained on: give the folder to
nobody who may not know that.
"""


def _how(about: About) -> str:
    if about.architecture is None:
        return f"**These weights alone do not predict:** {about.why_not}."
    return """With this project's code, without Flower:

    from fedgraph_flwr.trained import load_model
    predictions = load_model("THIS FOLDER").predict_folder("NEW DATA")
    predictions.write("predictions.csv")"""
