"""CPU and memory of processes, and a description of the machine, without other packages."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def cpu_seconds(pid: int) -> float | None:
    """CPU time of a process and its threads so far; None without /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("ascii")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_mb(pid: int) -> float | None:
    """Resident memory of a process in MB (10^6 bytes)."""
    try:
        text = Path(f"/proc/{pid}/status").read_text("ascii")
    except OSError:
        return None
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    return int(found[1]) * 1024 / 1e6 if found else None


def machine() -> dict[str, object]:
    """The machine and its system."""
    return {
        "cpu": _proc("/proc/cpuinfo", r"model name\s*:\s*(.+)") or platform.processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(int(_proc("/proc/meminfo", r"MemTotal:\s+(\d+)") or 0) * 1024 / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "load_before": [round(value, 2) for value in os.getloadavg()],
    }


def versions(java: str) -> dict[str, str]:
    """Versions of Python, Java and packages."""
    found = {"python": sys.version.split()[0], "java": java}
    for package in ("coherer", "uvloop", "protobuf", "msgspec", "pyarrow", "pyspark"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def _proc(path: str, pattern: str) -> str | None:
    try:
        found = re.search(pattern, Path(path).read_text("utf-8", "replace"))
    except OSError:
        return None
    return found[1].strip() if found else None
