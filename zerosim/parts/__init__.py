"""Parts by name: a row of a shipped table, or a user's Python code, `file.py:name` or `package.module:name`.

    loading.py     imports a file or a module, and returns the object with a name; a name that carries its part, and
                   tables that return a part for either kind of name
    users_code.py  limits for users' code: it may fail, but not end the process

A table of parts holds the shipped ones. A user's part is never entered into it: its name carries it, so two scenarios
that name the same file, or one file before and after an edit, do not affect each other.
"""

from zerosim.parts.loading import Code, Loader, Named, Table, code_of, is_python

__all__ = ["Code", "Loader", "Named", "Table", "code_of", "is_python"]
