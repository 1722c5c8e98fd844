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


def cpu_of(pid: int) -> float:
    """CPU time of a process so far; 0 if it is unknown."""
    return cpu_seconds(pid) or 0.0


def cpu_of_workers(pid: int) -> float:
    """CPU time so far of all descendants of a process, including those that ended."""
    children: dict[int, list[list[str]]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text("ascii", "replace").rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append([path.parent.name, *fields])
    own = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    ticks = int(own[13]) + int(own[14])  # children that ended
    found = [pid]
    while found:
        for child, *fields in children.get(found.pop(), ()):
            found.append(int(child))
            ticks += sum(map(int, fields[11:15]))
    return ticks / TICKS


def resident_mb(pid: int, kind: str = "VmRSS") -> float | None:
    """Resident memory of a process in MB (10^6 bytes).

    Args:
        pid: the process.
        kind: "VmRSS" for all, "RssAnon" without the pages of files.
    """
    try:
        text = Path(f"/proc/{pid}/status").read_text("ascii")
    except OSError:
        return None
    found = re.search(rf"{kind}:\s+(\d+) kB", text)
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
