"""Parts by name: a row of a shipped table, or a user's Python code, `file.py:name` or `package.module:name`.

    loading.py     imports a file or a module; a user's part with its source; tables that return either kind of part
    signature.py   what a user's function declares by its parameters; sources of samples

A table of parts holds the shipped ones. A user's part is never entered into it: it travels in the section that names
it, so two scenarios that name the same file, or one file before and after an edit, do not affect each other.
"""

from zerosim.core.parts.loading import Loader, Name, Named, Table, is_python, named

__all__ = ["Loader", "Name", "Named", "Table", "is_python", "named"]
