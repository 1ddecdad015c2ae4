"""The keys of a short run."""


SMALL = """\
title = "small"
[world]
ranks = 2
[model]
hidden = [6]
[train]
steps = 2
micro_batch = 2
micro_batches = 2
"""
