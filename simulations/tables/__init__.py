"""Tables of runs: the engine behind ``fedgraph compare`` and ``fedgraph study``.

Runs in folders (``runs``) become rows of a ``frame``, which a CSV file keeps. A study
(``studies``) says which rows stand in which table and which of them are subtracted;
``stats`` says what differences show, ``captions`` words the tables, and ``controls``
adds rows without training.
"""
