"""What a benchmark ran on."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from palmette.learner import kernel

_CPUINFO = Path("/proc/cpuinfo")


def machine() -> dict[str, Any]:
    """Describe the machine, its load and the versions that matter."""
    cpu, found = torch.backends.cpu.get_cpu_capability(), kernel.find()
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "instructions": cpu,
        "system": platform.platform(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "palmette": _version("palmette"),
        "kernel": found if isinstance(found, str) else found.name,
        **{name: _version(name) for name in ("pfl", "jax", "fedjax")},
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _processor() -> str:
    if _CPUINFO.exists():
        for line in _CPUINFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
