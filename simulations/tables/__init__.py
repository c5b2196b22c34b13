"""Tables of runs: the engine behind ``simulations.compare`` and ``simulations.study``.

Runs in folders (``runs``) become ``results``, which a CSV ``file`` keeps.
A study (``studies``) says which results stand in which table and which of them are
subtracted (``differences``, ``intervals``); ``report`` words the tables and ``figures``
draws them. ``groups`` makes a study of any folder of runs.
"""
