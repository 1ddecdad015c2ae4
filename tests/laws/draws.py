"""The drawn scenarios of the laws, and the recorded digests."""

import json

from tests.laws.digests import FILE, settings_left
from tests.laws.runs import arithmetic

RECORD = json.loads(FILE.read_text(encoding="utf-8"))
SAME = RECORD["arithmetic"] == arithmetic()
DRAWS = [draw for draw in RECORD["drawn"] if settings_left(draw["settings"]) is not None]


def toml(settings):
    """Settings as a scenario, in an error's own lines."""
    lines = []
    for section in dict.fromkeys(key.split(".")[0] for key in settings):
        lines += [f"[{section}]", *(f"{key.split('.')[1]} = {json.dumps(value)}"
                                    for key, value in settings.items() if key.startswith(f"{section}."))]
    return "\n".join(["", *lines])
