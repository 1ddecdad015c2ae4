"""The parts of a user's own that a scenario names, tried before the run: stages and collectives."""

from zerosim.collectives.own import SERVING
from zerosim.core.errors import ZerosimError
from zerosim.core.parts import Named
from zerosim.core.parts.users_code import error_line
from zerosim.proofs.cause import diagnosis
from zerosim.proofs.parts import fault_of_stage
from zerosim.proofs.proof import prove
from zerosim.proofs.subject import Subject
from zerosim.scenario import Scenario


def refuse_wrong_parts(scenario: Scenario) -> None:
    """Try each stage and prove each collective; raises `ScenarioError` with the place and the cause of a fault."""
    refuse_wrong_stages(scenario)
    refuse_unproved(scenario)


def refuse_wrong_stages(scenario: Scenario) -> None:
    """Test each user's stage on a few samples; raises `ScenarioError` with the place and the cause of a fault."""
    for part, accumulation in dict.fromkeys((row.stage_key, row.parallel.accumulation) for row in scenario.rows):
        if isinstance(part, Named) and (why := fault_of_stage(str(part), part.part, accumulation=accumulation)):
            at = [("variant", index, "stage") for index, each in enumerate(scenario.variant) if each.stage == part]
            raise scenario.origin.error(f"{part} fails in a trial before the run: {why}", *at,
                                        ("parallel", "stages"))


def refuse_unproved(scenario: Scenario) -> None:
    """Prove each user's collective on the run's ranks; raises `ScenarioError` with rank, chunk and cause."""
    for kind in SERVING:
        for row in scenario.rows:
            name, ranks = getattr(row.parallel, kind), row.ranks
            group = row.parallel.group_of(ranks)
            if not isinstance(name, Named):
                continue
            under_test = Subject(str(name), kind, name.part.function, "in place", declared=name.part)
            for size in sorted({2 if name.part.serves(2) else group, group, ranks // group} - {1} or {1}):
                try:
                    proof = prove(under_test, size)
                except ZerosimError:
                    raise
                except Exception as error:
                    said = error_line(error, name.part.order or name.part.function)
                    raise scenario.origin.error(f"{name} on {size} ranks: {said}", ("parallel", kind)) from error
                if not proof.holds:
                    why = "\n".join([proof.faults[0].what, *str(diagnosis(proof) or "").splitlines()])
                    at = [("variant", index, kind) for index in range(len(scenario.variant))]
                    raise scenario.origin.error(f"{name} is not proved on {size} ranks: {why}", *at, ("parallel", kind))
