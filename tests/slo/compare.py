#!/usr/bin/env python3
"""`tokengauge slo validate` against the tools of Go, file by file.

    tests/slo/compare.py [--count 3000] [--seed 1] [--index DIR]

Part 1, with --index: every file of an index of recorded verdicts of the official SDK (`index.json` with `go_sdk_verdict`) gets the same
verdict here and from the second opinion, and each property that the SDK complains about is complained about here.
Part 2: the JSON Schema takes what `validate` takes of our fixtures, refuses what it refuses for its shape, and what `convert` writes is OpenSLO to
the second opinion.
Part 3: thousands of mutated OpenSLO files get the same verdict here and from the second opinion (tests/slo/oracle: the SDK's own YAML and
JSON libraries with its rules restated). Where they differ on purpose, DELIBERATE says why; anything else fails.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = pathlib.Path(os.environ.get("TOKENGAUGE_CACHE", ROOT / "target/real"))
ORACLE = CACHE / "bin/openslo-oracle"
AGENT = os.environ.get("TOKENGAUGE", str(ROOT / "target/release/tokengauge"))

# What is refused here and accepted there, or the reverse, on purpose: a pattern over our first error or over the oracle's, and the argument.
DELIBERATE = [
    ("nested deeper than", "bounds: nobody writes 64 levels; Go would take 10,000"),
    ("before directive", "a `%` directive in the middle of a document: libyaml ends the document there and the SDK drops the rest"),
    ("misplaced bracket", "a bracket too many behind a finished document: the SDK never reads on"),
    ("cannot start any token", "a `|` or `>` within brackets, which libyaml takes for the head of a block"),
    ("did not find expected alphabetic", "an anchor with a name that YAML 1.2 allows and libyaml does not"),
    ("excessive aliasing", "bounds"),
    ("separator", "the SDK silently drops a document whose closing `---` has trailing text and no line end; it is read here"),
]
# Plain scalars that mean something else in YAML 1.1, at the edge of a rule, or of another type.
VALUES = """y n on off yes no Y True TRUE ~ null Null .nan .inf 1_0 0o7 010 08 0x1F 0b11 +1 -1 1e3 1. .5 1:30 2026-01-01 "" '' "y" '1' 0 1 0.999 0.99999 1.0
100 99.9 -0.1 0.0 1e400 [] {} [a] {a: b} text Text "text with spaces" "a/b" a.b a_b -x x- lte gt burnrate Occurrences occurrences Timeslices 30d 30 "30 d" 0d -5d 1M 1Q 1Y
30days "d" 1h30m "30d x" +3d 1.5d 99999999999999999999d UTC Local Europe/Warsaw europe/warsaw EST5EDT GMT+1 Mars/Olympus "2026-01-01 00:00:00" "2026-02-30 00:00:00"
"2026-01-01 0:00:00" "2026-01-01 24:00:00" "2026-01-01T00:00:00Z" "2026-01-01 00:00:00.5" "2026-01-01  00:00:00" "2026-1-01 00:00:00" openslo/v1 openslo/v1alpha SLO slo Service AlertPolicy
*anchor &anchor x !!str 5 !!int "5" !!float 1 !!bool yes !!null x !custom x <<""".replace("\n", " ")


def tokens():
    return re.findall(r'"[^"]*"|\'[^\']*\'|!!\w+ \S+|!custom x|&anchor x|\{[^}]*\}|\[[^\]]*\]|\S+', VALUES)


VALUE_LIST = tokens() + ["x" * 63, "x" * 64, '"' + "é" * 1050 + '"', '"' + "é" * 1051 + '"', "|\n      block", ">-\n      folded", "# comment"]
LINE_KEY = re.compile(r"^(\s*(?:- )?)([A-Za-z]+):(.*)$")
FLOW_PAIR = re.compile(r"([A-Za-z]+): ([^,{}\[\]]+)(?=[,}])")


def mutate(text, rng):
    lines = text.split("\n")
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        kind = rng.randrange(14)
        i = rng.randrange(len(lines))
        pairs = [n for n, l in enumerate(lines) if LINE_KEY.match(l)]
        flows = [n for n, l in enumerate(lines) if FLOW_PAIR.search(l)]
        if kind == 0:
            del lines[i]
        elif kind == 1:
            lines.insert(i, lines[i])
        elif kind in (2, 3, 4) and pairs:
            i = rng.choice(pairs)
            pad, key, rest = LINE_KEY.match(lines[i]).groups()
            lines[i] = f"{pad}{key}: {rng.choice(VALUE_LIST)}"
        elif kind in (5, 6, 7) and flows:
            i = rng.choice(flows)
            found = rng.choice(list(FLOW_PAIR.finditer(lines[i])))
            value = rng.choice([v for v in VALUE_LIST if "\n" not in v and "#" not in v])
            lines[i] = lines[i][: found.start(2)] + value + lines[i][found.end(2) :]
        elif kind in (8, 9) and pairs + flows:
            where = rng.choice(pairs + flows)
            keys = list(re.finditer(r"[A-Za-z]+(?=:)", lines[where]))
            if keys:
                key = rng.choice(keys)
                word = key.group()
                new = rng.choice([word + "x", word[:-1] or "x", word.upper(), word.capitalize(), "spec", "name", "y", "5", '"' + word + '"', "null", "true", "<<"])
                lines[where] = lines[where][: key.start()] + new + lines[where][key.end() :]
        elif kind == 10 and flows:
            i = rng.choice(flows)
            found = rng.choice(list(FLOW_PAIR.finditer(lines[i])))
            extra = rng.choice([found.group() + ", ", "extra: 1, ", "name: other, ", "spec: {}, ", "kind: SLO, ", "value: 0, ", "op: '', ", "target: 0.5, ", "description: null, ", "\n\t", "description: 'a\n\tb', "])
            lines[i] = lines[i][: found.start()] + extra + lines[i][found.start() :]
        elif kind == 11:
            lines.insert(i, rng.choice(["---", "--- # comment", "...", "# comment", "", "---x", "%YAML 1.1", "-", "\t"]))
        elif kind == 12 and rng.random() < 0.3 and lines[i].count(" ") > 2:
            # A line break where a blank was, and any indentation behind it.
            at = rng.choice([n for n, c in enumerate(lines[i]) if c == " "])
            lines[i] = lines[i][:at] + "\n" + rng.choice(["", " ", "  ", "        ", "\t"]) + lines[i][at + 1 :]
        elif kind == 12 and rng.random() < 0.3:
            lines[i] = "\t" + lines[i].lstrip()
        elif kind == 12:
            lines[i] = rng.choice([" ", "  ", ""]) + lines[i] if rng.random() < 0.5 else lines[i].removeprefix("  ")
        elif kind == 13:
            at = rng.randrange(len(lines[i]) + 1)
            lines[i] = lines[i][:at] + rng.choice(["'", '"', ":", " ", "#", "-", "{", "}", "[", "]", ",", "&a ", "*a", "!", "|", "é", "\\"]) + lines[i][at:]
    return "\n".join(lines)


def ours(path):
    run = subprocess.run([AGENT, "slo", "validate", "--format", "json", str(path)], capture_output=True, text=True, timeout=60)
    if run.returncode not in (0, 1):
        return None, [f"exit {run.returncode}: {run.stderr[:200]}"]
    report = json.loads(run.stdout)
    errors = [e for f in report["files"] for e in f["errors"]]
    return run.returncode == 0, errors


def oracle(paths):
    run = subprocess.run([str(ORACLE)], input="\n".join(map(str, paths)), capture_output=True, text=True, check=True)
    return [json.loads(line) for line in run.stdout.splitlines()]


SHORT = "slos:\n  service: chat\n  objectives:\n    - {}\n"
# Short forms that are wrong in their shape: an editor must see it.
WRONG = [
    SHORT.format("ttft p95 <= 800ms") + "  windw: 30d\n",
    SHORT.format("{gaol: ttft p95 <= 800ms}"),
    SHORT.format("{goal: ttft p95 <= 800ms, policy: {cancelled: maybe}}"),
    SHORT.format("{goal: ttft p95 <= 800ms, when: {modle: x}}"),
    SHORT.format("{goal: ttft p95 <= 800ms, when: {stream: 'true'}}"),
    "slos: {objectives: [availability >= 99%]}\n",
]


def schema(failed):
    """The schema against a real validator; a file and its conversion against the second opinion."""
    sys.path.insert(0, str(CACHE / "slo-python"))
    import jsonschema  # noqa: PLC0415
    import yaml  # noqa: PLC0415

    def run(*words):
        return subprocess.run([AGENT, "slo", *words], capture_output=True, text=True, timeout=60, check=True).stdout

    spec = json.loads(run("schema"))
    jsonschema.Draft202012Validator.check_schema(spec)
    validator = jsonschema.Draft202012Validator(spec)
    good = bad = 0

    def expect(right, what):
        nonlocal good, bad
        good, bad = good + right, bad + (not right)
        if not right:
            failed.append(what)

    with tempfile.TemporaryDirectory() as folder:
        # PyYAML takes no tabs, which layout.yaml is about.
        for path in sorted(p for p in (ROOT / "tests/fixtures/slo").glob("*/*.*") if p.suffix != ".scenario" and p.name != "layout.yaml"):
            # PyYAML reads YAML 1.1, as Go does.
            documents = [d for d in yaml.safe_load_all(path.read_text()) if d is not None]
            for document in [d for one in documents for d in (one if isinstance(one, list) else [one])]:
                errors = [e.message for e in validator.iter_errors(document)]
                expect(not errors, f"{path.name}: the schema refuses what is valid: {str(errors)[:300]}")
            if path.parent.name == "short":
                converted = pathlib.Path(folder) / path.name
                converted.write_text(run("convert", str(path)))
                second = oracle([converted])[0]
                expect(second["valid"], f"{path.name}: what convert writes is no OpenSLO: {second}")
                for document in yaml.safe_load_all(converted.read_text()):
                    errors = [e.message for e in validator.iter_errors(document)]
                    expect(not errors, f"{path.name}: the schema refuses what convert writes: {str(errors)[:300]}")
        ours_text = (ROOT / "tests/fixtures/slo/openslo/ours.yaml").read_text()
        wrong = [*WRONG, ours_text.replace("sli: ttft, max", "sli: tttf, max"), ours_text.replace("max: 800ms", "maxx: 800ms"), ours_text.replace("timeWindow:", "timeWindows:")]
        for text in wrong:
            path = pathlib.Path(folder) / "wrong.yaml"
            path.write_text(text)
            valid, _ = ours(path)
            taken = all(validator.is_valid(d) for d in yaml.safe_load_all(text))
            expect(not valid and not taken, f"taken by {'validate' if valid else 'the schema'}: {text[:200]!r}")
    return good, bad


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--count", type=int, default=3000)
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--index", type=pathlib.Path)
    args.add_argument("--keep", type=pathlib.Path, help="keeps the files that differ in this folder")
    args = args.parse_args()
    passed, failed, deliberate = 0, [], {}
    pool = concurrent.futures.ThreadPoolExecutor(2)

    if args.index:
        entries = [f for f in json.loads((args.index / "index.json").read_text())["files"] if f.get("go_sdk_verdict")]
        paths = [args.index / f["file"] for f in entries]
        for entry, path, (valid, errors), second in zip(entries, paths, pool.map(ours, paths), oracle(paths)):
            recorded = entry["go_sdk_verdict"]
            v1 = "openslo/v1alpha" not in path.read_text() and "v2alpha" not in path.read_text()
            # The SDK's v1alpha rules name the property timeWindow, its field is timeWindows.
            told = {e.get("path", "").replace("timeWindows", "timeWindow") for e in errors}
            missing = [e["property"] for e in recorded.get("errors", []) if e["property"] not in told]
            if valid != recorded["valid"]:
                failed.append(f"{entry['file']}: {valid}, recorded {recorded['valid']}: {errors}")
            elif missing:
                failed.append(f"{entry['file']}: nothing about {missing}")
            elif v1 and second["valid"] != recorded["valid"]:
                failed.append(f"{entry['file']}: the second opinion is wrong: {second}")
            else:
                passed += 1
        print(f"recorded verdicts: {passed} of {len(entries)} the same")

    good, bad = schema(failed)
    passed += good
    print(f"schema and convert: {good} right, {bad} wrong")

    rng = random.Random(args.seed)
    seeds = sorted(p for p in (ROOT / "tests/fixtures/slo/openslo").iterdir() if p.name != "ours.yaml")
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for n in range(args.count):
            seed = rng.choice(seeds)
            path = pathlib.Path(folder) / f"{n}{seed.suffix}"
            path.write_text(mutate(seed.read_text(), rng))
            paths.append(path)
        for path in seeds:
            paths.append(path)
        valid_ones = 0
        for path, (valid, errors), second in zip(paths, pool.map(ours, paths), oracle(paths)):
            valid_ones += second["valid"]
            if valid == second["valid"]:
                passed += 1
                continue
            said = "; ".join(str(e.get("message", e)) if isinstance(e, dict) else e for e in errors) + " " + second["why"]
            text = path.read_text()
            if valid and re.search(r"\n---[^\n]+\Z", text):
                said += " separator"
            if not valid and re.search(r"\}\n[\[\]{},]+---\n", text):
                said += " misplaced bracket"
            why = next((why for pattern, why in DELIBERATE if pattern in said), None)
            if valid is not None and why:
                deliberate.setdefault(why, []).append(f"{path.name}: here {valid}: {said[:160]}")
                if args.keep:
                    args.keep.mkdir(parents=True, exist_ok=True)
                    (args.keep / path.name).write_text(text)
                continue
            failed.append(f"{path.name}: here {valid}, there {second['valid']}: {said[:300]}")
            if args.keep:
                args.keep.mkdir(parents=True, exist_ok=True)
                (args.keep / path.name).write_text(text)
    for line in failed[:40]:
        print("FAILED", line)
    for why, files in deliberate.items():
        print(f"deliberately different, {len(files)}: {why}", *files[:5], sep="\n    ")
    print(f"{args.count} mutated files, {valid_ones} of them valid")
    print(f"{passed} passed, {len(failed)} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
