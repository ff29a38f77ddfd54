"""Your own verifier: no line of the answer may be too long.

    python own_verifier.py                       # check the plug-in against its contract
    pip install -e . && mulligan run job.yaml    # use it in a job

pyproject.toml registers it under the id that job.yaml names.
"""

from mulligan.policies import Finding, Value, VerificationResult, VerificationStatus
from mulligan.tasks.ports.verifiers import Candidate

ID = "gallery.line_length"


class LineLength:
    """Every error names its line, so that the corrected prompt does, too."""

    slow = False  # True: a task of its own on the verify queue

    class Options(Value):  # a misspelt option is refused when the job is submitted
        longest: int = 72

    def __init__(self, options: Options) -> None:
        self.longest = options.longest

    def verify(self, candidate: Candidate) -> VerificationResult:
        findings = tuple(
            Finding(
                message=f"longer than {self.longest} characters",
                code="line_length",
                path=f"line {number}",
            )
            for number, line in enumerate(candidate.text.splitlines(), start=1)
            if len(line) > self.longest
        )
        return VerificationResult(
            status=VerificationStatus.FAIL if findings else VerificationStatus.PASS,
            verifier_id=ID,
            summary=f"lines that are too long: {len(findings)}",
            errors=findings,
            # The kind of failure decides how the prompt is corrected: docs/job-files.md has them.
            evidence={"kind": "reasoning_error"} if findings else {},
        )


if __name__ == "__main__":
    from mulligan.testing import check_verifier

    verifier = LineLength(LineLength.Options(longest=20))
    check_verifier(verifier, good="short\nlines", bad="a line that goes on and on and on")
    print(f"{ID} keeps the contract of a verifier")
