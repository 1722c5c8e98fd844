"""Envelopes that Java's `InLongMsg` wrote."""

from __future__ import annotations

from typing import NamedTuple


class JavaEnvelope(NamedTuple):
    """An envelope of Java, and what Java's own parser finds in it."""

    version: int
    created_ms: int
    envelope: str
    messages: list[tuple[dict[str, str], bytes]]


def alike(attributes: dict[str, str], *bodies: bytes) -> list[tuple[dict[str, str], bytes]]:
    """Messages with the same attributes."""
    return [(attributes, body) for body in bodies]


JAVA = [
    JavaEnvelope(
        1,
        1366070580525,
        (
            "0f010000013e1026d52d00000001002567726f757049643d672673747265616d49643d732664743d"
            "313336363037303538303232340000000f0000000003636363000000036161610f01"
        ),
        alike({"groupId": "g", "streamId": "s", "dt": "1366070580224"}, b"ccc", b"aaa"),
    ),
    JavaEnvelope(
        1,
        1366070580303,
        (
            "0f010000013e1026d44f000000010015673d31267a3deda0bdedb880266e756c3d61c08062000000"
            "11012010000000176156010010000000014d0f01"
        ),
        alike({"g": "1", "z": "😀", "nul": "a\x00b"}, b"aaaaaaaaaaaaaaaaaaaaaaa", b"M"),
    ),
    JavaEnvelope(
        2,
        1366070580440,
        (
            "0f020000013e1026d4d8000000020000000200056b3d763d770000000100000011000000000c6161"
            "616161616161616161610015673d31267a3deda0bdedb880266e756c3d61c0806200000001000000"
            "1a0000000015c685d9bef999ccab951dc946b355bb94914345efa30f02"
        ),
        [
            *alike({"k": "v=w"}, b"aaaaaaaaaaaa"),
            *alike(
                {"g": "1", "z": "😀", "nul": "a\x00b"},
                b"\xc6\x85\xd9\xbe\xf9\x99\xcc\xab\x95\x1d\xc9F\xb3U\xbb\x94\x91CE\xef\xa3",
            ),
        ],
    ),
    JavaEnvelope(
        2,
        1366070580253,
        (
            "0f020000013e1026d41d00000002000000010015673d31267a3deda0bdedb880266e756c3d61c080"
            "6200000002000000170122100000001361460100280000000710cc4cdb9d63530f02"
        ),
        alike(
            {"g": "1", "z": "😀", "nul": "a\x00b"}, b"aaaaaaaaaaaaaaaaaaa", b"\x10\xccL\xdb\x9dcS"
        ),
    ),
    JavaEnvelope(
        3,
        1366070580528,
        (
            "0f030000013e1026d530000000020000000100056b3d763d7700000031000000002c000000116262"
            "626262626262626262626262626262000000056f776e3d3100000001f3000000056f776e3d310f03"
        ),
        alike({"k": "v=w", "own": "1"}, b"bbbbbbbbbbbbbbbbb", b"\xf3"),
    ),
    JavaEnvelope(
        3,
        1366070580455,
        (
            "0f030000013e1026d4e7000000020000000100056b3d763d77000000340131c00000002d00000002"
            "6262000000056f776e3d31000000114807be477ac0f7e4a87144b663a85355c5000000056f776e3d"
            "310f03"
        ),
        alike({"k": "v=w", "own": "1"}, b"bb", b"H\x07\xbeGz\xc0\xf7\xe4\xa8qD\xb6c\xa8SU\xc5"),
    ),
    JavaEnvelope(
        4,
        1366070658000,
        (
            "0f0400000030076a184e8d0000516c958200020000004e0000001000000006636363636363000000"
            "02616100076d3d3026783d71ee010f04"
        ),
        alike(
            {
                "x": "q",
                "dt": "1366070658000",
                "cnt": "2",
                "streamId": "20109",
                "m": "0",
                "groupId": "27160",
            },
            b"cccccc",
            b"aa",
        ),
    ),
    JavaEnvelope(
        4,
        1366070643000,
        (
            "0f0400000051070f241d640001516c957300020000003f0000002400000007636363636363630000"
            "00056f776e3d3100000003636363000000056f776e3d31001467726f757049643d67267374726561"
            "6d49643d73ee010f04"
        ),
        alike(
            {"dt": "1366070643000", "cnt": "2", "streamId": "7524", "own": "1", "groupId": "3876"},
            b"ccccccc",
            b"ccc",
        ),
    ),
    JavaEnvelope(
        4,
        1366070712000,
        (
            "0f040000003c074ddf17650004516c95b80002000000840000001c000000091022151e1a468f73a2"
            "0000000bdae2c37ecf8bf4e9a88e3d00076d3d3026783d71ee010f04"
        ),
        alike(
            {"x": "q", "dt": "1366070712000", "cnt": "2", "m": "0"},
            b'\x10"\x15\x1e\x1aF\x8fs\xa2',
            b"\xda\xe2\xc3~\xcf\x8b\xf4\xe9\xa8\x8e=",
        ),
    ),
    JavaEnvelope(
        4,
        1366070936000,
        (
            "0f04000000570758aa2fcb0005516c96980002000001640000002a00000003616161000000056f77"
            "6e3d300000000db3790810652e08d7d6573d0a61000000056f776e3d30001467726f757049643d67"
            "2673747265616d49643d73ee010f04"
        ),
        alike(
            {"dt": "1366070936000", "cnt": "2", "streamId": "s", "own": "0", "groupId": "g"},
            b"aaa",
            b"\xb3y\x08\x10e.\x08\xd7\xd6W=\na",
        ),
    ),
    JavaEnvelope(
        4,
        1366070612000,
        (
            "0f040000002f274f5e1fbe0000516c9554000200000020000000132f1000000014624a0100100000"
            "0013634601000003613d62ee010f04"
        ),
        alike(
            {"dt": "1366070612000", "cnt": "2", "a": "b", "streamId": "8126", "groupId": "20318"},
            b"bbbbbbbbbbbbbbbbbbbb",
            b"ccccccccccccccccccc",
        ),
    ),
    JavaEnvelope(
        4,
        1366070859000,
        (
            "0f04000000542722b7039a0001516c964b00020000011700000027451000000025638e01006c0000"
            "00056f776e3d300000000619c9d24be82c000000056f776e3d30001467726f757049643d67267374"
            "7265616d49643d73ee010f04"
        ),
        alike(
            {"dt": "1366070859000", "cnt": "2", "streamId": "922", "own": "0", "groupId": "8887"},
            b"ccccccccccccccccccccccccccccccccccccc",
            b"\x19\xc9\xd2K\xe8,",
        ),
    ),
    JavaEnvelope(
        4,
        1366070949000,
        (
            "0f04000000522733d64a290004516c96a50004000001710000003246100000000761090110000000"
            "18635a0100780000001307623dde672b5a0a0a7a43971bdb257a09640400000004988bdf1100076d"
            "3d3026783d71ee010f04"
        ),
        alike(
            {"x": "q", "dt": "1366070949000", "cnt": "4", "m": "0"},
            b"aaaaaaa",
            b"cccccccccccccccccccccccc",
            b"\x07b=\xdeg+Z\n\nzC\x97\x1b\xdb%z\td\x04",
            b"\x98\x8b\xdf\x11",
        ),
    ),
    JavaEnvelope(
        4,
        1366070965000,
        (
            "0f040000004b274ac444750005516c96b50002000001810000002b481000000024618a01007c0000"
            "00056f776e3d300000000a7639de87e9fe599f84f9000000056f776e3d3100076d3d3026783d71ee"
            "010f04"
        ),
        [
            *alike(
                {"x": "q", "dt": "1366070965000", "cnt": "2", "m": "0", "own": "0"},
                b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            ),
            *alike(
                {"x": "q", "dt": "1366070965000", "cnt": "2", "m": "0", "own": "1"},
                b"v9\xde\x87\xe9\xfeY\x9f\x84\xf9",
            ),
        ],
    ),
]
"""Written by `InLongMsg` of InLong 2.5.0-SNAPSHOT with snappy-java 1.1.10.1: one of each kind,
out of 20,000 random ones that were compared."""
