"""A fault of one rank when it imports a module, as the environment says; Python imports this file at its start."""

import os
import signal  # noqa: F401 - for the statement
import sys
import time  # noqa: F401


class Planted:
    def find_spec(self, name, *_):
        exec(os.environ["PLANTED"] if name == os.environ["PLANTED_MODULE"] else "")


if (os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK")) != os.environ["PLANTED_RANK"]:
    exec(os.environ["PLANTED_OTHERS"])
elif os.environ["PLANTED_MODULE"] == "site":
    raise KeyboardInterrupt
else:
    sys.meta_path.insert(0, Planted())
