"""The grade of one submitted function: causes come from a separate process, points from this one."""

from zerosim.errors import ScenarioError
from zerosim.teach.grading.channel import MOST_TOLD, Ended, asked_apart
from zerosim.teach.grading.confirmed import FORGED, confirmed
from zerosim.teach.grading.contained import MARKER, Learner
from zerosim.teach.grading.exercises import PATIENCE_SECONDS, Grade, cleaned, from_document, still_busy, unwritten


def grade_apart(
    file: str, name: str, patience_seconds: float = PATIENCE_SECONDS, learner: Learner = MARKER
) -> Grade:
    """The grade of one function, in a learner's process that ends with this one or after `patience_seconds`.

    A function that is not yet written is not run. Raises `ScenarioError` if the file cannot be imported.
    """
    line = unwritten(file, name)
    if line is not None:
        return Grade(name, "not yet written", complaint=f"line {line} still raises NotImplementedError")
    try:
        answer = asked_apart("zerosim.teach.grading.examination", [file, name], patience_seconds, learner)
    except TimeoutError:
        return Grade(name, "does not end", complaint=still_busy(patience_seconds, file, ""))
    except Ended as error:
        if error.out_of_patience:
            return Grade(name, "does not end", complaint=still_busy(patience_seconds, file, error.complained))
        return Grade(name, "does not hold yet", complaint=cleaned(str(error)))
    try:
        if "unusable" in answer:
            raise ScenarioError(cleaned(answer["unusable"], MOST_TOLD).replace("\n", " "), file=file)
        grade = from_document(answer)
    except (KeyError, TypeError, ValueError):
        return Grade(name, "does not hold yet", complaint=FORGED)
    if grade.function != name:
        return Grade(name, "does not hold yet", complaint=FORGED)
    return confirmed(grade, file, learner)
