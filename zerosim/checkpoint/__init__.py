"""Checkpoints: saved training states, resumed on any number of ranks, by any stage, in any layout.

- A checkpoint is one safetensors file: every weight, and every slot of the optimizer, whole, under its usual name. A
  layout is a matter of those who read it. Other programs read it as they read any such file.
- Rank 0 writes it, unit by unit as the ranks send them; a rank that resumes reads the stretches of its own layout.
- A file is written beside its place, flushed and renamed, so a run that is killed leaves the one before.
- One digest covers all numbers. A damaged checkpoint is an error that names it; an older one is never used silently.
- Where a run resumes, its reference begins with the same file. That a resumed run has the bits of one that was never
  interrupted is tested, for every stage and layout, where the order of addition allows it.
"""
