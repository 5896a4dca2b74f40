"""What the checks of random files share: each case is made, opened here and compared with what another program says of it."""
import argparse
import collections
import os
import random
import re
import tempfile

import waveinfer


def run(name, versions, case):
    """case(rng, folder): what the other program says, or None where it says nothing; the path to open; and what
    compares a model with that and returns what differs, or None. The status of the program: 0 where nothing differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("--cases", type=int, default=300)
    args = parser.parse_args()
    print(f"{name}: seed {args.seed}, {versions}")
    library, rng = waveinfer.Library(args.library), random.Random(args.seed)
    results, refused = collections.Counter(), collections.Counter()
    for number in range(args.cases):
        with tempfile.TemporaryDirectory() as folder:
            wanted, path, compare = case(rng, folder)
            if wanted is None:
                results["without reference"] += 1
                continue
            try:
                model = library.open(path)
            except waveinfer.Failure as failure:
                results["refused"] += 1
                refused[re.sub(r" \(byte \d+\)|^wi_model_open: (\S*/)?", "", str(failure))] += 1
                continue
            found = compare(model, wanted)
            results["other" if found else "same"] += 1
            if found:
                print(f"FAILED case {number}: {found}", flush=True)
    for message, times in refused.most_common():
        print(f"{times:4} refused: {message}")
    print(f"{name}:", ", ".join(f"{count} {result}" for result, count in sorted(results.items())))
    return results["other"] > 0 or results["same"] == 0


def distance(logits, wanted):
    """The largest difference of a logit, over the largest one."""
    return abs(logits - wanted).max() / max(1, abs(wanted).max())
