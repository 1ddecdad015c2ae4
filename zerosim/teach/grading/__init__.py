"""Grading of exercises: the claims that hold for a learner's functions, and the smallest example for those that do not.

- Each item has its own points. A proof, or a training that must reproduce the bits of one process, comes first and has
  most points; nothing else is checked before it holds, because every law would fail for the same reason. After that
  each item is checked separately.
- Order of addition, bytes and messages are proved on symbols, for 1 to 8 ranks. Formerly they were laws, which needed
  Hypothesis and were less exact.
- The points of each exercise are in one table, and a test holds that its claims add up to them. A mark does not depend
  on what is installed.
- Where the library has the same step, the exercise gets a replica that makes no choices. The library's Stage II
  reduces every micro-batch only because its replica says so. The library's code is therefore correct and not a
  solution.
- Time targets run on virtual clocks, which are the same on every machine.
- A function that only raises `NotImplementedError` is not run; grading a folder of skeletons takes a second.
"""
