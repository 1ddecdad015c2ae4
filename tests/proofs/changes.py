"""Changes of a program."""



def changed(program, folder):
    """The text of a program with the changes made: of each, lines with − go, those with + come, others are there."""
    text = "\n" + (folder / f"{program['of']}.py").read_text()
    for lines in (change.splitlines() for change in program["change"].split("\n\n")):
        old, new = ("".join(f"\n{line[1:]}" for line in lines if line[0] in kinds) + "\n" for kinds in (" -", " +"))
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text.lstrip()
