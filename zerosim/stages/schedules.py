"""The table of pipeline schedules."""

from collections.abc import Mapping

from zerosim.stages import gpipe, interleaved, one_f_one_b
from zerosim.stages.pipeline import ScheduleStep

SCHEDULES: Mapping[str, ScheduleStep] = {
    "gpipe": gpipe.step, "1f1b": one_f_one_b.step, "interleaved_1f1b": interleaved.step}
"""The step of each schedule, by the name that scenarios use."""
