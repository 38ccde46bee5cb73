"""Start all nodes on this machine, each as a process of its own, and wait until the training is over."""

import subprocess
import sys
import time
from pathlib import Path


def serve(kit):
    """Start one node, as `palmette serve --kit ... --data ...` does on its own machine; what it says is in its kit."""
    own = Path("samples", f"{kit.name}.csv")
    data = ["--data", own] if own.exists() else []  # a device's; servers have none
    with (kit / "output.txt").open("w") as output:
        words = [sys.executable, "-m", "palmette", "serve", "--kit", kit, *data]
        return subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT)


nodes = {kit: serve(kit) for kit in sorted(file.parent for file in Path("kits").glob("*/node.json"))}
try:
    while None in (ended := {kit: node.poll() for kit, node in nodes.items()}).values():
        if failed := [kit for kit, code in ended.items() if code]:
            sys.exit(f"{failed[0]} failed: {(failed[0] / 'output.txt').read_text()}")
        time.sleep(0.1)
finally:  # also after Ctrl-C
    for node in nodes.values():
        node.terminate()
        node.wait()
print((Path("kits/server") / "output.txt").read_text())
