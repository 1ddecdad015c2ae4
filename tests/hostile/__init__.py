"""Files that mean harm, or were damaged: each must be refused in one line, or be as good as any other."""
