"""The course in the package: scenarios, lessons, exercises, pictures.

`scenarios` and `docs` are symbolic links to the project's folders in a clone, and folders in an installed package:
setuptools copies the targets of links into wheel and sdist. There is one copy of each file, links in README work, and
no code distinguishes the two cases. Alternatives that were considered:

- Folders in the package and links at the top: GitHub does not open a folder behind a link, so links into it would
  break.
- `package_dir`: the folders would be packages in name, and nothing would be found with `PYTHONPATH` alone.
- `data_files`: they end in `PREFIX/share`, which `--target` and `--user` put elsewhere.

A checkout without symbolic links (Windows, by default) cannot build a wheel. zerosim needs POSIX anyway.
"""

from zerosim.course.shipped import copy_out, exercises, lessons, scenario_file, scenarios

__all__ = ["copy_out", "exercises", "lessons", "scenario_file", "scenarios"]
