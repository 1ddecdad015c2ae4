"""Links of pages."""

import re


def dead_links(page, text):
    """The relative links of a page that lead to no file."""
    targets = re.findall(r"\]\(([^)#]+)\)", text)
    return [target for target in targets if "://" not in target and not (page.parent / target).exists()]
