"""Math-Verify in a process of its own: a pair a line in, a verdict a line out.

Run by an interpreter that has math-verify; `verifiers` starts it, and kills it when a pair takes
too long. The reference is boxed, as its documentation asks for.
"""

import json
import sys
import time


def main() -> None:
    from math_verify import parse, verify

    for line in sys.stdin:
        gold, response = json.loads(line)
        start = time.perf_counter()
        try:
            is_equal = bool(verify(parse(f"\\boxed{{{gold}}}"), parse(response)))
        except Exception as error:  # it is measured, faults included
            is_equal = False
            print(f"{type(error).__name__}: {error}"[:200], file=sys.stderr)
        print(json.dumps([is_equal, time.perf_counter() - start]), flush=True)


if __name__ == "__main__":
    main()
