"""Your methods and data sets: ``plugins/fgx.py`` is run as ``method="fgx:METHOD"``.

Flower's bundle carries this folder to every node. See ``docs/your-method.md``.
"""
