"""What travels with the package to learn from: scenarios, lessons, exercises, pictures.

`scenarios` and `docs` are links to the project's folders in a clone, and folders in what is installed.
"""

from zerosim.course.shipped import copy_out, exercises, lessons, scenario_file, scenarios

__all__ = ["copy_out", "exercises", "lessons", "scenario_file", "scenarios"]
