"""The accelerator script `gpu.py`, at small sizes on the default device of this machine, whatever that is."""

import json
import subprocess
import sys

from benchmarks._process import ROOT


def bench_gpu_script(record, gpu_d, rounds):
    arguments = ["--d", str(gpu_d), "--correctness-d", str(gpu_d), "--alpha", "0.5", "--rounds", str(rounds)]
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    document = json.loads(done.stdout)
    device = document["machine_info"]["described"]["accelerator"]
    extras = [entry["extra_info"] for entry in document["benchmarks"]]
    rows = [row | {"quantity": f"{extra['case']}: {row['quantity']}"} for extra in extras for row in extra["rows"]]
    record(
        f"this machine: {device}",
        [entry["stats"]["median"] for entry in document["benchmarks"] if entry["stats"]],
        rows,
    )
