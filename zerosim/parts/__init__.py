"""Parts by name: a row of a table of the project's, or Python of a user's, `file.py:name` or `package.module:name`.

    loading.py     a file or a module, imported; what it has under a name
    named.py       a name that carries the part it stands for, and the tables that give a part for either kind of name
    users_code.py  users' code may fail, but not end the process

A table of parts holds the shipped ones. A user's part is never entered into it: its name carries it, so that two
scenarios which name the same file, or one file before and after it was edited, do not meet.
"""

from zerosim.parts.loading import Code, Loader
from zerosim.parts.named import Named, Table, code_of, is_python

__all__ = ["Code", "Loader", "Named", "Table", "code_of", "is_python"]
