"""Presets have the numbers that papers publish, and every one configures a run."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache

from fedgraph_flwr.core.rules import Value
from fedgraph_flwr.resolve import Resolved, defaults, resolve
from simulations.presets import list_presets, load_preset

NAMES = list(list_presets())
# data whose settings are ours: no paper has run them
NATURAL = (
    ".*-(twitch|airports|abide|abide-4|ptc|adhd|bzr-md|cox2-md|amlsim|eth-phishing|"
    "bitcoin-otc)"
)
HOSTILE = "<RULE>-(airports-(none|sign|ipm|labels)|nci1-<ATTACK>)"
GROUPS = {
    "RULE": "(mean|median|trimmed|multi-krum|rfa|clip|nearest)",
    "ATTACK": "(none|sign|ipm|alie|labels|trigger)",
    "GCFL": "(local|fedavg|fedavg-all|fedprox|gcfl|gcfl-plus|no-edges|centralized)",
    "GRAPHS": "(nci1|proteins|imdb-binary|molecules|biochem|mix|synthetic|letter-low)",
    "FCLG": r"((fclg|fclg-h|intra-\w+|fclg-moon|local-fclg|centralized-fclg)|"
    r"(infograph|mvgrl)-\w+)-(proteins|enzymes|dhfr|nci1)",
    "FGCL": "(centralized|fedavg|no-edges|<VIEWS>)-<ENCODER>",
    "NOISY": "<VIEWS>-<ENCODER>",
    "VIEWS": "(fed-noise|two-views|fgcl)",
    "ENCODER": "(gcn|kgnn|tag|lightgcn)",
    "TAD": r"((fedtad(-uniform|-counts)?|fedavg|fedprox|scaffold|gcfl-plus|fedpub|"
    r"fedgta|self-weight|local|no-edges|centralized)-(cora|citeseer|cs))",
    "NODES": r"(cora|citeseer|photo|computers|actor|chameleon|squirrel)",
    "TRAINING": "(brief|fair)",
    "SPREAD": "(fedgmtl|fedavg|fedavg-kept|local|no-edges|centralized|spreadgnn)-"
    "(sage|gat)",
}
# Keys of a table, then its rows: a pattern of whole names, and a value for each key.
# What several rows say of one preset holds together.
PUBLISHED = r"""
# GCFL (Xie et al. 2021), Tables 3 and 4
:: dataset num-clients partition num-server-rounds
<GCFL>-nci1(-[^i].*)?         'NCI1'         30  'chunks'    200
<GCFL>-proteins(-[^i].*)?     'PROTEINS'     10  'chunks'    200
<GCFL>-imdb-binary(-.*)?      'IMDB-BINARY'  10  'chunks'    200
<GCFL>-molecules(-.*)?        'molecules'     7  'datasets'  200
<GCFL>-biochem(-.*)?          'biochem'      10  'datasets'  200
<GCFL>-mix(-.*)?              'mix'          13  'datasets'  200
:: gcfl.mean-norm-threshold gcfl.max-norm-threshold gcfl.seq-length
gcfl(-plus)?-nci1(-.*)?         0.04   0.08    5
gcfl(-plus)?-proteins(-.*)?     0.03   0.06   10
gcfl(-plus)?-imdb-binary(-.*)?  0.025  0.045   5
gcfl(-plus)?-molecules(-.*)?    0.07   0.28    5
gcfl(-plus)?-biochem(-.*)?      0.07   0.35    5
gcfl(-plus)?-mix(-.*)?          0.08   0.4     5
:: method
gcfl-(?!plus).*                   'gcfl'
gcfl-plus-.*                      'gcfl+'
local-<GRAPHS>(-.*)?              'local'
fedavg(-all)?-<GRAPHS>(-[^i].*)?  'fedavg'
fedprox-<GRAPHS>(-.*)?            'fedprox'
:: shared-group
(?!fedavg-all|no-|centr)<GCFL>-(?!synth|letter)<GRAPHS>(-[^i].*)?  'convs'
((fedavg-all|no-edges|centralized)-<GRAPHS>|<GCFL>-synthetic)  'all'
:: local.epochs
local-(nci1|proteins|imdb-binary)-paper   50
local-(molecules|biochem|mix)-paper      100
:: fedprox.mu
fedprox-<GRAPHS>  0.01
:: gcfl.standardize gcfl.seq-source
.*-standardized    true   'update-norm'
.*-last-grad-norm  false  'last-grad-norm'
# A user's own tables: ours
:: dataset shared-group
(<GCFL>|moon|centralized)-csv  'graphs-csv'  'all'
.*-graph-csv       'graph-csv'   'all'
# FCLG (Li et al. 2024), Sec. 5, Tables II and III
:: num-server-rounds local-epochs batch-size learning-rate held-out dominance split-seed
<FCLG>(-iid)?  20  5  64  1e-3  0.0  0.8  0
:: num-layers hidden-dim
(?!infograph|mvgrl)<FCLG>(-iid)?  3   64
infograph-.*                      5   32
mvgrl-.*                          4  512
:: num-clients
(?!centralized)<FCLG>(-iid)?  6
centralized-fclg-.*           1
:: partition
<FCLG>                                   'dominance'
.*(?<!graph)-(proteins|dhfr|nci1)-iid    'iid-classwise'
.*-enzymes-iid                           'iid'
:: method fclg.inter
fclg-(?!h-|moon-).*  'fclg'   'graphs'
fclg-h-.*            'fclg'   'nodes'
fclg-moon-.*         'fclg'   'previous-round'
intra-fedavg-.*      'fclg'   'none'
intra-kl-.*          'fclg'   'kl'
intra-mse-.*         'fclg'   'mse'
local-fclg-.*        'local'  'none'
:: infomax.proximal-mu infomax.moon-mu
(infograph|mvgrl)-fedavg-.*   0.0   0.0
(infograph|mvgrl)-fedprox-.*  0.01  0.0
(infograph|mvgrl)-moon-.*     0.0   1.0
# FGCL (Yang et al. 2022), Table III; rounds and rate are ours
:: method privacy.noise-mode features learning-rate hidden-dim num-layers dropout
<FGCL>-.*  'fgcl'  'once'  'atoms-no-degree'  0.005  64  2  0.3
:: dataset num-clients dirichlet-alpha
<NOISY>-sider-.*    'SIDER'    4  0.2
<NOISY>-bace-.*     'BACE'     4  0.5
<NOISY>-clintox-.*  'ClinTox'  4  0.5
<NOISY>-bbbp-.*     'BBBP'     4  2.0
<NOISY>-tox21-.*    'Tox21'    8  3.0
:: fgcl.views
(centralized|fedavg)-<ENCODER>-.*  'clean'
no-edges-<ENCODER>-.*   'no-edges'
fed-noise-.*  'one'
:: fgcl.views fgcl.contrast-weight
two-views-.*  'two'  0.0
fgcl-<ENCODER>-.*  'two'  0.1
:: privacy.edge-epsilon
(centralized|fedavg|no-edges)-<ENCODER>-\w+  0.0
# FedGKD (Pan et al. 2023), Table 2, Sec. 5.1 and App. B
:: num-server-rounds hidden-dim num-layers dropout weight-decay held-out min-rounds
.*-<NODES>-\d+  200  128  2  0.5  1e-6  0.7  50
:: dataset partition features
.*-cora-\d+       'Cora'                'metis'  'row-normalized'
.*-citeseer-\d+   'CiteSeer'            'metis'  'row-normalized'
.*-photo-\d+      'Photo'               'metis'  'row-normalized'
.*-computers-\d+  'Computers'           'metis'  'row-normalized'
.*-actor-\d+      'actor'               'metis'  'raw'
.*-chameleon-\d+  'chameleon_filtered'  'metis'  'raw'
:: method shared-group
fedavg-<NODES>-\d+        'fedavg'    'all'
fedgkd-<NODES>-\d+        'fedgkd'    'all'
self-weight-<NODES>-\d+   'self-weight'  'all'
fedper-<NODES>-\d+        'fedavg'    'convs'
fedsage-plus-<NODES>-\d+  'fedsage+'  'all'
:: fedprox.mu
fedprox-<NODES>-\d+  0.001
:: fedgta.moment-orders fedgta.epsilon
fedgta-cora-\d+      6   0.5
fedgta-citeseer-\d+  20  0.6
:: adafgl.federated-rounds
adafgl-<NODES>-\d+  180
:: encoder
.*-(10|20)-gcn2  'gcn2'
no-edges-(<GRAPHS>|<NODES>-\d+|(sage|gat)-.*|.*-louvain)  'mlp'
# FedAux (Zhuo et al. 2025), Table 1
:: partition held-out patience weight-decay persist-optimizer
.*-<NODES>-\d+-<TRAINING>  'metis'  0.8  0  1e-6  true
:: learning-rate
(.*-brief|.*-(cora|citeseer)-\d+-fair|fed(pub|aux)-.*-fair)  0.01
(?!fedpub|fedaux).*-(photo|computers)-10-fair                0.05
:: num-server-rounds local-epochs optimizer encoder hidden-dim
.*-(cora|citeseer)-\d+-brief          100  1  'adam'   'paper'  128
.*-(photo|computers)-\d+-brief        200  2  'adam'   'paper'  128
fed(pub|aux)-<NODES>-\d+-fair         200  3  'adamw'  'paper'  128
(?!fedpub|fedaux).*-<NODES>-\d+-fair  200  3  'adamw'  'gcn2'   128
:: fedaux.alpha fedaux.sigma
fedaux-<NODES>-\d+-<TRAINING>  10.0  1.0
# FedTAD (Zhu et al. 2024), Table 2: its authors' code
:: num-server-rounds local-epochs learning-rate weight-decay persist-optimizer held-out
<TAD>-.*-louvain  100  3  0.01  5e-4  true  0.8
:: partition split component features weighting hidden-dim dropout
<TAD>-.*-louvain  'louvain-delta'  'classes'  'all'  'raw'  'samples'  64  0.5
:: fedtad.reliability fedtad.semantic-weight fedtad.distillations
fedtad-(cora|citeseer|cs)-.*    'landing'  1.0  5
fedtad-uniform-.*         'uniform'  1.0  5
:: encoder
(?!fedpub|no-edges)<TAD>-.*-louvain  'gcn2'
# SpreadGNN and FedGMTL (He et al. 2021), Table 2, Figures 4 to 8
:: dataset dirichlet-alpha local-epochs hidden-dim num-layers dropout weight-decay
<SPREAD>-sider.*  'SIDER'  0.2  1  64  2  0.3  0.0
<SPREAD>-tox21.*  'Tox21'  0.1  1  64  2  0.3  0.0
<SPREAD>-muv.*    'MUV'    0.3  1  64  2  0.3  0.0
<SPREAD>-qm8.*    'QM8'    0.5  1  64  2  0.3  0.0
:: num-clients task-masks
(?!centralized)<SPREAD>-sider(?!-8).*       4  'exclusive'
(?!centralized)<SPREAD>-(tox21|muv|qm8).*   8  'exclusive'
centralized-(sage|gat)-.*                   1  'all'
:: learning-rate
<SPREAD>-(sider|tox21|qm8).*  1.5e-3
.*-sage-muv.*                 1e-3
.*-gat-muv.*                  2.5e-3
:: batch-size
<SPREAD>-(?!.*paper).*  32
<SPREAD>-.*-paper        1
:: num-server-rounds
<SPREAD>-(?!.*(period|never)).*     150
spreadgnn-.*-(period-\d+|never)     151
:: method optimizer persist-optimizer
fedavg-kept-.*          'fedavg'     'amsgrad'  true
fedavg-(sage|gat)-.*    'fedavg'     'adam'     false
fedgmtl-.*              'fedgmtl'    'adam'     false
spreadgnn-.*            'spreadgnn'  'amsgrad'  true
:: fedgmtl.task-reg
fedgmtl-[a-z]+-[a-z0-9]+         1e-4
fedgmtl-.*-(sider|tox21)-paper   1e-3
fedgmtl-.*-qm8-paper             0.3
fedgmtl-gat-muv-paper            2e-3
:: spreadgnn.task-reg
spreadgnn-[a-z]+-[a-z0-9]+        1e-4
spreadgnn-.*-(sider|tox21)-paper  1e-3
spreadgnn-.*-qm8-paper            0.3
spreadgnn-gat-muv-paper           2e-3
.*-no-reg                         0.0
:: spreadgnn.topology
spreadgnn-[a-z]+-[a-z0-9]+  'complete'
spreadgnn-.*-ring           'ring'
spreadgnn-.*-star           'star'
.*-8-random-\d              'random-regular'
:: spreadgnn.weights spreadgnn.head-sync
.*-samples  'samples'     'all'
.*-owners   'metropolis'  'owners'
"""

# What a group of these patterns finds is a number of the run.
BY_NAME = {
    r"<NOISY>-\w+-(?P<n>[0-9.]+)": "privacy.edge-epsilon",
    r".*-<NODES>-(?P<n>\d+)": "num-clients",
    r"<TAD>-(?P<n>\d+)-louvain": "num-clients",
    r".*-lambda-(?P<n>.+)": "spreadgnn.task-reg",
    r".*-period-(?P<n>\d+)": "spreadgnn.period",
    r".*-8-random-(?P<n>\d)": "spreadgnn.degree",
}


@cache
def configured(name: str) -> Resolved:
    """Resolve a preset as a run would."""
    return resolve({**defaults(), **load_preset(name)})


def fitting(pattern: str) -> list[re.Match[str]]:
    """Presets whose whole name fits."""
    for group, spelt in GROUPS.items():
        pattern = pattern.replace(f"<{group}>", spelt)
    found = [match for name in NAMES if (match := re.fullmatch(pattern, name))]
    assert found, f"no preset fits {pattern}"
    return found


def published() -> Iterator[tuple[str, str, Value]]:
    """Presets, a key and its value, for every cell of the tables."""
    keys: list[str] = []
    for line in PUBLISHED.strip().splitlines():
        first, *cells = line.split()
        if first == "::":
            keys = cells
        elif line[0] != "#":
            for match in fitting(first):
                for key, cell in zip(keys, cells, strict=True):
                    yield match[0], key, tomllib.loads(f"x = {cell}")["x"]
    for pattern, key in BY_NAME.items():
        for match in fitting(pattern):
            yield match[0], key, float(match["n"])


def test_presets_resolve_to_the_published_numbers() -> None:
    told = set()
    for name, key, value in published():
        assert configured(name).to_config()[key] == value, (name, key)
        told.add(name)
    ours = {match[0] for pattern in (NATURAL, HOSTILE) for match in fitting(pattern)}
    assert told | ours == set(NAMES)


def test_the_families_have_all_their_members() -> None:
    """A combination that ``only`` rules out by mistake is missed here."""
    families = {
        "GCFL": "<GCFL>-<GRAPHS>(-.*)?",
        "FCLG": "<FCLG>(-iid)?",
        "FGCL": "<FGCL>-.*",
        "FedGKD": r".*-<NODES>-\d+(-gcn2)?",
        "FedAux": r".*-<NODES>-\d+-<TRAINING>",
        "FedTAD": "<TAD>-.*-louvain",
        "SpreadGNN": "<SPREAD>-.*",
        "own data": ".*-csv",
        "natural": NATURAL,
        "hostile": HOSTILE,
    }
    found = {family: len(fitting(each)) for family, each in families.items()}
    assert found == {
        "GCFL": 5 * 7 + 8 + 3 * 4 + 2,  # all tensors, controls; Letter-low
        "FCLG": 14 * 4 * 2 - 4,  # one client has no IID split
        "FGCL": (3 + 3 * 4 + 4) * 4 * 5,
        "FedGKD": (16 * 4 + 14 * 3) * 3 + 16,  # no GCFL on heterophilous graphs; gcn2
        "FedAux": (11 + 7) * 8,  # brief, fair
        "FedTAD": 13 * (2 * 3 + 1),  # CS with 10 clients alone
        "SpreadGNN": 72 + 100,  # FedGMTL and baselines; SpreadGNN
        "own data": 7 + 12,  # whole graphs; one graph
        "natural": 7 * 11 + 6 + 2,  # all methods; a private last layer; fedgkd
        "hostile": 6 * 4 + 7 * 6,  # no Multi-Krum for 3 airports; graphs alone
    }
    assert sum(found.values()) == len(NAMES)
