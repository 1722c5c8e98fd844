"""The generated messages: fresh, strict, and at home in their own registry."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import inspect
import pickle
import sys
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import Message

from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.messages import broker_pb2, master_pb2, rpc_pb2
from coherer._wire.tubemq.methods import METHODS, accepts, parse
from coherer.errors import ProtocolError

ROOT = Path(__file__).parents[3]
MODULES = {"rpc": rpc_pb2, "master": master_pb2, "broker": broker_pb2}


@pytest.fixture(scope="session")
def generator() -> ModuleType:
    pytest.importorskip("grpc_tools", reason="grpcio-tools, which generates, is not installed")
    path = ROOT / "tools" / "generate_messages.py"
    spec = importlib.util.spec_from_file_location("generate_messages", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_code_is_current(generator: ModuleType) -> None:
    installed = importlib.metadata.version("grpcio-tools")
    if installed != generator.PIN:
        pytest.skip(f"grpcio-tools {installed} writes other code than {generator.PIN}")
    for name, text in generator.generate(sys.executable).items():
        checked_in = (generator.SOURCE / generator.MESSAGES / name).read_text("utf-8")
        assert checked_in == text, f"{name} is stale: run tools/generate_messages.py"


def test_the_generated_code_matches_the_proto_files(generator: ModuleType) -> None:
    """Holds for any version of grpcio-tools."""
    files = FileDescriptorSet.FromString(generator.describe(sys.executable))
    assert len(files.file) == len(MODULES)
    for name, module in MODULES.items():
        [described] = [file for file in files.file if file.name.endswith(f"/{name}.proto")]
        generated = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(generated)
        for file in (described, generated):
            for message in file.message_type:
                for field in message.field:
                    field.ClearField("json_name")
        assert described == generated, f"{name}_pb2.py is stale: run tools/generate_messages.py"


@pytest.mark.parametrize("name", MODULES)
def test_the_stubs_contain_every_field(name: str) -> None:
    module = MODULES[name]
    stub = ast.parse(Path(inspect.getfile(module)).with_suffix(".pyi").read_text("utf-8"))
    known = {
        node.name: {
            item.target.id
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        }
        for node in stub.body
        if isinstance(node, ast.ClassDef)
    }
    described = module.DESCRIPTOR.message_types_by_name
    assert set(known) == set(described)
    for message, descriptor in described.items():
        assert {field.name for field in descriptor.fields} <= known[message]


def test_every_message_is_exported() -> None:
    defined = {name for m in MODULES.values() for name in m.DESCRIPTOR.message_types_by_name}
    assert set(pb.__all__) == defined
    assert all(issubclass(getattr(pb, name), Message) for name in defined)


def test_generated_files_are_registered_under_the_package() -> None:
    for module in MODULES.values():
        assert module.DESCRIPTOR.package == "coherer._wire.tubemq"
        assert module.DESCRIPTOR.name.startswith("coherer/_wire/tubemq/")


def test_messages_can_be_pickled() -> None:
    message = pb.EventProto(opType=3, subscribeInfo=["a"])
    assert pickle.loads(pickle.dumps(message)) == message


def required(kind: type[Message]) -> list[str]:
    return [field.name for field in kind.DESCRIPTOR.fields if _is_required(field)]


def _is_required(field: object) -> bool:
    answer = getattr(field, "is_required", None)  # newer than the oldest protobuf that we run with
    return bool(getattr(field, "label", 0) == 2 if answer is None else answer)


@pytest.mark.parametrize("name", pb.__all__)
def test_required_fields_are_enforced(name: str) -> None:
    kind: type[Message] = getattr(pb, name)
    names = required(kind)
    if not names:
        assert parse(kind, b"") == kind()
        return
    with pytest.raises(ProtocolError, match=f"{name} lacks {names[0]}"):
        parse(kind, b"")


def test_required_fields_of_inner_messages_are_enforced() -> None:
    inner = pb.MasterCertificateInfo(authInfo=pb.AuthenticateInfo(userName="u"))
    data = inner.SerializePartialToString()
    with pytest.raises(ProtocolError, match=r"authInfo\.timestamp"):
        parse(pb.MasterCertificateInfo, data)


@pytest.mark.parametrize(
    "data", [b"\x0a\x02\xff\xfe", b"\x0a\x05ab", b"\xff", b"\x0b", b"\x08\x01\x0a"]
)
def test_invalid_messages_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse(pb.CloseRequestP2M, data)


def test_an_unknown_status_counts_as_missing() -> None:
    with pytest.raises(ProtocolError, match="lacks status"):
        parse(pb.ResponseHeader, b"\x08\x07")


def test_unknown_fields_are_ignored() -> None:
    known = pb.CloseRequestP2M(clientId="p")
    read = parse(pb.CloseRequestP2M, known.SerializeToString() + b"\xf8\x07\x01")
    assert read.clientId == "p"


def test_the_method_table() -> None:
    assert sorted(METHODS) == [*range(1, 10), 13, 15, 16, 17, 18, 20, 21, 22]
    for number, method in METHODS.items():
        assert method.id == number
        assert accepts(method.service, number)
        assert "Request" in method.request.__name__
        assert "Response" in method.response.__name__
    assert not accepts(4, 1)
    assert [m for m in range(30) if accepts(1, m)] == [*range(1, 10), 20, 21, 22]
    assert [m for m in range(30) if accepts(2, m)] == [11, 12, 13, 15, 16, 17, 18, 19]
    assert [m for m in range(30) if accepts(3, m)] == [11, 12, 13, 14]
