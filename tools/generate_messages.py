"""Makes `src/coherer/_wire/tubemq/messages/*_pb2.py` and `.pyi` from the .proto files beside them.

    python tools/generate_messages.py            # with the grpcio-tools installed here
    python tools/generate_messages.py --isolated # in a temporary venv with the pinned version

The version is pinned because generated code runs with its own and any later protobuf runtime, never
with an older one: 1.71.2 writes code for protobuf 5.29, the oldest that Coherer supports.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

PIN = "1.71.2"
SOURCE = Path(__file__).parent.parent / "src"
PROTO = SOURCE / "coherer" / "_wire" / "tubemq" / "proto"
MESSAGES = Path("coherer/_wire/tubemq/messages")
NAMES = ("rpc", "master", "broker")


def generate(python: str) -> dict[str, str]:
    """Returns file name → text of everything generated, made by the grpcio-tools of `python`.

    The files are compiled as if they lay where their Python modules do: protobuf keeps one registry
    of file names for the whole process, and another library may well have an `rpc.proto`; and the
    classes then know their module, so that they can be pickled.
    """
    with tempfile.TemporaryDirectory() as out:
        compile_to(python, f"--python_out={out}", f"--pyi_out={out}")
        found = sorted((Path(out) / MESSAGES).glob("*_pb2.*"))
        return {path.name: strict(path.read_text("utf-8")) for path in found}


def describe(python: str) -> bytes:
    """Returns the serialized `FileDescriptorSet` of the .proto files."""
    with tempfile.TemporaryDirectory() as out:
        path = Path(out) / "all"
        compile_to(python, f"--descriptor_set_out={path}")
        return path.read_bytes()


def compile_to(python: str, *outputs: str) -> None:
    """Runs the compiler of `python`'s grpcio-tools."""
    command = [python, "-m", "grpc_tools.protoc", f"--proto_path={MESSAGES.as_posix()}={PROTO}"]
    command += [*outputs, *((MESSAGES / f"{name}.proto").as_posix() for name in NAMES)]
    subprocess.run(command, check=True)


def strict(text: str) -> str:
    """Names what is in the mappings of a stub: strict type checkers ask for it."""
    return text.replace("_Mapping]", "_Mapping[str, object]]")


def main() -> None:
    """Writes the generated files into the source tree."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--isolated", action="store_true", help="in a temporary venv, pinned")
    if not parser.parse_args().isolated:
        write(generate(sys.executable))
        return
    with tempfile.TemporaryDirectory() as directory:
        venv.create(directory, with_pip=True)
        python = str(next(Path(directory).glob("[bS][ic]*/python*")))
        subprocess.run([python, "-m", "pip", "-q", "install", f"grpcio-tools=={PIN}"], check=True)
        write(generate(python))


def write(texts: dict[str, str]) -> None:
    """Replaces the checked-in files."""
    for name, text in texts.items():
        (SOURCE / MESSAGES / name).write_text(text, "utf-8")
        print(MESSAGES / name)


if __name__ == "__main__":
    main()
