"""The part of pyarrow.csv that Coherer uses."""

from collections.abc import Mapping, Sequence
from io import BytesIO

from pyarrow import DataType, Table

class ConvertOptions:
    def __init__(
        self,
        *,
        column_types: Mapping[str, DataType] | None = ...,
        null_values: Sequence[str] | None = ...,
        strings_can_be_null: bool | None = ...,
    ) -> None: ...

def read_csv(input_file: BytesIO | str, convert_options: ConvertOptions | None = ...) -> Table: ...
